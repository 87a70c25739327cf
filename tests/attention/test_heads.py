"""Attention layers against PyTorch's, against the course's, against naive loops, and their invariants."""

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
    heads,
    window_mask,
)
from regard.errors import UserError

BATCH, QUERY, KEY = 2, 5, 7
D_MODEL, HEADS, HEAD_DIM = 11, 3, 4
SCORE_OPTIONS = {name: config.SingleHead(score=name).score.options for name in SCORES}
POSITION_OPTIONS = {name: config.Transformer(position=name).position.options for name in POSITIONS}


def multi_head(
    score: str = "scaled-dot",
    normaliser: str = "softmax",
    position: str | None = None,
    options: dict | None = None,
    **sizes,
) -> MultiHead:
    torch.manual_seed(1)
    sizes = {"d_model": D_MODEL, "heads": HEADS, "head_dim": HEAD_DIM} | sizes
    encoding = None
    if position is not None:
        encoding = POSITIONS[position](**sizes, **POSITION_OPTIONS[position])
    layer = MultiHead(
        **sizes,
        score=SCORES[score](sizes["head_dim"], sizes["head_dim"], **SCORE_OPTIONS[score]),
        normalise=NORMALISERS[normaliser],
        position=encoding,
        **(options or {}),
    )
    return layer.double()


def position_ids(length: int, start: int = 0) -> torch.Tensor:
    return torch.arange(start, start + length).expand(BATCH, length)


def inputs(d_model: int = D_MODEL) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(2)
    x = torch.randn(BATCH, QUERY, d_model, generator=random, dtype=torch.float64)
    memory = torch.randn(BATCH, KEY, d_model, generator=random, dtype=torch.float64)
    mask = torch.rand(BATCH, QUERY, KEY, generator=random) < 0.6
    mask[..., 0] = True
    return x, memory, mask


def run(layer: MultiHead, x, memory, mask, need_weights=False):
    query_position_ids = position_ids(x.shape[1])
    key_position_ids = position_ids(memory.shape[1])
    keys, values = layer.keys_values(memory, key_position_ids)
    return layer(x, keys, values, mask, query_position_ids, key_position_ids, need_weights)


def test_multi_head_equals_torch_with_the_same_weights():
    layer = multi_head(d_model=15, heads=3, head_dim=5)
    reference = nn.MultiheadAttention(15, 3, bias=False, batch_first=True, dtype=torch.float64)
    with torch.no_grad():
        reference.in_proj_weight.copy_(torch.cat([layer.query.weight, layer.key_value.weight]))
        reference.out_proj.weight.copy_(layer.output.weight)
    x, memory, mask = inputs(15)
    attn_mask = (~mask).repeat_interleave(3, dim=0)  # PyTorch's polarity, one row per head
    expected, expected_weights = reference(
        x, memory, memory, attn_mask=attn_mask, average_attn_weights=False
    )
    output, weights = run(layer, x, memory, mask, need_weights=True)
    torch.testing.assert_close(output, expected)
    torch.testing.assert_close(weights, expected_weights)
    torch.testing.assert_close(run(layer, x, memory, mask)[0], expected)


VARIANTS = {"plain": {}, "window": {"window": 3}, "multi-query": {"kv_heads": 1, "window": 3}}


@pytest.mark.parametrize("position", POSITIONS)
def test_fused_equals_the_path_with_weights(position, monkeypatch):
    calls = []
    fused = heads.attend_fused
    monkeypatch.setattr(heads, "attend_fused", lambda *a, **b: (calls.append(1), fused(*a, **b))[1])
    x, memory, mask = inputs()
    for variant in VARIANTS.values():
        layer = multi_head(position=position, options=variant)
        output, no_weights = run(layer, x, memory, mask)
        assert no_weights is None
        torch.testing.assert_close(output, run(layer, x, memory, mask, need_weights=True)[0])
    assert len(calls) == len(VARIANTS)


@pytest.mark.parametrize("score", SCORES)
def test_weights_are_returned_on_request_and_zero_where_masked(score):
    x, memory, mask = inputs()
    for normaliser, position, variant in product(NORMALISERS, POSITIONS, VARIANTS.values()):
        layer = multi_head(score, normaliser, position, variant)
        _, weights = run(layer, x, memory, mask, need_weights=True)
        assert weights.shape == (BATCH, HEADS, QUERY, KEY)
        assert (weights[(~mask)[:, None].expand_as(weights)] == 0).all()
        assert run(layer, x, memory, mask)[1] is None


