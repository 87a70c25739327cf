"""Means, intervals and paired tests, against closed forms."""

import math

import pytest

from regard.compare.statistics import T95, Summary, paired_p

REFERENCES = [f"the {a} {b} looks at the {c}" for a in ("big", "old", "red", "sad") for b in
              ("dog", "cat", "man") for c in ("river", "house", "tree")]  # fmt: skip


def test_one_value_has_no_spread():
    assert Summary.of([3.5]) == Summary(3.5, None, None)


def test_two_values():
    found = Summary.of([1.0, 4.0])
    assert found.mean == 2.5
    assert found.variance == pytest.approx(4.5)  # (d / 2)^2 * 2
    assert found.interval == pytest.approx(12.706 * 1.5)  # t * d / 2


@pytest.mark.parametrize("n", [3, 5, 11, 31])
def test_one_to_n(n):
    """Mean (n + 1) / 2, sample variance n (n + 1) / 12."""
    found = Summary.of(range(1, n + 1))
    assert found.mean == pytest.approx((n + 1) / 2)
    assert found.variance == pytest.approx(n * (n + 1) / 12)
    assert found.interval == pytest.approx(T95[n - 2] * math.sqrt((n + 1) / 12))


def test_many_values_use_the_normal():
    found = Summary.of([0.0, 2.0] * 50)
    assert found.interval == pytest.approx(1.96 * math.sqrt(100 / 99 / 100))


def test_equal_values_are_certain():
    assert Summary.of([7.0] * 4) == Summary(7.0, 0.0, 0.0)


def test_a_shift_moves_the_mean_and_nothing_else_and_a_scale_scales():
    values = [27.1, 28.4, 26.9, 27.7]
    plain = Summary.of(values)
    moved = Summary.of([value + 100 for value in values])
    assert moved.mean == pytest.approx(plain.mean + 100)
    assert moved.variance == pytest.approx(plain.variance)
    scaled = Summary.of([3 * value for value in values])
    assert scaled.variance == pytest.approx(9 * plain.variance)
    assert scaled.interval == pytest.approx(3 * plain.interval)


def mass(t: float, freedom: int, pieces: int = 20_000) -> float:
    """The chance that Student's t lies within [-t, t]: Simpson's rule on x = tan(a) sqrt(freedom)."""
    end = math.atan(t / math.sqrt(freedom))
    step = end / pieces
    weights = [1 if i in (0, pieces) else 4 if i % 2 else 2 for i in range(pieces + 1)]
    area = sum(w * math.cos(i * step) ** (freedom - 1) for i, w in enumerate(weights)) * step / 3
    log = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)
    return 2 * area * math.exp(log) / math.sqrt(math.pi)


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 5, 9, 10, 17, 24, 29, 30])
def test_the_table_of_t(freedom):
    assert mass(T95[freedom - 1], freedom) == pytest.approx(0.95, abs=1e-4)


def test_the_table_falls_towards_the_normal():
    assert len(T95) == 30
    assert list(T95) == sorted(T95, reverse=True)
    assert T95[-1] > 1.96


# --- paired test ----------------------------------------------------------------------------------


def worse(share: int) -> list[str]:
    """Every `share`-th output without its end."""
    return [r if i % share else "a dog" for i, r in enumerate(REFERENCES)]


def test_clearly_different_systems():
    assert paired_p([worse(2)], [REFERENCES], REFERENCES) < 0.01


def test_identical_systems():
    assert paired_p([worse(3)], [worse(3)], REFERENCES) > 0.5


def test_a_difference_counts_only_if_every_pair_of_runs_shows_it():
    clear = paired_p([worse(2)] * 2, [REFERENCES] * 2, REFERENCES)
    mixed = paired_p([worse(2), worse(3)], [REFERENCES, worse(3)], REFERENCES)
    assert clear < 0.01
    assert mixed > 0.5


def test_case_does_not_matter():
    upper = [reference.upper() for reference in REFERENCES]
    assert paired_p([upper], [REFERENCES], REFERENCES) > 0.5


def test_runs_must_be_paired():
    with pytest.raises(ValueError, match="zip"):
        paired_p([worse(2)], [REFERENCES] * 2, REFERENCES)
