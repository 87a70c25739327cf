"""Dynamic NTK against its formula, one query and one key at a time, in every kind of heads."""

import math
from itertools import product

import pytest
import torch

from regard.attention import HEADS as HEAD_KINDS
from regard.attention import SCORES, Latent, MultiHead, causal_mask
from regard.attention.positions import Rotary
from regard.attention.scores import ScaledDot

BATCH, LENGTH, D_MODEL, HEADS, HEAD_DIM, ROPE_DIM = 2, 17, 11, 3, 6, 4
BASE, ORIGINAL = 100.0, 3
LAYERS = {
    "multi-head": (MultiHead, HEAD_DIM, {}),
    "multi-query": (MultiHead, HEAD_DIM, {"kv_heads": 1}),
    "latent": (Latent, ROPE_DIM, {"latent_dim": 13, "rope_dim": ROPE_DIM}),
    "latent, absorbed": (Latent, ROPE_DIM, {"latent_dim": 13, "rope_dim": ROPE_DIM}),
}


@pytest.fixture(params=LAYERS)
def build(request, monkeypatch):
    """Builds a layer of each kind of heads; with the same seed, it has the same weights."""
    kind, rotated_dim, options = LAYERS[request.param]
    absorb = request.param.endswith("absorbed")
    monkeypatch.setattr(  # no other score can be absorbed
        Latent, "_can_absorb", lambda layer, *_: absorb and type(layer.score) is ScaledDot
    )
    depth = HEAD_DIM + options.get("rope_dim", 0)

    def build(scaling, factor=1.0, original=ORIGINAL, score="scaled-dot", **more):
        torch.manual_seed(5)
        position = Rotary(D_MODEL, HEADS, rotated_dim, BASE, scaling, factor, original)
        score = SCORES[score](depth, depth, **({"max_length": 40} if score == "location" else {}))
        parts = {"score": score, "position": position}
        return kind(D_MODEL, HEADS, HEAD_DIM, **parts, **options, **more).double()

    return build


def inputs():
    random = torch.Generator().manual_seed(2)
    x = torch.randn(BATCH, LENGTH, D_MODEL, generator=random, dtype=torch.float64)
    ids = torch.stack([torch.arange(LENGTH), torch.randperm(LENGTH, generator=random)])
    mask = torch.rand(BATCH, LENGTH, LENGTH, generator=random) < torch.rand(
        BATCH, LENGTH, 1, generator=random
    )
    mask[..., 4] = True
    return x, ids, {"causal": causal_mask(ids, ids), "any": mask, "one row": mask[:, :1]}


def run(layer, x, ids, mask, need_weights=True):
    return layer(x, *layer.keys_values(x, ids), mask, ids, ids, need_weights)


def expected_factor(length: int) -> int:
    return next(2**k for k in range(20) if 2**k * ORIGINAL >= length)


def assert_close(output, expected):
    torch.testing.assert_close(output, expected, atol=1e-6, rtol=0)  # frequencies are float32


def test_all_kinds_of_heads_are_tested():
    assert {kind for kind, *_ in LAYERS.values()} == set(HEAD_KINDS.values())


def test_lengths_of_the_examples_need_several_factors():
    for mask in inputs()[2].values():
        lengths = mask.sum(-1).flatten().tolist()
        assert len({expected_factor(length) for length in lengths}) > 1
    assert [expected_factor(n) for n in (1, 3, 4, 6, 7, 12, 13)] == [1, 1, 2, 2, 4, 4, 8]


@torch.no_grad()
@pytest.mark.parametrize("name", inputs()[2])
def test_a_query_attends_as_with_the_factor_of_its_length(build, name):
    """ntk with a fixed factor is tested against its formula in test_positions."""
    (x, ids, masks), layer = inputs(), build("dynamic-ntk")
    mask = masks[name]
    output, weights = run(layer, x, ids, mask)
    lengths = mask.sum(-1).expand(BATCH, LENGTH)
    fixed = {
        s: run(build("ntk", float(s)) if s > 1 else build("none"), x, ids, mask)
        for s in (1, 2, 4, 8)
    }
    for b, i in product(range(BATCH), range(LENGTH)):
        expected_output, expected_weights = fixed[expected_factor(int(lengths[b, i]))]
        assert_close(weights[b, :, i], expected_weights[b, :, i])
        assert_close(output[b, i], expected_output[b, i])
    assert_close(run(layer, x, ids, mask, need_weights=False)[0], output)


