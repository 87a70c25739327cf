"""Pictures of ablations: what they say, in both themes, and that no text leaves the paper."""

from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text

from regard.diagrams import THEMES, save
from regard.diagrams.ablation import Bar, bars, head_map, signed

TITLE = "Which heads matter? The loss with one of them silenced"
RISES = np.random.default_rng(0).gamma(0.7, 0.03, (2, 4))
SHAPES = {
    "one": {"cross-attention": (1, 1)},
    "usual": {"encoder self-attention": (2, 4), "cross-attention": (3, 4)},
    "many": dict.fromkeys(("encoder self-attention", "decoder", "cross-attention"), (12, 16)),
}
GROUPS = {
    "cross-attention: equal weights": [Bar("layer 1", 1.2, 0.01, "BLEU 1.2 (−30.1)")],
    "cross-attention: one source word hidden from each target token": [
        Bar("most-attended word", 2.2, 0.02),
        Bar("random other word", -0.02, 0.1, strong=False),
    ],
}


def texts(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.findobj(Text) if text.get_text()]


def assert_on_paper(figure: Figure) -> None:
    figure.draw_without_rendering()
    paper = figure.bbox
    for text in figure.findobj(Text):
        if text.get_text() and text.get_visible():
            box = text.get_window_extent()
            assert box.x0 >= 0, text
            assert box.y0 >= 0, text
            assert box.x1 <= paper.x1, text
            assert box.y1 <= paper.y1, text


@pytest.mark.parametrize(("value", "text"), [(0.123, "+0.12"), (-0.5, "−0.50"), (-0.001, "0.00")])
def test_numbers_have_a_sign_unless_they_are_nothing(value: float, text: str) -> None:
    assert signed(value) == text


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_map_of_heads(shape: str, theme: str) -> None:
    random = np.random.default_rng(1)
    rises = {name: random.gamma(0.7, 0.03, size) for name, size in SHAPES[shape].items()}
    figure = head_map(rises, title=TITLE, note="a run, test", theme=theme)
    said = texts(figure)
    assert {TITLE, "a run, test", "head", "layer", *rises} <= set(said)
    assert "rise of the loss\n(nats a token)" in said
    assert figure.get_size_inches()[0] <= 12.9
    assert_on_paper(figure)


def test_cells_hold_their_numbers() -> None:
    said = texts(head_map({"cross-attention": RISES}, title=TITLE))
    assert all(signed(value, 3) in said for value in RISES.ravel())


def test_a_layer_of_fewer_heads_leaves_blanks(tmp_path: Path) -> None:
    rises = RISES.copy()
    rises[1, 2:] = np.nan
    figure = head_map({"cross-attention": rises}, title=TITLE)
    assert "nan" not in " ".join(texts(figure))
    save(figure, tmp_path / "a.png")


def ends(figure: Figure) -> tuple[float, float]:
    return figure.axes[-1].get_ylim()


def test_the_scale_starts_at_no_change_unless_silence_helps() -> None:
    rises = RISES.copy()
    assert ends(head_map({"a": rises}, title=TITLE)) == pytest.approx((0, rises.max()))
    rises[0, 0] = -0.01 * rises.max()
    assert ends(head_map({"a": rises}, title=TITLE))[0] == 0
    rises[0, 0] = -2 * rises.max()
    low, high = ends(head_map({"a": rises}, title=TITLE))
    assert (low, high) == pytest.approx((rises.min(), -rises.min()))
    assert ends(head_map({"a": 0 * RISES}, title=TITLE))[0] == 0


@pytest.mark.parametrize("theme", THEMES)
def test_bars(theme: str) -> None:
    figure = bars(GROUPS, title="Is what we see what matters?", note="a run, test", theme=theme)
    said = texts(figure)
    assert {*GROUPS, "layer 1", "most-attended word", "random other word", "a run, test"} <= set(
        said
    )
    assert {"+1.20   BLEU 1.2 (−30.1)", "+2.20", "−0.02"} <= set(said)
    assert any("nats a token" in text for text in said)
    assert len({axis.get_xlim() for axis in figure.axes}) == 1  # one scale
    assert_on_paper(figure)


def test_the_same_bytes_for_the_same_figures(tmp_path: Path) -> None:
    for name in ("a.svg", "b.svg"):
        save(bars(GROUPS, title="T"), tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
