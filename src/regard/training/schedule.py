"""Learning-rate schedules: linear warm-up to the peak, then decay.

A schedule maps the fraction of the run that is done (0 to 1) and the number of steps in units of the
warm-up to a fraction of the peak learning rate.
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


def learning_rate(
    schedule: Schedule, peak: float, step: int, warmup_steps: int, progress: float
) -> float:
    """The learning rate of step `step` (from 0)."""
    warmup = min(1.0, (step + 1) / warmup_steps) if warmup_steps else 1.0
    return peak * warmup * schedule(min(progress, 1.0), (step + 1) / max(warmup_steps, 1))
