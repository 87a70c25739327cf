"""Attention diagrams: attention weights and tokens in, picture out. Knows nothing of models.

    draw("cat.svg", attention, source, target)            # format by suffix: .png .svg .pdf .html
    save(heatmap(attention[0, 0], source, target), "cat.png")

`heatmap` and `grid` return matplotlib figures, `render_html` a self-contained HTML document. In all
of them rows are target tokens, columns are source tokens, and brighter means more weight.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from regard.diagrams.document import render_html
from regard.diagrams.drawing import draw
from regard.diagrams.themes import THEMES, Theme

if TYPE_CHECKING:
    from regard.diagrams.figures import grid, heatmap
    from regard.diagrams.saving import save

__all__ = ["THEMES", "Theme", "draw", "grid", "heatmap", "render_html", "save"]

# Imported lazily: matplotlib takes most of a second to import.
_NEED_MATPLOTLIB = {"grid": "figures", "heatmap": "figures", "save": "saving"}


def __getattr__(name: str) -> object:
    if name in _NEED_MATPLOTLIB:
        return getattr(import_module(f"regard.diagrams.{_NEED_MATPLOTLIB[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
