"""Means over seeds with confidence intervals, and two significance tests.

Welch's t-test asks whether other seeds could reverse a difference, the paired bootstrap whether another test
set could.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, cast

from sacrebleu.metrics.base import Metric
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.significance import PairedTest


@dataclass(frozen=True)
class Summary:
    """Mean, sample variance, standard deviation, half-width of the 95 % confidence interval of the mean."""

    mean: float
    variance: float | None = None
    std: float | None = None
    interval: float | None = None

    @classmethod
    def of(cls, values: Sequence[float]) -> "Summary":
        try:
            mean = statistics.fmean(values)
            variance = statistics.variance(values) if len(values) > 1 else None
        except OverflowError:  # of perplexities above 1e154
            return cls(math.inf)
        if variance is None:
            return cls(mean)
        half_width = critical_t(len(values) - 1) * math.sqrt(variance / len(values))
        return cls(mean, variance, math.sqrt(variance), half_width)


# --- Student's t ----------------------------------------------------------------------------------


def welch_p(one: Sequence[float], other: Sequence[float]) -> float | None:
    """The two-sided p-value of Welch's t-test (1947): equal means, variances that may differ.

    t = (mean_1 - mean_2) / sqrt(e_1 + e_2), e_i = variance_i / n_i. None if it is undefined: fewer than
    two values on a side, or no variance on either.
    """
    if min(len(one), len(other)) < 2:
        return None
    first, second = (statistics.variance(values) / len(values) for values in (one, other))
    if first + second == 0:
        return None
    t = (statistics.fmean(one) - statistics.fmean(other)) / math.sqrt(first + second)
    part = first / (first + second)
    degrees_of_freedom = 1 / (part**2 / (len(one) - 1) + (1 - part) ** 2 / (len(other) - 1))
    return two_sided_p(t, degrees_of_freedom)


def two_sided_p(t: float, degrees_of_freedom: float) -> float:
    """P(|T| > |t|) = I_x(n / 2, 1 / 2), x = n / (n + t^2), of Student's t with n degrees of freedom."""
    return incomplete_beta(
        degrees_of_freedom / (degrees_of_freedom + t * t), degrees_of_freedom / 2, 0.5
    )


@cache
def critical_t(degrees_of_freedom: float, p: float = 0.05) -> float:
    """The t that |T| exceeds with probability p, by bisection."""
    low, high = 0.0, 1.0
    while two_sided_p(high, degrees_of_freedom) > p:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if two_sided_p(middle, degrees_of_freedom) > p else (low, middle)
    return high


def incomplete_beta(x: float, a: float, b: float) -> float:
    """I_x(a, b), the regularised incomplete beta function, by its continued fraction (DLMF 8.17.22)."""
    if x > (a + 1) / (a + b + 2):  # where it converges slowly
        return 1 - incomplete_beta(1 - x, b, a)
    if x == 0:
        return 0.0
    fraction = 1.0
    for m in range(20 + int(3 * math.sqrt(a + b)), 0, -1):  # sqrt: Numerical Recipes, section 6.4
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m - 1) * (a + b + m - 1) * x / ((a + 2 * m - 2) * (a + 2 * m - 1))
        fraction = 1 + odd / (1 + even / fraction)
    log_beta = math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)
    return math.exp(a * math.log(x) + b * math.log1p(-x) - log_beta) / (a * fraction)


# --- paired bootstrap -----------------------------------------------------------------------------


def paired_bootstrap_p(
    baseline: Sequence[Sequence[str]],
    system: Sequence[Sequence[str]],
    references: Sequence[str],
    samples: int = 1000,
    metric: Metric | None = None,
) -> float | None:
    """The p-value of the paired bootstrap test (lowercased BLEU by default): the maximum over pairs of runs.

    Runs are paired in order. The maximum makes a difference significant only if it is significant in
    every pair.
    """
    metric = metric or BLEU(lowercase=True)
    p_values = [
        paired_bootstrap(metric, *outputs, [list(references)], samples).p
        for outputs in zip(baseline, system, strict=True)
    ]
    return max(p_values, default=None)


@dataclass(frozen=True)
class PairedResult:
    """A paired bootstrap test (Koehn, 2004): system minus baseline, two-sided p."""

    difference: float
    p: float
    interval: float
    """Half-width of the 95 % confidence interval of the system's score."""
    baseline_interval: float
    """The same of the baseline's."""


def paired_bootstrap(
    metric: Metric,
    baseline: Sequence[str],
    system: Sequence[str],
    references: Sequence[Sequence[str | None]],
    samples: int = 1000,
) -> PairedResult:
    """The paired bootstrap test over the sentences of a test set, by a metric of sacreBLEU.

    `references`: the first reference of every sentence, then the second, ..., as sacreBLEU takes them.
    """
    test = PairedTest(
        [("baseline", list(baseline)), ("system", list(system))],
        {"metric": metric},
        cast(Any, references),
        test_type="bs",
        n_samples=samples,
    )
    _, scores = test()
    first, second = cast(list[Any], next(v for k, v in scores.items() if k != "System"))
    # sacreBLEU reports a significant p for equal scores: no resample has a difference above zero.
    p = 1.0 if first.score == second.score else float(second.p_value)
    return PairedResult(second.score - first.score, p, float(second.ci), float(first.ci))
