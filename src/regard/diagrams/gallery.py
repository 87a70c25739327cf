"""Pictures of many translations with an HTML index, and word alignments from attention weights."""

import html
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from regard import files
from regard.diagrams.arrays import validate_weights
from regard.diagrams.drawing import draw
from regard.template import PICTURES_BESIDE, fill

UNALIGNED = frozenset({"<pad>", "<begin>", "<end>"})  # <unk> stands for a word, so it is aligned


@dataclass(frozen=True)
class Item:
    """One translation in a gallery; `attention`: weights by mechanism, or of cross-attention."""

    text: str
    output: str
    source: Sequence[str]
    target: Sequence[str]
    attention: Any
    reference: str | None = None


def write_gallery(
    folder: Path,
    items: Sequence[Item],
    *,
    title: str,
    mechanism: str = "cross",
    layer: int | None = None,
    head: int | None = None,
    theme: str = "light",
) -> Path:
    """Write one picture per item to `folder`, and an index.html that shows them all; return its path."""
    articles = []
    for number, item in enumerate(items, start=1):
        picture = f"{number:04}.png"
        options = {"layer": layer, "head": head, "theme": theme, "title": item.text}
        tokens = (item.source, item.target)
        draw(folder / picture, item.attention, *tokens, mechanism=mechanism, **options)
        texts = {"source": item.text, "output": item.output, "reference": item.reference}
        rows = "".join(
            # bdi isolates right-to-left text from the rest of the page.
            f"<dt>{name}</dt><dd><bdi>{html.escape(text)}</bdi></dd>"
            for name, text in texts.items()
            if text
        )
        sides = f"{isolate(item.text)} to {isolate(item.output)}"
        alt = html.escape(f"attention weights: {sides}", quote=True)
        picture_tag = f'<img src="{picture}" alt="{alt}" loading="lazy">'
        articles.append(f'<article id="{number}"><dl>{rows}</dl>{picture_tag}</article>')
    parts = {"title": html.escape(title), "articles": "\n".join(articles)}
    template = resources.files("regard.diagrams").joinpath("gallery.html").read_text("utf-8")
    files.write(folder / "index.html", fill(template, parts, img_src=PICTURES_BESIDE))
    return folder / "index.html"


def isolate(text: str) -> str:
    """The text between directional isolates, so that right-to-left text moves nothing around it."""
    return f"\N{FIRST STRONG ISOLATE}{text}\N{POP DIRECTIONAL ISOLATE}"


def pharaoh_alignment(weights: Any, source: Sequence[str], target: Sequence[str]) -> str:
    """Align each target token with its most-attended source token, in Pharaoh format ("0-0 2-1").

    Weights [layer head target source] are averaged over layers and heads. Indices are 0-based token
    positions (source-target); special tokens are counted but not aligned.
    """
    mean = validate_weights(weights, "layer head target source", source, target).mean((0, 1))
    columns = [column for column, token in enumerate(source) if token not in UNALIGNED]
    if not columns:
        return ""
    best = np.array(columns)[mean[:, columns].argmax(1)]
    pairs = [(int(best[row]), row) for row, token in enumerate(target) if token not in UNALIGNED]
    return " ".join(f"{column}-{row}" for column, row in pairs)
