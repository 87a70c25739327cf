"""Time and memory of a computation, and power-law fits of their growth with its size."""

import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.autograd.profiler import profile

Work = Callable[[], object]


def retain_freed_memory() -> None:
    """Keep page allocation out of the timings.

    glibc's malloc returns large blocks to the system when they are freed, and pays for page faults at every
    new allocation, until a larger block has been freed: this raises its mmap threshold.
    """
    torch.empty(31 * 2**20, dtype=torch.uint8)


def thread_seconds(work: Work) -> float:
    """CPU time of this thread: time that the scheduler gives to other programs does not count."""
    started = time.thread_time()
    work()
    return time.thread_time() - started


def peak_memory(work: Work) -> int:
    """Peak number of bytes that PyTorch allocated for the work, buffers inside its kernels included."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # or the profiler logs its start and stop
    profiler = profile(use_kineto=True, profile_memory=True)
    with profiler:
        result = work()  # held while profiling
    del result
    assert profiler.kineto_results is not None
    events: list[Any] = profiler.kineto_results.events()
    allocations = [event for event in events if event.name() == "[memory]"]  # negative when freed
    allocations.sort(key=lambda event: event.start_ns())
    return int(np.cumsum([0, *(event.nbytes() for event in allocations)]).max())


@dataclass(frozen=True)
class PowerLaw:
    """y = offset + c x^p; `interval` is the half-width of the 95 % confidence interval of p."""

    exponent: float
    interval: float
    constant: float
    offset: float = 0.0

    @classmethod
    def fit(
        cls, sizes: Sequence[float], values: Sequence[float], offset: float = 0.0
    ) -> "PowerLaw":
        """Linear regression of log(y - offset) on log x; NaN where y does not exceed the offset."""
        from regard.statistics import critical_t

        growth = np.array(values) - offset
        if not (growth > 0).all():
            return cls(math.nan, math.nan, math.nan, offset)
        x, y = np.log(sizes), np.log(growth)
        exponent, intercept = np.polyfit(x, y, 1)
        degrees_of_freedom = len(x) - 2
        residual = float(((y - exponent * x - intercept) ** 2).sum()) / degrees_of_freedom
        error = math.sqrt(residual / float(((x - x.mean()) ** 2).sum()))
        return cls(
            float(exponent), critical_t(degrees_of_freedom) * error, math.exp(intercept), offset
        )

    @classmethod
    def fit_with_offset(cls, sizes: Sequence[float], values: Sequence[float]) -> "PowerLaw":
        """The fit with the offset that gives the narrowest interval: for exact measurements."""
        fractions = np.linspace(0, 0.9, 181)
        fits = [cls.fit(sizes, values, fraction * min(values)) for fraction in fractions]
        return min(fits, key=lambda fit: fit.interval)

    def predict(self, size: float) -> float:
        return self.offset + self.constant * size**self.exponent
