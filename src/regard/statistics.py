"""Means over seeds with confidence intervals, and a paired significance test for BLEU."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.significance import PairedTest

# Two-sided 95 % critical values of Student's t for 1 to 30 degrees of freedom; 1.96 is used beyond.
T95 = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)


@dataclass(frozen=True)
class Summary:
    """Mean, sample variance and half-width of the 95 % confidence interval of the mean."""

    mean: float
    variance: float | None
    interval: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> "Summary":
        mean = statistics.fmean(values)
        if len(values) < 2:
            return cls(mean, None, None)
        variance = statistics.variance(values)
        degrees_of_freedom = len(values) - 1
        t = T95[degrees_of_freedom - 1] if degrees_of_freedom <= len(T95) else 1.96
        return cls(mean, variance, t * math.sqrt(variance / len(values)))


def paired_bootstrap_p(
    baseline: Sequence[Sequence[str]],
    system: Sequence[Sequence[str]],
    references: Sequence[str],
    samples: int = 1000,
) -> float | None:
    """The p-value of sacreBLEU's paired bootstrap test (lowercased BLEU): the maximum over pairs of runs.

    Runs are paired in order. The maximum makes a difference significant only if it is significant in
    every pair.
    """
    p_values = []
    for baseline_outputs, system_outputs in zip(baseline, system, strict=True):
        test = PairedTest(
            [("baseline", list(baseline_outputs)), ("system", list(system_outputs))],
            {"BLEU": BLEU(lowercase=True)},
            [list(references)],
            test_type="bs",
            n_samples=samples,
        )
        first, second = cast(list[Any], test()[1]["BLEU"])
        # sacreBLEU reports a significant p for equal scores: no resample has a difference above zero.
        p_values.append(1.0 if first.score == second.score else float(second.p_value))
    return max(p_values, default=None)