@pytest.mark.parametrize("score", SCORES)
def test_a_query_with_all_keys_masked_gets_zeros_and_finite_gradients(score):
    for normaliser, position, variant, need_weights in product(
        NORMALISERS, ["none", "alibi", "relative"], VARIANTS.values(), [True, False]
    ):
        layer = multi_head(score, normaliser, position, variant)
        x, memory, mask = inputs()
        mask[1, 2] = False
        output, _ = run(layer, x.requires_grad_(), memory.requires_grad_(), mask, need_weights)
        assert (output[1, 2] == 0).all()
        assert output.isfinite().all()
        output.square().sum().backward()
        grads = [x.grad, memory.grad, *(p.grad for p in layer.parameters())]
        assert all(grad is None or grad.isfinite().all() for grad in grads)
        assert x.grad is None or (x.grad[1, 2] == 0).all()


def test_output_follows_from_the_returned_weights():
    layer, (x, memory, mask) = multi_head("additive"), inputs()
    output, weights = run(layer, x, memory, mask, need_weights=True)
    values = layer.key_value(memory)[..., HEADS * HEAD_DIM :].unflatten(-1, (HEADS, HEAD_DIM))
    context = torch.einsum("bhqk,bkhd->bqhd", weights, values).flatten(-2)
    torch.testing.assert_close(output, context @ layer.output.weight.T)


@pytest.mark.parametrize("position", ["none", "rotary", "relative", "alibi"])
def test_self_attention_is_permutation_equivariant_only_without_positions(position):
    layer, (x, _, _) = multi_head(position=position), inputs()
    order = torch.tensor([3, 0, 4, 1, 2])
    permuted = run(layer, x[:, order], x[:, order], None)[0]
    is_equivariant = torch.allclose(permuted, run(layer, x, x, None)[0][:, order])
    assert is_equivariant == (position == "none")


def test_rotary_rotates_queries_and_keys_but_not_values():
    layer, (x, memory, _) = multi_head(position="rotary"), inputs()
    query_position_ids = position_ids(QUERY, start=3)
    key_position_ids = position_ids(KEY, start=1)
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
    query = layer.position.rotate(query, query_position_ids)
    keys = layer.position.rotate(keys, key_position_ids)
    scores = query @ keys.transpose(-1, -2) / math.sqrt(HEAD_DIM)
    torch.testing.assert_close(weights, scores.softmax(-1))
    assert torch.equal(layer.keys_values(memory, key_position_ids)[1], values)
    shifted_ids = (position_ids(QUERY, start=44), position_ids(KEY, start=42))
    keys_values = layer.keys_values(memory, shifted_ids[1])
    _, shifted_weights = layer(x, *keys_values, None, *shifted_ids, need_weights=True)
    torch.testing.assert_close(shifted_weights, weights)  # only relative positions matter


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("position", POSITIONS)
def test_stepwise_keys_and_outputs_equal_those_of_one_pass(position, score):
    layer, (x, _, _) = multi_head(score=score, position=position), inputs()
    ids = position_ids(QUERY)
    keys, values = layer.keys_values(x, ids)
    steps = [layer.keys_values(x[:, t : t + 1], ids[:, t : t + 1]) for t in range(QUERY)]
    torch.testing.assert_close(torch.cat([k for k, _ in steps], dim=2), keys)
    torch.testing.assert_close(torch.cat([v for _, v in steps], dim=2), values)
    expected, _ = layer(x, keys, values, causal_mask(ids, ids), ids, ids)
    for t in range(QUERY):
        query_ids, key_ids = ids[:, t : t + 1], ids[:, : t + 1]
        cache = keys[:, :, : t + 1], values[:, :, : t + 1]
        mask = causal_mask(query_ids, key_ids)
        output, _ = layer(x[:, t : t + 1], *cache, mask, query_ids, key_ids)
        torch.testing.assert_close(output, expected[:, t : t + 1])


# --- grouped-query attention, windows, dropout ------------------------------------------------------


