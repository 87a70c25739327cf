"""Position encodings against their formulas, and invariants over the registry."""

import math
from itertools import product

import pytest
import torch

from regard import config
from regard.attention import HEADS as HEAD_KINDS
from regard.attention import NORMALISERS, POSITIONS, SCORES, Latent, MultiHead, Position
from regard.attention.positions import SCALINGS, Alibi, Learned, Relative, Rotary, Sinusoidal
from regard.errors import UserError

BATCH, HEADS, LENGTH, D_MODEL, HEAD_DIM = 2, 3, 5, 7, 22
SIZES = D_MODEL, HEADS, HEAD_DIM
BASE = 10_000.0


def build_position(name: str, **options) -> Position:
    torch.manual_seed(4)
    table = {"kind": name} | ({"max_length": 1001} if name == "learned" else {}) | options
    options = config.Transformer(position=table).position.options
    return POSITIONS[name](*SIZES, **options).double()


def tensors() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(1)
    x = torch.randn(BATCH, LENGTH, D_MODEL, generator=random, dtype=torch.float64)
    heads = torch.randn(BATCH, HEADS, LENGTH, HEAD_DIM, generator=random, dtype=torch.float64)
    position_ids = torch.tensor([[0, 1, 2, 3, 4], [17, 3, 1000, 0, 5]])
    return x, heads, position_ids


@pytest.mark.parametrize("name", POSITIONS)
def test_a_position_acts_in_at_most_one_method(name):
    position, (x, heads, position_ids) = build_position(name), tensors()
    acts = [
        not torch.equal(position.embed(x, position_ids), x),
        not torch.equal(position.rotate(heads, position_ids), heads),
        position.bias(heads, position_ids, position_ids) is not None,
    ]
    assert sum(acts) == (name != "none")


@pytest.mark.parametrize("name", POSITIONS)
def test_encodings_depend_on_position_ids_not_on_indices(name):
    position, (x, heads, position_ids) = build_position(name), tensors()
    order = torch.tensor([4, 2, 0, 3, 1])
    permuted = position_ids[:, order]
    torch.testing.assert_close(
        position.embed(x[:, order], permuted), position.embed(x, position_ids)[:, order]
    )
    torch.testing.assert_close(
        position.rotate(heads[:, :, order], permuted),
        position.rotate(heads, position_ids)[:, :, order],
    )
    bias = position.bias(heads, position_ids, position_ids)
    if bias is not None:
        assert bias.shape == (BATCH, HEADS, LENGTH, LENGTH)
        permuted_queries = position.bias(heads[:, :, order], permuted, position_ids)
        torch.testing.assert_close(permuted_queries, bias[:, :, order])
        torch.testing.assert_close(position.bias(heads, position_ids, permuted), bias[..., order])
        single_query = position.bias(heads[1:, :, 2:3], position_ids[1:, 2:3], position_ids[1:])
        torch.testing.assert_close(single_query, bias[1:, :, 2:3])
    steps = [position.embed(x[:, t : t + 1], position_ids[:, t : t + 1]) for t in range(LENGTH)]
    torch.testing.assert_close(torch.cat(steps, dim=1), position.embed(x, position_ids))


@pytest.mark.parametrize("name", POSITIONS)
def test_dtype_is_preserved(name):
    position, (x, heads, position_ids) = build_position(name).float(), tensors()
    assert position.embed(x.bfloat16(), position_ids).dtype == torch.bfloat16
    assert position.rotate(heads.bfloat16(), position_ids).dtype == torch.bfloat16
    bias = position.bias(heads.bfloat16(), position_ids, position_ids)
    assert bias is None or bias.dtype == torch.bfloat16


@pytest.mark.parametrize("name", POSITIONS)
def test_the_state_dict_holds_parameters_but_no_buffers(name):
    position = build_position(name)
    parameters = {key for key, _ in position.named_parameters()}
    assert set(position.state_dict()) == parameters == ({"table"} & parameters)
    assert bool(parameters) == (name in ("learned", "relative"))


