"""Figures of attention ablations: a heat map of heads, or grouped bars of the increase in loss."""

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
    create_figure,
    style_text,
    text_height,
)
from regard.diagrams.fonts import text_widths
from regard.diagrams.layout import POINTS_PER_INCH
from regard.diagrams.themes import Theme

UNIT = "nats per token"
MAX_WIDTH = 12.8  # inches: the width of a slide, unless the cells cannot shrink enough
MIN_NUMBER_CELL = 0.44  # inches: smaller cells show no number
BAR, BAR_SPACE = 0.15, 0.85  # inches: width of the colour bar, and of its ticks and label
PITCH, GROUP_GAP, REACH = 0.32, 0.2, 5.6  # inches: bar to bar, group to group, the longest bar
NEGLIGIBLE = 0.05  # of the largest increase: smaller decreases do not make the scale diverging


def format_signed(value: float, decimals: int = 2) -> str:
    """+0.12, −0.03; and 0.00 has no sign."""
    text = f"{abs(value):.{decimals}f}"
    return text if float(text) == 0 else ("+" if value > 0 else "−") + text


# --- heads ----------------------------------------------------------------------------------------


def head_map(
    increases: Mapping[str, Float[np.ndarray, "layer head"]],
    *,
    title: str,
    note: str = "",
    theme: str = "light",
) -> Figure:
    """The increase in loss without each head: a matrix per mechanism, rows layers, columns heads."""
    columns = sum(array.shape[1] for array in increases.values())
    deepest = max(array.shape[0] for array in increases.values())
    left = MARGIN + 2 * text_height(SMALL) + 2 * PAD
    between = 0.5
    fixed = left + between * (len(increases) - 1) + GAP + BAR + BAR_SPACE + MARGIN
    cell = min(0.86, (MAX_WIDTH - fixed) / columns, 6.0 / deepest)
    # A matrix of few heads is given the width of its heading, so that headings do not overlap.
    panel_widths = {
        name: max(
            cell * array.shape[1], text_widths([name], HEADING, bold=True)[0] / POINTS_PER_INCH
        )
        for name, array in increases.items()
    }
    title_width = text_widths([title], TITLE, bold=True)[0] / POINTS_PER_INCH + 2 * MARGIN + PAD
    width = max(title_width, fixed + sum(panel_widths.values()))
    heading = text_height(HEADING) + PAD
    foot = 2 * text_height(SMALL) + PAD
    height = max(deepest * cell, 1.3)
    figure, canvas, colours, top = create_figure(width, heading + height + foot, title, note, theme)
    mappable = _colour_mapping(np.concatenate([a.ravel() for a in increases.values()]), colours)
    x = left
    for number, (name, array) in enumerate(increases.items()):
        depth, heads = array.shape
        axis = canvas.add_axes(x, top + heading, heads * cell, depth * cell)
        _draw_cells(axis, array, mappable, cell, colours)
        _label_axes(axis, array.shape, cell, colours, first=number == 0)
        y = top + heading - PAD
        canvas.add_text(name, x, y, size=HEADING, weight="bold", va="bottom")
        x += panel_widths[name] + between
    bar = canvas.add_axes(x - between + GAP * 1.5, top + heading, BAR, height)
    _draw_colour_bar(bar, mappable, colours)
    return figure


def _colour_mapping(values: Float[np.ndarray, " values"], colours: Theme) -> ScalarMappable:
    """Dark at no increase, bright at the largest; diverging if ablation also decreases the loss."""
    low, high = float(np.nanmin(values)), max(float(np.nanmax(values)), 1e-6)
    diverging = low < -NEGLIGIBLE * high
    limits = (-max(-low, high), max(-low, high)) if diverging else (0.0, high)
    stops = colours.diverging if diverging else colours.sequential
    return ScalarMappable(
        Normalize(*limits, clip=True), LinearSegmentedColormap.from_list("regard", stops, N=512)
    )


def _draw_cells(
    axis: Axes,
    array: Float[np.ndarray, "layer head"],
    mappable: ScalarMappable,
    cell: float,
    colours: Theme,
) -> None:
    axis.pcolormesh(
        array,
        cmap=mappable.cmap,
        norm=Normalize(*mappable.get_clim(), clip=True),
        edgecolors=colours.background,
        linewidth=1.5,
    )
    axis.set(xlim=(0, array.shape[1]), ylim=(array.shape[0], 0))
    if cell < MIN_NUMBER_CELL:
        return
    for (layer, head), value in np.ndenumerate(array):
        if np.isnan(value):
            continue
        red, green, blue = mappable.to_rgba(np.asarray(value))[:3]
        bright = 0.299 * red + 0.587 * green + 0.114 * blue > 0.5
        size = min(SMALL + 1, 15.5 * cell)
        text = axis.text(head + 0.5, layer + 0.5, format_signed(value, 3 if cell > 0.6 else 2))
        text.set(ha="center", va="center", size=size)
        style_text(text, "#1f2430" if bright else "#ffffff")


