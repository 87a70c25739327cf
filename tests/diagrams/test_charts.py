"""Line charts: what is drawn, on which axis scale, and labels that never overlap."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.diagrams.charts import Line, chart, separate
from regard.diagrams.themes import THEMES

X = [0.01, 0.1, 1.0]


def lines(count: int) -> list[Line]:
    return [Line(f"system {n}", X, [[n, n + 2.0], [n + 1.0], [n + 3.0]]) for n in range(count)]


def draw(count: int = 3, **options):
    options = {"x_label": "fraction", "title": "Quality", "points": True} | options
    return chart({"BLEU": lines(count), "bits": lines(count)}, **options)


@pytest.mark.parametrize("theme", THEMES)
def test_each_line_has_a_mean_a_band_points_and_a_label(theme):
    figure = draw(ticks=X, theme=theme)
    assert figure.get_facecolor()[:3] == pytest.approx(rgb(THEMES[theme].background))
    assert [axis.get_ylabel() for axis in figure.axes] == ["BLEU", "bits"]
    for axis in figure.axes:
        assert axis.get_xlabel() == "fraction"
        data = [line for line in axis.lines if line.get_transform() == axis.transData]
        means, points = (
            [line for line in data if (line.get_marker() == "o") == dots] for dots in (False, True)
        )
        for n, (mean, dots) in enumerate(zip(means, points, strict=True)):
            assert list(mean.get_ydata()) == [n + 1, n + 1, n + 3]
            assert list(dots.get_ydata()) == [n, n + 2, n + 1, n + 3]
            assert list(dots.get_xdata()) == [0.01, 0.01, 0.1, 1.0]
            assert mean.get_color() == dots.get_color() == THEMES[theme].series[n]
        assert len(axis.collections) == 3
        labels = {text.get_text(): text.get_position() for text in axis.texts}
        assert list(labels) == [f"system {n}" for n in range(3)]
        dots = [line for line in axis.lines if line.get_transform() == axis.transAxes][1::2]
        for n, (dot, (x, y)) in enumerate(zip(dots, labels.values(), strict=True)):
            assert dot.get_color() == THEMES[theme].series[n]  # beside the label, at its height
            assert 1 < dot.get_xdata()[0] < x
            assert dot.get_ydata()[0] == y


def rgb(colour: str) -> list[float]:
    return [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]


@pytest.mark.parametrize(
    ("ticks", "scale"),
    [(X, "log"), ([1, 2, 10], "linear"), ([1, 2, 10.5], "log"), ([0, 5, 50], "linear")],
)
def test_wide_ranges_use_a_logarithmic_axis(ticks, scale):
    for axis in draw(ticks=ticks).axes:
        assert axis.get_xscale() == scale
        assert [text.get_text() for text in axis.get_xticklabels()] == [f"{t:g}" for t in ticks]
        assert list(axis.get_xticks(minor=True)) == []


def test_more_lines_than_colours_are_distinguishable():
    axis = draw(20, points=False).axes[0]
    styles = [
        (line.get_color(), line.get_linestyle(), line._dash_pattern)
        for line in axis.lines
        if line.get_transform() == axis.transData
    ]
    assert len(styles) == 20
    assert len({str(style) for style in styles}) == 20


@pytest.mark.parametrize("count", [2, 8, 40])
def test_labels_stay_inside_and_do_not_overlap(count):
    figure = chart(
        {"loss": [Line(f"system {n}", [1, 2], [[1.0], [1.0]]) for n in range(count)]},
        x_label="steps",
        title="Curves",
    )
    boxes = [text.get_window_extent() for text in figure.axes[0].texts]
    assert all(box.x1 < figure.bbox.x1 and box.y0 > 0 and box.y1 < figure.bbox.y1 for box in boxes)
    for low, high in pairwise(sorted(boxes, key=lambda box: box.y0)):
        assert low.y1 <= high.y0


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12), st.floats(0.01, 0.3))
def test_separate_keeps_order_and_gaps(positions, min_gap):
    moved = separate(positions, min_gap)
    order = sorted(range(len(positions)), key=lambda i: (positions[i], i))
    for low, high in pairwise(order):
        assert moved[high] - moved[low] >= min_gap - 1e-6
    assert min(moved) >= 0
    assert max(moved) <= max(1.0, min_gap * (len(positions) - 1)) + 1e-9
    if all(b - a >= min_gap for a, b in pairwise(sorted(positions))):
        assert moved == pytest.approx(positions)


def test_close_positions_move_apart_symmetrically():
    assert separate([0.5, 0.52, 0.9], 0.1) == pytest.approx([0.46, 0.56, 0.9])
    assert separate([0.02, 0.0], 0.1) == pytest.approx([0.1, 0.0])
