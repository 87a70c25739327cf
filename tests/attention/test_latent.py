"""Latent attention against a naive loop, its absorbed form, and the little that it caches."""

import math
from itertools import product

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from regard import config
from regard.attention import NORMALISERS, POSITIONS, SCORES, Latent, Position, causal_mask
from regard.attention.positions import Rotary

BATCH, QUERY, KEY = 2, 5, 7
WIDTH, HEADS, HEAD_DIM, LATENT, ROPE = 11, 3, 5, 13, 4


def make(score="scaled-dot", normaliser="softmax", rope=ROPE, latent=LATENT, **choices) -> Latent:
    torch.manual_seed(1)
    place = None
    if rope:
        place = Rotary(WIDTH, HEADS, rope, 100.0, "none", 1.0, 512)
    depth = HEAD_DIM + rope
    options = {"max_length": 17} if score == "location" else {}
    layer = Latent(
        WIDTH,
        HEADS,
        HEAD_DIM,
        latent,
        rope,
        SCORES[score](depth, depth, **options),
        NORMALISERS[normaliser],
        place,
        **choices,
    ).double()
    torch.nn.init.uniform_(layer.scale, 0.5, 1.5)
    return layer


def inputs(query: int = QUERY, key: int = KEY):
    random = torch.Generator().manual_seed(2)
    x = torch.randn(BATCH, query, WIDTH, generator=random, dtype=torch.float64)
    memory = torch.randn(BATCH, key, WIDTH, generator=random, dtype=torch.float64)
    mask = torch.rand(BATCH, query, key, generator=random) < 0.6
    mask[..., 0] = True
    at = torch.arange(2, 2 + query).expand(BATCH, query), torch.arange(key).expand(BATCH, key)
    return x, memory, mask, *at


def run(layer: Latent, x, memory, mask, query_position_ids, key_position_ids, need_weights=False):
    return layer(
        x,
        *layer.keys_values(memory, key_position_ids),
        mask,
        query_position_ids,
        key_position_ids,
        explain,
    )


