"""A matplotlib figure laid out in inches from its top left corner, with a title and a note."""

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text

from regard.diagrams.fonts import LINE_HEIGHT, font_families
from regard.diagrams.layout import POINTS_PER_INCH, wrap_title
from regard.diagrams.themes import Theme, get_theme
from regard.diagrams.tokens import make_printable

TITLE, HEADING, SMALL = 15.0, 11.0, 10.0  # font sizes
MARGIN, GAP, PAD = 0.3, 0.16, 0.09  # inches: around the figure, between panels, beside labels


class Canvas:
    """Places axes and text on a figure, in inches from its top left corner."""

    def __init__(self, figure: Figure, colours: Theme) -> None:
        self.figure = figure
        self.colours = colours
        self.width, self.height = figure.get_size_inches()

    def add_axes(self, x: float, y: float, width: float, height: float) -> Axes:
        bottom = 1 - (y + height) / self.height
        box = (x / self.width, bottom, width / self.width, height / self.height)
        axis = self.figure.add_axes(box)
        axis.set_facecolor(self.colours.background)
        for spine in axis.spines.values():
            spine.set_visible(False)
        return axis

    def add_heading(self, text: str, x: float, y: float, *, vertical: bool = False) -> None:
        self.add_text(
            text,
            x,
            y,
            size=HEADING,
            rotation=90 if vertical else 0,
            ha="left" if vertical else "center",
            va="center" if vertical else "bottom",
        )

    def add_title(self, lines: Sequence[str]) -> None:
        for number, line in enumerate(lines):
            y = MARGIN + number * text_height(TITLE)
            self.add_text(line, MARGIN, y, size=TITLE, weight="bold", ha="left", va="top")

    def add_text(
        self, text: str, x: float, y: float, colour: str | None = None, **style: Any
    ) -> None:
        artist = self.figure.text(x / self.width, 1 - y / self.height, text, **style)
        style_text(artist, colour or self.colours.text)


def style_text(text: Text, colour: str, size: float | None = None) -> None:
    text.set_text(make_printable(text.get_text()))
    text.set_color(colour)
    text.set_fontfamily(font_families())
    text.set_parse_math(False)  # tokens may contain $, _ or a backslash
    text.set_usetex(False)
    if size is not None:
        text.set_fontsize(size)


def text_height(size: float) -> float:
    """The height of one line of text, in inches."""
    return size * LINE_HEIGHT / POINTS_PER_INCH


def create_figure(
    width: float, body: float, title: str, note: str, theme: str
) -> tuple[Figure, Canvas, Theme, float]:
    """A figure with a title and a note above a body of the given height, and the y of that body."""
    colours = get_theme(theme)
    titles = wrap_title(title, TITLE, width - 2 * MARGIN)
    notes = wrap_title(note, SMALL, width - 2 * MARGIN)
    above = len(titles) * text_height(TITLE)
    top = MARGIN + above + len(notes) * text_height(SMALL) + 3 * PAD
    figure = Figure(figsize=(width, top + body + MARGIN), dpi=100, facecolor=colours.background)
    FigureCanvasAgg(figure)
    canvas = Canvas(figure, colours)
    canvas.add_title(titles)
    for number, line in enumerate(notes):
        y = MARGIN + above + PAD / 2 + number * text_height(SMALL)
        canvas.add_text(line, MARGIN, y, colours.dimmed, size=SMALL, va="top")
    return figure, canvas, colours, top
