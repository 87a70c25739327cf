"""The common style of the labs' plots: title, colours, axes."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LinearSegmentedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
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
    extent = 0.5, len(numbers[0]) + 0.5, len(numbers) + 0.5, 0.5
    panel.imshow(numbers, cmap=colormap, norm=norm, aspect="auto", extent=extent)
    for axis, names in ((panel.xaxis, columns), (panel.yaxis, rows)):
        axis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        if names:
            axis.set_ticks(range(1, len(names) + 1), names)
    panel.tick_params(length=0)
    panel.spines[:].set_visible(False)
    panel.grid(visible=False)
    for row, values in enumerate(numbers if number_format else (), start=1):
        for column, number in enumerate(values, start=1):
            bright = sum(colormap(norm(number))[:3]) > 1.5
            color = "black" if bright else "white"
            text = number_format.format(number).replace("-", "−")
            panel.text(column, row, text, ha="center", va="center", color=color)
