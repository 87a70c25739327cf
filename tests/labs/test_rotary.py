"""Rotary: a rotation that is not relative, not norm-preserving or not parameter-free is detected."""

import pytest
import torch
from torch import nn

from regard.attention import POSITIONS
from regard.attention.positions import SCALINGS, Rotary


class QuadraticPositions(Rotary):
    """Rotates by t^2 omega."""

    def rotate(self, heads, position_ids):
        return super().rotate(heads, position_ids**2)


class GrowingNorm(Rotary):
    """The norm grows with the position."""

    def rotate(self, heads, position_ids):
        return super().rotate(heads, position_ids) * (1 + 0.01 * position_ids[:, None, :, None])


class DoubledNorm(Rotary):
    """The norm is doubled."""

    def rotate(self, heads, position_ids):
        return 2 * super().rotate(heads, position_ids)


class WithParameter(Rotary):
    """Has a learnable gain."""

    def __init__(self, *sizes, **options):
        super().__init__(*sizes, **options)
        self.gain = nn.Parameter(torch.ones(()))


class PairedHalves(Rotary):
    """Pairs halves instead of adjacent elements."""

    def rotate(self, heads, position_ids):
        mixed = torch.stack(heads.chunk(2, dim=-1), dim=-1).flatten(-2)
        rotated = super().rotate(mixed, position_ids).unflatten(-1, (-1, 2))
        return torch.cat(rotated.unbind(-1), dim=-1)


class Identity(Rotary):
    """Does not rotate."""

    def rotate(self, heads, position_ids):
        return heads


@pytest.mark.parametrize(
    ("faulty", "detected"),
    [
        (QuadraticPositions, "spread of <R_m x, R_n y> at one distance"),
        (QuadraticPositions, "between R_t x and its matrix form"),
        (GrowingNorm, "difference of |R_t x| / |x| from 1"),
        (DoubledNorm, "difference of |R_t x| / |x| from 1"),
        (WithParameter, "number of parameters"),
        (PairedHalves, "between R_t x and its matrix form"),
        (Identity, "omega_i from its formula"),
    ],
)
def test_faulty_rotation_is_detected(lab, monkeypatch, faulty, detected):
    monkeypatch.setitem(POSITIONS, "rotary", faulty)
    result = lab.run()
    assert any(detected in check.name for check in result.checks if not check.passed)


def test_every_scaling_is_tested(lab, monkeypatch):
    def rescale(omega, factor, original_length):
        return omega * torch.linspace(0.1, 2, len(omega))

    monkeypatch.setitem(SCALINGS, "mine", rescale)
    result = lab.run()
    assert result.figures["scalings"] == ["none", "linear", "ntk", "yarn", "mine"]
    assert result.passed  # any frequencies are relative


def test_failing_scaling_is_named(lab, monkeypatch):
    class QuadraticIfScaled(Rotary):
        def rotate(self, heads, position_ids):
            return super().rotate(heads, position_ids**2 if self.score_scale > 1 else position_ids)

    monkeypatch.setitem(POSITIONS, "rotary", QuadraticIfScaled)
    messages = [check.message for check in lab.run().checks if not check.passed]
    assert messages
    assert all("With scaling yarn" in message for message in messages)


def test_equivalent_answer_passes(lab):
    def rotate(x, t, omega):
        numbers = torch.complex(x[::2], x[1::2]) * torch.exp(1j * t * omega)
        return torch.view_as_real(numbers).flatten()

    assert all(check.passed for check in lab.exercise.grade(rotate))


def halves(x, t, omega):
    x1, x2 = x.chunk(2)
    cos, sin = torch.cos(t * omega), torch.sin(t * omega)
    return torch.cat([x1 * cos - x2 * sin, x2 * cos + x1 * sin])


def scale_by_position(x, t, omega):
    return x * (1 + t)


def two_plus_signs(x, t, omega):
    x1, x2, cos, sin = x[::2], x[1::2], torch.cos(t * omega), torch.sin(t * omega)
    return torch.stack([x1 * cos + x2 * sin, x2 * cos + x1 * sin], dim=-1).flatten()


@pytest.mark.parametrize(
    ("wrong", "explanation"),
    [
        (lambda x, t, omega: x, "pairs are adjacent"),
        (halves, "pairs are adjacent"),
        (scale_by_position, "A rotation preserves norms"),
        (two_plus_signs, "A rotation preserves norms"),
        (lambda x, t, omega: x.roll(t), "depend on m - n only|pairs are adjacent"),
    ],
)
def test_wrong_answers_fail_with_an_explanation(lab, wrong, explanation):
    checks = [check for check in lab.exercise.grade(wrong) if not check.passed]
    assert checks
    assert any(part in check.message for check in checks for part in explanation.split("|"))
    assert "dimension" in checks[0].message
