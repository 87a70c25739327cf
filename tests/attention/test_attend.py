"""`attend` against a naive loop, masks, and the fused kernel against `attend`."""

import math
from itertools import product

import pytest
import torch

from regard.attention import NORMALISERS, attend, attend_fused, causal_mask, padding_mask
from regard.attention.attend import attend_few

BATCH, HEADS, QUERY, KEY, DEPTH = 2, 3, 5, 7, 11


def tensors(dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, ...]:
    random = torch.Generator().manual_seed(1)
    query = torch.randn(BATCH, HEADS, QUERY, DEPTH, generator=random, dtype=dtype)
    keys = torch.randn(BATCH, HEADS, KEY, DEPTH, generator=random, dtype=dtype)
    values = torch.randn(BATCH, HEADS, KEY, 13, generator=random, dtype=dtype)
    mask = torch.rand(BATCH, 1, QUERY, KEY, generator=random) < 0.6
    mask[1, 0, 2] = False
    return query, keys, values, mask


def test_attend_equals_a_naive_loop():
    query, keys, values, mask = tensors()
    scores = query @ keys.transpose(-1, -2)
    context, weights = attend(scores, values, mask)
    assert context.shape == (BATCH, HEADS, QUERY, 13)
    assert weights.shape == (BATCH, HEADS, QUERY, KEY)
    for b, h, q in product(range(BATCH), range(HEADS), range(QUERY)):
        allowed = [k for k in range(KEY) if mask[b, 0, q, k]]
        exps = {k: math.exp(float(scores[b, h, q, k])) for k in allowed}
        expected = torch.zeros(13, dtype=torch.float64)
        for k in allowed:
            alpha = exps[k] / sum(exps.values())
            assert float(weights[b, h, q, k]) == pytest.approx(alpha, abs=1e-12)
            expected += alpha * values[b, h, k]
        torch.testing.assert_close(context[b, h, q], expected)


@pytest.mark.parametrize("name", NORMALISERS)
def test_context_is_the_weighted_sum_and_masked_weights_are_zero(name):
    query, keys, values, mask = tensors()
    scores = query @ keys.transpose(-1, -2)
    context, weights = attend(scores, values, mask, NORMALISERS[name])
    torch.testing.assert_close(context, torch.einsum("bhqk,bhkd->bhqd", weights, values))
    assert (weights[~mask.expand_as(weights)] == 0).all()
    assert (context[1, :, 2] == 0).all()


@pytest.mark.parametrize("name", NORMALISERS)
def test_no_mask_equals_a_mask_of_ones_that_broadcasts_over_queries(name):
    query, keys, values, _ = tensors()
    scores = query @ keys.transpose(-1, -2)
    expected = attend(scores, values, None, NORMALISERS[name])
    all_allowed = torch.ones(1, 1, 1, KEY, dtype=torch.bool)
    result = attend(scores, values, all_allowed, NORMALISERS[name])
    for tensor, expected_tensor in zip(result, expected, strict=True):
        torch.testing.assert_close(tensor, expected_tensor)


def test_attend_does_not_modify_the_scores():
    query, keys, values, mask = tensors()
    scores = query @ keys.transpose(-1, -2)
    before = scores.clone()
    attend(scores, values, mask)
    assert torch.equal(scores, before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("biased", [True, False])
def test_fused_equals_attend_in_value_and_gradient(dtype, masked, biased):
    query, keys, values, mask = tensors(dtype)
    mask = mask if masked else None
    scores = query @ keys.transpose(-1, -2)
    bias = scores.flip(-1).sin() if biased else None
    scale = 1.7 if biased else 1.0
    grads = []
    contexts = []
    for fused in (True, False):
        q, k, v = (x.clone().requires_grad_() for x in (query, keys, values))
        if fused:
            context = attend_fused(q, k, v, mask, bias, scale=scale)
        else:
            scores = scale * q @ k.transpose(-1, -2) / math.sqrt(DEPTH)
            context, _ = attend(scores if bias is None else scores + bias, v, mask)
        context.square().sum().backward()
        contexts.append(context)
        grads.append((q.grad, k.grad, v.grad))
    torch.testing.assert_close(*contexts, atol=1e-5, rtol=1e-4)
    for fused_grad, grad in zip(*grads, strict=True):
        assert fused_grad.isfinite().all()
        torch.testing.assert_close(fused_grad, grad, atol=1e-5, rtol=1e-4)


def test_fused_returns_zeros_for_a_query_with_all_keys_masked():
    query, keys, values, mask = tensors(torch.float32)
    assert (attend_fused(query, keys, values, mask)[1, :, 2] == 0).all()


def test_padding_mask_is_true_for_real_tokens():
    mask = padding_mask(torch.tensor([3, 0, 2]), 4)
    assert mask.tolist() == [
        [True, True, True, False],
        [False, False, False, False],
        [True, True, False, False],
    ]


def test_causal_mask_is_lower_triangular():
    position_ids = torch.arange(5)[None]
    assert torch.equal(causal_mask(position_ids, position_ids)[0], torch.ones(5, 5).tril().bool())


def test_causal_mask_depends_on_position_ids_not_on_indices():
    query_position_ids = torch.tensor([[4], [0]])
    key_position_ids = torch.tensor([[5, 4, 3], [0, 1, 2]])
    expected = [[[False, True, True]], [[True, False, False]]]
    assert causal_mask(query_position_ids, key_position_ids).tolist() == expected


@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("biased", [True, False])
def test_few_queries_give_the_same(masked, biased):
    """The path for decoding on a GPU, zeros for a query with all keys masked included."""
    query, keys, values, mask = tensors(torch.float64)
    mask = mask if masked else None
    scores = query @ keys.transpose(-1, -2)
    bias = scores.flip(-1).sin() if biased else None
    expected, _ = attend(scores if bias is None else scores + bias, values, mask)
    torch.testing.assert_close(attend_few(query, keys, values, mask, bias), expected)
