"""Noisy keys have the stated covariance, and the sampling-error bound holds."""

import math

import pytest
import torch

from regard.labs.measurements.noise import (
    FAILURE_PROBABILITY,
    Noise,
    NoiseParameters,
    bernstein_bound,
)
from regard.labs.measurements.single_query import (
    closed_form_output,
    dot_product_attention,
    orthonormal_keys,
)

NOISES = NoiseParameters(eps=0.02).noises


@pytest.mark.parametrize("noise", NOISES, ids=lambda noise: noise.name)
def test_keys_have_the_stated_covariance(noise):
    generator, draws, a = torch.Generator().manual_seed(0), 20_000, 3
    means = orthonormal_keys(5, 7, generator)
    keys = noise.sample_keys(means, a, draws, generator)
    for i, mean in enumerate(means):
        deviation = noise.std_a if i == a else noise.std_others
        covariance = noise.eps * torch.eye(7) + deviation**2 * torch.outer(mean, mean)
        largest = float(torch.linalg.eigvalsh(covariance).max())
        error = keys[:, i] - mean
        # Five standard errors: of a mean, and of a product of two normal variables.
        assert error.mean(0).abs().max() < 5 * math.sqrt(largest / draws)
        assert (error.mT @ error / draws - covariance).abs().max() < 5 * largest * math.sqrt(
            2 / draws
        )


@pytest.mark.parametrize("noise", NOISES, ids=lambda noise: noise.name)
@pytest.mark.parametrize("targets", [1, 2])
def test_score_variances_match_sampled_scores(noise, targets):
    generator, draws = torch.Generator().manual_seed(1), 20_000
    means = orthonormal_keys(5, 5, generator)
    keys = noise.sample_keys(means, 0, draws, generator)
    for key, expected in zip((0, 1), noise.score_variances(targets), strict=True):
        query = means[:2].sum(0) if targets == 2 else means[key]
        measured = float((keys[:, key] @ query).var())
        assert measured == pytest.approx(expected, rel=5 * math.sqrt(2 / draws), abs=1e-20)


@pytest.mark.parametrize(("rate", "draws"), [(0.5, 1000), (0.01, 1000), (0.0004, 2500)])
def test_bernstein_bound_is_rarely_exceeded(rate, draws):
    bound = bernstein_bound(rate * (1 - rate), 1, draws)
    outside = math.fsum(
        math.comb(draws, n) * rate**n * (1 - rate) ** (draws - n)
        for n in range(200)
        if abs(n / draws - rate) > bound
    )
    assert outside <= FAILURE_PROBABILITY


def test_bernstein_bound_is_a_few_standard_errors():
    assert bernstein_bound(4, 0, 10_000) == pytest.approx(5.386 * 2 / 100, rel=1e-3)
    assert bernstein_bound(4, 3, 10_000) < 6 * 2 / 100


def test_closed_form_output_matches_attention():
    generator = torch.Generator().manual_seed(2)
    keys, values = (
        orthonormal_keys(7, 7, generator),
        torch.randn(7, 3, generator=generator).double(),
    )
    scores = torch.tensor([1.5, -0.5, 2.0]).double()
    output = dot_product_attention(scores @ keys[[4, 0, 2]], keys, values)[0]
    assert torch.allclose(closed_form_output(scores, values, [4, 0, 2]), output)


def test_noise_without_eps_only_scales():
    generator = torch.Generator().manual_seed(3)
    means = orthonormal_keys(3, 5, generator)
    keys = Noise("", 0.5, 0.5, 0).sample_keys(means, 1, 11, generator)
    lengths = (keys * means).sum(-1)
    assert torch.allclose(keys, lengths[..., None] * means)
    assert lengths.std() > 0.1
