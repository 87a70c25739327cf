"""Rotary: whatever is not relative, not rigid, not free of parameters or not a turn is noticed."""

import pytest
import torch
from torch import nn

from regard.attention import POSITIONS
from regard.attention.positions import SCALINGS, Rotary


class Squared(Rotary):
    """Turns by t^2 omega."""

    def rotate(self, heads, at):
        return super().rotate(heads, at**2)


class Growing(Rotary):
    """Later tokens are longer."""

    def rotate(self, heads, at):
        return super().rotate(heads, at) * (1 + 0.01 * at[:, None, :, None])


class Stretched(Rotary):
    """Twice as long, wherever."""

    def rotate(self, heads, at):
        return 2 * super().rotate(heads, at)


class Learning(Rotary):
    """A number is learned."""

    def __init__(self, *sizes, **options):
        super().__init__(*sizes, **options)
        self.scale = nn.Parameter(torch.ones(()))


class Halves(Rotary):
    """Pairs halves, as some code does, where neighbours are meant."""

    def rotate(self, heads, at):
        mixed = torch.stack(heads.chunk(2, dim=-1), dim=-1).flatten(-2)
        turned = super().rotate(mixed, at).unflatten(-1, (-1, 2))
        return torch.cat(turned.unbind(-1), dim=-1)


class Still(Rotary):
    """Does not turn."""

    def rotate(self, heads, at):
        return heads


@pytest.mark.parametrize(
    ("broken", "noticed"),
    [
        (Squared, "spread of <R_m x, R_n y> at one distance"),
        (Squared, "between R_t x and its matrix form"),
        (Growing, "change of |R_t x| / |x| with t"),
        (Stretched, "|R_t x| / |x| from 1, unscaled"),
        (Learning, "number of parameters"),
        (Halves, "between R_t x and its matrix form"),
        (Still, "omega_i from its formula"),
    ],
)
def test_a_broken_turn_is_noticed(lab, monkeypatch, broken, noticed):
    monkeypatch.setitem(POSITIONS, "rotary", broken)
    result = lab.run()
    assert any(noticed in check.name for check in result.checks if not check.passed)


def test_every_scaling_is_tried(lab, monkeypatch):
    def random(omega, factor, original_length):
        return omega * torch.linspace(0.1, 2, len(omega))

    monkeypatch.setitem(SCALINGS, "mine", random)
    result = lab.run()
    assert result.figures["scalings"] == ["none", "linear", "ntk", "yarn", "mine"]
    assert result.passed  # any pace is relative


def test_the_scaling_that_breaks_it_is_named(lab, monkeypatch):
    class Once(Rotary):
        def rotate(self, heads, at):
            return super().rotate(heads, at**2 if self.stretch > 1 else at)

    monkeypatch.setitem(POSITIONS, "rotary", Once)
    told = [check.message for check in lab.run().checks if not check.passed]
    assert told
    assert all("With scaling yarn" in sentence for sentence in told)


def test_another_right_answer(lab):
    def turn(x, t, omega):
        numbers = torch.complex(x[::2], x[1::2]) * torch.exp(1j * t * omega)
        return torch.view_as_real(numbers).flatten()

    assert all(remark.passed for remark in lab.exercise.grade(turn))


def halves(x, t, omega):
    one, other = x.chunk(2)
    cos, sin = torch.cos(t * omega), torch.sin(t * omega)
    return torch.cat([one * cos - other * sin, other * cos + one * sin])


def scaled_by_place(x, t, omega):
    return x * (1 + t)


def plus_in_both(x, t, omega):
    one, other, cos, sin = x[::2], x[1::2], torch.cos(t * omega), torch.sin(t * omega)
    return torch.stack([one * cos + other * sin, other * cos + one * sin], dim=-1).flatten()


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (lambda x, t, omega: x, "pairs are neighbours"),
        (halves, "pairs are neighbours"),
        (scaled_by_place, "Turning keeps lengths"),
        (plus_in_both, "Turning keeps lengths"),
        (lambda x, t, omega: x.roll(t), "depend on m - n alone|pairs are neighbours"),
    ],
)
def test_wrong_answers_fail_with_a_word_of_why(lab, wrong, told):
    remarks = [remark for remark in lab.exercise.grade(wrong) if not remark.passed]
    assert remarks
    assert any(part in remark.message for remark in remarks for part in told.split("|"))
    assert "width" in remarks[0].message
