"""attend against a naive loop; masks; the fused form against the explained one."""

import math
from itertools import product

import pytest
import torch

from regard.attention import NORMALISERS, attend, attend_fused, causal_mask, padding_mask

BATCH, HEADS, QUERY, KEY, DEPTH = 2, 3, 5, 7, 11


def tensors(dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, ...]:
    random = torch.Generator().manual_seed(1)
    query = torch.randn(BATCH, HEADS, QUERY, DEPTH, generator=random, dtype=dtype)
    keys = torch.randn(BATCH, HEADS, KEY, DEPTH, generator=random, dtype=dtype)
    values = torch.randn(BATCH, HEADS, KEY, 13, generator=random, dtype=dtype)
    mask = torch.rand(BATCH, 1, QUERY, KEY, generator=random) < 0.6
    mask[1, 0, 2] = False
    return query, keys, values, mask


def test_attend_is_the_naive_loop():
    query, keys, values, mask = tensors()
    scores = query @ keys.transpose(-1, -2)
    context, weights = attend(scores, values, mask)
    assert context.shape == (BATCH, HEADS, QUERY, 13)
    assert weights.shape == (BATCH, HEADS, QUERY, KEY)
    for b, h, q in product(range(BATCH), range(HEADS), range(QUERY)):
        seen = [k for k in range(KEY) if mask[b, 0, q, k]]
        powers = {k: math.exp(float(scores[b, h, q, k])) for k in seen}
        wanted = torch.zeros(13, dtype=torch.float64)
        for k in seen:
            alpha = powers[k] / sum(powers.values())
            assert float(weights[b, h, q, k]) == pytest.approx(alpha, abs=1e-12)
            wanted += alpha * values[b, h, k]
        torch.testing.assert_close(context[b, h, q], wanted)


@pytest.mark.parametrize("name", NORMALISERS)
def test_the_context_is_the_weighted_sum_and_the_mask_holds(name):
    query, keys, values, mask = tensors()
    scores = query @ keys.transpose(-1, -2)
    context, weights = attend(scores, values, mask, NORMALISERS[name])
    torch.testing.assert_close(context, torch.einsum("bhqk,bhkd->bhqd", weights, values))
    assert (weights[~mask.expand_as(weights)] == 0).all()
    assert (context[1, :, 2] == 0).all()


@pytest.mark.parametrize("name", NORMALISERS)
def test_no_mask_is_a_mask_of_trues_and_one_row_does_for_all_queries(name):
    query, keys, values, _ = tensors()
    scores = query @ keys.transpose(-1, -2)
    bare = attend(scores, values, None, NORMALISERS[name])
    every = torch.ones(1, 1, 1, KEY, dtype=torch.bool)
    for found, wanted in zip(attend(scores, values, every, NORMALISERS[name]), bare, strict=True):
        torch.testing.assert_close(found, wanted)


def test_the_scores_given_are_left_as_they_were():
    query, keys, values, mask = tensors()
    scores = query @ keys.transpose(-1, -2)
    before = scores.clone()
    attend(scores, values, mask)
    assert torch.equal(scores, before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("masked", [True, False])
def test_fused_is_explained_in_value_and_gradient(dtype, masked):
    query, keys, values, mask = tensors(dtype)
    mask = mask if masked else None
    grads = []
    contexts = []
    for fused in (True, False):
        q, k, v = (x.clone().requires_grad_() for x in (query, keys, values))
        if fused:
            context = attend_fused(q, k, v, mask)
        else:
            context, _ = attend(q @ k.transpose(-1, -2) / math.sqrt(DEPTH), v, mask)
        context.square().sum().backward()
        contexts.append(context)
        grads.append((q.grad, k.grad, v.grad))
    torch.testing.assert_close(*contexts, atol=1e-5, rtol=1e-4)
    for ours, theirs in zip(*grads, strict=True):
        assert ours.isfinite().all()
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)


def test_fused_gives_a_query_with_nothing_to_see_zeros():
    query, keys, values, mask = tensors(torch.float32)
    assert (attend_fused(query, keys, values, mask)[1, :, 2] == 0).all()


def test_padding_mask_is_true_for_real_words():
    mask = padding_mask(torch.tensor([3, 0, 2]), 4)
    assert mask.tolist() == [
        [True, True, True, False],
        [False, False, False, False],
        [True, True, False, False],
    ]


def test_causal_mask_is_true_for_the_past_and_the_present():
    at = torch.arange(5)[None]
    assert torch.equal(causal_mask(at, at)[0], torch.ones(5, 5).tril().bool())


def test_causal_mask_goes_by_position_not_by_place():
    query_position_ids, key_position_ids = (
        torch.tensor([[4], [0]]),
        torch.tensor([[5, 4, 3], [0, 1, 2]]),
    )
    wanted = [[[False, True, True]], [[True, False, False]]]
    assert causal_mask(query_position_ids, key_position_ids).tolist() == wanted
