"""Contenders timed in interleaved rounds in one process, so that a busy machine slows all of them equally."""

import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from rich.table import Table


@dataclass
class Contender:
    """One implementation of a task. `run` does the work and returns the number of tokens processed."""

    name: str
    task: str
    """Contenders of the same task do the same work and are compared."""
    run: Callable[[], int]
    precision: str = "float32"
    batch: int = 1
    flops: float | None = None
    """FLOPs per unit of work, if known."""
    speeds: list[float] = field(default_factory=list)


def interleave(
    contenders: list[Contender],
    rounds: int,
    units: int | None = None,
    expected_tokens: int | None = None,
    report: Callable[[str], object] = lambda line: None,
) -> None:
    """Time every contender once per round, after a warm-up round; speeds in units per second.

    Without `units`, the unit is a token. A contender that does not return `expected_tokens` has not
    done the work: its time is not a measurement.
    """
    for turn in range(rounds + 1):
        for contender in contenders:
            started = time.perf_counter()
            tokens = contender.run()
            if torch.accelerator.is_available():
                torch.accelerator.synchronize()
            seconds = time.perf_counter() - started
            if expected_tokens is not None and tokens != expected_tokens:
                raise RuntimeError(
                    f"{contender.name} generated {tokens} tokens instead of {expected_tokens}"
                )
            if turn:
                contender.speeds.append((units or tokens) / seconds)
        report(f"round {turn} of {rounds}" if turn else "warm-up finished")


@dataclass(frozen=True)
class Result:
    """The result of a benchmark: one row per contender, each relative to the baseline of its task."""

    about: str
    unit: str
    rows: list[dict[str, Any]]

    @classmethod
    def of(
        cls,
        about: str,
        unit: str,
        contenders: Iterable[Contender],
        matmul_rate: float | None = None,
    ) -> "Result":
        """The first contender of a task is its baseline."""
        contenders, baselines = list(contenders), {}
        for contender in contenders:
            baselines.setdefault(contender.task, contender.speeds)
        return cls(
            about,
            unit,
            [summarize(c, baselines[c.task], matmul_rate) for c in contenders],
        )

    def table(self) -> Table:
        title = f"{self.about}. Ratios: to the first contender of a task, within each round"
        table = Table(title=title, box=None, header_style="bold", title_justify="left")
        has_fractions = any(row["matmul_fraction"] is not None for row in self.rows)
        for name in ("task", "contender", "batch", "precision"):
            table.add_column(name, justify="right" if name == "batch" else "left", no_wrap=True)
        for name in [self.unit, "ratio"] + ["of matmul rate"] * has_fractions:
            table.add_column(name, justify="right", no_wrap=True)
        for row in self.rows:
            fraction = row["matmul_fraction"]
            table.add_row(
                row["task"],
                row["contender"],
                str(row["batch"]),
                row["precision"],
                "{:,.0f} ({:,.0f}-{:,.0f})".format(row["median"], *row["range"]),
                "{:.2f} ({:.2f}-{:.2f})".format(row["ratio"], *row["ratio_range"]),
                *([f"{fraction:.0%}" if fraction else ""] if has_fractions else []),
            )
        return table


def summarize(
    contender: Contender, baseline: list[float], matmul_rate: float | None
) -> dict[str, Any]:
    """Medians and ranges; ratios are taken within each round."""
    speeds = contender.speeds
    ratios = [speed / base for speed, base in zip(speeds, baseline, strict=True)]
    rate = None if contender.flops is None else contender.flops * statistics.median(speeds)
    return {
        "task": contender.task,
        "contender": contender.name,
        "batch": contender.batch,
        "precision": contender.precision,
        "median": statistics.median(speeds),
        "range": [min(speeds), max(speeds)],
        "ratio": statistics.median(ratios),
        "ratio_range": [min(ratios), max(ratios)],
        "matmul_fraction": rate / matmul_rate if rate and matmul_rate else None,
    }


def measure_matmul_rate(device: str, precision: torch.dtype, size: int | None = None) -> float:
    """FLOP/s of one large matrix multiplication, the best of several runs."""
    size = size or (8192 if device.startswith("cuda") else 2048)
    x, y = (torch.randn(size, size, device=device).to(precision) for _ in range(2))
    best = float("inf")
    for _ in range(8):
        started = time.perf_counter()
        torch.mm(x, y)
        if device != "cpu":
            torch.accelerator.synchronize()
        best = min(best, time.perf_counter() - started)
    return 2 * size**3 / best
