"""Lines against a number, one or more panels side by side, each line with its name at its end."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from regard.diagrams.canvas import MARGIN, PAD, SMALL, TITLE, dress, start, text_height
from regard.diagrams.fonts import widths
from regard.diagrams.layout import POINTS
from regard.diagrams.themes import Theme

PANELS = {1: (6.4, 3.9), 2: (4.5, 3.5)}  # inches: how large one panel is, by their number
LEFT = 0.75  # inches: numbers and a label beside a panel
LEADER = 0.28  # inches: from a panel to the names beside it
WIDE = 10  # values that span more than this factor stand on a logarithmic axis
STYLES = ("-", (0, (5, 2)), (0, (1, 1.5)))  # for more lines than there are colours


@dataclass(frozen=True)
class Line:
    """What was measured at each x, once or (with several seeds) several times."""

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
    """A panel for each label of a y axis: means, a band from the least value to the greatest.

    `ticks` are the only numbers on the x axis; `points` shows every single value, too.
    """
    wide, high = PANELS[len(panels)]
    names = [line.label for lines in panels.values() for line in lines]
    named = LEADER + 2 * PAD + max(widths(names, SMALL)) / POINTS
    high = max(high, max(map(len, panels.values())) * text_height(SMALL))
    pitch = LEFT + wide + named + MARGIN
    foot = 2 * text_height(SMALL) + 2 * PAD
    titled = widths([title], TITLE, bold=True)[0] / POINTS + 2 * MARGIN + PAD
    width = max(titled, MARGIN + len(panels) * pitch)
    figure, canvas, colours, top = start(width, PAD + high + foot, title, note, theme)
    for number, (y_label, lines) in enumerate(panels.items()):
        axis = canvas.axes(MARGIN + number * pitch + LEFT, top + PAD, wide, high)
        if ticks is not None:
            _scale(axis, ticks)
        for place, line in enumerate(lines):
            _draw(axis, line, _paint(place, colours), points)
        axis.set(xlabel=x_label, ylabel=y_label)
        _dress(axis, colours)
        _name(axis, lines, colours, (wide, high))
    return figure


def _paint(place: int, colours: Theme) -> tuple[str, object]:
    """A colour and a style of its own for each line."""
    turn, colour = divmod(place, len(colours.series))
    return colours.series[colour], STYLES[turn % len(STYLES)]


def _scale(axis: Axes, ticks: Sequence[float]) -> None:
    if min(ticks) > 0 and max(ticks) > WIDE * min(ticks):
        axis.set_xscale("log")
        axis.xaxis.set_minor_locator(NullLocator())
    axis.set_xticks(list(ticks), [f"{tick:g}" for tick in ticks])


def _draw(axis: Axes, line: Line, paint: tuple[str, object], points: bool) -> None:
    colour, style = paint
    # A dot at its end shows even a line of one point.
    end = {"marker": ".", "markevery": [-1]}
    axis.plot(line.x, line.means, color=colour, linestyle=style, linewidth=1.8, zorder=3, **end)
    low, high = ([end(values) for values in line.values] for end in (min, max))
    axis.fill_between(line.x, low, high, color=colour, alpha=0.18, linewidth=0, zorder=2)
    if points:
        places = [x for x, values in zip(line.x, line.values, strict=True) for _ in values]
        every = [value for values in line.values for value in values]
        axis.plot(places, every, "o", color=colour, markersize=4, alpha=0.75, mew=0, zorder=4)


def _dress(axis: Axes, colours: Theme) -> None:
    axis.spines["bottom"].set(visible=True, color=colours.dimmed, linewidth=0.8)
    axis.grid(axis="y", color=colours.dimmed, alpha=0.3, linewidth=0.6)
    axis.set_axisbelow(True)
    axis.tick_params(length=0, pad=5)
    axis.tick_params(axis="x", length=3, color=colours.dimmed)
    labels = (axis.xaxis.label, axis.yaxis.label)
    for text in (*axis.get_xticklabels(), *axis.get_yticklabels(), *labels):
        dress(text, colours.text)
        text.set_fontsize(SMALL)


def _name(axis: Axes, lines: Sequence[Line], colours: Theme, size: tuple[float, float]) -> None:
    """Each line's name beside the panel, where the line ends or as near as there is room."""
    wide, high = size
    to_panel = axis.transData + axis.transAxes.inverted()
    ends = [to_panel.transform((line.x[-1], line.means[-1])) for line in lines]
    heights = apart([end[1] for end in ends], text_height(SMALL) / high)
    bend, name = 1 + PAD / wide, 1 + LEADER / wide
    for place, (line, (x, y), height) in enumerate(zip(lines, ends, heights, strict=True)):
        colour = _paint(place, colours)[0]
        there = {"transform": axis.transAxes, "color": colour, "clip_on": False}
        # Dotted: nobody takes it for something measured.
        axis.plot([x, bend, name], [y, y, height], ":", linewidth=0.9, **there)
        axis.plot([name], [height], "o", markersize=4.5, **there)
        text = axis.text(name + PAD / wide, height, line.label, transform=axis.transAxes)
        text.set(va="center_baseline", size=SMALL)
        dress(text, colours.text)


def apart(places: Sequence[float], least: float) -> list[float]:
    """Places between 0 and 1, moved as little as need be to stand `least` apart, in the same order.

    Least squares: with the i-th lowered by i times `least` they need only rise, and what falls is
    replaced by its mean, block by block.
    """
    order = sorted(range(len(places)), key=lambda i: places[i])
    blocks: list[list[float]] = []
    for rank, i in enumerate(order):
        blocks.append([places[i] - rank * least])
        while len(blocks) > 1 and fmean(blocks[-2]) > fmean(blocks[-1]):
            blocks[-2:] = [blocks[-2] + blocks[-1]]
    room = max(0.0, 1 - (len(places) - 1) * least)
    level = [min(max(fmean(block), 0.0), room) for block in blocks for _ in block]
    found = {i: level[rank] + rank * least for rank, i in enumerate(order)}
    return [found[i] for i in range(len(places))]
