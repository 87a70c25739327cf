"""Latent attention against a naive loop, its absorbed form, and its cache."""

import math
from itertools import product

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from regard import config
from regard.attention import NORMALISERS, POSITIONS, SCORES, Latent, Position, causal_mask
from regard.attention.positions import Rotary

BATCH, QUERY, KEY = 2, 5, 7
D_MODEL, HEADS, HEAD_DIM, LATENT_DIM, ROPE_DIM = 11, 3, 5, 13, 4


def build_layer(
    score="scaled-dot", normaliser="softmax", rope_dim=ROPE_DIM, latent_dim=LATENT_DIM, **options
) -> Latent:
    torch.manual_seed(1)
    position = Rotary(D_MODEL, HEADS, rope_dim, 100.0, "none", 1.0, 512) if rope_dim else None
    depth = HEAD_DIM + rope_dim
    score_options = {"max_length": 17} if score == "location" else {}
    layer = Latent(
        D_MODEL,
        HEADS,
        HEAD_DIM,
        latent_dim,
        rope_dim,
        SCORES[score](depth, depth, **score_options),
        NORMALISERS[normaliser],
        position,
        **options,
    ).double()
    torch.nn.init.uniform_(layer.scale, 0.5, 1.5)
    return layer


def inputs(query: int = QUERY, key: int = KEY):
    random = torch.Generator().manual_seed(2)
    x = torch.randn(BATCH, query, D_MODEL, generator=random, dtype=torch.float64)
    memory = torch.randn(BATCH, key, D_MODEL, generator=random, dtype=torch.float64)
    mask = torch.rand(BATCH, query, key, generator=random) < 0.6
    mask[..., 0] = True
    query_position_ids = torch.arange(2, 2 + query).expand(BATCH, query)
    key_position_ids = torch.arange(key).expand(BATCH, key)
    return x, memory, mask, query_position_ids, key_position_ids


def run(layer: Latent, x, memory, mask, query_position_ids, key_position_ids, need_weights=False):
    keys, values = layer.keys_values(memory, key_position_ids)
    return layer(x, keys, values, mask, query_position_ids, key_position_ids, need_weights)


