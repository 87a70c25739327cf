"""Matplotlib figures of attention: one matrix, or a grid of layers and heads.

No pyplot: a figure belongs to its caller alone, so threads and servers can draw at once.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LinearSegmentedColormap, Normalize
from matplotlib.figure import Figure

from regard.diagrams.arrays import checked, scale
from regard.diagrams.canvas import GAP, HEADING, MARGIN, PAD, SMALL, TITLE, Canvas, dress
from regard.diagrams.fonts import LINE
from regard.diagrams.layout import POINTS, Axis, Limits, axes, lines
from regard.diagrams.themes import Theme, named
from regard.diagrams.tokens import label, labels

ONE = Limits(
    cell=0.36, large_cell=0.62, panel=(10.0, 8.0), least=1.4, font=(6.5, 13.0), thin_out=True
)
BAR, BAR_ROOM = 0.14, 0.82  # inches: the colour bar, and with its ticks and label
LEAST_BAR, MOST_BAR = 1.5, 3.6
LEAST_WIDTH = 3.4


def heatmap(
    weights: Any,
    source: Sequence[str],
    target: Sequence[str],
    *,
    title: str | None = None,
    theme: str = "light",
) -> Figure:
    """The matrix `weights` [target source]: a row a produced token, brighter is more weight."""
    array = checked(weights, "target source", source, target)
    return panels(array[None, None], source, target, [], [], title=title, theme=theme)


def grid(
    weights: Any,
    source: Sequence[str],
    target: Sequence[str],
    *,
    title: str | None = None,
    theme: str = "light",
) -> Figure:
    """Every matrix of `weights` [layer head target source]: a row a layer, a column a head."""
    array = checked(weights, "layer head target source", source, target)
    depth, heads = array.shape[:2]
    if depth == heads == 1:
        return heatmap(array[0, 0], source, target, title=title, theme=theme)
    rows = [f"layer {number}" for number in range(1, depth + 1)]
    columns = [f"head {number}" for number in range(1, heads + 1)]
    return panels(array, source, target, rows, columns, title=title, theme=theme)


def panels(
    weights: Float[np.ndarray, "layer head target source"],
    source: Sequence[str],
    target: Sequence[str],
    rows: Sequence[str],
    columns: Sequence[str],
    *,
    title: str | None,
    theme: str,
) -> Figure:
    """Small multiples under the given row and column headings, tokens on the outer edges only."""
    colours = named(theme)
    depth, heads = weights.shape[:2]
    limits = ONE if depth == heads == 1 else _many(*weights.shape)
    across, down = axes(labels(source), labels(target), limits)

    heading = HEADING * LINE / POINTS + 1.5 * PAD
    left = MARGIN + (heading if rows else 0) + down.depth + PAD
    inner = heads * across.length + (heads - 1) * GAP, depth * down.length + (depth - 1) * GAP
    width = max(LEAST_WIDTH, left + inner[0] + GAP + BAR + BAR_ROOM + MARGIN)
    titles = lines(label(title, None).text, TITLE, width - 2 * MARGIN) if title else []
    above = len(titles) * TITLE * LINE / POINTS + (2 * PAD if titles else 0)
    top = MARGIN + above + (heading if columns else 0) + across.depth + PAD
    height = top + max(inner[1], LEAST_BAR) + MARGIN

    figure = Figure(figsize=(width, height), dpi=100, facecolor=colours.paper)
    FigureCanvasAgg(figure)
    canvas = Canvas(figure, colours)
    colour = _colour(weights, colours)
    # So many paths, one a cell, would make an SVG of megabytes.
    pixels = weights[0, 0].size > 2500 or weights.size > 20_000
    for layer in range(depth):
        for head in range(heads):
            x = left + head * (across.length + GAP)
            y = top + layer * (down.length + GAP)
            axis = canvas.axes(x, y, across.length, down.length)
            _matrix(axis, weights[layer, head], colour, across, down, colours, pixels)
            _label_source(axis, across, colours, visible=layer == 0)
            _label_target(axis, down, colours, visible=head == 0)
            if columns and layer == 0:
                canvas.heading(columns[head], x + across.length / 2, top - PAD - across.depth - PAD)
            if rows and head == 0:
                canvas.heading(rows[layer], MARGIN, y + down.length / 2, upwards=True)
    canvas.title(titles)
    bar = canvas.axes(left + inner[0] + GAP, top, BAR, min(MOST_BAR, max(LEAST_BAR, inner[1])))
    _colour_bar(bar, colour, colours)
    return figure


def _many(depth: int, heads: int, rows: int, columns: int) -> Limits:
    """Limits of one panel among many: the whole is about the size of a slide, or larger if that lets
    tokens be read.
    """
    smallest, largest = 4.5, 10.0

    def side(panels: int, tokens: int, slide: float, poster: float) -> float:
        least, most = max(0.6, slide / panels), poster / panels
        wanted = tokens * LINE * smallest / POINTS + 1e-6
        return min(3.0, wanted if least < wanted <= most else least)

    panel = side(heads, columns, 11.0, 20.0), side(depth, rows, 7.0, 40.0)
    return Limits(
        cell=0.26,
        large_cell=0.4,
        panel=panel,
        least=min(1.2, *panel),
        font=(smallest, largest),
        thin_out=False,
    )


def _colour(weights: Float[np.ndarray, "..."], colours: Theme) -> ScalarMappable:
    low, high = scale(weights)
    stops = colours.diverging if low < 0 else colours.sequential
    colour_map = LinearSegmentedColormap.from_list("regard", stops, N=512)
    return ScalarMappable(Normalize(low, high, clip=True), colour_map)


def _matrix(
    axis: Axes,
    weights: Float[np.ndarray, "target source"],
    colour: ScalarMappable,
    across: Axis,
    down: Axis,
    colours: Theme,
    pixels: bool,
) -> None:
    rows, columns = weights.shape
    norm = Normalize(*colour.get_clim(), clip=True)
    if pixels:
        box = (0, columns, rows, 0)
        axis.imshow(weights, colour.cmap, norm, aspect="auto", interpolation="nearest", extent=box)
    else:
        separated = min(across.cell, down.cell) * POINTS >= 10
        axis.pcolormesh(
            weights,
            cmap=colour.cmap,
            norm=norm,
            edgecolors=colours.seam if separated else "face",
            linewidth=0.5 if separated else 0,
        )
    axis.set(xlim=(0, columns), ylim=(rows, 0))


def _label_source(axis: Axes, across: Axis, colours: Theme, *, visible: bool) -> None:
    shown = list(across.shown) if visible else []
    axis.set_xticks([place + 0.5 for place in shown], [across.labels[p].text for p in shown])
    axis.tick_params(
        axis="x", length=0, pad=PAD * POINTS, bottom=False, labelbottom=False, labeltop=True
    )
    for place, text in zip(shown, axis.get_xticklabels(), strict=True):
        dress(text, colours.dimmed if across.labels[place].dimmed else colours.text)
        text.set(size=across.size, rotation=90 if across.turned[place] else 0, va="bottom")


def _label_target(axis: Axes, down: Axis, colours: Theme, *, visible: bool) -> None:
    shown = list(down.shown) if visible else []
    axis.set_yticks([place + 0.5 for place in shown], [down.labels[p].text for p in shown])
    axis.tick_params(axis="y", length=0, pad=PAD * POINTS)
    for place, text in zip(shown, axis.get_yticklabels(), strict=True):
        dress(text, colours.dimmed if down.labels[place].dimmed else colours.text)
        text.set(size=down.size, va="center")


def _colour_bar(axis: Axes, colour: ScalarMappable, colours: Theme) -> None:
    low, high = colour.get_clim()
    bar = axis.figure.colorbar(colour, cax=axis, ticks=[low, (low + high) / 2, high])
    bar.outline.set_visible(False)
    usual = (low, high) == (0, 1)
    numbers = ["0", "0.5", "1"] if usual else [f"{v:.3g}" for v in (low, (low + high) / 2, high)]
    axis.set_yticklabels([number.replace("-", "−") for number in numbers])
    axis.tick_params(length=0, pad=4)
    for text in axis.get_yticklabels():
        dress(text, colours.text)
        text.set_fontsize(SMALL)
    axis.set_ylabel("attention weight" if usual else "attention weight\n(scaled to the data)")
    dress(axis.yaxis.label, colours.text)
    axis.yaxis.label.set_fontsize(SMALL)
