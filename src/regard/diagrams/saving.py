"""Figures to files."""

import os
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

from regard import files
from regard.diagrams.fonts import missing_glyphs_allowed
from regard.errors import UserError

# What each kind of file would otherwise say about the day and the program that wrote it.
SILENT = {".png": {"Software": None}, ".svg": {"Date": None, "Creator": None}}
DOTS_PER_INCH = 200


def suffix_of(path: str | os.PathLike[str]) -> str:
    """How a figure's name ends: .png or .svg."""
    suffix = Path(path).suffix.lower()
    if suffix not in SILENT:
        raise UserError(
            f"cannot save a figure as {str(path)!r}: expected a name that ends in "
            f"{' or '.join(SILENT)} (draw also writes .html)"
        )
    return suffix


def save(figure: Figure, path: str | os.PathLike[str]) -> None:
    """Writes the figure as .png or .svg, the same bytes for the same figure, and closes it."""
    suffix = suffix_of(path)
    # The lock inside keeps matplotlib's settings, too, to one thread at a time.
    with (
        missing_glyphs_allowed(),
        matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "regard"}),
    ):
        files.write_with(
            Path(path),
            lambda temporary: figure.savefig(
                temporary, format=suffix[1:], dpi=DOTS_PER_INCH, metadata=SILENT[suffix]
            ),
        )
    figure.clear()
