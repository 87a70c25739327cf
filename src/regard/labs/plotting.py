"""The common style of the labs' plots: title, colours, axes."""

import math
from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import Colormap, LinearSegmentedColormap, LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from regard.diagrams.canvas import TITLE
from regard.diagrams.layout import wrap_title
from regard.diagrams.themes import Theme

WIDTH, HEIGHT = 9.6, 5.4  # inches: 16:9


def new_figure(claim: str, colours: Theme) -> Figure:
    """An empty figure with the claim as its title."""
    # Pads are in inches, spaces are fractions of a panel.
    layout = ConstrainedLayoutEngine(w_pad=0.2, h_pad=0.2, wspace=0.02, hspace=0.02)
    figure = Figure(figsize=(WIDTH, HEIGHT), dpi=100, facecolor=colours.background, layout=layout)
    FigureCanvasAgg(figure)
    title = "\n".join(wrap_title(claim, TITLE, WIDTH - 0.8))
    figure.suptitle(title, x=0.021, ha="left", size=TITLE, weight="bold", color=colours.text)
    return figure


def add_subplots(figure: Figure, colours: Theme, columns: int = 1, rows: int = 1) -> list[Axes]:
    """A grid of panels in the theme's colours, row by row."""
    panels = list(figure.subplots(rows, columns, squeeze=False).flat)
    for panel in panels:
        panel.set_facecolor(colours.background)
        panel.set_prop_cycle(color=colours.series)
        panel.spines[["top", "right"]].set_visible(False)
        panel.spines[["left", "bottom"]].set_color(colours.dimmed)
        panel.tick_params(colors=colours.text, labelsize=9)
        panel.xaxis.label.set_color(colours.text)
        panel.yaxis.label.set_color(colours.text)
        panel.title.set_color(colours.text)
        panel.grid(axis="y", color=colours.dimmed, alpha=0.25, linewidth=0.6)
        panel.set_axisbelow(True)
    return panels


def add_legend(panel: Axes, colours: Theme, **options: object) -> None:
    """Add a legend without a frame."""
    panel.legend(frameon=False, fontsize=9, labelcolor=colours.text, **options)  # type: ignore[arg-type]


def draw_differences(
    panel: Axes, rows: Mapping[str, Sequence[float]], colours: Theme, rounding: float, differ: float
) -> None:
    """Draw relative differences as dots on a logarithmic axis, a row for each case, the first on top.

    Up to the line at `rounding` two results are equal, from the line at `differ` they differ. A difference of
    exactly 0 is an open dot on the left.
    """
    zero, exponents = 1e-18, range(-15, 1, 3)
    for row, differences in enumerate(rows.values()):
        colour = colours.series[0 if all(x <= rounding for x in differences) else 1]
        for x in differences:
            fill = colour if x else "none"
            panel.plot(x or zero, row, "o", ms=6, mec=colour, mfc=fill, alpha=0.7)
    for x in (rounding, differ):
        panel.axvline(x, color=colours.dimmed, ls="--", lw=1, zorder=0)
    panel.set(xscale="log", xlim=(zero / 9, 99), ylim=(len(rows) - 0.5, -1.5))
    panel.set_yticks(range(len(rows)), list(rows))
    labels = ["0", *(f"$10^{{{exponent}}}$" for exponent in exponents)]
    panel.set_xticks([zero, *(10.0**exponent for exponent in exponents)], labels)
    panel.minorticks_off()
    words = {"size": 9, "va": "center", "color": colours.text}
    panel.text(rounding / 5, -1, "equal, up to rounding", ha="right", **words)
    panel.text(99, -1, "different", ha="right", **words)


def draw_heatmap(
    panel: Axes,
    numbers: Sequence[Sequence[float]],
    colours: Theme,
    rows: Sequence[str] = (),
    columns: Sequence[str] = (),
    number_format: str = "",
) -> None:
    """Draw a matrix as a heatmap; `number_format` ("{:.0f}") also prints the numbers into the cells.

    Rows and columns without names are numbered from 1.
    """
    largest = max(abs(number) for row in numbers for number in row) or 1.0
    signed = any(number < 0 for row in numbers for number in row)
    stops = colours.diverging if signed else colours.sequential
    colormap = LinearSegmentedColormap.from_list("regard", stops, N=512)
    norm = Normalize(-largest if signed else 0, largest)
    _draw_cells(panel, numbers, colormap, norm)
    for axis, names in ((panel.xaxis, columns), (panel.yaxis, rows)):
        if names:
            axis.set_ticks(range(1, len(names) + 1), names)
    for row, values in enumerate(numbers if number_format else (), start=1):
        for column, number in enumerate(values, start=1):
            bright = sum(colormap(norm(number))[:3]) > 1.5
            color = "black" if bright else "white"
            text = number_format.format(number).replace("-", "−")
            panel.text(column, row, text, ha="center", va="center", color=color)


def draw_masked_weights(
    panel: Axes, weights: Sequence[Sequence[float]], colours: Theme, smallest: float
) -> None:
    """Draw attention weights on a logarithmic colour scale from `smallest` to 1, with a colour bar.

    Weights of 0, which such a scale does not have, are hatched: a masked weight is not a small one.
    """
    # The darkest colours are left out: a small number must differ from a dark background.
    colormap = LinearSegmentedColormap.from_list("regard", colours.sequential[4:], N=512)
    visible = [[weight if weight > 0 else math.nan for weight in row] for row in weights]
    image = _draw_cells(panel, visible, colormap, LogNorm(smallest, 1))
    left, right, bottom, top = image.get_extent()
    hatched = Rectangle(
        *((left, top), right - left, bottom - top),
        fill=False,
        hatch="///",
        edgecolor=colours.dimmed,
        alpha=0.5,
        linewidth=0,
        zorder=image.get_zorder() - 1,
    )
    panel.add_patch(hatched)
    bar = panel.figure.colorbar(image, ax=panel)
    bar.set_label("attention weight (hatched: masked)", color=colours.text, size=9)
    bar.ax.tick_params(which="both", colors=colours.text, labelsize=8)
    bar.outline.set_visible(False)  # type: ignore[operator]


def _draw_cells(
    panel: Axes, numbers: Sequence[Sequence[float]], colormap: Colormap, norm: Normalize
) -> AxesImage:
    """The cells of a heatmap: row 1 on top, rows and columns counted from 1."""
    extent = 0.5, len(numbers[0]) + 0.5, len(numbers) + 0.5, 0.5
    image = panel.imshow(numbers, cmap=colormap, norm=norm, aspect="auto", extent=extent)
    for axis in (panel.xaxis, panel.yaxis):
        axis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    panel.tick_params(length=0)
    panel.spines[:].set_visible(False)
    panel.grid(visible=False)
    return image