def _label_axes(
    axis: Axes, shape: tuple[int, ...], cell: float, colours: Theme, *, first: bool
) -> None:
    """Number layers and heads from 1; only every n-th if they are too close."""
    step = max(1, int(np.ceil(0.24 / cell)))
    for axis_of, count in ((axis.xaxis, shape[1]), (axis.yaxis, shape[0])):
        indices = range(0, count, step)
        axis_of.set_ticks([i + 0.5 for i in indices], [str(i + 1) for i in indices])
    axis.tick_params(length=0, pad=4)
    axis.set_xlabel("head")
    if first:
        axis.set_ylabel("layer")
    labels = (axis.xaxis.label, axis.yaxis.label)
    for text in (*axis.get_xticklabels(), *axis.get_yticklabels(), *labels):
        style_text(text, colours.text, SMALL)


def _draw_colour_bar(axis: Axes, mappable: ScalarMappable, colours: Theme) -> None:
    low, high = mappable.get_clim()
    ticks = [low, (low + high) / 2, high]
    bar = axis.figure.colorbar(mappable, cax=axis, ticks=ticks)
    bar.outline.set_visible(False)
    axis.set_yticklabels([format_signed(tick, 3 if high < 0.1 else 2) for tick in ticks])
    axis.tick_params(length=0, pad=4)
    axis.set_ylabel(f"increase in loss\n({UNIT})")
    for text in (*axis.get_yticklabels(), axis.yaxis.label):
        style_text(text, colours.text, SMALL)


# --- bars -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Bar:
    """One bar: the increase in loss, ± `error`."""

    label: str
    increase: float
    error: float = 0.0
    note: str = ""  # after the number
    highlighted: bool = True  # otherwise paler: a part, or a comparison

    @property
    def text(self) -> str:
        return f"{format_signed(self.increase)}   {self.note}".rstrip()

    @property
    def end(self) -> float:
        return max(0.0, self.increase + self.error)


def bars(
    groups: Mapping[str, Sequence[Bar]], *, title: str, note: str = "", theme: str = "light"
) -> Figure:
    """Horizontal bars in groups with headings, on one shared scale of loss."""
    all_bars = [bar for group in groups.values() for bar in group]
    low = min(0.0, *(bar.increase - bar.error for bar in all_bars))
    high = max(1e-6, *(bar.increase + bar.error for bar in all_bars))
    inch = (high - low) / REACH  # in units of loss
    ends = [
        (bar.end - low) / inch + PAD + text_width / POINTS_PER_INCH
        for bar, text_width in zip(
            all_bars, text_widths([bar.text for bar in all_bars], SMALL), strict=True
        )
    ]
    label_width = max(text_widths([bar.label for bar in all_bars], HEADING)) / POINTS_PER_INCH
    left = MARGIN + label_width + 2 * PAD
    heading_end = MARGIN + max(text_widths(list(groups), HEADING, bold=True)) / POINTS_PER_INCH
    title_end = MARGIN + text_widths([title], TITLE, bold=True)[0] / POINTS_PER_INCH + PAD
    width = max(left + max(REACH, *ends), heading_end, title_end) + MARGIN
    heading, foot = text_height(HEADING) + PAD / 2, 2 * text_height(SMALL) + PAD
    body = sum(heading + len(group) * PITCH + GROUP_GAP for group in groups.values()) - GROUP_GAP
    _, canvas, colours, y = create_figure(width, body + foot, title, note, theme)
    for number, (name, group) in enumerate(groups.items(), start=1):
        canvas.add_text(name, MARGIN, y, size=HEADING, weight="bold", va="top")
        axis = canvas.add_axes(left, y + heading, REACH, len(group) * PITCH)
        axis.set(xlim=(low, high), ylim=(len(group), 0))
        _draw_bars(axis, group, PAD * inch, colours)
        is_last = number == len(groups)
        axis.tick_params(length=0, pad=PAD * POINTS_PER_INCH, labelbottom=is_last)
        if is_last:
            axis.set_xlabel(f"increase in loss ({UNIT}; line: ± 2 standard errors)")
        for text in (*axis.get_xticklabels(), axis.xaxis.label):
            style_text(text, colours.text, SMALL)
        y += heading + len(group) * PITCH + GROUP_GAP
    return canvas.figure


def _draw_bars(axis: Axes, group: Sequence[Bar], pad: float, colours: Theme) -> None:
    for index, bar in enumerate(group):
        y = index + 0.5
        colour = colours.accent if bar.highlighted else colours.dimmed
        axis.barh(y, bar.increase, height=0.66, color=colour, linewidth=0)
        if bar.error:
            interval = [bar.increase - bar.error, bar.increase + bar.error]
            axis.plot(interval, [y] * 2, color=colours.text, linewidth=1.2, clip_on=False)
        text = axis.text(bar.end + pad, y, bar.text)
        text.set(va="center_baseline", size=SMALL)
        style_text(text, colours.text)
    axis.axvline(0, color=colours.text, linewidth=1)
    axis.set_yticks([index + 0.5 for index in range(len(group))], [bar.label for bar in group])
    for text in axis.get_yticklabels():
        style_text(text, colours.text, HEADING)