def test_sinusoidal_equals_its_formula():
    position, (x, _, position_ids) = build_position("sinusoidal"), tensors()
    encoding = position.embed(x, position_ids) - x
    for b, t, d in product(range(BATCH), range(LENGTH), range(D_MODEL)):
        angle = int(position_ids[b, t]) / BASE ** (2 * (d // 2) / D_MODEL)
        expected = math.sin(angle) if d % 2 == 0 else math.cos(angle)
        assert float(encoding[b, t, d]) == pytest.approx(expected, abs=1e-4)


def test_sinusoidal_and_rotary_use_their_base():
    x, _, position_ids = tensors()
    encoding = Sinusoidal(*SIZES, base=100.0).double().embed(x, position_ids) - x
    assert float(encoding[1, 0, 2]) == pytest.approx(math.sin(17 / 100 ** (2 / D_MODEL)), abs=1e-5)
    unit = torch.zeros(1, 1, 1, 4, dtype=torch.float64)
    unit[..., 2] = 1.0
    unscaled = {"scaling": "none", "factor": 1.0, "original_length": 1}
    rotary = Rotary(D_MODEL, 1, 4, base=100.0, **unscaled).double()
    rotated = rotary.rotate(unit, torch.tensor([[3]]))
    expected = torch.tensor([0.0, 0.0, math.cos(0.3), math.sin(0.3)], dtype=torch.float64)
    torch.testing.assert_close(rotated[0, 0, 0], expected)


def test_rotary_rotates_adjacent_pairs_by_its_formula():
    position, (_, heads, position_ids) = build_position("rotary"), tensors()
    rotated = position.rotate(heads, position_ids)
    for b, t, i in product(range(BATCH), range(LENGTH), range(HEAD_DIM // 2)):
        angle = int(position_ids[b, t]) * BASE ** (-2 * i / HEAD_DIM)
        x1, x2 = (float(heads[b, 1, t, 2 * i + k]) for k in (0, 1))
        y1, y2 = (float(rotated[b, 1, t, 2 * i + k]) for k in (0, 1))
        assert y1 == pytest.approx(x1 * math.cos(angle) - x2 * math.sin(angle), abs=2e-4)
        assert y2 == pytest.approx(x2 * math.cos(angle) + x1 * math.sin(angle), abs=2e-4)


def test_rotary_equals_multiplication_by_a_complex_number():
    position, (_, heads, position_ids) = build_position("rotary"), tensors()
    pairs = torch.view_as_complex(heads.unflatten(-1, (-1, 2)))
    angle = position_ids[:, None, :, None] * position.omega
    expected = torch.view_as_real(pairs * torch.polar(torch.ones_like(angle), angle)).flatten(-2)
    torch.testing.assert_close(position.rotate(heads, position_ids), expected)


def test_rotary_preserves_norms_and_has_no_parameters():
    position, (_, heads, position_ids) = build_position("rotary"), tensors()
    rotated = position.rotate(heads, position_ids)
    torch.testing.assert_close(rotated.norm(dim=-1), heads.norm(dim=-1))
    assert list(position.parameters()) == []


def test_rotary_dot_products_depend_on_relative_position_only():
    position = build_position("rotary")
    random = torch.Generator().manual_seed(3)
    x, y = torch.randn(2, 1, 1, 1, HEAD_DIM, generator=random, dtype=torch.float64)

    def dot(m: int, n: int) -> float:
        query, key = (position.rotate(v, torch.tensor([[t]])) for v, t in ((x, m), (y, n)))
        return float((query * key).sum())

    for m, n, shift in [(0, 0, 41), (5, 2, 97), (2, 5, 503), (0, 31, 11)]:
        assert dot(m + shift, n + shift) == pytest.approx(dot(m, n), abs=1e-9)
    assert dot(5, 2) != pytest.approx(dot(2, 5), abs=1e-3)


def test_rotary_rejects_an_odd_head_dim():
    with pytest.raises(UserError, match="rotary needs pairs, so head_dim must be even, not 7"):
        Rotary(D_MODEL, HEADS, 7, BASE, "none", 1.0, 512)


# --- rotary scaling -------------------------------------------------------------------------------


def scaled_omega(kind: str, i: int, s: float, original: int, d: int = HEAD_DIM) -> float:
    """omega of pair i, by the papers' formulas (base, wavelength) rather than ours."""
    omega = BASE ** (-2 * i / d)
    if kind == "linear":
        return omega / s
    if kind == "ntk":
        return (BASE * s ** (d / (d - 2))) ** (-2 * i / d)
    if kind == "yarn":
        wavelength = 2 * math.pi * BASE ** (2 * i / d)
        ratio = original / wavelength
        gamma = 0.0 if ratio < 1 else 1.0 if ratio > 32 else (ratio - 1) / (32 - 1)
        return (1 - gamma) * omega / s + gamma * omega
    return omega


@pytest.mark.parametrize("factor", [1.5, 8.0])
@pytest.mark.parametrize("original", [17, 512, 4096])
@pytest.mark.parametrize("kind", SCALINGS)
def test_scaled_frequencies_equal_the_papers_formulas(kind, original, factor):
    position = build_position("rotary", scaling=kind, factor=factor, original_length=original)
    expected = [scaled_omega(kind, i, factor, original) for i in range(HEAD_DIM // 2)]
    assert position.omega.tolist() == pytest.approx(expected, rel=1e-5)


def test_scaling_keeps_the_highest_frequency_and_divides_the_lowest():
    plain = build_position("rotary").omega
    ntk = build_position("rotary", scaling="ntk", factor=8.0).omega / plain
    assert ntk[0] == 1
    assert float(ntk[-1]) == pytest.approx(1 / 8, rel=1e-5)
    yarn = build_position("rotary", scaling="yarn", factor=8.0).omega / plain
    assert yarn[0] == 1
    assert float(yarn[-1]) == pytest.approx(1 / 8, rel=1e-5)
    assert (yarn.diff() <= 0).all()
    one_pair = POSITIONS["rotary"](D_MODEL, HEADS, 2, BASE, "ntk", 8.0, 512)
    assert one_pair.omega.tolist() == [1.0]


@pytest.mark.parametrize("kind", SCALINGS)
def test_scaling_preserves_norms_and_dot_products_stay_relative(kind):
    position = build_position("rotary", scaling=kind, factor=8.0)
    _, heads, position_ids = tensors()
    rotated = position.rotate(heads, position_ids)
    torch.testing.assert_close(rotated.norm(dim=-1), heads.norm(dim=-1))
    shifted = position.rotate(heads, position_ids + 97)
    torch.testing.assert_close(shifted @ shifted.mT, rotated @ rotated.mT)


ROPE_DIM = 4
LAYERS = {  # every kind of heads, and the options that change how it computes its scores
    "multi-head": (MultiHead, HEAD_DIM, {}),
    "multi-query": (MultiHead, HEAD_DIM, {"kv_heads": 1}),
    "latent": (Latent, ROPE_DIM, {"latent_dim": 17, "rope_dim": ROPE_DIM}),
    "latent, absorbed": (Latent, ROPE_DIM, {"latent_dim": 17, "rope_dim": ROPE_DIM}),
}


def build_layer(name, score, normaliser, scaling):
    torch.manual_seed(5)
    kind, rotated_dim, options = LAYERS[name]
    rotary = Rotary(D_MODEL, HEADS, rotated_dim, BASE, scaling, 8.0, 512)
    depth = HEAD_DIM + (ROPE_DIM if kind is Latent else 0)
    score_options = {"max_length": 11} if score == "location" else {}
    score = SCORES[score](depth, depth, **score_options)
    parts = {"score": score, "normalise": NORMALISERS[normaliser], "position": rotary}
    return kind(D_MODEL, HEADS, HEAD_DIM, **parts, **options).double()


def attend(layer, x, position_ids, need_weights):
    keys_values = layer.keys_values(x, position_ids)
    return layer(x, *keys_values, None, position_ids, position_ids, need_weights)


@pytest.mark.parametrize("scaling", SCALINGS)
def test_yarn_multiplies_the_whole_score(scaling, monkeypatch):
    """At position 0 nothing is rotated: only the temperature remains, in every kind of heads."""
    assert {kind for kind, *_ in LAYERS.values()} == set(HEAD_KINDS.values())
    (x, _, position_ids), zeros = tensors(), torch.zeros(BATCH, LENGTH, dtype=torch.int64)
    factor = (0.1 * math.log(8.0) + 1) ** 2 if scaling == "yarn" else 1.0
    for name, score in product(LAYERS, SCORES):
        absorb = name.endswith("absorbed")
        if absorb and score != "scaled-dot":
            continue  # no other score can be absorbed
        monkeypatch.setattr(Latent, "_can_absorb", lambda *_, absorb=absorb: absorb)
        _, plain = attend(build_layer(name, score, "none", "none"), x, zeros, need_weights=True)
        _, scaled = attend(build_layer(name, score, "none", scaling), x, zeros, need_weights=True)
        torch.testing.assert_close(scaled, factor * plain)
        layer = build_layer(name, score, "softmax", scaling)
        fused, _ = attend(layer, x, position_ids, need_weights=False)
        torch.testing.assert_close(fused, attend(layer, x, position_ids, need_weights=True)[0])


def test_linear_scaling_interpolates_positions():
    _, heads, position_ids = tensors()
    scaled = build_position("rotary", scaling="linear", factor=4.0)
    expected = build_position("rotary").rotate(heads, position_ids)
    torch.testing.assert_close(scaled.rotate(heads, position_ids * 4), expected)


# --- learned --------------------------------------------------------------------------------------


def test_learned_adds_the_row_of_each_position():
    position, (x, _, position_ids) = build_position("learned"), tensors()
    output = position.embed(x, position_ids)
    for b, t in product(range(BATCH), range(LENGTH)):
        assert torch.equal(output[b, t], x[b, t] + position.table[int(position_ids[b, t])])


def test_learned_rejects_positions_outside_its_table():
    x, _, position_ids = tensors()
    position = Learned(*SIZES, max_length=1001).double()
    position.embed(x, position_ids)
    position.embed(x[:, :0], position_ids[:, :0])
    message = "a table of 1001 positions and was asked for position 1002: short"
    with pytest.raises(UserError, match=message):
        position.embed(x, position_ids + 1)


def test_learned_checks_positions_on_an_accelerator_only_if_the_text_is_longer_than_the_table():
    position = Learned(*SIZES, max_length=5)
    on_cpu = {length: position._may_exceed(torch.zeros(2, length).long()) for length in (0, 1, 5)}
    assert on_cpu == {0: False, 1: True, 5: True}
    on_accelerator = {
        length: position._may_exceed(torch.zeros(2, length, device="meta").long())
        for length in (0, 1, 5, 7)
    }
    assert on_accelerator == {0: False, 1: False, 5: False, 7: True}


# --- relative and alibi ---------------------------------------------------------------------------


@torch.no_grad()
@pytest.mark.parametrize("max_distance", [1, 3, 32])
@pytest.mark.parametrize("form", ["bias", "query"])
def test_relative_equals_its_equation(form, max_distance):
    position = build_position("relative", form=form, max_distance=max_distance)
    _, heads, position_ids = tensors()
    key_position_ids = torch.tensor([[0, 1, 2, 3, 4, 9, 77], [3, 20, 999, 0, 5, 6, 1]])
    result = position.bias(heads, position_ids, key_position_ids)
    for b, h, i, j in product(range(BATCH), range(HEADS), range(LENGTH), range(7)):
        distance = int(key_position_ids[b, j]) - int(position_ids[b, i])
        r = max(-max_distance, min(max_distance, distance))
        row = position.table[r + max_distance]
        expected = row[h] if form == "bias" else heads[b, h, i] @ row / math.sqrt(HEAD_DIM)
        assert float(result[b, h, i, j]) == pytest.approx(float(expected))


def test_the_query_form_equals_shaws_key_plus_vector():
    """softmax(q . (k + a) / sqrt(d)): our score plus our bias."""
    position = build_position("relative", form="query", max_distance=2)
    _, query, position_ids = tensors()
    keys = torch.randn(BATCH, HEADS, LENGTH, HEAD_DIM, dtype=torch.float64)
    scores = SCORES["scaled-dot"](HEAD_DIM, HEAD_DIM)(query, keys)
    result = scores + position.bias(query, position_ids, position_ids)
    distances = position_ids[:, None, :] - position_ids[:, :, None]
    vectors = position.table[distances.clamp(-2, 2) + 2]  # [b q k d]
    shifted_keys = keys[:, :, None] + vectors[:, None]
    expected = torch.einsum("bhqd,bhqkd->bhqk", query, shifted_keys) / math.sqrt(HEAD_DIM)
    torch.testing.assert_close(result, expected)


@pytest.mark.parametrize(("form", "shape"), [("bias", (7, HEADS)), ("query", (7, HEAD_DIM))])
def test_relative_has_one_row_per_distance(form, shape):
    position, (_, heads, _) = build_position("relative", form=form, max_distance=3), tensors()
    assert position.table.shape == shape
    position_ids = torch.arange(LENGTH).expand(BATCH, LENGTH)
    last = position_ids[:, -1:].expand_as(position_ids)
    position.bias(heads, last, position_ids).square().sum().backward()
    has_gradient = position.table.grad.abs().sum(1) > 0
    assert has_gradient.tolist() == [True] * 4 + [False] * 3  # no key is after the last position


@pytest.mark.parametrize("count", [1, 3, 8])
def test_alibi_equals_its_equation(count):
    position_ids = torch.tensor([[0, 1, 2, 3, 4], [17, 3, 1000, 0, 5]])
    query = torch.zeros(BATCH, count, LENGTH, 2)
    result = Alibi(D_MODEL, count, HEAD_DIM).bias(query, position_ids, position_ids)
    for b, h, i, j in product(range(BATCH), range(count), range(LENGTH), range(LENGTH)):
        slope = 2 ** (-8 * (h + 1) / count)
        distance = abs(int(position_ids[b, i]) - int(position_ids[b, j]))
        assert float(result[b, h, i, j]) == pytest.approx(-slope * distance, rel=1e-6)


def test_alibi_has_the_papers_slopes_with_eight_heads():
    assert Alibi(D_MODEL, 8, HEAD_DIM).slopes.tolist() == [2**-n for n in range(1, 9)]


@pytest.mark.parametrize("name", ["relative", "alibi"])
def test_biases_depend_on_relative_position_only(name):
    position, (_, heads, position_ids) = build_position(name), tensors()
    shifted = position.bias(heads, position_ids + 41, position_ids + 41)
    torch.testing.assert_close(shifted, position.bias(heads, position_ids, position_ids))


def test_relative_defaults_to_the_form_of_t5():
    assert build_position("relative").form == "bias"
    assert isinstance(build_position("relative"), Relative)


# --- alone, with defaults -------------------------------------------------------------------------


@pytest.mark.parametrize("name", POSITIONS)
def test_defaults_are_those_of_the_config(name):
    """POSITIONS[name](d_model, heads) is what a config that names the kind builds."""
    sizes = 12, 3, 4
    torch.manual_seed(4)
    alone = POSITIONS[name](12, heads=3)
    torch.manual_seed(4)
    options = config.Transformer(position={"kind": name}).position.options
    built = POSITIONS[name](*sizes, **options)
    random = torch.Generator().manual_seed(1)
    x = torch.randn(2, 5, 12, generator=random)
    heads = torch.randn(2, 3, 5, 4, generator=random)
    position_ids = torch.tensor([[0, 1, 2, 3, 4], [17, 3, 900, 0, 5]])
    torch.testing.assert_close(alone.embed(x, position_ids), built.embed(x, position_ids))
    torch.testing.assert_close(alone.rotate(heads, position_ids), built.rotate(heads, position_ids))
    biases = [p.bias(heads, position_ids, position_ids) for p in (alone, built)]
    assert biases[0] is biases[1] is None or torch.equal(*biases)
    assert (alone.max_length, alone.score_scale) == (built.max_length, built.score_scale)


@pytest.mark.parametrize("name", POSITIONS)
def test_heads_must_divide_d_model(name):
    with pytest.raises(
        UserError, match=r"heads \(5\) must divide d_model \(12\), or give head_dim"
    ):
        POSITIONS[name](12, heads=5)
    POSITIONS[name](12, heads=5, head_dim=4)
