"""Positions against their formulas, and the laws every kind keeps."""

import math
from itertools import product

import pytest
import torch

from regard import config
from regard.attention import POSITIONS, Position
from regard.attention.positions import Rotary, Sinusoidal
from regard.errors import UserError

BATCH, HEADS, LENGTH, WIDTH, HEAD_WIDTH = 2, 3, 5, 7, 22
BASE = 10_000.0


def make(name: str) -> Position:
    options = config.RecurrentEncoder(position=name).position.options
    return POSITIONS[name](WIDTH, HEAD_WIDTH, **options).double()


def tensors() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(1)
    x = torch.randn(BATCH, LENGTH, WIDTH, generator=random, dtype=torch.float64)
    heads = torch.randn(BATCH, HEADS, LENGTH, HEAD_WIDTH, generator=random, dtype=torch.float64)
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
    single = [position.embed(x[:, t : t + 1], at[:, t : t + 1]) for t in range(LENGTH)]
    torch.testing.assert_close(torch.cat(single, dim=1), position.embed(x, at))


@pytest.mark.parametrize("name", POSITIONS)
def test_the_type_of_numbers_is_kept(name):
    position, (x, heads, at) = make(name).float(), tensors()
    assert position.embed(x.bfloat16(), at).dtype == torch.bfloat16
    assert position.rotate(heads.bfloat16(), at).dtype == torch.bfloat16


@pytest.mark.parametrize("name", POSITIONS)
def test_a_buffer_is_not_part_of_the_weights(name):
    assert make(name).state_dict() == {}


def test_sinusoidal_is_the_formula():
    position, (x, _, at) = make("sinusoidal"), tensors()
    added = position.embed(x, at) - x
    for b, length, d in product(range(BATCH), range(LENGTH), range(WIDTH)):
        angle = int(at[b, length]) / BASE ** (2 * (d // 2) / WIDTH)
        wanted = math.sin(angle) if d % 2 == 0 else math.cos(angle)
        assert float(added[b, length, d]) == pytest.approx(wanted, abs=1e-4)


def test_sinusoidal_and_rotary_follow_their_base():
    x, _heads, at = tensors()
    added = Sinusoidal(WIDTH, HEAD_WIDTH, base=100.0).double().embed(x, at) - x
    assert float(added[1, 0, 2]) == pytest.approx(math.sin(17 / 100 ** (2 / WIDTH)), abs=1e-5)
    one = torch.zeros(1, 1, 1, 4, dtype=torch.float64)
    one[..., 2] = 1.0
    turned = Rotary(WIDTH, 4, base=100.0).double().rotate(one, torch.tensor([[3]]))
    wanted = torch.tensor([0.0, 0.0, math.cos(0.3), math.sin(0.3)], dtype=torch.float64)
    torch.testing.assert_close(turned[0, 0, 0], wanted)


def test_rotary_turns_neighbours_as_the_formula_says():
    position, (_, heads, at) = make("rotary"), tensors()
    turned = position.rotate(heads, at)
    for b, t, i in product(range(BATCH), range(LENGTH), range(HEAD_WIDTH // 2)):
        angle = int(at[b, t]) * BASE ** (-2 * i / HEAD_WIDTH)
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
    x, y = torch.randn(2, 1, 1, 1, HEAD_WIDTH, generator=random, dtype=torch.float64)

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
        Rotary(WIDTH, 7, base=BASE)
