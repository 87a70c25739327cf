"""A self-contained HTML document with interactive attention weights: hover a token to see them."""

import re
from collections.abc import Sequence
from html import escape
from importlib import resources
from typing import Any

import numpy as np

from regard import documents
from regard.diagrams.arrays import SCALE_ENDS, TOLERANCE
from regard.diagrams.mechanisms import Mechanism, list_mechanisms, select_mechanism
from regard.diagrams.themes import THEMES, Theme, style_variables
from regard.diagrams.tokens import Label, format_tokens

DECIMALS = 4  # per weight: finer than a screen can show, and half the file size


def render_html(
    attention: Any,
    source: Sequence[str],
    target: Sequence[str],
    *,
    mechanism: str = "cross",
    title: str | None = None,
    layer: int | None = None,
    head: int | None = None,
) -> str:
    """A self-contained HTML document with all of `attention`.

    `attention`: weights [layer head query key] by mechanism, or an array of cross-attention. The document
    opens on the given mechanism, layer and head (1-based; default: the last layer, the mean over
    heads), and follows the browser's light or dark colour scheme.
    """
    mechanisms = list_mechanisms(attention, source, target)
    chosen = select_mechanism(mechanisms, mechanism)
    data = {
        "mechanisms": {name: _describe(one) for name, one in mechanisms.items()},
        "mechanism": mechanism,
        "layer": layer or chosen.weights.shape[0],
        "head": head or "mean",
        "ends": SCALE_ENDS,
        "tolerance": TOLERANCE,
        "themes": {name: _colours(theme) for name, theme in THEMES.items()},
    }
    parts = {
        "title": escape(title or "Attention"),
        "themes": style_variables(),
        "data": _script_safe(data),
    }
    template = resources.files("regard.diagrams").joinpath("page.html").read_text("utf-8")
    # A single pass, so that a placeholder inside a title or token is not substituted.
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], template)


def _describe(mechanism: Mechanism) -> dict[str, object]:
    return {
        "label": mechanism.label,
        "keyName": mechanism.key_name,
        "queryName": mechanism.query_name,
        "keys": [_token(label) for label in format_tokens(mechanism.keys, None)],
        "queries": [_token(label) for label in format_tokens(mechanism.queries, None)],
        "weights": np.round(mechanism.weights, DECIMALS).tolist(),
    }


def _token(label: Label) -> dict[str, object]:
    return {"text": label.text, "dimmed": label.dimmed}


def _colours(theme: Theme) -> dict[str, object]:
    names = ("sequential", "diverging", "accent", "negative")
    return {name: getattr(theme, name) for name in names}


def _script_safe(data: object) -> str:
    # Inside a script element only "<" can end it or open a comment; ASCII needs no encoding.
    text = documents.dumps(data, separators=(",", ":"), ensure_ascii=True)
    return text.replace("<", r"\u003c").replace(">", r"\u003e").replace("&", r"\u0026")
