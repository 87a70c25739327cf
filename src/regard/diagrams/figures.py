"""Matplotlib figures of attention weights: one matrix, or a grid of layers and heads.

Built without pyplot: no global state, so threads and servers can draw concurrently.
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

from regard.diagrams.arrays import colour_limits, describe_scale, validate_weights
from regard.diagrams.canvas import (
    GAP,
    HEADING,
    MARGIN,
    PAD,
    SMALL,
    TITLE,
    Canvas,
    style_text,
    text_height,
)
from regard.diagrams.fonts import LINE_HEIGHT, missing_characters, spell, warn_of_missing
from regard.diagrams.layout import POINTS_PER_INCH, Limits, TokenAxis, layout_axes, wrap_title
from regard.diagrams.themes import Theme, get_theme
from regard.diagrams.tokens import format_token, format_tokens

SINGLE = Limits(
    cell=0.36,
    max_cell=0.62,
    max_panel=(10.0, 8.0),
    min_panel=1.4,
    font_sizes=(6.5, 13.0),
    thin_labels=True,
)
BAR, BAR_SPACE = 0.14, 0.82  # inches: width of the colour bar, and of its ticks and label
MIN_BAR, MAX_BAR = 1.5, 3.6  # inches: height of the colour bar
MIN_WIDTH = 3.4  # inches: of the figure
AXES = ("source (keys)", "target (queries)")
QUANTITY = "attention weight"


def heatmap(
    weights: Any,
    source: Sequence[str],
    target: Sequence[str],
    *,
    title: str | None = None,
    note: str = "",
    axes: tuple[str, str] = AXES,
    quantity: str = QUANTITY,
    theme: str = "light",
) -> Figure:
    """A heat map of `weights` [target source]: one row per target token, brighter is more weight.

    `axes`: the names of the horizontal and the vertical axis. `note`: a line below the title. `quantity`:
    what the colours show, if the numbers are no attention weights.
    """
    array = validate_weights(weights, "target source", source, target)
    names: dict[str, Any] = {"title": title, "note": note, "axes": axes, "quantity": quantity}
    return draw_panels(array[None, None], source, target, [], [], **names, theme=theme)


def grid(
    weights: Any,
    source: Sequence[str],
    target: Sequence[str],
    *,
    title: str | None = None,
    note: str = "",
    axes: tuple[str, str] = AXES,
    theme: str = "light",
) -> Figure:
    """Heat maps of `weights` [layer head target source]: one row per layer, one column per head."""
    array = validate_weights(weights, "layer head target source", source, target)
    depth, heads = array.shape[:2]
    if depth == heads == 1:
        return heatmap(array[0, 0], source, target, title=title, note=note, axes=axes, theme=theme)
    rows = [f"layer {number}" for number in range(1, depth + 1)]
    columns = [f"head {number}" for number in range(1, heads + 1)]
    return draw_panels(
        array, source, target, rows, columns, title=title, note=note, axes=axes, theme=theme
    )


def draw_panels(
    weights: Float[np.ndarray, "layer head target source"],
    source: Sequence[str],
    target: Sequence[str],
    rows: Sequence[str],
    columns: Sequence[str],
    *,
    title: str | None,
    note: str,
    axes: tuple[str, str],
    theme: str,
    quantity: str = QUANTITY,
    spell_missing: bool = True,
) -> Figure:
    """Small multiples with row and column headings; tokens label the outer edges only.

    `spell_missing`: write the code points of characters that no font has.
    """
    colours = get_theme(theme)
    depth, heads = weights.shape[:2]
    limits = SINGLE if depth == heads == 1 else _grid_limits(*weights.shape)
    if spell_missing:
        missing = missing_characters([*source, *target, title or ""])
        warn_of_missing(missing)
        source, target = ([spell(token, missing) for token in side] for side in (source, target))
        title = spell(title, missing) if title else title
    x_axis, y_axis = layout_axes(format_tokens(source), format_tokens(target), limits)

    heading = text_height(HEADING) + 1.5 * PAD
    axis_name = text_height(SMALL) + PAD
    left = MARGIN + axis_name + (heading if rows else 0) + y_axis.extent + PAD
    inner_width = heads * x_axis.length + (heads - 1) * GAP
    inner_height = depth * y_axis.length + (depth - 1) * GAP
    width = max(MIN_WIDTH, left + inner_width + GAP + BAR + BAR_SPACE + MARGIN)
    titles = (
        wrap_title(format_token(title, None).text, TITLE, width - 2 * MARGIN, 3) if title else []
    )
    notes = wrap_title(note, SMALL, width - 2 * MARGIN)
    above = len(titles) * text_height(TITLE) + len(notes) * text_height(SMALL)
    above += 2 * PAD if above else 0
    top = MARGIN + above + axis_name + (heading if columns else 0) + x_axis.extent + PAD
    height = top + max(inner_height, MIN_BAR) + MARGIN

    figure = Figure(figsize=(width, height), dpi=100, facecolor=colours.background)
    FigureCanvasAgg(figure)
    canvas = Canvas(figure, colours)
    mappable = _colour_mapping(weights, colours)
    # As one path per cell, a large matrix would make an SVG of several megabytes.
    rasterise = weights[0, 0].size > 2500 or weights.size > 20_000
    for layer in range(depth):
        for head in range(heads):
            x = left + head * (x_axis.length + GAP)
            y = top + layer * (y_axis.length + GAP)
            axis = canvas.add_axes(x, y, x_axis.length, y_axis.length)
            separated = min(x_axis.cell, y_axis.cell) * POINTS_PER_INCH >= 10
            edge = colours.cell_edge if separated else None
            _draw_matrix(axis, weights[layer, head], mappable, edge, rasterise)
            _label_source(axis, x_axis, colours, visible=layer == 0)
            _label_target(axis, y_axis, colours, visible=head == 0)
            if columns and layer == 0:
                heading_y = top - PAD - x_axis.extent - PAD
                canvas.add_heading(columns[head], x + x_axis.length / 2, heading_y)
            if rows and head == 0:
                heading_x = MARGIN + axis_name
                canvas.add_heading(rows[layer], heading_x, y + y_axis.length / 2, vertical=True)
    canvas.add_title(titles)
    for number, line in enumerate(notes):
        note_y = MARGIN + len(titles) * text_height(TITLE) + number * text_height(SMALL)
        canvas.add_text(line, MARGIN, note_y, colours.dimmed, size=SMALL, va="top")
    style: dict[str, Any] = {"colour": colours.dimmed, "size": SMALL}
    canvas.add_text(axes[0], left + inner_width / 2, MARGIN + above, **style, ha="center", va="top")
    middle = top + inner_height / 2
    canvas.add_text(axes[1], MARGIN, middle, **style, rotation=90, ha="left", va="center")
    bar_height = min(MAX_BAR, max(MIN_BAR, inner_height))
    bar = canvas.add_axes(left + inner_width + GAP, top, BAR, bar_height)
    _draw_colour_bar(bar, mappable, quantity, colours)
    return figure


def _grid_limits(depth: int, heads: int, rows: int, columns: int) -> Limits:
    """Limits of one panel in a grid: the grid fits a slide, or is larger if that makes tokens legible."""
    smallest, largest = 4.5, 10.0

    def panel_side(panels: int, tokens: int, slide: float, poster: float) -> float:
        on_slide, on_poster = max(0.6, slide / panels), poster / panels
        legible = tokens * LINE_HEIGHT * smallest / POINTS_PER_INCH + 1e-6
        return min(3.0, legible if on_slide < legible <= on_poster else on_slide)

    panel = panel_side(heads, columns, 11.0, 20.0), panel_side(depth, rows, 7.0, 40.0)
    return Limits(
        cell=0.26,
        max_cell=0.4,
        max_panel=panel,
        min_panel=min(1.2, *panel),
        font_sizes=(smallest, largest),
        thin_labels=False,
    )


def _colour_mapping(weights: Float[np.ndarray, "..."], colours: Theme) -> ScalarMappable:
    low, high = colour_limits(weights)
    stops = colours.diverging if low < 0 else colours.sequential
    colormap = LinearSegmentedColormap.from_list("regard", stops, N=512)
    return ScalarMappable(Normalize(low, high, clip=True), colormap)


def _draw_matrix(
    axis: Axes,
    weights: Float[np.ndarray, "target source"],
    mappable: ScalarMappable,
    edge: str | None,
    rasterise: bool,
) -> None:
    rows, columns = weights.shape
    norm = Normalize(*mappable.get_clim(), clip=True)
    if rasterise:
        axis.imshow(
            weights,
            mappable.cmap,
            norm,
            aspect="auto",
            interpolation="nearest",
            extent=(0, columns, rows, 0),
        )
    else:
        axis.pcolormesh(
            weights,
            cmap=mappable.cmap,
            norm=norm,
            edgecolors=edge or "face",
            linewidth=0.5 if edge else 0,
        )
    axis.set(xlim=(0, columns), ylim=(rows, 0))


def _label_source(axis: Axes, x_axis: TokenAxis, colours: Theme, *, visible: bool) -> None:
    indices = list(x_axis.visible) if visible else []
    axis.set_xticks([i + 0.5 for i in indices], [x_axis.labels[i].text for i in indices])
    axis.tick_params(
        axis="x",
        length=0,
        pad=PAD * POINTS_PER_INCH,
        bottom=False,
        labelbottom=False,
        labeltop=True,
    )
    for i, text in zip(indices, axis.get_xticklabels(), strict=True):
        style_text(text, colours.dimmed if x_axis.labels[i].dimmed else colours.text)
        text.set(size=x_axis.font_size, rotation=90 if x_axis.rotated[i] else 0, va="bottom")


def _label_target(axis: Axes, y_axis: TokenAxis, colours: Theme, *, visible: bool) -> None:
    indices = list(y_axis.visible) if visible else []
    axis.set_yticks([i + 0.5 for i in indices], [y_axis.labels[i].text for i in indices])
    axis.tick_params(axis="y", length=0, pad=PAD * POINTS_PER_INCH)
    for i, text in zip(indices, axis.get_yticklabels(), strict=True):
        style_text(text, colours.dimmed if y_axis.labels[i].dimmed else colours.text)
        text.set(size=y_axis.font_size, va="center")


def _draw_colour_bar(axis: Axes, mappable: ScalarMappable, quantity: str, colours: Theme) -> None:
    low, high = mappable.get_clim()
    ticks = [low, (low + high) / 2, high]
    bar = axis.figure.colorbar(mappable, cax=axis, ticks=ticks)
    bar.outline.set_visible(False)
    axis.set_yticklabels([f"{tick:.3g}".replace("-", "−") for tick in ticks])
    axis.tick_params(length=0, pad=4)
    axis.set_ylabel(describe_scale((low, high), quantity).replace(" (", "\n("))
    for text in (*axis.get_yticklabels(), axis.yaxis.label):
        style_text(text, colours.text, SMALL)
