"""`draw`: the attention weights of one translation, written in the format of the file name's suffix."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from regard import files
from regard.diagrams import themes
from regard.diagrams.document import render_html
from regard.diagrams.mechanisms import Mechanism, list_mechanisms, select_mechanism
from regard.errors import UserError

SUFFIXES = (".png", ".svg", ".pdf", ".html")


def draw(
    path: str | os.PathLike[str],
    attention: Any,
    source: Sequence[str],
    target: Sequence[str],
    *,
    mechanism: str = "cross",
    layer: int | None = None,
    head: int | None = None,
    title: str | None = None,
    theme: str = "light",
) -> None:
    """Write attention weights to `path`: .png, .svg, .pdf or .html.

    `attention`: those of a translation, by mechanism, or an array [layer head target source] of
    cross-attention. `layer` and `head` are 1-based; None draws all. HTML always holds all mechanisms,
    layers and heads, opens on the given ones, and follows the browser's light or dark colour scheme
    instead of `theme`.
    """
    suffix = check_suffix(path)
    themes.get_theme(theme)
    mechanisms = list_mechanisms(attention, source, target)
    chosen = select_mechanism(mechanisms, mechanism)
    layers = _select("layer", layer, chosen.weights.shape[0])
    heads = _select("head", head, chosen.weights.shape[1])
    if suffix == ".html":
        options = {"mechanism": mechanism, "layer": layer, "head": head, "title": title}
        files.write(Path(path), render_html(attention, source, target, **options))
    else:
        notes = [chosen.label] if len(mechanisms) > 1 else []
        _draw_figure(path, chosen, layers, heads, title, notes, theme)


def check_suffix(path: str | os.PathLike[str]) -> str:
    """The suffix of a picture's file name; an error if it is none that `draw` writes."""
    suffix = Path(path).suffix.lower()
    if suffix not in SUFFIXES:
        raise UserError(
            f"cannot draw {str(path)!r}: expected a file name ending in {', '.join(SUFFIXES)}"
        )
    return suffix


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
    mechanism: Mechanism,
    layers: list[int],
    heads: list[int],
    title: str | None,
    notes: list[str],
    theme: str,
) -> None:
    # Imported here because HTML does not need matplotlib.
    from regard.diagrams.figures import draw_panels
    from regard.diagrams.saving import save

    rows = [f"layer {number}" for number in layers]
    columns = [f"head {number}" for number in heads]
    if len(layers) == len(heads) == 1:
        if mechanism.weights.shape[:2] != (1, 1):
            notes = [*notes, rows[0], columns[0]]
        rows, columns = [], []
    selected = mechanism.weights[layers[0] - 1 : layers[-1], heads[0] - 1 : heads[-1]]
    figure = draw_panels(
        selected,
        mechanism.keys,
        mechanism.queries,
        rows,
        columns,
        title=title,
        note=", ".join(notes),
        axes=(mechanism.key_name, mechanism.query_name),
        theme=theme,
        # The reader's program draws the text of an SVG, and may have the fonts that are missing here.
        spell_missing=Path(path).suffix.lower() != ".svg",
    )
    save(figure, path)
