"""Plots of labs for a page: SVG with places for the colours of either theme, and glyphs only once.

matplotlib writes the outline of every character into every picture. Here the outlines of all pictures share
one table, and a colour is a place, `@3@`, the fourth of a palette: so one picture serves both themes.
"""

import re
from dataclasses import fields, replace
from functools import cache
from io import StringIO

import matplotlib
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from regard.diagrams.themes import THEMES, Theme
from regard.labs import Lab, Result
from regard.labs.plotting import new_figure

GLYPH = re.compile(r'<path id="([^"]+)" d="([^"]*)" transform="scale\(0\.015625\)"/>\n?')
LONG_NUMBER = re.compile(r"(?<![\w.])-?\d{1,9}\.\d{3,}")
COLOUR = re.compile(r"#[0-9a-f]{6}\b")
NAMES = ("background", "text", "dimmed", "series", "sequential", "diverging")
OPTIONS = {"svg.fonttype": "path", "svg.hashsalt": "regard", "path.simplify": True}

Glyphs = dict[str, str]


def draw_svg(lab: Lab, result: Result, glyphs: Glyphs) -> dict[str, str]:
    """The plot by theme, {"both": svg} where colours alone tell them apart; its glyphs join `glyphs`."""
    with matplotlib.rc_context(OPTIONS):  # type: ignore[arg-type]
        pictures = draw_once(lab, result) or draw_twice(lab, result)
    return {name: take_glyphs(shorten(svg), glyphs) for name, svg in pictures.items()}


def draw_once(lab: Lab, result: Result) -> dict[str, str] | None:
    """One picture for both themes; None if it has other colours than those of a theme."""
    theme = placeholder_theme()
    figure = draw(lab, result, theme)
    if any(axes.images for axes in figure.axes):  # a heat map, with colours in between
        return None
    places = {colour: f"@{number}@" for number, colour in enumerate(palette(theme))}
    svg = to_svg(figure)
    if not places.keys() >= set(COLOUR.findall(svg)):
        return None
    return {"both": COLOUR.sub(lambda match: places[match[0]], svg)}


def draw_twice(lab: Lab, result: Result) -> dict[str, str]:
    """A picture for each theme. The second has the layout of the first, which takes most of the time."""
    figures = {name: draw(lab, result, theme) for name, theme in THEMES.items()}
    first, *others = figures.values()
    pictures = [to_svg(first)]
    for figure in others:
        figure.set_layout_engine("none")
        for axes, source in zip(figure.axes, first.axes, strict=True):
            axes.set_position(source.get_position(original=True))
        pictures.append(to_svg(figure))
    return dict(zip(figures, pictures, strict=True))


def draw(lab: Lab, result: Result, theme: Theme) -> Figure:
    """The plot without its title: the page has the claim above it."""
    figure = new_figure("", theme)
    lab.draw(result, figure, theme)
    return figure


def palette(theme: Theme) -> list[str]:
    """The colours of a theme, in the order of their places."""
    values = (getattr(theme, name) for name in NAMES)
    return [c for value in values for c in ([value] if isinstance(value, str) else value)]


@cache
def placeholder_theme() -> Theme:
    """A theme of which every colour is another."""
    theme, number = THEMES["light"], 0
    colours: dict[str, str | tuple[str, ...]] = {}
    for field in fields(theme):
        value = getattr(theme, field.name)
        count = 1 if isinstance(value, str) else len(value)
        made = tuple(f"#a7c3{number + index:02x}" for index in range(count))
        colours[field.name] = made[0] if isinstance(value, str) else made
        number += count
    return replace(theme, **colours)  # type: ignore[arg-type]


def to_svg(figure: Figure) -> str:
    text = StringIO()
    FigureCanvasSVG(figure).print_svg(text, metadata={"Date": None, "Creator": None})
    svg = text.getvalue()
    svg = svg[svg.index("<svg") :]
    return re.sub(r"\s*<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)


def shorten(svg: str) -> str:
    """Coordinates to a hundredth of a point; no comments, no indentation."""
    svg = re.sub(r"<!--.*?-->", "", svg, flags=re.DOTALL)
    svg = re.sub(r"\n\s*", "\n", svg)
    # Below 1 it may be a scale, and every digit counts.
    return LONG_NUMBER.sub(
        lambda match: match[0] if abs(float(match[0])) < 1 else f"{float(match[0]):.2f}", svg
    )


def take_glyphs(svg: str, glyphs: Glyphs) -> str:
    """Move the outlines of characters into the table that all pictures share."""
    for name, outline in GLYPH.findall(svg):
        assert glyphs.setdefault(name, outline) == outline, f"two glyphs are called {name}"
    return GLYPH.sub("", svg)
