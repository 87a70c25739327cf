"""Means, confidence intervals and significance tests, against closed forms and published tables."""

import json
import math
import random
import statistics
from pathlib import Path

import pytest

from regard.statistics import Summary, critical_t, paired_bootstrap_p, two_sided_p, welch_p

REFERENCES = [f"the {a} {b} looks at the {c}" for a in ("big", "old", "red", "sad") for b in
              ("dog", "cat", "man") for c in ("river", "house", "tree")]  # fmt: skip


# Two-sided 95 % critical values, as statistics books print them, for 1 to 30 degrees of freedom.
PUBLISHED_95 = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)


def test_one_value_has_no_variance():
    assert Summary.of([3.5]) == Summary(3.5, None, None, None)


def test_two_values():
    summary = Summary.of([1.0, 4.0])
    assert summary.mean == 2.5
    assert summary.variance == pytest.approx(4.5)  # (d / 2)^2 * 2
    assert summary.std == pytest.approx(math.sqrt(4.5))
    assert summary.interval == pytest.approx(1.5 * math.tan(0.475 * math.pi))  # d / 2 * t


@pytest.mark.parametrize("n", [3, 5, 11, 31])
def test_one_to_n(n):
    """Mean (n + 1) / 2, sample variance n (n + 1) / 12."""
    summary = Summary.of(range(1, n + 1))
    assert summary.mean == pytest.approx((n + 1) / 2)
    assert summary.variance == pytest.approx(n * (n + 1) / 12)
    assert summary.std == statistics.stdev(range(1, n + 1))
    half_width = PUBLISHED_95[n - 2] * math.sqrt((n + 1) / 12)
    assert summary.interval == pytest.approx(half_width, rel=2.5e-4)  # printed to three decimals


def test_many_values_approach_the_normal_distribution():
    summary = Summary.of([0.0, 2.0] * 50)
    assert summary.interval == pytest.approx(1.984 * math.sqrt(100 / 99 / 100), rel=2.5e-4)


def test_equal_values_have_no_variance():
    assert Summary.of([7.0] * 4) == Summary(7.0, 0.0, 0.0, 0.0)


def test_shifting_changes_the_mean_only_and_scaling_scales():
    values = [27.1, 28.4, 26.9, 27.7]
    original = Summary.of(values)
    shifted = Summary.of([value + 100 for value in values])
    assert shifted.mean == pytest.approx(original.mean + 100)
    assert shifted.variance == pytest.approx(original.variance)
    scaled = Summary.of([3 * value for value in values])
    assert scaled.variance == pytest.approx(9 * original.variance)
    assert scaled.std == pytest.approx(3 * original.std)
    assert scaled.interval == pytest.approx(3 * original.interval)


# --- Student's t ----------------------------------------------------------------------------------


def integrate_tails(t: float, degrees: float, pieces: int = 2_000) -> float:
    """P(|T| > t): Simpson's rule on x = tan(a) sqrt(degrees)."""
    step = math.atan(t / math.sqrt(degrees)) / pieces
    weights = [1 if i in (0, pieces) else 4 if i % 2 else 2 for i in range(pieces + 1)]
    area = sum(w * math.cos(i * step) ** (degrees - 1) for i, w in enumerate(weights)) * step / 3
    log = math.lgamma((degrees + 1) / 2) - math.lgamma(degrees / 2)
    return 1 - 2 * area * math.exp(log) / math.sqrt(math.pi)


def test_the_tails_of_students_t():
    """One degree of freedom is a Cauchy distribution, two have a closed form, infinitely many a normal."""
    for t in (0.0, 1e-3, 0.5, 1.0, 2.0, 12.7):
        assert two_sided_p(t, 1) == pytest.approx(1 - 2 * math.atan(t) / math.pi, abs=1e-12)
        assert two_sided_p(t, 2) == pytest.approx(1 - t / math.sqrt(2 + t * t), abs=1e-12)
        assert two_sided_p(t, 1e6) == pytest.approx(math.erfc(t / math.sqrt(2)), abs=1e-6)
        for degrees in (1.7, 3, 4.4, 17, 101.3):
            assert two_sided_p(t, degrees) == pytest.approx(integrate_tails(t, degrees), abs=1e-9)
            assert two_sided_p(-t, degrees) == two_sided_p(t, degrees)


def test_small_tails_keep_their_precision():
    """With two degrees of freedom: 1 - t / sqrt(2 + t^2) -> 1 / t^2."""
    assert two_sided_p(1e6, 2) == pytest.approx(1e-12, rel=1e-9)


def test_the_critical_values():
    values = [critical_t(degrees) for degrees in range(1, 31)]
    assert values == pytest.approx(PUBLISHED_95, abs=1e-3)
    assert critical_t(1e5) == pytest.approx(1.959964, abs=1e-4)
    for degrees, p in ((1, 0.5), (2.5, 0.01), (40, 1e-3)):
        assert two_sided_p(critical_t(degrees, p), degrees) == pytest.approx(p)


