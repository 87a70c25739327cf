"""One HTML document that shows attention without a network: hover a token, see where it looked."""

import json
import re
from collections.abc import Sequence
from html import escape
from importlib import resources
from typing import Any

import numpy as np

from regard.diagrams.arrays import checked, scale
from regard.diagrams.themes import THEMES, Theme
from regard.diagrams.tokens import Label, labels

DECIMALS = 4  # of a weight: finer than a screen shows, and half the size of the rest


def page(
    weights: Any,
    source: Sequence[str],
    target: Sequence[str],
    *,
    title: str | None = None,
    layer: int | None = None,
    head: int | None = None,
) -> str:
    """A self-contained document with all of `weights` [layer head target source].

    It opens on the given layer and head (1-based; else the first layer, and the mean over heads)
    and follows the reader's own choice of light or dark.
    """
    array = checked(weights, "layer head target source", source, target)
    low, high = scale(array)
    data = {
        "weights": np.round(array, DECIMALS).tolist(),
        "source": [_token(label) for label in labels(source, None)],
        "target": [_token(label) for label in labels(target, None)],
        "low": low,
        "high": high,
        "layer": layer or 1,
        "head": head or "mean",
        "themes": {name: _colours(theme, low) for name, theme in THEMES.items()},
    }
    parts = {
        "title": escape(title or "Attention"),
        "scale": "attention weight" + ("" if (low, high) == (0, 1) else " (scaled to the data)"),
        "themes": _style(THEMES["light"], THEMES["dark"]),
        "data": _script_safe(data),
    }
    template = resources.files("regard.diagrams").joinpath("page.html").read_text("utf-8")
    # One pass, so that a title or token that looks like a placeholder stays what it is.
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], template)


def _token(label: Label) -> dict[str, object]:
    return {"text": label.text, "dimmed": label.dimmed}


def _colours(theme: Theme, low: float) -> dict[str, object]:
    return {
        "ramp": theme.diverging if low < 0 else theme.sequential,
        "accent": theme.accent,
        "negative": theme.negative,
    }


def _style(light: Theme, dark: Theme) -> str:
    return (
        f":root {{ {_variables(light)} }}\n"
        f"@media (prefers-color-scheme: dark) {{ :root {{ {_variables(dark)} }} }}"
    )


def _variables(theme: Theme) -> str:
    return (
        f"--paper: {theme.paper}; --text: {theme.text}; --dimmed: {theme.dimmed}; "
        f"--accent: {theme.accent}; --quiet: {theme.text}b0; --raised: {theme.text}12; "
        f"--line: {theme.text}30;"
    )


def _script_safe(data: object) -> str:
    # Inside a script element only "<" could end it or open a comment; ASCII needs no encoding.
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=True)
    return text.replace("<", r"\u003c").replace(">", r"\u003e").replace("&", r"\u0026")
