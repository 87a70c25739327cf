"""Many sentences at once: pictures, their page, and alignments."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch

from regard.diagrams.gallery import Item, gallery, pharaoh
from regard.errors import UserError

SOURCE, TARGET = ["ein", "<unk>", "Hund", "<end>"], ["a", "dog", "<end>"]


def weights(rows, layers: int = 1, heads: int = 1) -> np.ndarray:
    return np.broadcast_to(np.array(rows, dtype=float), (layers, heads, *np.shape(rows)))


LOOK = weights([[0.7, 0.1, 0.1, 0.1], [0.1, 0.1, 0.2, 0.6], [0.0, 0.0, 0.0, 1.0]])


def item(**changes) -> Item:
    plain = {"text": "ein x Hund", "output": "a dog", "source": SOURCE, "target": TARGET}
    return Item(**(plain | {"weights": LOOK} | changes))


def test_a_picture_each_and_a_page_that_shows_them(tmp_path: Path):
    items = [item(), item(reference="a x dog"), item(weights=torch.tensor(LOOK.copy()))]
    page = gallery(tmp_path / "new" / "folder", items, title="run: cross")
    assert page == tmp_path / "new" / "folder" / "index.html"
    names = {path.name for path in page.parent.iterdir()}
    assert names == {"index.html", "0001.png", "0002.png", "0003.png"}
    text = page.read_text("utf-8")
    assert re.findall(r'<img src="([^"]+)"', text) == ["0001.png", "0002.png", "0003.png"]
    assert text.count("<dt>reference</dt><dd>a x dog</dd>") == 1
    assert text.count("<dt>source</dt><dd>ein x Hund</dd>") == 3
    assert "<h1>run: cross</h1>" in text
    for number in (1, 2, 3):
        assert (page.parent / f"000{number}.png").read_bytes().startswith(b"\x89PNG")
    assert not re.search(r"(src|href)=.?(https?:)?//", text)  # it works offline


def test_no_text_becomes_markup(tmp_path: Path):
    nasty = "<script>alert(\"x\")</script> & 'y'"
    given = item(text=nasty, output=nasty, reference=nasty)
    text = gallery(tmp_path, [given], title=nasty).read_text("utf-8")
    assert "<script" not in text
    assert text.count("&lt;script&gt;") == 7  # title and heading, three rows, twice in alt
    alt = re.search(r'alt="([^"]*)"', text)
    assert alt
    assert "&quot;x&quot;" in alt[1]


def test_layer_head_and_theme_are_passed_on(tmp_path: Path):
    many = item(weights=weights(LOOK[0, 0], layers=2, heads=3))
    gallery(tmp_path / "all", [many], title="x")
    gallery(tmp_path / "one", [many], title="x", layer=2, head=3)
    gallery(tmp_path / "dark", [many], title="x", layer=2, head=3, theme="dark")
    sizes = {(tmp_path / name / "0001.png").read_bytes() for name in ("all", "one", "dark")}
    assert len(sizes) == 3
    with pytest.raises(UserError, match="layer"):
        gallery(tmp_path / "none", [many], title="x", layer=3)


# --- alignments -----------------------------------------------------------------------------------


def test_each_produced_token_has_the_source_token_it_looked_at_most():
    # "dog" looks most at <end>, which is no word: Hund is next.
    assert pharaoh(LOOK, SOURCE, TARGET) == "0-0 2-1"


def test_an_unknown_word_is_a_word():
    look = weights([[0.1, 0.8, 0.1, 0.0], [0.0, 0.0, 1.0, 0.0]])
    assert pharaoh(look, SOURCE, ["<unk>", "dog"]) == "1-0 2-1"


def test_layers_and_heads_are_averaged():
    first = weights([[0.9, 0.0, 0.1, 0.0]])
    second = weights([[0.0, 0.0, 1.0, 0.0]])
    for axis in (0, 1):
        both = np.concatenate([first, second], axis=axis)
        assert pharaoh(both, SOURCE, ["dog"]) == "2-0"
    assert pharaoh(torch.tensor(first), SOURCE, ["dog"]) == "0-0"


def test_numbers_count_tokens_special_ones_included_in_the_counting():
    look = weights([[0.5, 0.5], [0.4, 0.6]])
    assert pharaoh(look, ["<begin>", "x"], ["<begin>", "y"]) == "1-1"


def test_nothing_to_align():
    assert pharaoh(weights([[1.0], [1.0]]), ["<end>"], ["a", "<end>"]) == ""
    assert pharaoh(weights([[0.5, 0.5]]), ["a", "<end>"], ["<end>"]) == ""


@pytest.mark.parametrize("shape", [(3, 4), (1, 3, 4), (1, 1, 4, 3), (1, 1, 3, 5)])
def test_weights_must_fit_the_tokens(shape):
    with pytest.raises(UserError):
        pharaoh(np.full(shape, 0.25), SOURCE, TARGET)
