"""`draw`: the attention weights of one translation, written in the format of the file name's suffix."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from regard import files
from regard.diagrams import themes
from regard.diagrams.arrays import validate_weights
from regard.diagrams.document import render_html
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
    """Write `attention` [layer head target source] to `path`: .png, .svg or .html.

    `layer` and `head` are 1-based; None draws all. HTML always holds all of them, opens on the
    given ones, and follows the browser's light or dark colour scheme instead of `theme`.
    """
    suffix = Path(path).suffix.lower()
    if suffix not in SUFFIXES:
        raise UserError(
            f"cannot draw {str(path)!r}: expected a file name ending in {', '.join(SUFFIXES)}"
        )
    themes.get_theme(theme)
    weights = validate_weights(attention, "layer head target source", source, target)
    layers = _select("layer", layer, weights.shape[0])
    heads = _select("head", head, weights.shape[1])
    if suffix == ".html":
        text = render_html(weights, source, target, title=title, layer=layer, head=head)
        files.write(Path(path), text)
    else:
        _draw_figure(path, weights, source, target, layers, heads, title, theme)


def _select(kind: str, number: int | None, count: int) -> list[int]:
    """The 1-based numbers of the layers or heads to draw."""
    if number is None:
        return list(range(1, count + 1))
    if not 1 <= number <= count:
        allowed = f"{kind}s 1 to {count}" if count > 1 else f"only {kind} 1"
        raise UserError(f"there is no {kind} {number}: this attention has {allowed}")
    return [number]


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
    # Imported here because HTML does not need matplotlib.
    from regard.diagrams.figures import draw_panels
    from regard.diagrams.saving import save

    rows = [f"layer {number}" for number in layers]
    columns = [f"head {number}" for number in heads]
    if len(layers) == len(heads) == 1:
        if title is None and weights.shape[:2] != (1, 1):
            title = f"{rows[0]}, {columns[0]}"
        rows, columns = [], []
    selected = weights[layers[0] - 1 : layers[-1], heads[0] - 1 : heads[-1]]
    save(draw_panels(selected, source, target, rows, columns, title=title, theme=theme), path)
