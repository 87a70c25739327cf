"""Attention layers against PyTorch's own, the course's own, and the laws they promise."""

import math

import pytest
import torch
from torch import nn

from regard import config
from regard.attention import (
    NORMALISERS,
    POSITIONS,
    SCORES,
    MultiHead,
    SingleQueryScaledDotProductAttention,
    causal_mask,
)

BATCH, QUERY, KEY = 2, 5, 7
WIDTH, HEADS, HEAD_WIDTH = 11, 3, 4
SCORE_OPTIONS = {name: config.SingleHead(score=name).score.options for name in SCORES}
POSITION_OPTIONS = {name: config.Transformer(position=name).position.options for name in POSITIONS}


def multi_head(
    score: str = "scaled-dot", normaliser: str = "softmax", position: str | None = None, **widths
) -> MultiHead:
    torch.manual_seed(1)
    sizes = {"width": WIDTH, "heads": HEADS, "head_width": HEAD_WIDTH} | widths
    place = None
    if position is not None:
        options = POSITION_OPTIONS[position]
        place = POSITIONS[position](**sizes, **options)
    kind = SCORES[score](sizes["head_width"], sizes["head_width"], **SCORE_OPTIONS[score])
    normalise = NORMALISERS[normaliser]
    return MultiHead(**sizes, score=kind, normalise=normalise, position=place).double()


def places(length: int, start: int = 0) -> torch.Tensor:
    return torch.arange(start, start + length).expand(BATCH, length)


def inputs(width: int = WIDTH) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(2)
    x = torch.randn(BATCH, QUERY, width, generator=random, dtype=torch.float64)
    memory = torch.randn(BATCH, KEY, width, generator=random, dtype=torch.float64)
    mask = torch.rand(BATCH, QUERY, KEY, generator=random) < 0.6
    mask[..., 0] = True
    return x, memory, mask


def run(layer: MultiHead, x, memory, mask, explain=False):
    query_at, key_at = places(x.shape[1]), places(memory.shape[1])
    keys, values = layer.keys_values(memory, key_at)
    return layer(x, keys, values, mask, query_at, key_at, explain)


def test_multi_head_is_torchs_with_the_same_weights():
    layer = multi_head(width=15, heads=3, head_width=5)
    theirs = nn.MultiheadAttention(15, 3, bias=False, batch_first=True, dtype=torch.float64)
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.cat([layer.query.weight, layer.key_value.weight]))
        theirs.out_proj.weight.copy_(layer.output.weight)
    x, memory, mask = inputs(15)
    refused = (~mask).repeat_interleave(3, dim=0)  # PyTorch's polarity, a row for each head
    wanted, wanted_weights = theirs(
        x, memory, memory, attn_mask=refused, average_attn_weights=False
    )
    output, weights = run(layer, x, memory, mask, explain=True)
    torch.testing.assert_close(output, wanted)
    torch.testing.assert_close(weights, wanted_weights)
    torch.testing.assert_close(run(layer, x, memory, mask)[0], wanted)


@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("normaliser", NORMALISERS)
@pytest.mark.parametrize("score", SCORES)
def test_fused_is_explained(score, normaliser, position):
    layer, (x, memory, mask) = multi_head(score, normaliser, position), inputs()
    output, nothing = run(layer, x, memory, mask)
    explained, weights = run(layer, x, memory, mask, explain=True)
    torch.testing.assert_close(output, explained)
    assert nothing is None
    assert weights.shape == (BATCH, HEADS, QUERY, KEY)
    assert (weights[(~mask)[:, None].expand_as(weights)] == 0).all()


@pytest.mark.parametrize("explain", [True, False])
@pytest.mark.parametrize("normaliser", NORMALISERS)
@pytest.mark.parametrize("score", SCORES)
def test_a_query_with_nothing_to_see_adds_nothing_and_breaks_nothing(score, normaliser, explain):
    layer, (x, memory, mask) = multi_head(score, normaliser), inputs()
    mask[1, 2] = False
    output, _ = run(layer, x.requires_grad_(), memory.requires_grad_(), mask, explain)
    assert (output[1, 2] == 0).all()
    assert output.isfinite().all()
    output.square().sum().backward()
    grads = [x.grad, memory.grad, *(p.grad for p in layer.parameters())]
    assert all(grad is None or grad.isfinite().all() for grad in grads)
    assert x.grad is None or (x.grad[1, 2] == 0).all()


def test_the_context_is_what_the_shown_weights_say():
    layer, (x, memory, mask) = multi_head("additive"), inputs()
    output, weights = run(layer, x, memory, mask, explain=True)
    values = layer.key_value(memory)[..., HEADS * HEAD_WIDTH :].unflatten(-1, (HEADS, HEAD_WIDTH))
    context = torch.einsum("bhqk,bkhd->bqhd", weights, values).flatten(-2)
    torch.testing.assert_close(output, context @ layer.output.weight.T)


