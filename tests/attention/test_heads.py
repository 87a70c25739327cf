"""Attention layers against PyTorch's own, the course's own, and the laws they promise."""

import math
from itertools import product

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from regard import config
from regard.attention import (
    NORMALISERS,
    POSITIONS,
    SCORES,
    MultiHead,
    SingleQueryScaledDotProductAttention,
    causal_mask,
    window_mask,
)
from regard.errors import UserError

BATCH, QUERY, KEY = 2, 5, 7
WIDTH, HEADS, HEAD_DIM = 11, 3, 4
SCORE_OPTIONS = {name: config.SingleHead(score=name).score.options for name in SCORES}
POSITION_OPTIONS = {name: config.Transformer(position=name).position.options for name in POSITIONS}


def multi_head(
    score: str = "scaled-dot",
    normaliser: str = "softmax",
    position: str | None = None,
    choices: dict | None = None,
    **widths,
) -> MultiHead:
    torch.manual_seed(1)
    sizes = {"d_model": WIDTH, "heads": HEADS, "head_dim": HEAD_DIM} | widths
    place = None
    if position is not None:
        options = POSITION_OPTIONS[position]
        place = POSITIONS[position](**sizes, **options)
    kind = SCORES[score](sizes["head_dim"], sizes["head_dim"], **SCORE_OPTIONS[score])
    normalise = NORMALISERS[normaliser]
    made = MultiHead(**sizes, score=kind, normalise=normalise, position=place, **(choices or {}))
    return made.double()


def places(length: int, start: int = 0) -> torch.Tensor:
    return torch.arange(start, start + length).expand(BATCH, length)


def inputs(width: int = WIDTH) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(2)
    x = torch.randn(BATCH, QUERY, width, generator=random, dtype=torch.float64)
    memory = torch.randn(BATCH, KEY, width, generator=random, dtype=torch.float64)
    mask = torch.rand(BATCH, QUERY, KEY, generator=random) < 0.6
    mask[..., 0] = True
    return x, memory, mask


def run(layer: MultiHead, x, memory, mask, need_weights=False):
    query_position_ids, key_position_ids = places(x.shape[1]), places(memory.shape[1])
    keys, values = layer.keys_values(memory, key_position_ids)
    return layer(x, keys, values, mask, query_position_ids, key_position_ids, need_weights)


def test_multi_head_is_torchs_with_the_same_weights():
    layer = multi_head(d_model=15, heads=3, head_dim=5)
    theirs = nn.MultiheadAttention(15, 3, bias=False, batch_first=True, dtype=torch.float64)
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.cat([layer.query.weight, layer.key_value.weight]))
        theirs.out_proj.weight.copy_(layer.output.weight)
    x, memory, mask = inputs(15)
    refused = (~mask).repeat_interleave(3, dim=0)  # PyTorch's polarity, a row for each head
    wanted, wanted_weights = theirs(
        x, memory, memory, attn_mask=refused, average_attn_weights=False
    )
    output, weights = run(layer, x, memory, mask, need_weights=True)
    torch.testing.assert_close(output, wanted)
    torch.testing.assert_close(weights, wanted_weights)
    torch.testing.assert_close(run(layer, x, memory, mask)[0], wanted)


CHOICES = {"plain": {}, "window": {"window": 3}, "shared": {"kv_heads": 1, "window": 3}}


@pytest.mark.parametrize("choices", CHOICES)
@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("normaliser", NORMALISERS)
@pytest.mark.parametrize("score", SCORES)
def test_fused_equals_the_path_with_weights(score, normaliser, position, choices):
    layer = multi_head(score, normaliser, position, CHOICES[choices])
    x, memory, mask = inputs()
    output, nothing = run(layer, x, memory, mask)
    output_with_weights, weights = run(layer, x, memory, mask, need_weights=True)
    torch.testing.assert_close(output, output_with_weights)
    assert nothing is None
    assert weights.shape == (BATCH, HEADS, QUERY, KEY)
    assert (weights[(~mask)[:, None].expand_as(weights)] == 0).all()


