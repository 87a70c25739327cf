"""The keys scatter as they should, and the room for chance is honest."""

import math

import pytest
import torch

from regard.labs.noise import FAILURE_PROBABILITY, Noise, NoiseParameters, bernstein_bound
from regard.labs.single_query import closed_form_output, dot_product_attention, orthonormal_keys

NOISES = NoiseParameters(eps=0.02).noises


@pytest.mark.parametrize("noise", NOISES, ids=lambda noise: noise.name)
def test_keys_have_the_covariance_that_is_said(noise):
    generator, draws, a = torch.Generator().manual_seed(0), 20_000, 3
    means = orthonormal_keys(5, 7, generator)
    keys = noise.sample_keys(means, a, draws, generator)
    for i, mean in enumerate(means):
        deviation = noise.std_a if i == a else noise.std_others
        covariance = noise.eps * torch.eye(7) + deviation**2 * torch.outer(mean, mean)
        widest = float(torch.linalg.eigvalsh(covariance).max())
        off = keys[:, i] - mean
        # Five standard errors: of a mean, and of a product of two normal numbers.
        assert off.mean(0).abs().max() < 5 * math.sqrt(widest / draws)
        assert (off.mT @ off / draws - covariance).abs().max() < 5 * widest * math.sqrt(2 / draws)


@pytest.mark.parametrize("noise", NOISES, ids=lambda noise: noise.name)
@pytest.mark.parametrize("pointed", [1, 2])
def test_variances_are_those_of_the_scores(noise, pointed):
    generator, draws = torch.Generator().manual_seed(1), 20_000
    means = orthonormal_keys(5, 5, generator)
    keys = noise.sample_keys(means, 0, draws, generator)
    for key, law in zip((0, 1), noise.score_variances(pointed), strict=True):
        asked = means[:2].sum(0) if pointed == 2 else means[key]
        found = float((keys[:, key] @ asked).var())
        assert found == pytest.approx(law, rel=5 * math.sqrt(2 / draws), abs=1e-20)


@pytest.mark.parametrize(("share", "draws"), [(0.5, 1000), (0.01, 1000), (0.0004, 2500)])
def test_a_count_outside_the_room_is_rare(share, draws):
    room = bernstein_bound(share * (1 - share), 1, draws)
    outside = math.fsum(
        math.comb(draws, n) * share**n * (1 - share) ** (draws - n)
        for n in range(200)
        if abs(n / draws - share) > room
    )
    assert outside <= FAILURE_PROBABILITY


def test_the_room_is_a_few_standard_errors():
    assert bernstein_bound(4, 0, 10_000) == pytest.approx(5.386 * 2 / 100, rel=1e-3)
    assert bernstein_bound(4, 3, 10_000) < 6 * 2 / 100


def test_brought_back_is_what_a_look_up_brings_back():
    generator = torch.Generator().manual_seed(2)
    keys, values = (
        orthonormal_keys(7, 7, generator),
        torch.randn(7, 3, generator=generator).double(),
    )
    scores = torch.tensor([1.5, -0.5, 2.0]).double()
    asked = scores @ keys[[4, 0, 2]]
    found = dot_product_attention(asked, keys, values)[0]
    assert torch.allclose(closed_form_output(scores, values, [4, 0, 2]), found)


def test_a_noise_without_eps_only_scales():
    generator = torch.Generator().manual_seed(3)
    means = orthonormal_keys(3, 5, generator)
    keys = Noise("", 0.5, 0.5, 0).sample_keys(means, 1, 11, generator)
    lengths = (keys * means).sum(-1)
    assert torch.allclose(keys, lengths[..., None] * means)
    assert lengths.std() > 0.1
