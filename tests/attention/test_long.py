"""Attention over long sequences: rules equal matrices, for every position, mask and path, with gradients."""

from itertools import product

import pytest
import torch
from torch.nn.attention import flex_attention

from regard import config
from regard.attention import POSITIONS, MaskRule, Position, long
from regard.attention.bias_rules import LinearBias
from regard.attention.flex import attend_flex, classify_blocks
from regard.attention.long import attend_by_block, attend_long, bias_rule, has_bias
from regard.attention.masks import causal_mask, window_mask
from regard.attention.positions import Alibi

BATCH, HEADS, QUERY, PAST, DEPTH = 2, 3, 11, 7, 4
FORMS = {name: {} for name in POSITIONS} | {
    "relative": {"max_distance": 3},
    "relative query": {"form": "query", "max_distance": 5},
}


def build_position(form: str, heads: int = HEADS, depth: int = DEPTH) -> Position:
    torch.manual_seed(4)
    name = form.split()[0]
    options = config.Transformer(position={"kind": name} | FORMS[form]).position.options
    return POSITIONS[name](heads * depth, heads, depth, **options).double()


def padded_ids(lengths: list[int], size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(position ids, mask) of sentences of these lengths, as models make them."""
    mask = torch.arange(size) < torch.tensor(lengths)[:, None]
    return (mask.cumsum(1) - 1).clamp(min=0), mask


def self_rule(latest: int | None, window: int | None) -> MaskRule:
    ids, mask = padded_ids([QUERY, 6], QUERY)
    return MaskRule(ids, ids, mask, latest, window, is_self=True)


def continued_rule(latest: int | None, window: int | None) -> MaskRule:
    """The queries follow a source, which has padding."""
    ids, mask = padded_ids([PAST, 3], PAST)
    query_ids = mask.sum(1, keepdim=True) + torch.arange(QUERY)
    visible = torch.cat([mask, torch.ones(BATCH, QUERY, dtype=torch.bool)], dim=1)
    return MaskRule(query_ids, torch.cat([ids, query_ids], dim=1), visible, latest, window)


RULES = {
    f"{kind}, {name}": build(latest, window)
    for kind, build in (("self", self_rule), ("continued", continued_rule))
    for name, latest, window in (
        ("all", None, None),
        ("causal", 0, None),
        ("window", None, 3),
        ("causal window", 0, 4),
        ("wide window", 0, 40),
        ("far past", -3, None),
    )
}


@pytest.fixture(params=RULES)
def rule(request) -> MaskRule:
    return RULES[request.param]


def real_queries(rule: MaskRule) -> torch.Tensor:
    """The queries that are tokens, not padding."""
    queries = rule.query_position_ids
    if not rule.is_self or rule.visible is None:
        return torch.ones_like(queries, dtype=torch.bool)
    return rule.visible


def test_a_rule_is_the_mask_of_its_parts(rule):
    query, key = rule.query_position_ids, rule.key_position_ids
    assert rule.visible is not None
    expected = rule.visible[:, None].expand(-1, QUERY, -1)
    if rule.latest is not None:
        expected = expected & causal_mask(query + rule.latest, key)
    if rule.window is not None:
        expected = expected & window_mask(query, key, rule.window)
    assert torch.equal(rule.matrix().expand_as(expected), expected)
    for start, stop in ((0, 4), (4, 9), (9, QUERY)):
        first, last = rule.needed_keys(start, stop)
        part = rule.rows(start, stop).columns(first, last).matrix()
        part = part.expand(-1, stop - start, -1)[real_queries(rule)[:, start:stop]]
        whole = expected[:, start:stop][real_queries(rule)[:, start:stop]]
        assert torch.equal(part, whole[:, first:last])
        assert not whole[:, :first].any()
        assert not whole[:, last:].any()


@pytest.mark.parametrize("block", [1, 2, 4, 128])
def test_blocks_are_skipped_or_whole_only_where_the_matrix_is(rule, block, monkeypatch):
    monkeypatch.setattr("regard.attention.flex.BLOCK", block)
    matrix = rule.matrix().expand(-1, QUERY, -1)
    some, every = classify_blocks(rule)
    assert not (every & ~some).any()
    for b, i, j in product(*map(range, some.shape)):
        part = matrix[b, i * block : (i + 1) * block, j * block : (j + 1) * block]
        assert some[b, i, j] or not part.any()
        is_inside = part.shape == (block, block)
        assert not every[b, i, j] or (is_inside and part.all())
    if block == 1:  # then exactly there
        assert torch.equal(some, matrix)
        assert torch.equal(every, matrix)


def tensors(rule: MaskRule) -> list[torch.Tensor]:
    random = torch.Generator().manual_seed(2)
    keys = rule.key_position_ids.shape[1]
    return [
        torch.randn(BATCH, HEADS, n, DEPTH, generator=random, dtype=torch.float64)
        for n in (QUERY, keys, keys)
    ]


def run(attend_to, rule: MaskRule, form: str) -> list[torch.Tensor]:
    """Outputs of the real queries, and the gradients of queries, keys, values and parameters."""
    position = build_position(form)
    inputs = [x.requires_grad_() for x in tensors(rule)]
    output = attend_to(*inputs, rule, position, inputs[0])
    output = output.transpose(1, 2)[real_queries(rule)]
    parameters = [p for name, p in position.named_parameters() if has_bias(position)]
    weights = torch.linspace(-1, 1, output.numel(), dtype=torch.float64).view_as(output)
    return [output, *torch.autograd.grad((output * weights).sum(), [*inputs, *parameters])]


def dense(query, keys, values, rule, position, bias_query):
    return long.attend_part(query, keys, values, bias_query, rule, position, 0.0)


def flexible(query, keys, values, rule, position, bias_query):
    bias = bias_rule(position, bias_query) if has_bias(position) else None
    return attend_flex(
        query, keys, values, rule, bias, position.score_scale / query.shape[-1] ** 0.5
    )


@pytest.mark.parametrize("form", FORMS)
def test_some_queries_at_a_time_equal_the_matrix(form, rule, monkeypatch):
    monkeypatch.setattr(long, "BLOCK_QUERIES", 4)
    for one, two in zip(run(attend_by_block, rule, form), run(dense, rule, form), strict=True):
        torch.testing.assert_close(one, two)


def flex_semantics(query, keys, values, block_mask, scale, return_aux, score_mod=None):
    """What FlexAttention documents, as a matrix: PyTorch's own has no backward pass on a CPU."""
    sizes = *query.shape[:3], keys.shape[2]
    b, h, i, j = torch.meshgrid(*map(torch.arange, sizes), indexing="ij")
    scores = scale * query @ keys.transpose(-1, -2)
    scores = scores if score_mod is None else score_mod(scores, b, h, i, j)
    size, _ = block_mask.BLOCK_SIZE
    listed = (
        (block_mask.kv_num_blocks, block_mask.kv_indices),
        (block_mask.full_kv_num_blocks, block_mask.full_kv_indices),
    )
    partial, whole = (
        torch.zeros_like(indices, dtype=torch.bool).scatter(
            -1, indices.long(), torch.arange(indices.shape[-1]) < counts[..., None]
        )
        for counts, indices in listed
    )
    assert not (partial & whole).any()
    partial, whole = (x[b, h * 0, i // size, j // size] for x in (partial, whole))
    allowed = whole | partial & block_mask.mask_mod(b, h, i, j)
    scores = scores.masked_fill(~allowed, -1e30)
    lse = scores.logsumexp(-1)
    weights = (scores - lse[..., None]).exp() * allowed
    lse = lse.masked_fill(~allowed.any(-1), -torch.inf)
    return weights @ values, flex_attention.AuxOutput(lse=lse)


@pytest.fixture(params=[3, 128])
def _flex_on_cpu(request, monkeypatch) -> None:
    monkeypatch.setattr("regard.attention.flex.BLOCK", request.param)
    if request.param < QUERY:  # one block of queries at a time
        monkeypatch.setattr("regard.attention.flex.BAND_NUMBERS", 1)
    monkeypatch.setattr("regard.attention.flex.flex_kernel", lambda: flex_semantics)
    for rule in RULES.values():
        rule.cache.clear()


@pytest.mark.usefixtures("_flex_on_cpu")
@pytest.mark.parametrize("form", FORMS)
def test_rules_in_flex_attention_equal_the_matrix(form, rule):
    for one, two in zip(run(flexible, rule, form), run(dense, rule, form), strict=True):
        torch.testing.assert_close(one, two)


class Steep(Alibi):
    """A user's position, which overrides the bias alone."""

    def bias(self, query, query_position_ids, key_position_ids):
        return 2 * super().bias(query, query_position_ids, key_position_ids)


class Steeper(Steep):
    """One that overrides both."""

    def bias_rule(self, query):
        return LinearBias(2 * self.slopes)


def test_a_bias_without_a_rule_of_its_own_has_none():
    """What it inherits would be the rule of another bias."""
    query = torch.ones(BATCH, HEADS, QUERY, DEPTH)
    sizes = HEADS * DEPTH, HEADS, DEPTH
    assert bias_rule(Steep(*sizes), query) is None
    assert isinstance(bias_rule(Steeper(*sizes), query), LinearBias)
    assert isinstance(bias_rule(Alibi(*sizes), query), LinearBias)


@pytest.mark.parametrize("kv_heads", [1, HEADS])
@pytest.mark.parametrize("kind", [Position, Alibi, Steep])
def test_every_path_equals_the_matrix(kind, kv_heads, rule):
    """`attend_long` chooses one by bias and mask."""
    position = kind(HEADS * DEPTH, HEADS, DEPTH).double()
    query, keys, values = tensors(rule)
    keys, values = keys[:, :kv_heads], values[:, :kv_heads]
    repeated = (x.expand(-1, HEADS, -1, -1) for x in (keys, values))
    expected = long.attend_part(query, *repeated, query, rule, position, 0.0)
    output = attend_long(query, keys, values, rule, position, query)
    real = real_queries(rule)
    torch.testing.assert_close(output.transpose(1, 2)[real], expected.transpose(1, 2)[real])


def test_dropout_draws_the_same_weights_again_in_the_backward_pass(monkeypatch):
    """The gradient of the values is what the output says: linear in them."""
    monkeypatch.setattr(long, "BLOCK_QUERIES", 4)
    rule = RULES["self, causal window"]
    query, keys, values = tensors(rule)
    values.requires_grad_()
    position = build_position("none")
    torch.manual_seed(3)
    output = attend_by_block(query, keys, values, rule, position, query, 0.5)
    [gradient] = torch.autograd.grad(output.sum(), values)
    torch.testing.assert_close((gradient * values).sum(), output.sum())
    assert not torch.equal(output, attend_by_block(query, keys, values, rule, position, query, 0.0))


@pytest.mark.parametrize("missing", ["nothing", "Triton", "a new GPU", "PyTorch 2.9"])
def test_flex_attention_is_used_where_it_can_be(missing, monkeypatch):
    capability = (7, 5) if missing == "a new GPU" else (8, 0)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    found = None if missing == "Triton" else object()
    monkeypatch.setattr(long.importlib.util, "find_spec", lambda name: found)
    if missing == "PyTorch 2.9":
        monkeypatch.delattr(flex_attention, "AuxRequest")
    assert long.has_flex.__wrapped__() == (missing == "nothing")
