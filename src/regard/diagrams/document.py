"""A self-contained HTML document with interactive attention weights: hover a token to see them."""

import json
import re
from collections.abc import Sequence
from html import escape
from importlib import resources
from typing import Any

import numpy as np

from regard.diagrams.arrays import colour_limits, validate_weights
from regard.diagrams.themes import THEMES, Theme, style_variables
from regard.diagrams.tokens import Label, format_tokens

DECIMALS = 4  # per weight: finer than a screen can show, and half the file size


def render_html(
    weights: Any,
    source: Sequence[str],
    target: Sequence[str],
    *,
    title: str | None = None,
    layer: int | None = None,
    head: int | None = None,
) -> str:
    """A self-contained HTML document with all of `weights` [layer head target source].

    It opens on the given layer and head (1-based; default: the first layer, the mean over heads)
    and follows the browser's light or dark colour scheme.
    """
    array = validate_weights(weights, "layer head target source", source, target)
    low, high = colour_limits(array)
    data = {
        "weights": np.round(array, DECIMALS).tolist(),
        "source": [_token(label) for label in format_tokens(source, None)],
        "target": [_token(label) for label in format_tokens(target, None)],
        "low": low,
        "high": high,
        "layer": layer or 1,
        "head": head or "mean",
        "themes": {name: _colours(theme, low) for name, theme in THEMES.items()},
    }
    parts = {
        "title": escape(title or "Attention"),
        "scale": "attention weight" + ("" if (low, high) == (0, 1) else " (scaled to the data)"),
        "themes": style_variables(),
        "data": _script_safe(data),
    }
    template = resources.files("regard.diagrams").joinpath("page.html").read_text("utf-8")
    # A single pass, so that a placeholder inside a title or token is not substituted.
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], template)


def _token(label: Label) -> dict[str, object]:
    return {"text": label.text, "dimmed": label.dimmed}


def _colours(theme: Theme, low: float) -> dict[str, object]:
    return {
        "colormap": theme.diverging if low < 0 else theme.sequential,
        "accent": theme.accent,
        "negative": theme.negative,
    }


def _script_safe(data: object) -> str:
    # Inside a script element only "<" can end it or open a comment; ASCII needs no encoding.
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=True)
    return text.replace("<", r"\u003c").replace(">", r"\u003e").replace("&", r"\u0026")
