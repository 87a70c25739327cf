"""Ablation figures: their text in both themes, and all of it inside the figure."""

from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text

from regard.diagrams import THEMES, save
from regard.diagrams.ablation import Bar, bars, format_signed, head_map

TITLE = "Head ablation: increase in loss without each head"
INCREASES = np.random.default_rng(0).gamma(0.7, 0.03, (2, 4))
SHAPES = {
    "one": {"cross-attention": (1, 1)},
    "typical": {"encoder self-attention": (2, 4), "cross-attention": (3, 4)},
    "many": dict.fromkeys(("encoder self-attention", "decoder", "cross-attention"), (12, 16)),
}
GROUPS = {
    "cross-attention: uniform weights": [Bar("layer 1", 1.2, 0.01, "BLEU 1.2 (−30.1)")],
    "cross-attention: one source token masked for each target token": [
        Bar("most-attended token", 2.2, 0.02),
        Bar("random other token", -0.02, 0.1, highlighted=False),
    ],
}


def texts(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.findobj(Text) if text.get_text()]


def assert_inside_figure(figure: Figure) -> None:
    figure.draw_without_rendering()
    bounds = figure.bbox
    for text in figure.findobj(Text):
        if text.get_text() and text.get_visible():
            box = text.get_window_extent()
            assert box.x0 >= 0, text
            assert box.y0 >= 0, text
            assert box.x1 <= bounds.x1, text
            assert box.y1 <= bounds.y1, text


@pytest.mark.parametrize(("value", "text"), [(0.123, "+0.12"), (-0.5, "−0.50"), (-0.001, "0.00")])
def test_numbers_have_a_sign_unless_they_round_to_zero(value: float, text: str) -> None:
    assert format_signed(value) == text


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("shape", SHAPES)
def test_head_map_labels(shape: str, theme: str) -> None:
    random = np.random.default_rng(1)
    increases = {name: random.gamma(0.7, 0.03, size) for name, size in SHAPES[shape].items()}
    figure = head_map(increases, title=TITLE, note="a run, test", theme=theme)
    drawn = texts(figure)
    assert {TITLE, "a run, test", "head", "layer", *increases} <= set(drawn)
    assert "increase in loss\n(nats per token)" in drawn
    assert figure.get_size_inches()[0] <= 12.9
    assert_inside_figure(figure)


def test_cells_show_their_values() -> None:
    drawn = texts(head_map({"cross-attention": INCREASES}, title=TITLE))
    assert all(format_signed(value, 3) in drawn for value in INCREASES.ravel())


def test_missing_heads_are_blank(tmp_path: Path) -> None:
    increases = INCREASES.copy()
    increases[1, 2:] = np.nan
    figure = head_map({"cross-attention": increases}, title=TITLE)
    assert "nan" not in " ".join(texts(figure))
    save(figure, tmp_path / "a.png")


def colour_limits(figure: Figure) -> tuple[float, float]:
    return figure.axes[-1].get_ylim()


def test_colour_scale_starts_at_zero_unless_ablation_decreases_the_loss() -> None:
    increases = INCREASES.copy()
    assert colour_limits(head_map({"a": increases}, title=TITLE)) == pytest.approx(
        (0, increases.max())
    )
    increases[0, 0] = -0.01 * increases.max()
    assert colour_limits(head_map({"a": increases}, title=TITLE))[0] == 0
    increases[0, 0] = -2 * increases.max()
    low, high = colour_limits(head_map({"a": increases}, title=TITLE))
    assert (low, high) == pytest.approx((increases.min(), -increases.min()))
    assert colour_limits(head_map({"a": 0 * INCREASES}, title=TITLE))[0] == 0


@pytest.mark.parametrize("theme", THEMES)
def test_bar_labels(theme: str) -> None:
    figure = bars(GROUPS, title="Attention ablation", note="a run, test", theme=theme)
    drawn = texts(figure)
    assert {*GROUPS, "layer 1", "most-attended token", "random other token", "a run, test"} <= set(
        drawn
    )
    assert {"+1.20   BLEU 1.2 (−30.1)", "+2.20", "−0.02"} <= set(drawn)
    assert any("nats per token" in text for text in drawn)
    assert len({axis.get_xlim() for axis in figure.axes}) == 1  # one scale
    assert_inside_figure(figure)


def test_equal_figures_give_equal_bytes(tmp_path: Path) -> None:
    for name in ("a.svg", "b.svg"):
        save(bars(GROUPS, title="T"), tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
