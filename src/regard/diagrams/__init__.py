"""Weights and tokens in, picture out; knows no model.

    draw("cat.svg", attention, source, target)            # a file, by its suffix: .png .svg .html
    save(heatmap(attention[0, 0], source, target), "cat.png")

`heatmap` and `grid` make matplotlib figures, `page` one self-contained HTML document. In all of
them a row is a produced token, a column a source token, and brighter means more weight.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from regard.diagrams.document import page
from regard.diagrams.drawing import draw
from regard.diagrams.themes import THEMES, Theme

if TYPE_CHECKING:
    from regard.diagrams.figures import grid, heatmap
    from regard.diagrams.saving import save

__all__ = ["THEMES", "Theme", "draw", "grid", "heatmap", "page", "save"]

# These need matplotlib, which takes a good part of a second to import: only once one is asked for.
_NEED_MATPLOTLIB = {"grid": "figures", "heatmap": "figures", "save": "saving"}


def __getattr__(name: str) -> object:
    if name in _NEED_MATPLOTLIB:
        return getattr(import_module(f"regard.diagrams.{_NEED_MATPLOTLIB[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
