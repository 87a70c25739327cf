"""The learning rate over a run: up during the warm-up, then down.

A schedule is a share of the peak rate, given how far the run has come (0 to 1) and how many steps
have passed against the warm-up's.
"""

import math
from collections.abc import Callable

Schedule = Callable[[float, float], float]

SCHEDULES: dict[str, Schedule] = {
    "linear": lambda progress, _: 1 - progress,
    "cosine": lambda progress, _: (1 + math.cos(math.pi * progress)) / 2,
    "inverse-sqrt": lambda _, warmups: 1 / math.sqrt(max(warmups, 1.0)),
    "constant": lambda _, __: 1.0,
}


def rate(schedule: Schedule, peak: float, step: int, warmup: int, progress: float) -> float:
    """The rate of step `step` (from 0)."""
    rising = min(1.0, (step + 1) / warmup) if warmup else 1.0
    return peak * rising * schedule(min(progress, 1.0), (step + 1) / max(warmup, 1))
