"""Saves figures to files."""

import os
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from regard import files
from regard.diagrams.fonts import allow_missing_glyphs
from regard.errors import UserError

# Omit the date and the program, so that equal figures give equal bytes.
METADATA = {
    ".png": {"Software": None},
    ".svg": {"Date": None, "Creator": None},
    ".pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}
# Text in an SVG and a PDF stays text: it can be searched, copied and edited.
PARAMETERS: Any = {"svg.fonttype": "none", "svg.hashsalt": "regard", "pdf.fonttype": 42}
DPI = 200


def figure_suffix(path: str | os.PathLike[str]) -> str:
    """The suffix of a figure's file name: .png, .svg or .pdf."""
    suffix = Path(path).suffix.lower()
    if suffix not in METADATA:
        raise UserError(
            f"cannot save a figure as {str(path)!r}: expected a file name ending in "
            f"{', '.join(METADATA)} (draw also writes .html)"
        )
    return suffix


def save(figure: Figure, path: str | os.PathLike[str]) -> None:
    """Write the figure as .png, .svg or .pdf (equal figures give equal bytes), then clear it."""
    suffix = figure_suffix(path)
    # The lock in allow_missing_glyphs also guards rc_context.
    with (
        allow_missing_glyphs(),
        matplotlib.rc_context(PARAMETERS),
    ):
        files.write_with(
            Path(path),
            lambda temporary: figure.savefig(
                temporary, format=suffix[1:], dpi=DPI, metadata=METADATA[suffix]
            ),
        )
    figure.clear()