def naive(layer: MultiHead, x, memory, mask, query_position_ids, key_position_ids):
    """One head and one query-key pair at a time: (output, weights)."""
    groups, depth = layer.kv_heads, layer.query.out_features // layer.heads
    keys, values = layer.key_value(memory).chunk(2, dim=-1)
    weights = torch.zeros(len(x), layer.heads, x.shape[1], memory.shape[1], dtype=x.dtype)
    context = torch.zeros(*x.shape[:2], layer.heads, depth, dtype=x.dtype)
    for b, h, i in product(range(len(x)), range(layer.heads), range(x.shape[1])):
        query = (layer.query.weight @ x[b, i])[h * depth : (h + 1) * depth]
        group = slice(h * groups // layer.heads * depth, (h * groups // layer.heads + 1) * depth)
        exps = {}
        for j in range(memory.shape[1]):
            distance = abs(int(query_position_ids[b, i]) - int(key_position_ids[b, j]))
            if mask[b, i, j] and (layer.window is None or distance < layer.window):
                exps[j] = math.exp(float(query @ keys[b, j, group]) / math.sqrt(depth))
        for j, exp in exps.items():
            weights[b, h, i, j] = exp / sum(exps.values())
            context[b, i, h] += weights[b, h, i, j] * values[b, j, group]
    return context.flatten(2) @ layer.output.weight.T, weights


@torch.no_grad()
@pytest.mark.parametrize("window", [None, 1, 3, 100])
@pytest.mark.parametrize("kv_heads", [6, 3, 2, 1])
def test_grouped_queries_and_windows_equal_a_naive_loop(kv_heads, window):
    options = {"kv_heads": kv_heads, "window": window}
    layer, (x, memory, mask) = multi_head(options=options, heads=6), inputs()
    query_ids = torch.tensor([[0, 1, 2, 4, 7], [3, 3, 4, 5, 6]])
    key_ids = torch.tensor([[0, 1, 2, 3, 5, 8, 9]] * 2)
    expected_output, expected_weights = naive(layer, x, memory, mask, query_ids, key_ids)
    keys, values = layer.keys_values(memory, key_ids)
    assert keys.shape == values.shape == (BATCH, kv_heads, KEY, HEAD_DIM)
    arguments = (x, keys, values, mask, query_ids, key_ids)
    output, weights = layer(*arguments, need_weights=True)
    torch.testing.assert_close(weights, expected_weights)
    torch.testing.assert_close(output, expected_output)
    torch.testing.assert_close(layer(*arguments)[0], expected_output)


@pytest.mark.parametrize("position", ["none", "relative", "rotary"])
def test_grouped_heads_equal_heads_with_repeated_keys_and_values(position):
    grouped = multi_head(position=position, heads=6, options={"kv_heads": 2})
    repeated = multi_head(position=position, heads=6)
    with torch.no_grad():
        groups = grouped.key_value.weight.unflatten(0, (2, 2, 1, HEAD_DIM))
        repeated.key_value.weight.copy_(groups.expand(-1, -1, 3, -1, -1).flatten(0, 3))
        for name in ("query", "output", "position"):
            getattr(repeated, name).load_state_dict(getattr(grouped, name).state_dict())
    x, memory, mask = inputs()
    for need_weights in (True, False):
        expected = run(repeated, x, memory, mask, need_weights)
        torch.testing.assert_close(run(grouped, x, memory, mask, need_weights), expected)


def test_kv_heads_that_do_not_divide_heads_are_rejected():
    with pytest.raises(UserError, match=r"kv_heads \(2\) must divide heads \(3\)"):
        multi_head(options={"kv_heads": 2})


def test_window_mask_depends_on_position_ids_not_on_indices():
    query_position_ids = torch.tensor([[4], [0]])
    key_position_ids = torch.tensor([[2, 3, 5, 6], [0, 1, 2, 9]])
    expected = [[[False, True, True, False]], [[True, True, False, False]]]
    assert window_mask(query_position_ids, key_position_ids, 2).tolist() == expected


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("position", ["none", "alibi"])
def test_dropout_is_unbiased_and_applies_in_training_only(need_weights, position):
    layer = multi_head(position=position, options={"dropout": 0.3, "kv_heads": 1})
    plain = multi_head(position=position, options={"kv_heads": 1})
    x, memory, mask = inputs()
    expected, weights = run(plain, x, memory, mask, need_weights=True)
    assert torch.equal(run(layer.eval(), x, memory, mask, True)[1], weights)
    torch.testing.assert_close(run(layer, x, memory, mask, need_weights)[0], expected)
    layer.train()
    torch.manual_seed(2)
    x, memory, mask = (tensor.repeat(3000, 1, 1) for tensor in (x, memory, mask))
    query_ids, key_ids = (position_ids(n).repeat(3000, 1) for n in (QUERY, KEY))
    with torch.no_grad():
        keys, values = layer.keys_values(memory, key_ids)
        outputs, _ = layer(x, keys, values, mask, query_ids, key_ids, need_weights)
        samples = outputs.unflatten(0, (3000, BATCH))
    assert not torch.allclose(samples[0], samples[1])
    standard_error = samples.std(0) / math.sqrt(len(samples))
    assert ((samples.mean(0) - expected).abs() / standard_error).max() < 4.5  # over 110 numbers


def test_returned_weights_include_dropout():
    layer, (x, memory, mask) = multi_head(options={"dropout": 0.3}).train(), inputs()
    output, weights = run(layer, x, memory, mask, need_weights=True)
    without_dropout = run(layer.eval(), x, memory, mask, need_weights=True)[1]
    kept = weights != 0
    assert 0.5 < kept.sum() / (without_dropout != 0).sum() < 0.9
    torch.testing.assert_close(weights[kept], without_dropout[kept] / 0.7)
    values = layer.keys_values(memory, position_ids(KEY))[1]
    context = (weights @ values).transpose(1, 2).flatten(2)
    torch.testing.assert_close(output, context @ layer.output.weight.T)


@pytest.mark.parametrize("groups", [1, 2, 3, 6])
def test_multiply_accumulates_equal_the_exercise_sheets_formula(groups):
    """With head_dim = d_model, as on the sheet; its solution omits M in the last term."""
    heads, d, m, n = 6, D_MODEL, KEY, QUERY
    layer = multi_head(heads=heads, head_dim=d, options={"kv_heads": groups})
    x, memory, _ = inputs()
    saved = 2 * m * d**2 * (heads - groups)
    self_attention = heads * (3 * m * d**2 + 2 * m**2 * d) + heads * m * d**2
    cross_attention = heads * (n * d**2 + 2 * m * d**2 + 2 * m * n * d) + heads * n * d**2
    for query, expected in ((memory, self_attention), (x, cross_attention)):
        with FlopCounterMode(display=False) as counter:
            run(layer, query, memory, None, need_weights=True)
        assert counter.get_total_flops() == 2 * BATCH * (expected - saved)


def course_attention(layer, hidden, encoder_outputs):
    """The homework's layer as loops: one query per sentence, no mask."""
    w_q, w_k = layer.attention.query.weight, layer.attention.key.weight
    src_len, batch, dim = encoder_outputs.shape
    attended_val = torch.zeros(batch, dim, dtype=hidden.dtype)
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
def test_course_layer_equals_the_homework_with_its_signature():
    enc_hid_dim, dec_hid_dim, src_len, batch = 3, 5, 7, 2
    torch.manual_seed(1)
    layer = SingleQueryScaledDotProductAttention(enc_hid_dim, dec_hid_dim, kq_dim=11).double()
    hidden = torch.randn(batch, dec_hid_dim, dtype=torch.float64)
    encoder_outputs = torch.randn(src_len, batch, enc_hid_dim * 2, dtype=torch.float64)
    attended_val, alpha = layer(hidden, encoder_outputs)
    assert attended_val.shape == (batch, enc_hid_dim * 2)
    assert alpha.shape == (batch, src_len)
    expected_val, expected_alpha = course_attention(layer, hidden, encoder_outputs)
    torch.testing.assert_close(alpha, expected_alpha)
    torch.testing.assert_close(attended_val, expected_val)


def test_course_layer_has_the_default_kq_dim_and_takes_a_mask():
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


def test_defaults_are_scaled_dot_product_attention_without_positions():
    """Against PyTorch's own multi-head attention, with the same weights."""
    attention = MultiHead(12, heads=3)
    reference = torch.nn.MultiheadAttention(12, 3, bias=False, batch_first=True)
    with torch.no_grad():
        keys, values = attention.key_value.weight.chunk(2)
        reference.in_proj_weight.copy_(torch.cat([attention.query.weight, keys, values]))
        reference.out_proj.weight.copy_(attention.output.weight)
    x = torch.randn(2, 5, 12)
    causal = torch.ones(5, 5, dtype=torch.bool).tril()
    y, weights = attention.self_attend(x, causal.expand(2, 5, 5), need_weights=True)
    expected, expected_weights = reference(x, x, x, attn_mask=~causal, average_attn_weights=False)
    torch.testing.assert_close(y, expected)
    torch.testing.assert_close(weights, expected_weights)


def test_self_attend_takes_positions_and_counts_from_zero_without():
    attention = MultiHead(12, heads=3, position=POSITIONS["rotary"](12, heads=3))
    x = torch.randn(2, 5, 12)
    counted = attention.self_attend(x)[0]
    given = attention.self_attend(x, position_ids=torch.arange(5).expand(2, 5))[0]
    stretched = attention.self_attend(x, position_ids=3 * torch.arange(5).expand(2, 5))[0]
    torch.testing.assert_close(counted, given)
    assert not torch.allclose(counted, stretched)
