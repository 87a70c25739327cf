"""Positions against their formulas, and the laws every kind keeps."""

import math
from itertools import product

import pytest
import torch

from regard import config
from regard.attention import POSITIONS, SCORES, Position
from regard.attention.positions import SCALINGS, Alibi, Learned, Relative, Rotary, Sinusoidal
from regard.errors import UserError

BATCH, HEADS, LENGTH, WIDTH, HEAD_DIM = 2, 3, 5, 7, 22
SIZES = WIDTH, HEADS, HEAD_DIM
BASE = 10_000.0


def make(name: str, **options) -> Position:
    torch.manual_seed(4)
    table = {"kind": name} | ({"max_length": 1001} if name == "learned" else {}) | options
    options = config.Transformer(position=table).position.options
    return POSITIONS[name](*SIZES, **options).double()


def tensors() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(1)
    x = torch.randn(BATCH, LENGTH, WIDTH, generator=random, dtype=torch.float64)
    heads = torch.randn(BATCH, HEADS, LENGTH, HEAD_DIM, generator=random, dtype=torch.float64)
    at = torch.tensor([[0, 1, 2, 3, 4], [17, 3, 1000, 0, 5]])
    return x, heads, at


@pytest.mark.parametrize("name", POSITIONS)
def test_a_position_speaks_in_at_most_one_place(name):
    position, (x, heads, at) = make(name), tensors()
    speaks = [
        not torch.equal(position.embed(x, at), x),
        not torch.equal(position.rotate(heads, at), heads),
        position.bias(heads, at, at) is not None,
    ]
    assert sum(speaks) == (name != "none")


@pytest.mark.parametrize("name", POSITIONS)
def test_what_is_said_depends_on_the_number_given_not_on_the_place(name):
    position, (x, heads, at) = make(name), tensors()
    order = torch.tensor([4, 2, 0, 3, 1])
    moved = at[:, order]
    torch.testing.assert_close(position.embed(x[:, order], moved), position.embed(x, at)[:, order])
    torch.testing.assert_close(
        position.rotate(heads[:, :, order], moved), position.rotate(heads, at)[:, :, order]
    )
    bias, mixed = position.bias(heads, at, at), position.bias(heads[:, :, order], moved, at)
    if bias is not None:
        assert bias.shape == (BATCH, HEADS, LENGTH, LENGTH)
        torch.testing.assert_close(mixed, bias[:, :, order])
        torch.testing.assert_close(position.bias(heads, at, moved), bias[..., order])
        alone = position.bias(heads[1:, :, 2:3], at[1:, 2:3], at[1:])
        torch.testing.assert_close(alone, bias[1:, :, 2:3])
    single = [position.embed(x[:, t : t + 1], at[:, t : t + 1]) for t in range(LENGTH)]
    torch.testing.assert_close(torch.cat(single, dim=1), position.embed(x, at))


@pytest.mark.parametrize("name", POSITIONS)
def test_the_type_of_numbers_is_kept(name):
    position, (x, heads, at) = make(name).float(), tensors()
    assert position.embed(x.bfloat16(), at).dtype == torch.bfloat16
    assert position.rotate(heads.bfloat16(), at).dtype == torch.bfloat16
    bias = position.bias(heads.bfloat16(), at, at)
    assert bias is None or bias.dtype == torch.bfloat16


@pytest.mark.parametrize("name", POSITIONS)
def test_a_buffer_is_not_part_of_the_weights(name):
    position = make(name)
    learned = {key for key, _ in position.named_parameters()}
    assert set(position.state_dict()) == learned == ({"table"} & learned)
    assert bool(learned) == (name in ("learned", "relative"))


