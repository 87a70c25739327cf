"""Figures of what a model loses with a part of its attention: a map of heads, or bars."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LinearSegmentedColormap, Normalize
from matplotlib.figure import Figure

from regard.diagrams.canvas import (
    GAP,
    HEADING,
    MARGIN,
    PAD,
    SMALL,
    TITLE,
    dress,
    start,
    text_height,
    write,
)
from regard.diagrams.fonts import widths
from regard.diagrams.layout import POINTS
from regard.diagrams.themes import Theme

UNIT = "nats a token"
SLIDE = 12.8  # inches: no figure grows wider than a slide, where its cells can shrink
NUMBER = 0.44  # inches: the least side of a cell that has its number written in it
BAR, ROOM = 0.15, 0.85  # inches: the colour bar, and with its ticks and label
PITCH, BETWEEN, REACH = 0.32, 0.2, 5.6  # inches: from bar to bar, between groups, the longest bar
NEGLIGIBLE = 0.05  # of the largest rise: a fall so small needs no colours of its own


def signed(value: float, places: int = 2) -> str:
    """+0.12, −0.03; and 0.00 has no sign."""
    text = f"{abs(value):.{places}f}"
    return text if float(text) == 0 else ("+" if value > 0 else "−") + text


# --- heads ----------------------------------------------------------------------------------------


def head_map(
    rises: Mapping[str, Float[np.ndarray, "layer head"]],
    *,
    title: str,
    note: str = "",
    theme: str = "light",
) -> Figure:
    """For each mechanism, how much the loss rises without each head: a row a layer, a column a head."""
    columns = sum(array.shape[1] for array in rises.values())
    deepest = max(array.shape[0] for array in rises.values())
    left = MARGIN + 2 * text_height(SMALL) + 2 * PAD
    between = 0.5
    fixed = left + between * (len(rises) - 1) + GAP + BAR + ROOM + MARGIN
    cell = min(0.86, (SLIDE - fixed) / columns, 6.0 / deepest)
    # Names do not overlap, however few the heads below them.
    spans = {
        name: max(cell * array.shape[1], widths([name], HEADING, bold=True)[0] / POINTS)
        for name, array in rises.items()
    }
    titled = widths([title], TITLE, bold=True)[0] / POINTS + 2 * MARGIN + PAD
    width = max(titled, fixed + sum(spans.values()))
    heading = text_height(HEADING) + PAD
    foot = 2 * text_height(SMALL) + PAD
    room = max(deepest * cell, 1.3)
    figure, canvas, colours, top = start(width, heading + room + foot, title, note, theme)
    colour = _colour(np.concatenate([a.ravel() for a in rises.values()]), colours)
    x = left
    for number, (name, array) in enumerate(rises.items()):
        depth, heads = array.shape
        axis = canvas.axes(x, top + heading, heads * cell, depth * cell)
        _cells(axis, array, colour, cell, colours)
        _numbers(axis, array.shape, cell, colours, first=number == 0)
        y = top + heading - PAD
        write(canvas, name, x, y, colours.text, size=HEADING, weight="bold", va="bottom")
        x += spans[name] + between
    bar = canvas.axes(x - between + GAP * 1.5, top + heading, BAR, room)
    _scale(bar, colour, colours)
    return figure


def _colour(values: Float[np.ndarray, " values"], colours: Theme) -> ScalarMappable:
    """From no rise, dark, to the largest, bright; two-sided where silence also helps."""
    low, high = float(np.nanmin(values)), max(float(np.nanmax(values)), 1e-6)
    two_sided = low < -NEGLIGIBLE * high
    ends = (-max(-low, high), max(-low, high)) if two_sided else (0.0, high)
    stops = colours.diverging if two_sided else colours.sequential
    return ScalarMappable(
        Normalize(*ends, clip=True), LinearSegmentedColormap.from_list("regard", stops, N=512)
    )


def _cells(
    axis: Axes,
    array: Float[np.ndarray, "layer head"],
    colour: ScalarMappable,
    cell: float,
    colours: Theme,
) -> None:
    axis.pcolormesh(
        array,
        cmap=colour.cmap,
        norm=Normalize(*colour.get_clim(), clip=True),
        edgecolors=colours.paper,
        linewidth=1.5,
    )
    axis.set(xlim=(0, array.shape[1]), ylim=(array.shape[0], 0))
    if cell < NUMBER:
        return
    for (layer, head), value in np.ndenumerate(array):
        if np.isnan(value):
            continue
        red, green, blue = colour.to_rgba(np.asarray(value))[:3]
        bright = 0.299 * red + 0.587 * green + 0.114 * blue > 0.5
        size = min(SMALL + 1, 15.5 * cell)
        text = axis.text(head + 0.5, layer + 0.5, signed(value, 3 if cell > 0.6 else 2))
        text.set(ha="center", va="center", size=size)
        dress(text, "#1f2430" if bright else "#ffffff")


def _numbers(
    axis: Axes, shape: tuple[int, ...], cell: float, colours: Theme, *, first: bool
) -> None:
    """Layers and heads by number, from 1; every n-th where they are too close."""
    step = max(1, int(np.ceil(0.24 / cell)))
    for axis_of, count in ((axis.xaxis, shape[1]), (axis.yaxis, shape[0])):
        shown = range(0, count, step)
        axis_of.set_ticks([place + 0.5 for place in shown], [str(place + 1) for place in shown])
    axis.tick_params(length=0, pad=4)
    axis.set_xlabel("head")
    if first:
        axis.set_ylabel("layer")
    for text in (*axis.get_xticklabels(), *axis.get_yticklabels()):
        dress(text, colours.text)
        text.set_fontsize(SMALL)
    for label in (axis.xaxis.label, axis.yaxis.label):
        dress(label, colours.text)
        label.set_fontsize(SMALL)


def _scale(axis: Axes, colour: ScalarMappable, colours: Theme) -> None:
    low, high = colour.get_clim()
    ticks = [low, (low + high) / 2, high]
    bar = axis.figure.colorbar(colour, cax=axis, ticks=ticks)
    bar.outline.set_visible(False)
    axis.set_yticklabels([signed(tick, 3 if high < 0.1 else 2) for tick in ticks])
    axis.tick_params(length=0, pad=4)
    axis.set_ylabel(f"rise of the loss\n({UNIT})")
    dress(axis.yaxis.label, colours.text)
    for text in (*axis.get_yticklabels(), axis.yaxis.label):
        dress(text, colours.text)
        text.set_fontsize(SMALL)


# --- bars -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Bar:
    """One bar: how much the loss rises, give or take `error`."""

    label: str
    rise: float
    error: float = 0.0
    note: str = ""  # behind the number
    strong: bool = True  # or else paler: a part, or a comparison

    @property
    def said(self) -> str:
        return f"{signed(self.rise)}   {self.note}".rstrip()

    @property
    def end(self) -> float:
        return max(0.0, self.rise + self.error)


def bars(
    groups: Mapping[str, Sequence[Bar]], *, title: str, note: str = "", theme: str = "light"
) -> Figure:
    """Bars in groups, each under its heading, on one scale of loss."""
    every = [bar for group in groups.values() for bar in group]
    low = min(0.0, *(bar.rise - bar.error for bar in every))
    high = max(1e-6, *(bar.rise + bar.error for bar in every))
    inch = (high - low) / REACH  # of loss
    says = widths([bar.said for bar in every], SMALL)
    ends = [(bar.end - low) / inch + PAD + w / POINTS for bar, w in zip(every, says, strict=True)]
    left = MARGIN + max(widths([bar.label for bar in every], HEADING)) / POINTS + 2 * PAD
    headed = MARGIN + max(widths(list(groups), HEADING, bold=True)) / POINTS
    titled = MARGIN + widths([title], TITLE, bold=True)[0] / POINTS + PAD
    width = max(left + max(REACH, *ends), headed, titled) + MARGIN
    heading, foot = text_height(HEADING) + PAD / 2, 2 * text_height(SMALL) + PAD
    body = sum(heading + len(group) * PITCH + BETWEEN for group in groups.values()) - BETWEEN
    _, canvas, colours, y = start(width, body + foot, title, note, theme)
    for number, (name, group) in enumerate(groups.items(), start=1):
        write(canvas, name, MARGIN, y, colours.text, size=HEADING, weight="bold", va="top")
        axis = canvas.axes(left, y + heading, REACH, len(group) * PITCH)
        axis.set(xlim=(low, high), ylim=(len(group), 0))
        _bars(axis, group, PAD * inch, colours)
        axis.tick_params(length=0, pad=PAD * POINTS, labelbottom=number == len(groups))
        if number == len(groups):
            axis.set_xlabel(f"rise of the loss ({UNIT}; line: ± two standard errors)")
        for text in (*axis.get_xticklabels(), axis.xaxis.label):
            dress(text, colours.text)
            text.set_fontsize(SMALL)
        y += heading + len(group) * PITCH + BETWEEN
    return canvas.figure


def _bars(axis: Axes, group: Sequence[Bar], pad: float, colours: Theme) -> None:
    for place, bar in enumerate(group):
        middle = place + 0.5
        paint = colours.accent if bar.strong else colours.dimmed
        axis.barh(middle, bar.rise, height=0.66, color=paint, linewidth=0)
        if bar.error:
            reach = [bar.rise - bar.error, bar.rise + bar.error]
            axis.plot(reach, [middle] * 2, color=colours.text, linewidth=1.2, clip_on=False)
        said = axis.text(bar.end + pad, middle, bar.said)
        said.set(va="center_baseline", size=SMALL)
        dress(said, colours.text)
    axis.axvline(0, color=colours.text, linewidth=1)
    axis.set_yticks([place + 0.5 for place in range(len(group))], [bar.label for bar in group])
    for text in axis.get_yticklabels():
        dress(text, colours.text)
        text.set_fontsize(HEADING)
