"""Noisy keys: the closed forms of the swing, and the failures that the checks detect."""

import math

import numpy as np
import pytest
import torch

from regard.attention import SCORES
from regard.labs import single_query
from regard.labs.noise import Noise
from regard.labs.noisy_keys import one_sided, swing


def failed(result):
    return [i for i, check in enumerate(result.checks) if not check.passed]


@pytest.mark.parametrize("tau", [0.02, 1.0, 5.0])
def test_swing_by_gauss_hermite_quadrature(tau):
    points, weights = np.polynomial.hermite_e.hermegauss(180)
    squared = (1 / (1 + np.exp(-tau * points)) - 0.5) ** 2
    assert swing(tau, 1000)[0] == pytest.approx(weights @ squared / weights.sum(), rel=1e-4)


def test_limits_of_the_swing():
    assert swing(1e-3, 1000)[0] == pytest.approx(1e-6 / 16, rel=1e-4)
    density = 1 / math.sqrt(2 * math.pi)  # normal density at 0, where the sigmoid is not saturated
    assert swing(70, 1000)[0] == pytest.approx(0.25 - density / 70, rel=1e-4)
    assert one_sided(math.log(9)) == pytest.approx(0.3173, abs=1e-4)  # one standard deviation


def test_all_three_noises(lab):
    figures = lab.run(beta=10, sigma=0.2, eps=1e-8).figures
    scaled, tiny, stretched = figures["taus"]
    assert scaled == pytest.approx(10 * 0.2 * math.sqrt(2))
    assert tiny == pytest.approx(2 * 10 * 1e-4)
    assert stretched == pytest.approx(10 * math.sqrt(0.5), rel=1e-6)
    assert figures["deviations"][1] < 1e-3  # one head still suffices
    assert min(figures["deviations"][0], figures["deviations"][2]) > 0.3
    assert all(sum(histogram) == pytest.approx(1) for histogram in figures["histograms"])


def test_scaled_score_is_detected(lab, monkeypatch):
    monkeypatch.setitem(SCORES, "dot", SCORES["scaled-dot"])
    assert failed(lab.run()) == [0, 1, 2, 3, 4, 5, 7]


def test_values_of_the_wrong_keys_are_detected(lab, monkeypatch):
    attend = single_query.attend
    monkeypatch.setattr(
        single_query, "attend", lambda scores, values: attend(scores, values.roll(1, -2))
    )
    assert failed(lab.run()) == [1]


def test_correlated_noise_is_detected(lab, monkeypatch):
    def scale_together(self, means, a, draws, generator):
        lengths = 1 + self.std_a * torch.randn(draws, 1, 1, dtype=means.dtype, generator=generator)
        return lengths * means

    monkeypatch.setattr(Noise, "sample_keys", scale_together)
    assert failed(lab.run()) == [2, 3, 4, 5, 7]


@pytest.mark.parametrize(
    "wrong",
    [
        lambda q, c_a, c_b: q @ (c_a + c_b) @ q,
        lambda q, c_a, c_b: (q @ c_a @ q).sqrt(),
        lambda q, c_a, c_b: (q @ c_a @ q).sqrt() + (q @ c_b @ q).sqrt(),
        lambda q, c_a, c_b: ((c_a + c_b).diagonal() @ q**2).abs().sqrt(),
        lambda q, c_a, c_b: 0.6,
    ],
)
def test_wrong_answers_fail_with_an_explanation(lab, wrong):
    checks = [check for check in lab.exercise.grade(wrong) if not check.passed]
    assert "variances of independent variables add" in checks[0].message


def test_equivalent_answer_passes(lab):
    def by_cholesky(q, c_a, c_b):
        roots = [torch.linalg.cholesky(c + 1e-12 * torch.eye(5)) for c in (c_a, c_b)]
        return float(torch.cat([root.mT @ q for root in roots]).norm())

    assert all(check.passed for check in lab.exercise.grade(by_cholesky))
