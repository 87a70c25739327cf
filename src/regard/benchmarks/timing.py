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
    speeds: list[float] = field(default_factory=list)


def interleave(
    sides: list[Side],
    rounds: int,
    units: int,
    made: int,
    report: Callable[[str], object] = lambda line: None,
) -> None:
    """Every side once a round, after a round that warms up; speeds in units a second.

    A side that does not make what it should (`made`) has not done the work, and is no measurement.
    """
    for turn in range(rounds + 1):
        for side in sides:
            started = time.perf_counter()
            found = side.run()
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            seconds = time.perf_counter() - started
            if found != made:
                raise RuntimeError(f"{side.name} made {found} tokens instead of {made}")
            if turn:
                side.speeds.append(units / seconds)
        report(f"round {turn} of {rounds}" if turn else "warmed up")


@dataclass(frozen=True)
class Result:
    """What a benchmark found: a row a side, each against the baseline of its task."""

    about: str
    unit: str
    baseline: str
    rows: list[dict[str, Any]]

    @classmethod
    def of(cls, about: str, unit: str, baseline: str, sides: Iterable[Side]) -> "Result":
        sides = list(sides)
        bases = {side.task: side.speeds for side in sides if side.name == baseline}
        return cls(about, unit, baseline, [row(side, bases[side.task]) for side in sides])

    def table(self) -> Table:
        title = f"{self.about}; ratio: to {self.baseline}"
        table = Table(title=title, box=None, header_style="bold", title_justify="left")
        for name in ("task", "side", "batch", "precision", self.unit, "range", "ratio", "range"):
            words = name in ("task", "side", "precision")
            table.add_column(name, justify="left" if words else "right", no_wrap=True)
        for row in self.rows:
            table.add_row(
                row["task"],
                row["side"],
                str(row["batch"]),
                row["precision"],
                f"{row['median']:,.0f}",
                "{:,.0f}-{:,.0f}".format(*row["range"]),
                f"{row['ratio']:.2f}",
                "{:.2f}-{:.2f}".format(*row["ratio_range"]),
            )
        return table


def row(side: Side, base: list[float]) -> dict[str, Any]:
    """Medians and ranges; a ratio is taken within its round."""
    ratios = [mine / theirs for mine, theirs in zip(side.speeds, base, strict=True)]
    return {
        "task": side.task,
        "side": side.name,
        "batch": side.batch,
        "precision": side.precision,
        "median": statistics.median(side.speeds),
        "range": [min(side.speeds), max(side.speeds)],
        "ratio": statistics.median(ratios),
        "ratio_range": [min(ratios), max(ratios)],
    }
