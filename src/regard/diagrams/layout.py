"""Where everything goes, in inches: cells, labels that never overlap, the size of the figure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from regard.diagrams.fonts import LINE, widths
from regard.diagrams.tokens import Label

POINTS = 72  # in an inch
LONGEST_TITLE = 300  # characters


@dataclass(frozen=True)
class Limits:
    """How far one kind of figure may grow or shrink: inches, and points for fonts."""

    cell: float  # the side of a cell while there is room
    large_cell: float  # the same when there are only a few
    panel: tuple[float, float]  # the most width and height of one matrix
    least: float  # a matrix is no thinner than this, where its cells can stretch to it
    font: tuple[float, float]  # smallest and largest size of a token
    thin_out: bool  # draw every n-th label where not all fit (or else none)


@dataclass(frozen=True)
class Axis:
    """The labels along one axis of a matrix, and the pitch they stand at."""

    labels: tuple[Label, ...]
    cell: float
    size: float
    step: int  # every step-th label is drawn; 0: none
    turned: tuple[bool, ...]  # which labels read upwards
    depth: float  # room needed beside the matrix

    @property
    def length(self) -> float:
        """The side of the matrix along this axis."""
        return self.cell * len(self.labels)

    @property
    def shown(self) -> range:
        """The places of the labels that are drawn."""
        return range(0, len(self.labels) if self.step else 0, self.step or 1)


def axes(source: Sequence[Label], target: Sequence[Label], limits: Limits) -> tuple[Axis, Axis]:
    """The two axes (source, target) of a matrix within the limits, cells square where possible."""
    across, down = cells(len(source), len(target), limits)
    return _axis(source, across, limits, top=True), _axis(target, down, limits, top=False)


def cells(columns: int, rows: int, limits: Limits) -> tuple[float, float]:
    """Width and height of a cell."""
    ideal = min(limits.large_cell, max(limits.cell, limits.least / max(columns, rows)))
    width = min(ideal, limits.panel[0] / columns)
    height = min(ideal, limits.panel[1] / rows)
    square = min(width, height)
    # One row of 200 would be a hairline: there, cells stretch along the short side.
    return (
        max(square, min(width, limits.least / columns)),
        max(square, min(height, limits.least / rows)),
    )


def _axis(labels: Sequence[Label], cell: float, limits: Limits, *, top: bool) -> Axis:
    smallest, largest = limits.font
    pitch = cell * POINTS
    wide = widths([label.text for label in labels], largest)
    turned = _turned(labels, wide, pitch, largest) if top else (False,) * len(labels)

    # Everything grows in proportion to the font, so one size tells what any size needs.
    line = LINE * largest
    if top:
        both = zip(wide, turned, strict=True)
        sides = [(line, w) if turn else (w + 0.4 * largest, line) for w, turn in both]
        need, deep = (max(side) for side in zip(*sides, strict=True))
    else:
        need, deep = line, max(wide)
    size = min(largest, max(smallest, largest * pitch / need))
    step = max(1, math.ceil(need * size / largest / pitch - 1e-6))
    if step > 1 and not limits.thin_out:
        return Axis(tuple(labels), cell, size, 0, turned, 0.0)
    return Axis(tuple(labels), cell, size, step, turned, deep * size / largest / POINTS)


def _turned(
    labels: Sequence[Label], wide: Sequence[float], pitch: float, size: float
) -> tuple[bool, ...]:
    """Which labels on top read upwards: none if all fit, else the long ones.

    Among letters only `<end>` and the like turn; among words all but single characters do.
    """
    if max(wide) + 0.4 * size <= pitch:
        return (False,) * len(labels)
    words = any(len(label.text) > 2 for label in labels if not label.dimmed)
    return tuple(len(label.text) > (1 if words else 2) for label in labels)


def lines(text: str, size: float, room: float, most: int = 2) -> list[str]:
    """A title broken at spaces into at most so many lines of that many inches, cut with `…`."""
    out: list[str] = []
    words = text[:LONGEST_TITLE].split()
    while words and len(out) < most:
        count = 1
        while count < len(words) and _fits(" ".join(words[: count + 1]), size, room):
            count += 1
        line, words = " ".join(words[:count]), words[count:]
        last = bool(words) and len(out) == most - 1
        out.append(_cut(line, size, room) if last or not _fits(line, size, room) else line)
    return out


def _cut(line: str, size: float, room: float) -> str:
    while line and not _fits(line + "…", size, room):
        line = line[:-1]
    return line + "…"


def _fits(text: str, size: float, room: float) -> bool:
    return widths([text], size, bold=True)[0] <= room * POINTS
