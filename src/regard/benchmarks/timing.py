"""Sides timed turn by turn in one process, so that a busy machine slows all of them alike."""

import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from rich.table import Table


@dataclass
class Side:
    """One way to do the work. `run` does it and gives what it made, for `check` to count."""

    name: str
    task: str
    """Sides of one task do the same work and are compared."""
    run: Callable[[], int]
    precision: str = "float32"
    batch: int = 1
    flops: float | None = None
    """What a unit of the work takes, where that is known."""
    speeds: list[float] = field(default_factory=list)


def interleave(
    sides: list[Side],
    rounds: int,
    units: int | None = None,
    made: int | None = None,
    report: Callable[[str], object] = lambda line: None,
) -> None:
    """Every side once a round, after a round that warms up; speeds in units a second.

    A side that does not make what it should (`made`) has not done the work, and is no measurement.
    Without `units`, what a side makes is the unit.
    """
    for turn in range(rounds + 1):
        for side in sides:
            started = time.perf_counter()
            found = side.run()
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            seconds = time.perf_counter() - started
            if made is not None and found != made:
                raise RuntimeError(f"{side.name} made {found} tokens instead of {made}")
            if turn:
                side.speeds.append((units or found) / seconds)
        report(f"round {turn} of {rounds}" if turn else "warmed up")


@dataclass(frozen=True)
class Result:
    """What a benchmark found: a row a side, each against the baseline of its task."""

    about: str
    unit: str
    rows: list[dict[str, Any]]

    @classmethod
    def of(
        cls, about: str, unit: str, sides: Iterable[Side], matrix_rate: float | None = None
    ) -> "Result":
        """The first side of a task is its baseline."""
        sides, bases = list(sides), {}
        for side in sides:
            bases.setdefault(side.task, side.speeds)
        return cls(about, unit, [row(side, bases[side.task], matrix_rate) for side in sides])

    def table(self) -> Table:
        title = f"{self.about}. Ratios: to the first of a task, round by round"
        table = Table(title=title, box=None, header_style="bold", title_justify="left")
        shares = any(row["matrix_share"] is not None for row in self.rows)
        for name in ("task", "side", "batch", "precision"):
            table.add_column(name, justify="right" if name == "batch" else "left", no_wrap=True)
        for name in [self.unit, "ratio"] + ["of matrix rate"] * shares:
            table.add_column(name, justify="right", no_wrap=True)
        for row in self.rows:
            share = row["matrix_share"]
            table.add_row(
                row["task"],
                row["side"],
                str(row["batch"]),
                row["precision"],
                "{:,.0f} ({:,.0f}-{:,.0f})".format(row["median"], *row["range"]),
                "{:.2f} ({:.2f}-{:.2f})".format(row["ratio"], *row["ratio_range"]),
                *([f"{share:.0%}" if share else ""] if shares else []),
            )
        return table


def row(side: Side, base: list[float], matrix_rate: float | None) -> dict[str, Any]:
    """Medians and ranges; a ratio is taken within its round."""
    ratios = [mine / theirs for mine, theirs in zip(side.speeds, base, strict=True)]
    used = None if side.flops is None else side.flops * statistics.median(side.speeds)
    return {
        "task": side.task,
        "side": side.name,
        "batch": side.batch,
        "precision": side.precision,
        "median": statistics.median(side.speeds),
        "range": [min(side.speeds), max(side.speeds)],
        "ratio": statistics.median(ratios),
        "ratio_range": [min(ratios), max(ratios)],
        "matrix_share": used / matrix_rate if used and matrix_rate else None,
    }


def matrix_rate(device: str, precision: torch.dtype, size: int | None = None) -> float:
    """Floating-point operations a second of one large matrix product: the best of several."""
    size = size or (8192 if device.startswith("cuda") else 2048)
    x, y = (torch.randn(size, size, device=device).to(precision) for _ in range(2))
    best = float("inf")
    for _ in range(8):
        started = time.perf_counter()
        torch.mm(x, y)
        if x.is_cuda:
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - started)
    return 2 * size**3 / best