@pytest.mark.parametrize("position", ["none", "rotary", "relative", "alibi"])
def test_self_attention_is_equivariant_without_positions_only(position):
    layer, (x, _, _) = multi_head(position=position), inputs()
    order = torch.tensor([3, 0, 4, 1, 2])
    moved = run(layer, x[:, order], x[:, order], None)[0]
    same = torch.allclose(moved, run(layer, x, x, None)[0][:, order])
    assert same == (position == "none")


def test_rotary_turns_queries_and_keys_and_not_values():
    layer, (x, memory, _) = multi_head(position="rotary"), inputs()
    query_at, key_at = places(QUERY, start=3), places(KEY, start=1)
    _, weights = layer(x, *layer.keys_values(memory, key_at), None, query_at, key_at, explain=True)
    shape = (HEADS, HEAD_WIDTH)
    query = layer.query(x).unflatten(-1, shape).transpose(1, 2)
    keys, values = layer.key_value(memory).unflatten(-1, (2, *shape)).unbind(2)
    keys, values = keys.transpose(1, 2), values.transpose(1, 2)
    turned = layer.position.rotate(query, query_at), layer.position.rotate(keys, key_at)
    scores = turned[0] @ turned[1].transpose(-1, -2) / math.sqrt(HEAD_WIDTH)
    torch.testing.assert_close(weights, scores.softmax(-1))
    assert torch.equal(layer.keys_values(memory, key_at)[1], values)
    later = (places(QUERY, start=44), places(KEY, start=42))
    keys_values = layer.keys_values(memory, later[1])
    _, moved = layer(x, *keys_values, None, *later, explain=True)
    torch.testing.assert_close(moved, weights)  # only the distance counts


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("position", POSITIONS)
def test_keys_made_one_by_one_are_the_keys_made_at_once(position, score):
    layer, (x, _, _) = multi_head(score=score, position=position), inputs()
    at = places(QUERY)
    keys, values = layer.keys_values(x, at)
    single = [layer.keys_values(x[:, t : t + 1], at[:, t : t + 1]) for t in range(QUERY)]
    torch.testing.assert_close(torch.cat([k for k, _ in single], dim=2), keys)
    torch.testing.assert_close(torch.cat([v for _, v in single], dim=2), values)
    whole, _ = layer(x, keys, values, causal_mask(at, at), at, at)
    for t in range(QUERY):
        now, past = at[:, t : t + 1], at[:, : t + 1]
        mask = causal_mask(now, past)
        one, _ = layer(x[:, t : t + 1], keys[:, :, : t + 1], values[:, :, : t + 1], mask, now, past)
        torch.testing.assert_close(one, whole[:, t : t + 1])


def course_attention(layer, hidden, encoder_outputs):
    """The homework's layer, transcribed with loops: one query a sentence, no mask."""
    w_q, w_k = layer.attention.query.weight, layer.attention.key.weight
    src_len, batch, width = encoder_outputs.shape
    attended_val = torch.zeros(batch, width, dtype=hidden.dtype)
    alpha = torch.zeros(batch, src_len, dtype=hidden.dtype)
    for b in range(batch):
        query = w_q @ hidden[b]
        energy = [
            float(query @ (w_k @ encoder_outputs[t, b])) / math.sqrt(len(query))
            for t in range(src_len)
        ]
        total = sum(math.exp(e) for e in energy)
        for t in range(src_len):
            alpha[b, t] = math.exp(energy[t]) / total
            attended_val[b] += alpha[b, t] * encoder_outputs[t, b]
    return attended_val, alpha


@torch.no_grad()
def test_the_courses_layer_with_the_courses_signature():
    enc_hid_dim, dec_hid_dim, src_len, batch = 3, 5, 7, 2
    torch.manual_seed(1)
    layer = SingleQueryScaledDotProductAttention(enc_hid_dim, dec_hid_dim, kq_dim=11).double()
    hidden = torch.randn(batch, dec_hid_dim, dtype=torch.float64)
    encoder_outputs = torch.randn(src_len, batch, enc_hid_dim * 2, dtype=torch.float64)
    attended_val, alpha = layer(hidden, encoder_outputs)
    assert attended_val.shape == (batch, enc_hid_dim * 2)
    assert alpha.shape == (batch, src_len)
    wanted_val, wanted_alpha = course_attention(layer, hidden, encoder_outputs)
    torch.testing.assert_close(alpha, wanted_alpha)
    torch.testing.assert_close(attended_val, wanted_val)


def test_the_courses_layer_has_its_default_width_and_takes_a_mask():
    torch.manual_seed(1)
    layer = SingleQueryScaledDotProductAttention(3, 5)
    assert layer.attention.query.weight.shape == (512, 5)
    assert layer.attention.key.weight.shape == (512, 6)
    hidden, states = torch.randn(2, 5), torch.randn(7, 2, 6)
    mask = torch.tensor([[True] * 7, [True] * 4 + [False] * 3])
    attended, alpha = layer(hidden, states, mask)
    assert (alpha[1, 4:] == 0).all()
    alone, alone_alpha = layer(hidden[1:], states[:4, 1:])
    torch.testing.assert_close(attended[1:], alone)
    torch.testing.assert_close(alpha[1:, :4], alone_alpha)
