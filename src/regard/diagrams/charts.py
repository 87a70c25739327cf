"""Line charts: one or two panels side by side, each line labelled at its right end."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from regard.diagrams.canvas import (
    MARGIN,
    PAD,
    SMALL,
    TITLE,
    create_figure,
    style_text,
    text_height,
)
from regard.diagrams.fonts import text_widths
from regard.diagrams.layout import POINTS_PER_INCH
from regard.diagrams.themes import Theme

PANEL_SIZES = {1: (6.4, 3.9), 2: (4.5, 3.5)}  # inches: number of panels -> (width, height) of each
LEFT = 0.75  # inches: tick labels and axis label to the left of a panel
LEADER = 0.28  # inches: from a panel to the line labels beside it
LOG_RATIO = 10  # the x axis is logarithmic if max / min of the ticks exceeds this
STYLES = ("-", (0, (5, 2)), (0, (1, 1.5)))  # used once the colours run out


@dataclass(frozen=True)
class Line:
    """The values measured at each x: one, or several (one per seed)."""

    label: str
    x: Sequence[float]
    values: Sequence[Sequence[float]]

    @property
    def means(self) -> list[float]:
        return [sum(values) / len(values) for values in self.values]


def chart(
    panels: Mapping[str, Sequence[Line]],
    *,
    x_label: str,
    title: str,
    note: str = "",
    ticks: Sequence[float] | None = None,
    points: bool = False,
    theme: str = "light",
) -> Figure:
    """A panel per y label: the mean of each line, with a band from minimum to maximum.

    `ticks` are the only x ticks; `points` also draws every individual value.
    """
    width, height = PANEL_SIZES[len(panels)]
    names = [line.label for lines in panels.values() for line in lines]
    label_width = LEADER + 2 * PAD + max(text_widths(names, SMALL)) / POINTS_PER_INCH
    height = max(height, max(map(len, panels.values())) * text_height(SMALL))
    pitch = LEFT + width + label_width + MARGIN
    foot = 2 * text_height(SMALL) + 2 * PAD
    title_width = text_widths([title], TITLE, bold=True)[0] / POINTS_PER_INCH + 2 * MARGIN + PAD
    figure, canvas, colours, top = create_figure(
        max(title_width, MARGIN + len(panels) * pitch), PAD + height + foot, title, note, theme
    )
    for number, (y_label, lines) in enumerate(panels.items()):
        axis = canvas.add_axes(MARGIN + number * pitch + LEFT, top + PAD, width, height)
        if ticks is not None:
            _set_x_ticks(axis, ticks)
        for index, line in enumerate(lines):
            _plot_line(axis, line, *_line_style(index, colours), points)
        axis.set(xlabel=x_label, ylabel=y_label)
        _style_axes(axis, colours)
        _label_lines(axis, lines, colours, (width, height))
    return figure


def _line_style(index: int, colours: Theme) -> tuple[str, object]:
    """A distinct (colour, dash style) for each line."""
    cycle, colour = divmod(index, len(colours.series))
    return colours.series[colour], STYLES[cycle % len(STYLES)]


def _set_x_ticks(axis: Axes, ticks: Sequence[float]) -> None:
    if min(ticks) > 0 and max(ticks) > LOG_RATIO * min(ticks):
        axis.set_xscale("log")
        axis.xaxis.set_minor_locator(NullLocator())
    axis.set_xticks(list(ticks), [f"{tick:g}" for tick in ticks])


def _plot_line(axis: Axes, line: Line, colour: str, style: object, points: bool) -> None:
    # The marker at the end makes a line of a single point visible.
    marker = {"marker": ".", "markevery": [-1]}
    axis.plot(line.x, line.means, color=colour, linestyle=style, linewidth=1.8, zorder=3, **marker)
    low, high = ([bound(values) for values in line.values] for bound in (min, max))
    axis.fill_between(line.x, low, high, color=colour, alpha=0.18, linewidth=0, zorder=2)
    if points:
        xs = [x for x, values in zip(line.x, line.values, strict=True) for _ in values]
        ys = [value for values in line.values for value in values]
        axis.plot(xs, ys, "o", color=colour, markersize=4, alpha=0.75, mew=0, zorder=4)


def _style_axes(axis: Axes, colours: Theme) -> None:
    axis.spines["bottom"].set(visible=True, color=colours.dimmed, linewidth=0.8)
    axis.grid(axis="y", color=colours.dimmed, alpha=0.3, linewidth=0.6)
    axis.set_axisbelow(True)
    axis.tick_params(length=0, pad=5)
    axis.tick_params(axis="x", length=3, color=colours.dimmed)
    labels = (axis.xaxis.label, axis.yaxis.label)
    for text in (*axis.get_xticklabels(), *axis.get_yticklabels(), *labels):
        style_text(text, colours.text, SMALL)


def _label_lines(
    axis: Axes, lines: Sequence[Line], colours: Theme, size: tuple[float, float]
) -> None:
    """Write each line's label beside the panel, at the height of its last point if space allows."""
    width, height = size
    to_panel = axis.transData + axis.transAxes.inverted()
    ends = [to_panel.transform((line.x[-1], line.means[-1])) for line in lines]
    label_ys = separate([end[1] for end in ends], text_height(SMALL) / height)
    elbow, label_x = 1 + PAD / width, 1 + LEADER / width
    for index, (line, (x, y), label_y) in enumerate(zip(lines, ends, label_ys, strict=True)):
        colour = _line_style(index, colours)[0]
        options = {"transform": axis.transAxes, "color": colour, "clip_on": False}
        # The leader is dotted so that it is not mistaken for data.
        axis.plot([x, elbow, label_x], [y, y, label_y], ":", linewidth=0.9, **options)
        axis.plot([label_x], [label_y], "o", markersize=4.5, **options)
        text = axis.text(label_x + PAD / width, label_y, line.label, transform=axis.transAxes)
        text.set(va="center_baseline", size=SMALL)
        style_text(text, colours.text)


def separate(positions: Sequence[float], min_gap: float) -> list[float]:
    """The positions in 0..1 closest to the given ones that keep their order and `min_gap` apart.

    Isotonic least squares (pool adjacent violators): subtracting i * min_gap from the i-th smallest
    turns the gap constraint into monotonicity.
    """
    order = sorted(range(len(positions)), key=lambda i: positions[i])
    blocks: list[list[float]] = []
    for rank, i in enumerate(order):
        blocks.append([positions[i] - rank * min_gap])
        while len(blocks) > 1 and fmean(blocks[-2]) > fmean(blocks[-1]):
            blocks[-2:] = [blocks[-2] + blocks[-1]]
    highest = max(0.0, 1 - (len(positions) - 1) * min_gap)
    levels = [min(max(fmean(block), 0.0), highest) for block in blocks for _ in block]
    separated = {i: levels[rank] + rank * min_gap for rank, i in enumerate(order)}
    return [separated[i] for i in range(len(positions))]