def turn(x, at, base=100.0):
    """Pairs as complex numbers, turned by their place."""
    found = x.clone()
    for pair in range(len(x) // 2):
        angle = float(at) * base ** (-2 * pair / len(x))
        one, two = float(x[2 * pair]), float(x[2 * pair + 1])
        found[2 * pair] = one * math.cos(angle) - two * math.sin(angle)
        found[2 * pair + 1] = two * math.cos(angle) + one * math.sin(angle)
    return found


def naive(layer: Latent, x, memory, mask, query_position_ids, key_position_ids):
    """The paper's equations, one head and one pair at a time: (output, weights)."""
    rope, latent = layer.cache_dims
    w_qr, w_q = layer.query.weight.unflatten(0, (HEADS, -1)).split([rope, HEAD_DIM], dim=1)
    w_kr, w_dkv = layer.down.weight.split([rope, latent])
    w_uk, w_uv = layer.up.weight.unflatten(0, (2, HEADS, HEAD_DIM))
    weights = torch.zeros(BATCH, HEADS, x.shape[1], memory.shape[1], dtype=x.dtype)
    context = torch.zeros(BATCH, x.shape[1], HEADS, HEAD_DIM, dtype=x.dtype)
    for b, h, i in product(range(BATCH), range(HEADS), range(x.shape[1])):
        query = torch.cat([w_q[h] @ x[b, i], turn(w_qr[h] @ x[b, i], query_position_ids[b, i])])
        powers, values = {}, {}
        for j in range(memory.shape[1]):
            c = w_dkv @ memory[b, j]
            c = c / (c.square().mean() + 1e-6).sqrt() * layer.scale
            key = torch.cat([w_uk[h] @ c, turn(w_kr @ memory[b, j], key_position_ids[b, j])])
            values[j] = w_uv[h] @ c
            if mask[b, i, j]:
                powers[j] = math.exp(float(query @ key) / math.sqrt(HEAD_DIM + rope))
        for j, power in powers.items():
            weights[b, h, i, j] = power / sum(powers.values())
            context[b, i, h] += weights[b, h, i, j] * values[j]
    return context.flatten(2) @ layer.output.weight.T, weights


@torch.no_grad()
@pytest.mark.parametrize("rope", [ROPE, 0])
@pytest.mark.parametrize("absorbs", [True, False])
def test_it_is_the_naive_loop(rope, absorbs, monkeypatch):
    monkeypatch.setattr(Latent, "_can_absorb", lambda *_: absorbs)
    layer, given = make(rope=rope), inputs()
    output, weights = run(layer, *given, need_weights=True)
    wanted = naive(layer, *given)
    torch.testing.assert_close(weights, wanted[1])
    torch.testing.assert_close(output, wanted[0])
    torch.testing.assert_close(run(layer, *given)[0], wanted[0])


@pytest.mark.parametrize("normaliser", NORMALISERS)
@pytest.mark.parametrize("score", SCORES)
def test_fused_equals_the_path_with_weights(score, normaliser):
    layer, given = make(score, normaliser, window=4), inputs()
    output, nothing = run(layer, *given)
    output_with_weights, weights = run(layer, *given, need_weights=True)
    torch.testing.assert_close(output, output_with_weights)
    assert nothing is None
    assert weights.shape == (BATCH, HEADS, QUERY, KEY)
    assert (weights[(~given[2])[:, None].expand_as(weights)] == 0).all()


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("absorbs", [True, False])
def test_a_query_with_nothing_to_see_adds_nothing_and_breaks_nothing(
    absorbs, need_weights, monkeypatch
):
    monkeypatch.setattr(Latent, "_can_absorb", lambda *_: absorbs)
    layer, (x, memory, mask, *at) = make(), inputs()
    mask[1, 2] = False
    output, _ = run(layer, x.requires_grad_(), memory.requires_grad_(), mask, *at, need_weights)
    assert (output[1, 2] == 0).all()
    output.square().sum().backward()
    grads = [x.grad, memory.grad, *(p.grad for p in layer.parameters())]
    assert all(grad.isfinite().all() and grad.abs().sum() > 0 for grad in grads)
    assert (x.grad[1, 2] == 0).all()


@pytest.mark.parametrize("latent", [3, LATENT, 41])
def test_the_form_with_fewer_products_is_the_one_taken(latent, monkeypatch):
    layer, chosen = make(latent=latent, rope=0), Latent._can_absorb
    for query, key in product([1, 2, 7, 29], [1, 2, 7, 29]):
        given, counts = inputs(query, key), {}
        held = layer.keys_values(given[1], given[4])
        for form in (True, False):
            monkeypatch.setattr(Latent, "_can_absorb", lambda *_, form=form: form)
            with FlopCounterMode(display=False) as counter:
                layer(given[0], *held, None, *given[3:], need_weights=True)
            counts[form] = counter.get_total_flops()
        assert counts[chosen(layer, query, key)] == min(counts.values())


STILL = {
    kind: config.Transformer(position=kind).position.options
    for kind, made in POSITIONS.items()
    if made.rotate is Position.rotate
}


@torch.no_grad()
@pytest.mark.parametrize("kind", STILL)
def test_a_position_that_turns_nothing_goes_along_without_a_part_of_its_own(kind):
    layer, given = make(rope=0), inputs()
    place = layer.position = POSITIONS[kind](WIDTH, HEADS, HEAD_DIM, **STILL[kind]).double()
    output, weights = run(layer, *given, need_weights=True)
    torch.testing.assert_close(run(layer, *given)[0], output)
    scores = naive(layer, *given)[1].log()
    bias = place.bias(torch.zeros(BATCH, HEADS, QUERY, HEAD_DIM), *given[3:])
    scores = scores if bias is None else scores + bias
    torch.testing.assert_close(weights, scores.softmax(-1))


def test_only_distance_counts():
    layer, (x, memory, mask, query_position_ids, key_position_ids) = make(), inputs()
    weights = run(layer, x, memory, mask, query_position_ids, key_position_ids, need_weights=True)[
        1
    ]
    later = run(
        layer, x, memory, mask, query_position_ids + 40, key_position_ids + 40, need_weights=True
    )[1]
    torch.testing.assert_close(later, weights)
    assert not torch.allclose(
        run(layer, x, memory, mask, query_position_ids + 1, key_position_ids, True)[1], weights
    )


def test_what_a_cache_holds_does_not_grow_with_the_heads():
    layer, (x, _, _, at, _) = make(), inputs()
    held = layer.keys_values(x, at)
    assert [tuple(part.shape) for part in held] == [(BATCH, 1, QUERY, LATENT), (BATCH, 1, QUERY, 4)]
    single = [layer.keys_values(x[:, t : t + 1], at[:, t : t + 1]) for t in range(QUERY)]
    for part, alone in zip(held, zip(*single, strict=True), strict=True):
        torch.testing.assert_close(torch.cat(alone, dim=2), part)
    whole, _ = layer(x, *held, causal_mask(at, at), at, at)
    for t in range(QUERY):
        now, past = at[:, t : t + 1], at[:, : t + 1]
        one, _ = layer(x[:, t : t + 1], *(part[:, :, : t + 1] for part in held), None, now, past)
        torch.testing.assert_close(one, whole[:, t : t + 1])
