"""Galleries of translations, and word alignments."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch

from regard.diagrams.gallery import Item, pharaoh_alignment, write_gallery
from regard.errors import UserError

SOURCE, TARGET = ["ein", "<unk>", "Hund", "<end>"], ["a", "dog", "<end>"]


def weights(rows, layers: int = 1, heads: int = 1) -> np.ndarray:
    return np.broadcast_to(np.array(rows, dtype=float), (layers, heads, *np.shape(rows)))


WEIGHTS = weights([[0.7, 0.1, 0.1, 0.1], [0.1, 0.1, 0.2, 0.6], [0.0, 0.0, 0.0, 1.0]])


def item(**changes) -> Item:
    defaults = {"text": "ein x Hund", "output": "a dog", "source": SOURCE, "target": TARGET}
    return Item(**(defaults | {"attention": WEIGHTS} | changes))


def test_one_picture_per_item_and_an_index(tmp_path: Path):
    items = [item(), item(reference="a x dog"), item(attention=torch.tensor(WEIGHTS.copy()))]
    page = write_gallery(tmp_path / "new" / "folder", items, title="run: cross")
    assert page == tmp_path / "new" / "folder" / "index.html"
    names = {path.name for path in page.parent.iterdir()}
    assert names == {"index.html", "0001.png", "0002.png", "0003.png"}
    text = page.read_text("utf-8")
    assert re.findall(r'<img src="([^"]+)"', text) == ["0001.png", "0002.png", "0003.png"]
    assert text.count("<dt>reference</dt><dd><bdi>a x dog</bdi></dd>") == 1
    assert text.count("<dt>source</dt><dd><bdi>ein x Hund</bdi></dd>") == 3
    assert '<h1 dir="auto">run: cross</h1>' in text
    for number in (1, 2, 3):
        assert (page.parent / f"000{number}.png").read_bytes().startswith(b"\x89PNG")
    assert not re.search(r"(src|href)=.?(https?:)?//", text)  # works offline


def test_text_is_escaped(tmp_path: Path):
    hostile = "<script>alert(\"x\")</script> & 'y'"
    translation = item(text=hostile, output=hostile, reference=hostile)
    text = write_gallery(tmp_path, [translation], title=hostile).read_text("utf-8")
    assert "<script" not in text
    assert text.count("&lt;script&gt;") == 7  # title and heading, three rows, twice in alt
    alt = re.search(r'alt="([^"]*)"', text)
    assert alt
    assert "&quot;x&quot;" in alt[1]


def test_layer_head_and_theme_are_passed_to_draw(tmp_path: Path):
    multi_head = item(attention=weights(WEIGHTS[0, 0], layers=2, heads=3))
    write_gallery(tmp_path / "all", [multi_head], title="x")
    write_gallery(tmp_path / "one", [multi_head], title="x", layer=2, head=3)
    write_gallery(tmp_path / "dark", [multi_head], title="x", layer=2, head=3, theme="dark")
    contents = {(tmp_path / name / "0001.png").read_bytes() for name in ("all", "one", "dark")}
    assert len(contents) == 3
    with pytest.raises(UserError, match="layer"):
        write_gallery(tmp_path / "none", [multi_head], title="x", layer=3)


# --- alignments -----------------------------------------------------------------------------------


def test_each_target_token_aligns_with_its_most_attended_source_token():
    # "dog" attends most to <end>, which is not aligned: Hund is next.
    assert pharaoh_alignment(WEIGHTS, SOURCE, TARGET) == "0-0 2-1"


def test_unk_is_aligned():
    attention = weights([[0.1, 0.8, 0.1, 0.0], [0.0, 0.0, 1.0, 0.0]])
    assert pharaoh_alignment(attention, SOURCE, ["<unk>", "dog"]) == "1-0 2-1"


def test_layers_and_heads_are_averaged():
    first = weights([[0.9, 0.0, 0.1, 0.0]])
    second = weights([[0.0, 0.0, 1.0, 0.0]])
    for axis in (0, 1):
        both = np.concatenate([first, second], axis=axis)
        assert pharaoh_alignment(both, SOURCE, ["dog"]) == "2-0"
    assert pharaoh_alignment(torch.tensor(first), SOURCE, ["dog"]) == "0-0"


def test_special_tokens_count_as_positions():
    attention = weights([[0.5, 0.5], [0.4, 0.6]])
    assert pharaoh_alignment(attention, ["<begin>", "x"], ["<begin>", "y"]) == "1-1"


def test_no_alignable_tokens():
    assert pharaoh_alignment(weights([[1.0], [1.0]]), ["<end>"], ["a", "<end>"]) == ""
    assert pharaoh_alignment(weights([[0.5, 0.5]]), ["a", "<end>"], ["<end>"]) == ""


@pytest.mark.parametrize("shape", [(3, 4), (1, 3, 4), (1, 1, 4, 3), (1, 1, 3, 5)])
def test_weights_must_match_the_tokens(shape):
    with pytest.raises(UserError):
        pharaoh_alignment(np.full(shape, 0.25), SOURCE, TARGET)
