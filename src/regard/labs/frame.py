"""The frame of a lab's picture: title, colours, axes that look alike."""

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from regard.diagrams.figures import TITLE
from regard.diagrams.layout import lines
from regard.diagrams.themes import Theme

WIDTH, HEIGHT = 9.6, 5.4  # inches: a slide's shape


def frame(claim: str, colours: Theme) -> Figure:
    """An empty figure with the claim on top."""
    room = ConstrainedLayoutEngine(w_pad=0.2, h_pad=0.2, wspace=0.02, hspace=0.02)  # inches; shares
    figure = Figure(figsize=(WIDTH, HEIGHT), dpi=100, facecolor=colours.paper, layout=room)
    FigureCanvasAgg(figure)
    title = "\n".join(lines(claim, TITLE, WIDTH - 0.8))
    figure.suptitle(title, x=0.021, ha="left", size=TITLE, weight="bold", color=colours.text)
    return figure


def axes(figure: Figure, colours: Theme, columns: int = 1, rows: int = 1) -> list[Axes]:
    """Panels side by side, row by row, in the theme's colours."""
    panels = list(figure.subplots(rows, columns, squeeze=False).flat)
    for panel in panels:
        panel.set_facecolor(colours.paper)
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


def legend(panel: Axes, colours: Theme, **place: object) -> None:
    """A legend without a box."""
    panel.legend(frameon=False, fontsize=9, labelcolor=colours.text, **place)  # type: ignore[arg-type]
