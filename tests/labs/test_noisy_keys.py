"""Noisy keys: the closed forms of the swing, and the failures that the checks detect."""

import math

import numpy as np
import pytest
import torch

from regard.attention import SCORES
from regard.labs import noisy_keys
from regard.labs.measurements import single_query
from regard.labs.measurements.noise import Noise
from regard.labs.measurements.score_difference import ScoreDifference
from regard.labs.noisy_keys import deviation


def failed(result):
    return [i for i, check in enumerate(result.law) if not check.passed]


@pytest.mark.parametrize("tau", [0.02, 1.0, 5.0])
def test_swing_by_gauss_hermite_quadrature(tau):
    points, weights = np.polynomial.hermite_e.hermegauss(180)
    squared = (1 / (1 + np.exp(-tau * points)) - 0.5) ** 2
    z = ScoreDifference.normal(tau)
    assert z.swing(1000)[0] == pytest.approx(weights @ squared / weights.sum(), rel=1e-4)


def test_limits_of_the_swing():
    def swing(tau):
        return ScoreDifference.normal(tau).swing(1000)[0]

    assert swing(1e-3) == pytest.approx(1e-6 / 16, rel=1e-4)
    density = 1 / math.sqrt(2 * math.pi)  # normal density at 0, where the sigmoid is not saturated
    assert swing(70) == pytest.approx(0.25 - density / 70, rel=1e-4)
    one_deviation = ScoreDifference.normal(math.log(9)).one_sided()
    assert one_deviation == pytest.approx(0.3173, abs=1e-4)


@pytest.mark.parametrize(("beta", "sigma"), [(1.0, 0.01), (3.0, 0.4), (20.0, 1.0)])
def test_difference_of_squares_by_sampling(beta, sigma):
    draws, generator = 200_000, torch.Generator().manual_seed(0)
    lambdas = 1 + sigma * torch.randn(draws, 2, dtype=torch.float64, generator=generator)
    sampled = beta * (lambdas[:, 0] ** 2 - lambdas[:, 1] ** 2)
    z, share = ScoreDifference.of_squares(beta, sigma), sampled.sigmoid()
    assert z.tau == pytest.approx(beta * sigma * math.sqrt(8 + 4 * sigma**2))
    assert float(sampled.std()) == pytest.approx(z.tau, rel=0.02)
    mean, tolerance = z.swing(draws)
    assert float(((share - 0.5) ** 2).mean()) == pytest.approx(mean, abs=tolerance)
    assert float(((share - 0.5).abs() > 0.4).double().mean()) == pytest.approx(
        z.one_sided(), abs=0.006
    )
    edges = torch.linspace(0, 1, 8, dtype=torch.float64)
    counted = torch.histogram(share, edges).hist / draws
    assert z.histogram(edges) == pytest.approx(counted.tolist(), abs=0.006)


def test_all_three_noises(lab):
    figures = lab.run(beta=10, sigma=0.2, eps=1e-8).figures
    scaled, tiny, stretched, from_keys = figures["taus"]
    assert scaled == pytest.approx(10 * 0.2 * math.sqrt(2))
    assert tiny == pytest.approx(2 * 10 * 1e-4)
    assert stretched == pytest.approx(10 * math.sqrt(0.5), rel=1e-6)
    assert from_keys == pytest.approx(10 * 0.2 * math.sqrt(8 + 4 * 0.2**2))
    assert figures["deviations"][1] < 1e-3  # one head still suffices
    assert all(figures["deviations"][i] > 0.3 for i in (0, 2, 3))
    assert all(sum(histogram) == pytest.approx(1) for histogram in figures["histograms"])


def test_scaled_score_is_detected(lab, monkeypatch):
    monkeypatch.setitem(SCORES, "dot", SCORES["scaled-dot"])
    assert failed(lab.run()) == [0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 11]


def test_unscaled_score_is_detected_where_it_should_be_scaled(lab, monkeypatch):
    monkeypatch.setitem(SCORES, "scaled-dot", SCORES["dot"])
    assert failed(lab.run(scaled=True)) == [0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 11]


def test_scaled_scores_need_a_query_sqrt_d_times_as_long(lab):
    short, long = lab.run(keys=9, scaled=True), lab.run(keys=9, scaled=True, beta=36)
    assert short.law_holds
    assert not short.effect_is_present
    assert long.passed
    same = lab.run(keys=9, beta=12)
    assert long.figures["deviations"] == pytest.approx(same.figures["deviations"])


def test_nothing_swings_at_small_beta_and_sigma(lab):
    result = lab.run(sigma=0.01, beta=1)
    assert result.law_holds
    assert [check.passed for check in result.effect] == [False, False, False, True]
    assert "The scores differ too little" in result.effect[0].message


def test_output_near_neither_value_is_no_swing(lab):
    result = lab.run(beta=3, sigma=1, keys=32)
    assert result.law_holds
    assert result.figures["one_sided"][0] > 0.5  # of the two weights, which are small together
    assert result.figures["selections"][0] < 0.3
    assert not result.effect[0].passed


def test_noise_in_every_direction_that_is_not_tiny(lab):
    result = lab.run(eps=0.1)
    assert result.law_holds
    assert [check.passed for check in result.effect] == [True, True, True, False]
    assert "This noise is not tiny" in result.effect[3].message


def test_noisy_query_of_constant_length_is_detected(lab, monkeypatch):
    attention = single_query.dot_product_attention

    def normalise_query(query, keys, values, scaled):
        length = query.norm(dim=-1, keepdim=True)
        return attention(query * length.mean() / length, keys, values, scaled)

    monkeypatch.setattr(noisy_keys, "dot_product_attention", normalise_query)
    assert failed(lab.run()) == [2, 3]


def test_nan_in_one_draw_is_detected(lab, monkeypatch):
    attend = single_query.attend

    def nan_in_the_last_draw(scores, values):
        output, weights = attend(scores, values)
        weights[-1] = output[-1] = torch.nan
        return output, weights

    monkeypatch.setattr(single_query, "attend", nan_in_the_last_draw)
    result = lab.run(draws=1000)
    assert not any(check.passed for check in result.checks)


def test_values_of_the_wrong_keys_are_detected(lab, monkeypatch):
    attend = single_query.attend
    monkeypatch.setattr(
        single_query, "attend", lambda scores, values: attend(scores, values.roll(1, -2))
    )
    assert failed(lab.run()) == [1, 3]


def test_correlated_noise_is_detected(lab, monkeypatch):
    def scale_together(self, means, a, draws, generator):
        lengths = 1 + self.std_a * torch.randn(draws, 1, 1, dtype=means.dtype, generator=generator)
        return lengths * means

    monkeypatch.setattr(Noise, "sample_keys", scale_together)
    assert failed(lab.run()) == [4, 5, 6, 7, 8, 10, 11]


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


@pytest.mark.parametrize(
    ("factor", "explanation"),
    [(1, "answer is sqrt(d) times too large"), (-1, "answer lacks a factor sqrt(d)")],
)
def test_answer_for_scaled_scores_is_explained(lab, factor, explanation):
    def with_root(q, c_a, c_b):
        return deviation(q, c_a, c_b) * len(q) ** (factor / 2)

    checks = [check for check in lab.exercise.grade(with_root) if not check.passed]
    assert explanation in checks[0].message