def rotate(x, position_id, base=100.0):
    """Each pair of elements, rotated by its position."""
    rotated = x.clone()
    for pair in range(len(x) // 2):
        angle = float(position_id) * base ** (-2 * pair / len(x))
        x1, x2 = float(x[2 * pair]), float(x[2 * pair + 1])
        rotated[2 * pair] = x1 * math.cos(angle) - x2 * math.sin(angle)
        rotated[2 * pair + 1] = x2 * math.cos(angle) + x1 * math.sin(angle)
    return rotated


def naive(layer: Latent, x, memory, mask, query_position_ids, key_position_ids):
    """The paper's equations, one head and one query-key pair at a time: (output, weights)."""
    rope_dim, latent_dim = layer.cache_dims
    w_qr, w_q = layer.query.weight.unflatten(0, (HEADS, -1)).split([rope_dim, HEAD_DIM], dim=1)
    w_kr, w_dkv = layer.down.weight.split([rope_dim, latent_dim])
    w_uk, w_uv = layer.up.weight.unflatten(0, (2, HEADS, HEAD_DIM))
    weights = torch.zeros(BATCH, HEADS, x.shape[1], memory.shape[1], dtype=x.dtype)
    context = torch.zeros(BATCH, x.shape[1], HEADS, HEAD_DIM, dtype=x.dtype)
    for b, h, i in product(range(BATCH), range(HEADS), range(x.shape[1])):
        query = torch.cat([w_q[h] @ x[b, i], rotate(w_qr[h] @ x[b, i], query_position_ids[b, i])])
        exps, values = {}, {}
        for j in range(memory.shape[1]):
            c = w_dkv @ memory[b, j]
            c = c / (c.square().mean() + 1e-6).sqrt() * layer.scale
            key = torch.cat([w_uk[h] @ c, rotate(w_kr @ memory[b, j], key_position_ids[b, j])])
            values[j] = w_uv[h] @ c
            if mask[b, i, j]:
                exps[j] = math.exp(float(query @ key) / math.sqrt(HEAD_DIM + rope_dim))
        for j, exp in exps.items():
            weights[b, h, i, j] = exp / sum(exps.values())
            context[b, i, h] += weights[b, h, i, j] * values[j]
    return context.flatten(2) @ layer.output.weight.T, weights


@torch.no_grad()
@pytest.mark.parametrize("rope_dim", [ROPE_DIM, 0])
@pytest.mark.parametrize("absorb", [True, False])
def test_latent_attention_equals_a_naive_loop(rope_dim, absorb, monkeypatch):
    monkeypatch.setattr(Latent, "_can_absorb", lambda *_: absorb)
    layer, arguments = build_layer(rope_dim=rope_dim), inputs()
    output, weights = run(layer, *arguments, need_weights=True)
    expected_output, expected_weights = naive(layer, *arguments)
    torch.testing.assert_close(weights, expected_weights)
    torch.testing.assert_close(output, expected_output)
    torch.testing.assert_close(run(layer, *arguments)[0], expected_output)


@pytest.mark.parametrize("score", SCORES)
def test_fused_equals_the_path_with_weights(score):
    for normaliser in NORMALISERS:
        layer, arguments = build_layer(score, normaliser, window=4), inputs()
        output, no_weights = run(layer, *arguments)
        output_with_weights, weights = run(layer, *arguments, need_weights=True)
        torch.testing.assert_close(output, output_with_weights)
        assert no_weights is None
        assert weights.shape == (BATCH, HEADS, QUERY, KEY)
        assert (weights[(~arguments[2])[:, None].expand_as(weights)] == 0).all()


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("absorb", [True, False])
def test_a_query_with_all_keys_masked_gets_zeros_and_finite_gradients(
    absorb, need_weights, monkeypatch
):
    monkeypatch.setattr(Latent, "_can_absorb", lambda *_: absorb)
    layer, (x, memory, mask, *position_ids) = build_layer(), inputs()
    x.requires_grad_()
    memory.requires_grad_()
    mask[1, 2] = False
    output, _ = run(layer, x, memory, mask, *position_ids, need_weights)
    assert (output[1, 2] == 0).all()
    output.square().sum().backward()
    grads = [x.grad, memory.grad, *(p.grad for p in layer.parameters())]
    assert all(grad.isfinite().all() and grad.abs().sum() > 0 for grad in grads)
    assert (x.grad[1, 2] == 0).all()


@pytest.mark.parametrize("latent_dim", [3, LATENT_DIM, 41])
def test_the_form_with_fewer_multiplications_is_chosen(latent_dim, monkeypatch):
    layer, can_absorb = build_layer(latent_dim=latent_dim, rope_dim=0), Latent._can_absorb
    for query, key in product([1, 2, 7, 29], [1, 2, 7, 29]):
        x, memory, _, *position_ids = inputs(query, key)
        cache, flops = layer.keys_values(memory, position_ids[1]), {}
        for absorb in (True, False):
            monkeypatch.setattr(Latent, "_can_absorb", lambda *_, absorb=absorb: absorb)
            with FlopCounterMode(display=False) as counter:
                layer(x, *cache, None, *position_ids, need_weights=True)
            flops[absorb] = counter.get_total_flops()
        assert flops[can_absorb(layer, query, key)] == min(flops.values())


NON_ROTARY = {
    kind: config.Transformer(position=kind).position.options
    for kind, position in POSITIONS.items()
    if position.rotate is Position.rotate
}


@torch.no_grad()
@pytest.mark.parametrize("kind", NON_ROTARY)
def test_non_rotary_positions_need_no_decoupled_key(kind):
    layer, arguments = build_layer(rope_dim=0), inputs()
    layer.position = POSITIONS[kind](D_MODEL, HEADS, HEAD_DIM, **NON_ROTARY[kind]).double()
    output, weights = run(layer, *arguments, need_weights=True)
    torch.testing.assert_close(run(layer, *arguments)[0], output)
    scores = naive(layer, *arguments)[1].log()
    bias = layer.position.bias(torch.zeros(BATCH, HEADS, QUERY, HEAD_DIM), *arguments[3:])
    scores = scores if bias is None else scores + bias
    torch.testing.assert_close(weights, scores.softmax(-1))


def test_weights_depend_on_relative_positions_only():
    layer, (x, memory, mask, query_ids, key_ids) = build_layer(), inputs()
    _, weights = run(layer, x, memory, mask, query_ids, key_ids, True)
    _, shifted = run(layer, x, memory, mask, query_ids + 40, key_ids + 40, True)
    torch.testing.assert_close(shifted, weights)
    _, query_shifted = run(layer, x, memory, mask, query_ids + 1, key_ids, True)
    assert not torch.allclose(query_shifted, weights)


def test_cache_is_shared_by_all_heads_and_stepwise_outputs_equal_one_pass():
    layer, (x, _, _, ids, _) = build_layer(), inputs()
    c, rotary_key = layer.keys_values(x, ids)
    assert c.shape == (BATCH, 1, QUERY, LATENT_DIM)
    assert rotary_key.shape == (BATCH, 1, QUERY, 4)
    steps = [layer.keys_values(x[:, t : t + 1], ids[:, t : t + 1]) for t in range(QUERY)]
    for cached, parts in zip((c, rotary_key), zip(*steps, strict=True), strict=True):
        torch.testing.assert_close(torch.cat(parts, dim=2), cached)
    expected, _ = layer(x, c, rotary_key, causal_mask(ids, ids), ids, ids)
    for t in range(QUERY):
        cache = c[:, :, : t + 1], rotary_key[:, :, : t + 1]
        output, _ = layer(x[:, t : t + 1], *cache, None, ids[:, t : t + 1], ids[:, : t + 1])
        torch.testing.assert_close(output, expected[:, t : t + 1])