@pytest.mark.parametrize("choices", CHOICES)
@pytest.mark.parametrize("position", ["none", "alibi", "relative"])
@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("normaliser", NORMALISERS)
@pytest.mark.parametrize("score", SCORES)
def test_a_query_with_nothing_to_see_adds_nothing_and_breaks_nothing(
    score, normaliser, need_weights, position, choices
):
    layer = multi_head(score, normaliser, position, CHOICES[choices])
    x, memory, mask = inputs()
    mask[1, 2] = False
    output, _ = run(layer, x.requires_grad_(), memory.requires_grad_(), mask, need_weights)
    assert (output[1, 2] == 0).all()
    assert output.isfinite().all()
    output.square().sum().backward()
    grads = [x.grad, memory.grad, *(p.grad for p in layer.parameters())]
    assert all(grad is None or grad.isfinite().all() for grad in grads)
    assert x.grad is None or (x.grad[1, 2] == 0).all()


def test_the_context_is_what_the_shown_weights_say():
    layer, (x, memory, mask) = multi_head("additive"), inputs()
    output, weights = run(layer, x, memory, mask, need_weights=True)
    values = layer.key_value(memory)[..., HEADS * HEAD_DIM :].unflatten(-1, (HEADS, HEAD_DIM))
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
    query_position_ids, key_position_ids = places(QUERY, start=3), places(KEY, start=1)
    _, weights = layer(
        x,
        *layer.keys_values(memory, key_position_ids),
        None,
        query_position_ids,
        key_position_ids,
        need_weights=True,
    )
    shape = (HEADS, HEAD_DIM)
    query = layer.query(x).unflatten(-1, shape).transpose(1, 2)
    keys, values = layer.key_value(memory).unflatten(-1, (2, *shape)).unbind(2)
    keys, values = keys.transpose(1, 2), values.transpose(1, 2)
    turned = (
        layer.position.rotate(query, query_position_ids),
        layer.position.rotate(keys, key_position_ids),
    )
    scores = turned[0] @ turned[1].transpose(-1, -2) / math.sqrt(HEAD_DIM)
    torch.testing.assert_close(weights, scores.softmax(-1))
    assert torch.equal(layer.keys_values(memory, key_position_ids)[1], values)
    later = (places(QUERY, start=44), places(KEY, start=42))
    keys_values = layer.keys_values(memory, later[1])
    _, moved = layer(x, *keys_values, None, *later, need_weights=True)
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


# --- shared keys and values, windows, dropout -------------------------------------------------------


