"""What a computation takes, seconds and bytes, and how either grows with its size."""

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
    """Let the clock see the work alone, and not how pages of memory come and go.

    The allocator of Linux returns large blocks to the system, and waits for them anew each time, until it
    has seen a larger one given back: from then on it keeps them.
    """
    torch.empty(31 * 2**20, dtype=torch.uint8)


def thread_seconds(work: Work) -> float:
    """What this thread worked: time that other programs had in between does not count."""
    begun = time.thread_time()
    work()
    return time.thread_time() - begun


def peak_memory(work: Work) -> int:
    """The most bytes that PyTorch held at once of those it took, those inside its kernels included."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # or the profiler tells when it comes and goes
    profiler = profile(use_kineto=True, profile_memory=True)
    with profiler:
        kept = work()
    del kept
    assert profiler.kineto_results is not None
    events: list[Any] = profiler.kineto_results.events()
    taken = [event for event in events if event.name() == "[memory]"]  # or, below 0, given back
    taken.sort(key=lambda event: event.start_ns())
    return int(np.cumsum([0, *(event.nbytes() for event in taken)]).max())


@dataclass(frozen=True)
class PowerLaw:
    """Y = a + c x^p; `interval` is p's, 95 % to each side, given a."""

    exponent: float
    interval: float
    constant: float
    offset: float = 0.0

    @classmethod
    def fit(
        cls, sizes: Sequence[float], values: Sequence[float], offset: float = 0.0
    ) -> "PowerLaw":
        """A line through the logarithms, after `offset` is taken off."""
        from regard.statistics import T95

        x, y = np.log(sizes), np.log(np.array(values) - offset)
        exponent, intercept = np.polyfit(x, y, 1)
        freedom = len(x) - 2
        left = float(((y - exponent * x - intercept) ** 2).sum()) / freedom
        error = math.sqrt(left / float(((x - x.mean()) ** 2).sum()))
        return cls(float(exponent), T95[freedom - 1] * error, math.exp(intercept), offset)

    @classmethod
    def fit_with_offset(cls, sizes: Sequence[float], values: Sequence[float]) -> "PowerLaw":
        """The straightest such line, whatever stands fixed beside it: for exact measurements."""
        shares = np.linspace(0, 0.9, 181)
        tried = [cls.fit(sizes, values, share * min(values)) for share in shares]
        return min(tried, key=lambda growth: growth.interval)

    def predict(self, size: float) -> float:
        return self.offset + self.constant * size**self.exponent