# --- Welch's t-test -------------------------------------------------------------------------------


def test_welch_on_a_published_example():
    """R prints t = -1.8325, df = 17.9, p-value = 0.08356 for these two samples."""
    one, other = [11, 9, 10, 11, 10, 12, 9, 11, 12, 9], [11, 13, 10, 13, 12, 9, 11, 12, 12, 11]
    assert welch_p(one, other) == pytest.approx(0.08356, abs=5e-6)


def test_welch_by_hand():
    """Variances 1 and 4, n = 3 each: t = -3 / sqrt(5 / 3), nu = (5 / 3)^2 / (1 / 18 + 16 / 18) = 50 / 17."""
    p = welch_p([1.0, 2.0, 3.0], [3.0, 5.0, 7.0])
    assert p == pytest.approx(integrate_tails(3 / math.sqrt(5 / 3), 50 / 17), abs=1e-9)


def test_equal_variances_and_sizes_give_students_test():
    p = welch_p([1.0, 2.0, 3.0], [4.0, 5.0, 6.0])
    assert p == pytest.approx(two_sided_p(3 / math.sqrt(2 / 3), 4))


def test_one_constant_sample_gives_the_test_of_the_other_against_it():
    assert welch_p([1.0, 2.0, 3.0], [5.0] * 7) == pytest.approx(two_sided_p(3 * math.sqrt(3), 2))


def test_welch_does_not_depend_on_order_location_and_scale():
    one, other = [27.1, 28.4, 26.9], [29.0, 28.8, 30.1, 29.5]
    p = welch_p(one, other)
    assert welch_p(other, one) == pytest.approx(p)
    assert welch_p([7 - 3 * x for x in one], [7 - 3 * x for x in other]) == pytest.approx(p)
    assert welch_p([1e-180 * x for x in one], [1e-180 * x for x in other]) is None  # underflow
    assert welch_p(one, one) == 1.0


@pytest.mark.parametrize(
    ("one", "other"),
    [([1.0], [2.0, 3.0]), ([1.0, 2.0], [3.0]), ([], [1.0, 2.0]), ([1.0] * 3, [2.0] * 3)],
)
def test_too_few_values_or_no_variance_have_no_p(one, other):
    assert welch_p(one, other) is None


def test_welch_rejects_about_five_percent_under_the_null():
    """1,000 pairs of samples with one mean, to three standard deviations of a binomial count.

    With three values a side the test is conservative: it rejects 3.3 %.
    """
    generator = random.Random(0)

    def count_rejections(sizes: tuple[int, int], stds: tuple[float, float]) -> int:
        samples = [
            [
                [generator.gauss(27, std) for _ in range(n)]
                for n, std in zip(sizes, stds, strict=True)
            ]
            for _ in range(1000)
        ]
        return sum(welch_p(one, other) < 0.05 for one, other in samples)

    assert 29 <= count_rejections((10, 10), (0.5, 0.5)) <= 71
    assert 29 <= count_rejections((5, 10), (0.5, 1.5)) <= 71
    assert 18 <= count_rejections((3, 3), (0.5, 0.5)) <= 52


RESULTS = Path(__file__).parents[1] / "results"
PUBLISHED_WELCH = {
    ("scores", "score mean", "score dot"): "p = 0.10",
    ("normalisers", "normaliser softmax", "normaliser none"): "p = 0.12",
    ("normalisers", "normaliser softmax", "normaliser argmax"): "p = 0.05",
    ("decoder-forms", "decoder parallel", "decoder input-feeding"): "p = 0.40",
    ("positions", "position relative form query", "position rotary"): "p = 0.33",
    ("heads", "attention heads 4", "attention heads 4 key_value_heads 1"): "p = 0.52",
}


def published_bleu(name: str) -> dict[str, list[float]]:
    systems = json.loads((RESULTS / name / "results.json").read_text("utf-8"))["systems"]
    return {s["system"]: [run["results"][0]["bleu_lower"] for run in s["runs"]] for s in systems}


def test_the_published_figures_are_those_of_this_code():
    page = (RESULTS / "README.md").read_text("utf-8").replace("\n  ", " ")
    for (name, one, other), text in PUBLISHED_WELCH.items():
        bleu = published_bleu(name)
        assert f"p = {welch_p(bleu[one], bleu[other]):.2f}" == text
        assert f"Welch {text}" in page
    cells = []
    for corpus in ("multi30k", "tatoeba"):
        bleu = published_bleu(f"pretraining-{corpus}")
        for share in (0.01, 0.1, 1):
            scratch = bleu[f"{corpus}-fr-en-decoder-only, share {share}"]
            cells.append(welch_p(scratch, bleu[f"{corpus}-fr-en-from-denoising, share {share}"]))
    assert 0.025 < max(cells) <= 0.026
    assert "Welch p at most 0.026" in page


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
