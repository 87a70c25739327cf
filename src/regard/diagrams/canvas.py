"""A figure addressed in inches from its top left corner, with its title and what is written in it."""

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text

from regard.diagrams.fonts import LINE, families
from regard.diagrams.layout import POINTS, lines
from regard.diagrams.themes import Theme, named

TITLE, HEADING, SMALL = 15.0, 11.0, 10.0  # font sizes
MARGIN, GAP, PAD = 0.3, 0.16, 0.09  # inches: around everything, between panels, beside labels


class Canvas:
    """A figure addressed in inches from its top left corner."""

    def __init__(self, figure: Figure, colours: Theme) -> None:
        self.figure = figure
        self.colours = colours
        self.width, self.height = figure.get_size_inches()

    def axes(self, x: float, y: float, width: float, height: float) -> Axes:
        bottom = 1 - (y + height) / self.height
        box = (x / self.width, bottom, width / self.width, height / self.height)
        axis = self.figure.add_axes(box)
        axis.set_facecolor(self.colours.paper)
        for spine in axis.spines.values():
            spine.set_visible(False)
        return axis

    def heading(self, text: str, x: float, y: float, *, upwards: bool = False) -> None:
        self._text(
            text,
            x,
            y,
            size=HEADING,
            rotation=90 if upwards else 0,
            ha="left" if upwards else "center",
            va="center" if upwards else "bottom",
        )

    def title(self, texts: Sequence[str]) -> None:
        for number, text in enumerate(texts):
            y = MARGIN + number * TITLE * LINE / POINTS
            self._text(text, MARGIN, y, size=TITLE, weight="bold", ha="left", va="top")

    def _text(self, text: str, x: float, y: float, **style: Any) -> None:
        text_artist = self.figure.text(x / self.width, 1 - y / self.height, text, **style)
        dress(text_artist, self.colours.text)


def dress(text: Text, colour: str) -> None:
    text.set_color(colour)
    text.set_fontfamily(families())
    text.set_parse_math(False)  # a token may hold $, _ or a backslash
    text.set_usetex(False)


def text_height(size: float) -> float:
    return size * LINE / POINTS


def start(
    width: float, body: float, title: str, note: str, theme: str
) -> tuple[Figure, Canvas, Theme, float]:
    """A figure with its title and a note on top, and where the rest begins."""
    colours = named(theme)
    titles = lines(title, TITLE, width - 2 * MARGIN)
    notes = lines(note, SMALL, width - 2 * MARGIN)
    above = len(titles) * text_height(TITLE)
    top = MARGIN + above + len(notes) * text_height(SMALL) + 3 * PAD
    figure = Figure(figsize=(width, top + body + MARGIN), dpi=100, facecolor=colours.paper)
    FigureCanvasAgg(figure)
    canvas = Canvas(figure, colours)
    canvas.title(titles)
    for number, line in enumerate(notes):
        y = MARGIN + above + PAD / 2 + number * text_height(SMALL)
        write(canvas, line, MARGIN, y, colours.dimmed, size=SMALL, va="top")
    return figure, canvas, colours, top


def write(canvas: Canvas, text: str, x: float, y: float, colour: str, **style: object) -> None:
    placed = canvas.figure.text(x / canvas.width, 1 - y / canvas.height, text, **style)  # type: ignore[arg-type]
    dress(placed, colour)
