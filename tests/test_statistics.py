"""Means, confidence intervals and paired tests, against closed forms."""

import math

import pytest

from regard.statistics import T95, Summary, paired_bootstrap_p

REFERENCES = [f"the {a} {b} looks at the {c}" for a in ("big", "old", "red", "sad") for b in
              ("dog", "cat", "man") for c in ("river", "house", "tree")]  # fmt: skip


def test_one_value_has_no_variance():
    assert Summary.of([3.5]) == Summary(3.5, None, None)


def test_two_values():
    summary = Summary.of([1.0, 4.0])
    assert summary.mean == 2.5
    assert summary.variance == pytest.approx(4.5)  # (d / 2)^2 * 2
    assert summary.interval == pytest.approx(12.706 * 1.5)  # t * d / 2


@pytest.mark.parametrize("n", [3, 5, 11, 31])
def test_one_to_n(n):
    """Mean (n + 1) / 2, sample variance n (n + 1) / 12."""
    summary = Summary.of(range(1, n + 1))
    assert summary.mean == pytest.approx((n + 1) / 2)
    assert summary.variance == pytest.approx(n * (n + 1) / 12)
    assert summary.interval == pytest.approx(T95[n - 2] * math.sqrt((n + 1) / 12))


def test_many_values_use_the_normal_distribution():
    summary = Summary.of([0.0, 2.0] * 50)
    assert summary.interval == pytest.approx(1.96 * math.sqrt(100 / 99 / 100))


def test_equal_values_have_no_variance():
    assert Summary.of([7.0] * 4) == Summary(7.0, 0.0, 0.0)


def test_shifting_changes_the_mean_only_and_scaling_scales():
    values = [27.1, 28.4, 26.9, 27.7]
    original = Summary.of(values)
    shifted = Summary.of([value + 100 for value in values])
    assert shifted.mean == pytest.approx(original.mean + 100)
    assert shifted.variance == pytest.approx(original.variance)
    scaled = Summary.of([3 * value for value in values])
    assert scaled.variance == pytest.approx(9 * original.variance)
    assert scaled.interval == pytest.approx(3 * original.interval)


def probability_within(t: float, degrees: int, pieces: int = 20_000) -> float:
    """P(-t < T < t) of Student's t: Simpson's rule on x = tan(a) sqrt(degrees)."""
    end = math.atan(t / math.sqrt(degrees))
    step = end / pieces
    weights = [1 if i in (0, pieces) else 4 if i % 2 else 2 for i in range(pieces + 1)]
    area = sum(w * math.cos(i * step) ** (degrees - 1) for i, w in enumerate(weights)) * step / 3
    log = math.lgamma((degrees + 1) / 2) - math.lgamma(degrees / 2)
    return 2 * area * math.exp(log) / math.sqrt(math.pi)


@pytest.mark.parametrize("degrees", [1, 2, 3, 4, 5, 9, 10, 17, 24, 29, 30])
def test_the_critical_values(degrees):
    assert probability_within(T95[degrees - 1], degrees) == pytest.approx(0.95, abs=1e-4)


def test_the_critical_values_decrease_towards_the_normal():
    assert len(T95) == 30
    assert list(T95) == sorted(T95, reverse=True)
    assert T95[-1] > 1.96


# --- paired test ----------------------------------------------------------------------------------


def degrade(interval: int) -> list[str]:
    """The references, every `interval`-th one replaced by two words."""
    return [r if i % interval else "a dog" for i, r in enumerate(REFERENCES)]


def test_clearly_different_systems():
    assert paired_bootstrap_p([degrade(2)], [REFERENCES], REFERENCES) < 0.01


def test_identical_systems():
    assert paired_bootstrap_p([degrade(3)], [degrade(3)], REFERENCES) > 0.5


def test_a_difference_is_significant_only_if_it_is_in_every_pair_of_runs():
    both_pairs = paired_bootstrap_p([degrade(2)] * 2, [REFERENCES] * 2, REFERENCES)
    one_pair = paired_bootstrap_p([degrade(2), degrade(3)], [REFERENCES, degrade(3)], REFERENCES)
    assert both_pairs < 0.01
    assert one_pair > 0.5


def test_case_is_ignored():
    upper = [reference.upper() for reference in REFERENCES]
    assert paired_bootstrap_p([upper], [REFERENCES], REFERENCES) > 0.5


def test_unpaired_runs_are_an_error():
    with pytest.raises(ValueError, match="zip"):
        paired_bootstrap_p([degrade(2)], [REFERENCES] * 2, REFERENCES)