def naive(layer: MultiHead, x, memory, mask, query_position_ids, key_position_ids):
    """Every head by itself, every pair by itself: (output, weights)."""
    groups, depth = layer.kv_heads, layer.query.out_features // layer.heads
    keys, values = layer.key_value(memory).chunk(2, dim=-1)
    weights = torch.zeros(len(x), layer.heads, x.shape[1], memory.shape[1], dtype=x.dtype)
    context = torch.zeros(*x.shape[:2], layer.heads, depth, dtype=x.dtype)
    for b, h, i in product(range(len(x)), range(layer.heads), range(x.shape[1])):
        query = (layer.query.weight @ x[b, i])[h * depth : (h + 1) * depth]
        group = slice(h * groups // layer.heads * depth, (h * groups // layer.heads + 1) * depth)
        powers = {}
        for j in range(memory.shape[1]):
            far = abs(int(query_position_ids[b, i]) - int(key_position_ids[b, j]))
            if mask[b, i, j] and (layer.window is None or far < layer.window):
                powers[j] = math.exp(float(query @ keys[b, j, group]) / math.sqrt(depth))
        for j, power in powers.items():
            weights[b, h, i, j] = power / sum(powers.values())
            context[b, i, h] += weights[b, h, i, j] * values[b, j, group]
    return context.flatten(2) @ layer.output.weight.T, weights


@torch.no_grad()
@pytest.mark.parametrize("window", [None, 1, 3, 100])
@pytest.mark.parametrize("kv_heads", [6, 3, 2, 1])
def test_shared_heads_and_windows_are_the_naive_loop(kv_heads, window):
    choices = {"kv_heads": kv_heads, "window": window}
    layer, (x, memory, mask) = multi_head(choices=choices, heads=6), inputs()
    at = torch.tensor([[0, 1, 2, 4, 7], [3, 3, 4, 5, 6]]), torch.tensor([[0, 1, 2, 3, 5, 8, 9]] * 2)
    wanted = naive(layer, x, memory, mask, *at)
    keys, values = layer.keys_values(memory, at[1])
    assert keys.shape == values.shape == (BATCH, kv_heads, KEY, HEAD_DIM)
    output, weights = layer(x, keys, values, mask, *at, need_weights=True)
    torch.testing.assert_close(weights, wanted[1])
    torch.testing.assert_close(output, wanted[0])
    torch.testing.assert_close(layer(x, keys, values, mask, *at)[0], wanted[0])


@pytest.mark.parametrize("position", ["none", "relative", "rotary"])
def test_heads_that_share_are_heads_with_equal_keys_and_values(position):
    grouped = multi_head(position=position, heads=6, choices={"kv_heads": 2})
    whole = multi_head(position=position, heads=6)
    with torch.no_grad():
        each = grouped.key_value.weight.unflatten(0, (2, 2, 1, HEAD_DIM))
        whole.key_value.weight.copy_(each.expand(-1, -1, 3, -1, -1).flatten(0, 3))
        for name in ("query", "output", "position"):
            getattr(whole, name).load_state_dict(getattr(grouped, name).state_dict())
    x, memory, mask = inputs()
    for need_weights in (True, False):
        found, wanted = (run(layer, x, memory, mask, need_weights) for layer in (grouped, whole))
        torch.testing.assert_close(found, wanted)


def test_heads_that_cannot_share_equally_are_refused():
    with pytest.raises(
        UserError, match="3 heads cannot share 2 keys and values equally: key_value"
    ):
        multi_head(choices={"kv_heads": 2})


def test_a_window_goes_by_position_not_by_place():
    query_position_ids, key_position_ids = (
        torch.tensor([[4], [0]]),
        torch.tensor([[2, 3, 5, 6], [0, 1, 2, 9]]),
    )
    wanted = [[[False, True, True, False]], [[True, True, False, False]]]
    assert window_mask(query_position_ids, key_position_ids, 2).tolist() == wanted


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("position", ["none", "alibi"])
def test_dropout_leaves_out_a_share_of_the_weights_in_training_only(need_weights, position):
    layer = multi_head(position=position, choices={"dropout": 0.3, "kv_heads": 1})
    plain = multi_head(position=position, choices={"kv_heads": 1})
    x, memory, mask = inputs()
    wanted, weights = run(plain, x, memory, mask, need_weights=True)
    assert torch.equal(run(layer.eval(), x, memory, mask, True)[1], weights)
    torch.testing.assert_close(run(layer, x, memory, mask, need_weights)[0], wanted)
    layer.train()
    torch.manual_seed(2)
    many = [each.repeat(3000, 1, 1) for each in (x, memory, mask)]
    at = (places(QUERY).repeat(3000, 1), places(KEY).repeat(3000, 1))
    with torch.no_grad():
        held = layer.keys_values(many[1], at[1])
        draws = layer(many[0], *held, many[2], *at, need_weights)[0].unflatten(0, (3000, BATCH))
    assert not torch.allclose(draws[0], draws[1])
    off = (draws.mean(0) - wanted).abs() / (draws.std(0) / math.sqrt(len(draws)))
    assert off.max() < 4.5  # standard errors, over 110 numbers


def test_shown_weights_are_those_of_the_sum_when_some_are_dropped():
    layer, (x, memory, mask) = multi_head(choices={"dropout": 0.3}).train(), inputs()
    output, weights = run(layer, x, memory, mask, need_weights=True)
    whole = run(layer.eval(), x, memory, mask, need_weights=True)[1]
    kept = weights != 0
    assert 0.5 < kept.sum() / (whole != 0).sum() < 0.9
    torch.testing.assert_close(weights[kept], whole[kept] / 0.7)
    values = layer.keys_values(memory, places(KEY))[1]
    context = (weights @ values).transpose(1, 2).flatten(2)
    torch.testing.assert_close(output, context @ layer.output.weight.T)


@pytest.mark.parametrize("groups", [1, 2, 3, 6])
def test_multiply_accumulates_are_the_sheets(groups):
    """Heads as wide as the model, as the sheet has them; its solution drops M in the last term."""
    heads, d, m, n = 6, WIDTH, KEY, QUERY
    layer = multi_head(heads=heads, head_dim=d, choices={"kv_heads": groups})
    x, memory, _ = inputs()
    saved = 2 * m * d**2 * (heads - groups)
    own = heads * (3 * m * d**2 + 2 * m**2 * d) + heads * m * d**2
    cross = heads * (n * d**2 + 2 * m * d**2 + 2 * m * n * d) + heads * n * d**2
    for query, wanted in ((memory, own), (x, cross)):
        with FlopCounterMode(display=False) as counter:
            run(layer, query, memory, None, need_weights=True)
        assert counter.get_total_flops() == 2 * BATCH * (wanted - saved)


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
