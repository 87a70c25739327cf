"""Many sentences at once: a picture each, an index page of them, and alignments read off the weights."""

import html
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from regard import files
from regard.diagrams.arrays import checked
from regard.diagrams.drawing import draw

SILENT = frozenset({"<pad>", "<begin>", "<end>"})  # an unknown word is a word all the same

STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
article { margin: 0 0 3rem; border-top: 1px solid #8884; padding-top: 1rem; }
img { max-width: 100%; max-height: 34rem; border-radius: 6px; }
dl { display: grid; grid-template-columns: 6rem 1fr; margin: 0 0 1rem; }
dt { opacity: .6; } dd { margin: 0; }
"""


@dataclass(frozen=True)
class Item:
    """One sentence of a gallery."""

    text: str
    output: str
    source: Sequence[str]
    target: Sequence[str]
    weights: Any
    reference: str | None = None


def gallery(
    folder: Path,
    items: Sequence[Item],
    *,
    title: str,
    layer: int | None = None,
    head: int | None = None,
    theme: str = "light",
) -> Path:
    """A picture of each item in `folder`, and the index.html that shows them all."""
    articles = []
    for number, item in enumerate(items, start=1):
        picture = f"{number:04}.png"
        looks = {"layer": layer, "head": head, "theme": theme}
        draw(folder / picture, item.weights, item.source, item.target, **looks)
        said = {"source": item.text, "output": item.output, "reference": item.reference}
        rows = "".join(
            f"<dt>{name}</dt><dd>{html.escape(text)}</dd>" for name, text in said.items() if text
        )
        alt = html.escape(f"attention weights: {item.text} to {item.output}", quote=True)
        picture_tag = f'<img src="{picture}" alt="{alt}" loading="lazy">'
        articles.append(f'<article id="{number}"><dl>{rows}</dl>{picture_tag}</article>')
    heading = html.escape(title)
    page = (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{heading}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{STYLE}</style>'
        f"<h1>{heading}</h1>" + "\n".join(articles) + "</html>\n"
    )
    files.write(folder / "index.html", page)
    return folder / "index.html"


def pharaoh(weights: Any, source: Sequence[str], target: Sequence[str]) -> str:
    """'0-0 1-2 ...': for each produced token, the source token it looked at most (Pharaoh format).

    Weights [layer head target source] are averaged over layers and heads. Numbers count tokens from 0;
    special tokens are on neither side.
    """
    mean = checked(weights, "layer head target source", source, target).mean((0, 1))
    real = [place for place, token in enumerate(source) if token not in SILENT]
    if not real:
        return ""
    best = np.array(real)[mean[:, real].argmax(1)]
    pairs = [(int(best[row]), row) for row, token in enumerate(target) if token not in SILENT]
    return " ".join(f"{left}-{right}" for left, right in pairs)
