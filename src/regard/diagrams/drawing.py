"""The picture of one translation's attention, as the kind of file its name asks for."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from regard import files
from regard.diagrams import themes
from regard.diagrams.arrays import checked
from regard.diagrams.document import page
from regard.errors import UserError

SUFFIXES = (".png", ".svg", ".html")


def draw(
    path: str | os.PathLike[str],
    attention: Any,
    source: Sequence[str],
    target: Sequence[str],
    *,
    layer: int | None = None,
    head: int | None = None,
    title: str | None = None,
    theme: str = "light",
) -> None:
    """Writes `attention` [layer head target source] to `path`: .png, .svg or .html.

    `layer` and `head` count from 1; None takes all. A page always holds all and opens on the given
    ones; it follows the reader's light or dark rather than `theme`.
    """
    suffix = Path(path).suffix.lower()
    if suffix not in SUFFIXES:
        raise UserError(
            f"cannot draw {str(path)!r}: expected a name that ends in {', '.join(SUFFIXES)}"
        )
    themes.named(theme)
    weights = checked(attention, "layer head target source", source, target)
    layers = _numbers("layer", layer, weights.shape[0])
    heads = _numbers("head", head, weights.shape[1])
    if suffix == ".html":
        text = page(weights, source, target, title=title, layer=layer, head=head)
        files.write(Path(path), text)
    else:
        _draw_figure(path, weights, source, target, layers, heads, title, theme)


def _numbers(kind: str, chosen: int | None, count: int) -> list[int]:
    """The numbers, from 1, of what is drawn."""
    if chosen is None:
        return list(range(1, count + 1))
    if not 1 <= chosen <= count:
        known = f"{kind}s 1 to {count}" if count > 1 else f"only {kind} 1"
        raise UserError(f"there is no {kind} {chosen}: this attention has {known}")
    return [chosen]


def _draw_figure(
    path: str | os.PathLike[str],
    weights: Float[np.ndarray, "layer head target source"],
    source: Sequence[str],
    target: Sequence[str],
    layers: list[int],
    heads: list[int],
    title: str | None,
    theme: str,
) -> None:
    # Here, because they import matplotlib, which a page does not need.
    from regard.diagrams.figures import panels
    from regard.diagrams.saving import save

    rows = [f"layer {number}" for number in layers]
    columns = [f"head {number}" for number in heads]
    if len(layers) == len(heads) == 1:
        if title is None and weights.shape[:2] != (1, 1):
            title = f"{rows[0]}, {columns[0]}"
        rows, columns = [], []
    part = weights[layers[0] - 1 : layers[-1], heads[0] - 1 : heads[-1]]
    save(panels(part, source, target, rows, columns, title=title, theme=theme), path)