def test_sinusoidal_is_the_formula():
    position, (x, _, at) = make("sinusoidal"), tensors()
    added = position.embed(x, at) - x
    for b, length, d in product(range(BATCH), range(LENGTH), range(WIDTH)):
        angle = int(at[b, length]) / BASE ** (2 * (d // 2) / WIDTH)
        wanted = math.sin(angle) if d % 2 == 0 else math.cos(angle)
        assert float(added[b, length, d]) == pytest.approx(wanted, abs=1e-4)


def test_sinusoidal_and_rotary_follow_their_base():
    x, _heads, at = tensors()
    added = Sinusoidal(*SIZES, base=100.0).double().embed(x, at) - x
    assert float(added[1, 0, 2]) == pytest.approx(math.sin(17 / 100 ** (2 / WIDTH)), abs=1e-5)
    one = torch.zeros(1, 1, 1, 4, dtype=torch.float64)
    one[..., 2] = 1.0
    plain = {"scaling": "none", "factor": 1.0, "original_length": 1}
    rotary = Rotary(WIDTH, 1, 4, base=100.0, **plain).double()
    turned = rotary.rotate(one, torch.tensor([[3]]))
    wanted = torch.tensor([0.0, 0.0, math.cos(0.3), math.sin(0.3)], dtype=torch.float64)
    torch.testing.assert_close(turned[0, 0, 0], wanted)


def test_rotary_turns_neighbours_as_the_formula_says():
    position, (_, heads, at) = make("rotary"), tensors()
    turned = position.rotate(heads, at)
    for b, t, i in product(range(BATCH), range(LENGTH), range(HEAD_DIM // 2)):
        angle = int(at[b, t]) * BASE ** (-2 * i / HEAD_DIM)
        x1, x2 = (float(heads[b, 1, t, 2 * i + side]) for side in (0, 1))
        y1, y2 = (float(turned[b, 1, t, 2 * i + side]) for side in (0, 1))
        assert y1 == pytest.approx(x1 * math.cos(angle) - x2 * math.sin(angle), abs=2e-4)
        assert y2 == pytest.approx(x2 * math.cos(angle) + x1 * math.sin(angle), abs=2e-4)


def test_rotary_is_multiplication_by_a_complex_number():
    position, (_, heads, at) = make("rotary"), tensors()
    pairs = torch.view_as_complex(heads.unflatten(-1, (-1, 2)))
    angle = at[:, None, :, None] * position.omega
    wanted = torch.view_as_real(pairs * torch.polar(torch.ones_like(angle), angle)).flatten(-2)
    torch.testing.assert_close(position.rotate(heads, at), wanted)


def test_rotary_keeps_norms_and_has_no_parameter():
    position, (_, heads, at) = make("rotary"), tensors()
    torch.testing.assert_close(position.rotate(heads, at).norm(dim=-1), heads.norm(dim=-1))
    assert list(position.parameters()) == []


def test_rotary_products_depend_on_the_distance_alone():
    position = make("rotary")
    random = torch.Generator().manual_seed(3)
    x, y = torch.randn(2, 1, 1, 1, HEAD_DIM, generator=random, dtype=torch.float64)

    def product_at(m: int, n: int) -> float:
        turned = position.rotate(x, torch.tensor([[m]])), position.rotate(y, torch.tensor([[n]]))
        return float((turned[0] * turned[1]).sum())

    for m, n, shift in [(0, 0, 41), (5, 2, 97), (2, 5, 503), (0, 31, 11)]:
        assert product_at(m + shift, n + shift) == pytest.approx(product_at(m, n), abs=1e-9)
    assert product_at(5, 2) != pytest.approx(product_at(2, 5), abs=1e-3)


def test_rotary_refuses_an_odd_width():
    with pytest.raises(
        UserError, match="rotary turns pairs: a head must have an even width, not 7"
    ):
        Rotary(WIDTH, HEADS, 7, BASE, "none", 1.0, 512)


# --- rotary, scaled -------------------------------------------------------------------------------


def scaled(kind: str, i: int, s: float, original: int, d: int = HEAD_DIM) -> float:
    """omega of pair i, from the papers' own formulas (base, wavelength) rather than ours."""
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
def test_scaled_frequencies_are_the_papers(kind, original, factor):
    position = make("rotary", scaling=kind, factor=factor, original_length=original)
    wanted = [scaled(kind, i, factor, original) for i in range(HEAD_DIM // 2)]
    assert position.omega.tolist() == pytest.approx(wanted, rel=1e-5)


def test_what_scaling_leaves_alone_and_what_it_stretches():
    plain = make("rotary").omega
    ntk = make("rotary", scaling="ntk", factor=8.0).omega / plain
    assert ntk[0] == 1
    assert float(ntk[-1]) == pytest.approx(1 / 8, rel=1e-5)
    yarn = make("rotary", scaling="yarn", factor=8.0).omega / plain
    assert yarn[0] == 1
    assert float(yarn[-1]) == pytest.approx(1 / 8, rel=1e-5)
    assert (yarn.diff() <= 0).all()
    one_pair = POSITIONS["rotary"](WIDTH, HEADS, 2, BASE, "ntk", 8.0, 512)
    assert one_pair.omega.tolist() == [1.0]


@pytest.mark.parametrize("kind", SCALINGS)
def test_only_yarn_changes_norms_and_all_products_go_by_distance(kind):
    position, (_, heads, at) = make("rotary", scaling=kind, factor=8.0), tensors()
    stretch = 0.1 * math.log(8.0) + 1 if kind == "yarn" else 1.0
    turned = position.rotate(heads, at)
    torch.testing.assert_close(turned.norm(dim=-1), heads.norm(dim=-1) * stretch)
    later = position.rotate(heads, at + 97)
    torch.testing.assert_close(later @ later.mT, turned @ turned.mT)
    own = (turned * turned).sum(-1)
    torch.testing.assert_close(own, (heads * heads).sum(-1) * stretch**2)


def test_linear_scaling_puts_a_longer_text_where_the_short_one_was():
    _, heads, at = tensors()
    stretched = make("rotary", scaling="linear", factor=4.0)
    torch.testing.assert_close(stretched.rotate(heads, at * 4), make("rotary").rotate(heads, at))


# --- learned --------------------------------------------------------------------------------------


def test_learned_adds_the_row_of_each_place():
    position, (x, _, at) = make("learned"), tensors()
    placed = position.embed(x, at)
    for b, t in product(range(BATCH), range(LENGTH)):
        assert torch.equal(placed[b, t], x[b, t] + position.table[int(at[b, t])])


def test_learned_refuses_what_its_table_does_not_hold():
    x, _, at = tensors()
    position = Learned(*SIZES, max_length=1001).double()
    position.embed(x, at)
    position.embed(x[:, :0], at[:, :0])
    with pytest.raises(
        UserError, match="a table of 1001 places and was asked for place 1002: short"
    ):
        position.embed(x, at + 1)


def test_learned_looks_at_the_numbers_on_a_device_only_if_they_might_not_fit():
    position = Learned(*SIZES, max_length=5)
    looks = {length: position._may_overrun(torch.zeros(2, length).long()) for length in (0, 1, 5)}
    assert looks == {0: False, 1: True, 5: True}
    on_device = {
        length: position._may_overrun(torch.zeros(2, length, device="meta").long())
        for length in (0, 1, 5, 7)
    }
    assert on_device == {0: False, 1: False, 5: False, 7: True}


# --- relative and alibi ---------------------------------------------------------------------------


@torch.no_grad()
@pytest.mark.parametrize("furthest", [1, 3, 32])
@pytest.mark.parametrize("form", ["bias", "query"])
def test_relative_is_its_equation(form, furthest):
    position = make("relative", form=form, max_distance=furthest)
    _, heads, at = tensors()
    key_position_ids = torch.tensor([[0, 1, 2, 3, 4, 9, 77], [3, 20, 999, 0, 5, 6, 1]])
    found = position.bias(heads, at, key_position_ids)
    for b, h, i, j in product(range(BATCH), range(HEADS), range(LENGTH), range(7)):
        r = max(-furthest, min(furthest, int(key_position_ids[b, j]) - int(at[b, i])))
        row = position.table[r + furthest]
        wanted = row[h] if form == "bias" else heads[b, h, i] @ row / math.sqrt(HEAD_DIM)
        assert float(found[b, h, i, j]) == pytest.approx(float(wanted))


def test_the_query_form_is_shaws_key_plus_vector():
    """softmax(q . (k + a) / sqrt(d)): our score and our bias are its two halves."""
    position, (_, query, at) = make("relative", form="query", max_distance=2), tensors()
    keys = torch.randn(BATCH, HEADS, LENGTH, HEAD_DIM, dtype=torch.float64)
    ours = SCORES["scaled-dot"](HEAD_DIM, HEAD_DIM)(query, keys) + position.bias(query, at, at)
    vectors = position.table[(at[:, None, :] - at[:, :, None]).clamp(-2, 2) + 2]  # [b q k d]
    together = keys[:, :, None] + vectors[:, None]
    wanted = torch.einsum("bhqd,bhqkd->bhqk", query, together) / math.sqrt(HEAD_DIM)
    torch.testing.assert_close(ours, wanted)


@pytest.mark.parametrize(("form", "shape"), [("bias", (7, HEADS)), ("query", (7, HEAD_DIM))])
def test_relative_learns_one_row_for_each_distance(form, shape):
    position, (_, heads, _) = make("relative", form=form, max_distance=3), tensors()
    assert position.table.shape == shape
    at = torch.arange(LENGTH).expand(BATCH, LENGTH)
    position.bias(heads, at[:, -1:].expand_as(at), at).square().sum().backward()
    reached = position.table.grad.abs().sum(1) > 0
    assert reached.tolist() == [True] * 4 + [False] * 3  # the last token looks back only


@pytest.mark.parametrize("count", [1, 3, 8])
def test_alibi_is_its_equation(count):
    at = torch.tensor([[0, 1, 2, 3, 4], [17, 3, 1000, 0, 5]])
    found = Alibi(WIDTH, count, HEAD_DIM).bias(torch.zeros(BATCH, count, LENGTH, 2), at, at)
    for b, h, i, j in product(range(BATCH), range(count), range(LENGTH), range(LENGTH)):
        slope = 2 ** (-8 * (h + 1) / count)
        away = abs(int(at[b, i]) - int(at[b, j]))
        assert float(found[b, h, i, j]) == pytest.approx(-slope * away, rel=1e-6)


def test_alibi_has_the_papers_slopes_for_eight_heads():
    assert Alibi(WIDTH, 8, HEAD_DIM).slopes.tolist() == [2**-n for n in range(1, 9)]


@pytest.mark.parametrize("name", ["relative", "alibi"])
def test_biases_depend_on_the_distance_alone(name):
    position, (_, heads, at) = make(name), tensors()
    torch.testing.assert_close(position.bias(heads, at + 41, at + 41), position.bias(heads, at, at))


def test_relative_without_a_form_is_t5s():
    assert make("relative").form == "bias"
    assert isinstance(make("relative"), Relative)