@torch.no_grad()
def test_without_a_mask_all_keys_count(build):
    x, ids, _ = inputs()
    for need_weights in (True, False):
        output, weights = run(build("dynamic-ntk"), x, ids, None, need_weights)
        expected, expected_weights = run(build("ntk", 8.0), x, ids, None, need_weights)
        assert_close(output, expected)
        assert_close(weights, expected_weights)


@torch.no_grad()
def test_scores_equal_the_formula():
    """q . k / sqrt(d) with both rotated by t (base s^(d / (d - 2)))^(-2i / d)."""
    torch.manual_seed(5)
    position = Rotary(D_MODEL, HEADS, HEAD_DIM, BASE, "dynamic-ntk", 1.0, ORIGINAL)
    layer = MultiHead(
        D_MODEL, HEADS, HEAD_DIM, SCORES["scaled-dot"](HEAD_DIM, HEAD_DIM), position=position
    ).double()
    x, ids, masks = inputs()
    _, weights = run(layer, x, ids, masks["causal"])
    query = layer.query(x).unflatten(-1, (HEADS, -1))
    keys = layer.key_value(x)[..., : HEADS * HEAD_DIM].unflatten(-1, (HEADS, -1))

    def rotated(vector, t, s):
        omega = (BASE * s ** (HEAD_DIM / (HEAD_DIM - 2))) ** (-2 * torch.arange(3) / HEAD_DIM)
        pairs = torch.view_as_complex(vector.unflatten(-1, (-1, 2)))
        return torch.view_as_real(pairs * torch.exp(1j * int(t) * omega.double())).flatten()

    for b, i, h in product(range(BATCH), range(0, LENGTH, 3), range(HEADS)):
        s = expected_factor(int(ids[b, i]) + 1)
        q, visible = rotated(query[b, i, h], ids[b, i], s), masks["causal"][b, i]
        scores = [q @ rotated(keys[b, j, h], ids[b, j], s) for j in visible.nonzero()[:, 0]]
        expected = (torch.stack(scores) / math.sqrt(HEAD_DIM)).softmax(0)
        assert_close(weights[b, h, i, visible], expected)


@torch.no_grad()
def test_up_to_the_original_length_it_is_plain_rotary_bit_by_bit(build):
    x, ids, masks = inputs()
    dynamic, plain = build("dynamic-ntk", original=LENGTH), build("none")
    for mask, need_weights in product([None, *masks.values()], [True, False]):
        output, weights = run(dynamic, x, ids, mask, need_weights)
        expected, expected_weights = run(plain, x, ids, mask, need_weights)
        assert torch.equal(output, expected)
        assert weights is None or torch.equal(weights, expected_weights)
    one_less = build("dynamic-ntk", original=LENGTH - 1)
    assert not torch.allclose(run(one_less, x, ids, None)[0], run(plain, x, ids, None)[0])


def test_the_cache_holds_the_keys_of_plain_rotary(build):
    x, ids, _ = inputs()
    cached = build("dynamic-ntk").keys_values(x, ids)
    assert all(map(torch.equal, cached, build("none").keys_values(x, ids)))


@torch.no_grad()
def test_weights_depend_on_relative_positions_only(build):
    x, ids, masks = inputs()
    for mask in masks.values():
        _, weights = run(build("dynamic-ntk"), x, ids, mask)
        assert_close(run(build("dynamic-ntk"), x, ids + 40, mask)[1], weights)


@torch.no_grad()
def test_a_window_limits_the_length_at_hand(build):
    x, ids, _ = inputs()
    ids = ids[:1].expand(BATCH, -1)
    mask = causal_mask(ids, ids)
    output, _ = run(build("dynamic-ntk", window=5), x, ids, mask)
    near, far = (run(build(*kind, window=5), x, ids, mask)[0] for kind in (["none"], ["ntk", 2.0]))
    assert_close(output[:, :3], near[:, :3])
    assert_close(output[:, 3:], far[:, 3:])


@pytest.mark.parametrize("score", SCORES)
def test_every_score_has_finite_gradients_and_both_paths_agree(build, score):
    x, ids, masks = inputs()
    mask = masks["any"].clone()
    mask[1, 2] = False
    layer = build("dynamic-ntk", score=score)
    output, weights = run(layer, x.requires_grad_(), ids, mask)
    torch.testing.assert_close(run(layer, x, ids, mask, need_weights=False)[0], output)
    assert (weights[(~mask)[:, None].expand_as(weights)] == 0).all()
    output.square().sum().backward()
    grads = [x.grad, *(p.grad for p in layer.parameters())]
    assert all(grad is None or grad.isfinite().all() for grad in grads)
