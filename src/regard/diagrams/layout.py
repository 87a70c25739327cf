"""Figure layout in inches: cell sizes, and token labels that never overlap."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from regard.diagrams.fonts import LINE_HEIGHT, text_widths
from regard.diagrams.tokens import Label

POINTS_PER_INCH = 72
MAX_TITLE = 300  # characters


@dataclass(frozen=True)
class Limits:
    """Size limits of one type of figure: inches, and points for fonts."""

    cell: float  # preferred side of a cell
    max_cell: float  # side of a cell in a small matrix
    max_panel: tuple[float, float]  # maximum (width, height) of one matrix
    min_panel: float  # minimum side of a matrix, where its cells can stretch to it
    font_sizes: tuple[float, float]  # smallest and largest size of a token
    thin_labels: bool  # if not all labels fit, draw every n-th (otherwise none)


@dataclass(frozen=True)
class TokenAxis:
    """The token labels along one axis of a matrix, one per cell."""

    labels: tuple[Label, ...]
    cell: float
    font_size: float
    step: int  # every step-th label is drawn; 0: none
    rotated: tuple[bool, ...]  # per label: drawn vertically
    extent: float  # space the labels need beside the matrix

    @property
    def length(self) -> float:
        """The side of the matrix along this axis."""
        return self.cell * len(self.labels)

    @property
    def visible(self) -> range:
        """The indices of the labels that are drawn."""
        return range(0, len(self.labels) if self.step else 0, self.step or 1)


def layout_axes(
    source: Sequence[Label], target: Sequence[Label], limits: Limits
) -> tuple[TokenAxis, TokenAxis]:
    """The (source, target) axes of a matrix within the limits, with square cells where possible."""
    width, height = cell_size(len(source), len(target), limits)
    return (
        _layout_axis(source, width, limits, top=True),
        _layout_axis(target, height, limits, top=False),
    )


def cell_size(columns: int, rows: int, limits: Limits) -> tuple[float, float]:
    """(width, height) of a cell."""
    preferred = min(limits.max_cell, max(limits.cell, limits.min_panel / max(columns, rows)))
    width = min(preferred, limits.max_panel[0] / columns)
    height = min(preferred, limits.max_panel[1] / rows)
    square = min(width, height)
    # A single row of 200 columns would be a hairline: stretch cells along the short side.
    return (
        max(square, min(width, limits.min_panel / columns)),
        max(square, min(height, limits.min_panel / rows)),
    )


def _layout_axis(labels: Sequence[Label], cell: float, limits: Limits, *, top: bool) -> TokenAxis:
    smallest, largest = limits.font_sizes
    pitch = cell * POINTS_PER_INCH
    widths = text_widths([label.text for label in labels], largest)
    rotated = _rotated(labels, widths, pitch, largest) if top else (False,) * len(labels)

    # All sizes are proportional to the font size: compute them for the largest, then scale.
    line = LINE_HEIGHT * largest
    if top:
        sides = [
            (line, width) if rotate else (width + 0.4 * largest, line)
            for width, rotate in zip(widths, rotated, strict=True)
        ]
        along, extent = (max(side) for side in zip(*sides, strict=True))
    else:
        along, extent = line, max(widths)
    size = min(largest, max(smallest, largest * pitch / along))
    step = max(1, math.ceil(along * size / largest / pitch - 1e-6))
    if step > 1 and not limits.thin_labels:
        return TokenAxis(tuple(labels), cell, size, 0, rotated, 0.0)
    extent = extent * size / largest / POINTS_PER_INCH
    return TokenAxis(tuple(labels), cell, size, step, rotated, extent)


def _rotated(
    labels: Sequence[Label], widths: Sequence[float], pitch: float, size: float
) -> tuple[bool, ...]:
    """Which labels on top are drawn vertically: none if all fit, otherwise the long ones.

    Among letters only special tokens (`<end>`) are; among words all but single characters are.
    """
    if max(widths) + 0.4 * size <= pitch:
        return (False,) * len(labels)
    words = any(len(label.text) > 2 for label in labels if not label.dimmed)
    return tuple(len(label.text) > (1 if words else 2) for label in labels)


def wrap_title(text: str, size: float, width: float, max_lines: int = 2) -> list[str]:
    """Wrap a title at spaces into at most `max_lines` lines of `width` inches, truncated with `…`."""
    lines: list[str] = []
    words = text[:MAX_TITLE].split()
    while words and len(lines) < max_lines:
        count = 1
        while count < len(words) and _fits(" ".join(words[: count + 1]), size, width):
            count += 1
        line, words = " ".join(words[:count]), words[count:]
        overflows = bool(words) and len(lines) == max_lines - 1
        fits = not overflows and _fits(line, size, width)
        lines.append(line if fits else _truncate(line, size, width))
    return lines


def _truncate(line: str, size: float, width: float) -> str:
    while line and not _fits(line + "…", size, width):
        line = line[:-1]
    return line + "…"


def _fits(text: str, size: float, width: float) -> bool:
    return text_widths([text], size, bold=True)[0] <= width * POINTS_PER_INCH
