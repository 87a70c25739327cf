"""`draw`: the format by suffix, and the selection of a layer and a head."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from regard.diagrams import draw, heatmap, save
from regard.errors import UserError

SOURCE, TARGET = list("abcde"), list("xyz")
WEIGHTS = np.random.default_rng(0).dirichlet(np.ones(5), (2, 3, 3))


def test_default_draws_all_and_layer_draws_its_heads(tmp_path: Path) -> None:
    draw(tmp_path / "all.svg", WEIGHTS, SOURCE, TARGET)
    text = (tmp_path / "all.svg").read_text("utf-8")
    assert all(f">{name}<" in text for name in ("layer 1", "layer 2", "head 1", "head 3"))

    draw(tmp_path / "two.svg", WEIGHTS, SOURCE, TARGET, layer=2)
    text = (tmp_path / "two.svg").read_text("utf-8")
    assert ">layer 2<" in text
    assert ">head 3<" in text
    assert ">layer 1<" not in text


def test_layer_and_head_draw_a_single_matrix(tmp_path: Path) -> None:
    draw(tmp_path / "a.png", WEIGHTS, SOURCE, TARGET, layer=2, head=3, theme="dark")
    figure = heatmap(WEIGHTS[1, 2], SOURCE, TARGET, note="layer 2, head 3", theme="dark")
    save(figure, tmp_path / "b.png")
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()


def test_the_colour_bar_names_what_it_shows(tmp_path: Path) -> None:
    weights = 3 * WEIGHTS[1, 2]
    save(heatmap(weights, SOURCE, TARGET, quantity="nats"), tmp_path / "a.svg")
    assert ">nats<" in (tmp_path / "a.svg").read_text("utf-8")
    save(heatmap(weights, SOURCE, TARGET), tmp_path / "b.svg")
    assert ">attention weight<" in (tmp_path / "b.svg").read_text("utf-8")


def test_html_opens_on_the_given_layer_and_head(tmp_path: Path) -> None:
    draw(tmp_path / "a.html", WEIGHTS, SOURCE, TARGET, layer=2, head=3)
    text = (tmp_path / "a.html").read_text("utf-8")
    assert '"layer":2,"head":3' in text


def test_the_mechanism_names_the_axes_and_the_note(tmp_path: Path) -> None:
    """Given the attention of a translation, by mechanism."""
    attention = {"cross": WEIGHTS, "decoder": np.full((1, 1, 3, 3), 1 / 3)}
    draw(tmp_path / "a.svg", attention, SOURCE, TARGET, mechanism="decoder", title="ein Satz")
    text = (tmp_path / "a.svg").read_text("utf-8")
    names = ("ein Satz", "decoder self-attention", "target so far (keys)", "target (queries)")
    assert all(f">{name}<" in text for name in names)
    assert ">&lt;begin&gt;<" in text
    assert ">e<" not in text  # a source token
    with pytest.raises(UserError, match='no "encoder" attention: it has cross, decoder'):
        draw(tmp_path / "b.svg", attention, SOURCE, TARGET, mechanism="encoder")


@pytest.mark.parametrize("suffix", ["png", "html"])
@pytest.mark.parametrize(
    ("selection", "message"),
    [
        ({"layer": 3}, "no layer 3: this attention has layers 1 to 2"),
        ({"layer": 0}, "no layer 0"),
        ({"head": 4}, "no head 4: this attention has heads 1 to 3"),
        ({"head": -1}, "no head -1"),
    ],
)
def test_out_of_range_error_gives_the_range(
    tmp_path: Path, suffix: str, selection: dict[str, int], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        draw(tmp_path / f"a.{suffix}", WEIGHTS, SOURCE, TARGET, **selection)
    assert os.listdir(tmp_path) == []


def test_unknown_suffix_error_lists_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"a\.gif.*\.png, \.svg, \.pdf, \.html"):
        draw(tmp_path / "a.gif", WEIGHTS, SOURCE, TARGET)


def test_matplotlib_is_imported_only_for_figures_and_pyplot_never(tmp_path: Path) -> None:
    code = f"""
import sys
import regard.diagrams
regard.diagrams.draw({str(tmp_path / "a.html")!r}, [[[[1.0]]]], ["a"], ["b"])
assert "matplotlib" not in sys.modules
regard.diagrams.draw({str(tmp_path / "a.png")!r}, [[[[1.0]]]], ["a"], ["b"])
assert "matplotlib" in sys.modules
assert "matplotlib.pyplot" not in sys.modules
"""
    import regard.diagrams

    root = str(Path(regard.diagrams.__file__).parents[2])
    environment = {**os.environ, "PYTHONPATH": root}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment, timeout=60)
