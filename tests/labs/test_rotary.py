"""Rotary: every scaling follows its formula, and a faulty rotation or scaling is detected."""

import math

import pytest
import torch
from torch import nn

from regard.attention import POSITIONS, MultiHead
from regard.attention.positions import SCALINGS, Rotary
from regard.labs.measurements.rotary_scalings import FREQUENCIES, RotarySetting, derive_frequencies


def test_every_scaling_follows_its_formula(lab):
    """The lab at its defaults: the deliberate breaks of rotary, NTK and YaRN each fail here."""
    result = lab.run()
    assert result.passed, [check.message for check in result.checks if not check.passed]
    names = [check.name for check in result.law if "from its formula" in check.name]
    assert len(names) == len(SCALINGS)


def test_every_scaling_has_a_formula():
    assert set(FREQUENCIES) == set(SCALINGS)


def test_formulas_at_their_ends():
    """Known values: NTK keeps the highest and divides the lowest by s; YaRN's ramp has two flat ends."""
    setting = RotarySetting(dim=16, base=10_000.0, factor=4.0, original_length=256, length=48)
    omega = derive_frequencies("none", setting)
    assert omega == pytest.approx([10 ** (-i / 2) for i in range(8)])
    ntk, yarn = derive_frequencies("ntk", setting), derive_frequencies("yarn", setting)
    assert [ntk[0], ntk[-1]] == pytest.approx([omega[0], omega[-1] / 4])
    assert [yarn[0], *yarn[4:]] == pytest.approx([omega[0], *(w / 4 for w in omega[4:])])
    rotations = 256 * omega[1] / (2 * math.pi)  # 12.9, inside the ramp
    ramp = (rotations - 1) / 31
    assert yarn[1] == pytest.approx(omega[1] * (ramp + (1 - ramp) / 4))


@pytest.mark.parametrize(
    "parameters",
    [
        {"head_dim": 4, "length": 5},
        {"head_dim": 64, "length": 256, "base": 500_000.0, "factor": 8.0, "original_length": 1024},
        {"factor": 1.5, "base": 10.0},
    ],
)
def test_law_at_other_parameters(lab, parameters):
    result = lab.run(**parameters)
    assert result.law_holds, [check.message for check in result.law if not check.passed]


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


class Clockwise(Rotary):
    """Rotates by -t omega."""

    def rotate(self, heads, position_ids):
        return super().rotate(heads, -position_ids)


class NoScoreScale(Rotary):
    """Leaves scores as they are, with every scaling."""

    def __init__(self, *sizes, **options):
        super().__init__(*sizes, **options)
        self.score_scale = 1.0


class NaNAtTheEnd(Rotary):
    """NaN at positions beyond 1000, which only the measurement of frequencies reaches."""

    def rotate(self, heads, position_ids):
        rotated = super().rotate(heads, position_ids)
        return rotated.masked_fill((position_ids > 1000)[:, None, :, None], math.nan)


def failed(result):
    return [check.name for check in result.checks if not check.passed]


@pytest.mark.parametrize(
    ("faulty", "detected"),
    [
        (QuadraticPositions, "spread of a score at one distance"),
        (QuadraticPositions, "|R_t q - its matrix form|"),
        (GrowingNorm, "difference of |R_t x| / |x| from 1"),
        (DoubledNorm, "difference of |R_t x| / |x| from 1"),
        (WithParameter, "number of parameters"),
        (PairedHalves, "|R_t k - its matrix form|"),
        (Identity, "omega_i from its formula"),
        (Clockwise, "scaling none: largest relative difference of omega_i from its formula"),
        (NoScoreScale, "scaling yarn: factor of every score"),
        (NaNAtTheEnd, "scaling none: factor of every score"),
    ],
)
def test_faulty_rotation_is_detected(lab, monkeypatch, faulty, detected):
    monkeypatch.setitem(POSITIONS, "rotary", faulty)
    assert any(detected in name for name in failed(lab.run()))


def test_keys_that_are_not_rotated_are_detected(lab, monkeypatch):
    keys_values = MultiHead.keys_values

    def at_zero(self, x, position_ids):
        return keys_values(self, x, torch.zeros_like(position_ids))

    monkeypatch.setattr(MultiHead, "keys_values", at_zero)
    names = " ".join(failed(lab.run()))
    assert "|R_t k - its matrix form|" in names
    assert "|R_t q - its matrix form|" not in names
    assert "spread of a score at one distance" in names


@pytest.mark.parametrize(
    ("scaling", "replacement"), [("ntk", "linear"), ("yarn", "none"), ("linear", "ntk")]
)
def test_scaling_with_other_frequencies_is_detected(lab, monkeypatch, scaling, replacement):
    monkeypatch.setitem(SCALINGS, scaling, SCALINGS[replacement])
    expected = f"scaling {scaling}: largest relative difference of omega_i from its formula"
    names = failed(lab.run())
    assert expected in names
    assert all(scaling in name for name in names if name.startswith("scaling"))


def test_scaling_without_a_formula_is_detected(lab, monkeypatch):
    def rescale(omega, factor, original_length):
        return omega * torch.linspace(0.1, 2, len(omega))

    monkeypatch.setitem(SCALINGS, "mine", rescale)
    (check,) = (check for check in lab.run().checks if not check.passed)
    assert check.message.endswith("1 ≠ 0. Nothing is known about mine.")


def test_failing_scaling_is_named(lab, monkeypatch):
    class QuadraticIfScaled(Rotary):
        def rotate(self, heads, position_ids):
            return super().rotate(heads, position_ids**2 if self.score_scale > 1 else position_ids)

    monkeypatch.setitem(POSITIONS, "rotary", QuadraticIfScaled)
    messages = [check.message for check in lab.run().checks if not check.passed]
    assert messages
    assert all("caling yarn" in message for message in messages)


def test_scores_without_rotated_keys_depend_on_the_query(lab):
    result = lab.run(rotate_keys=False)
    assert result.law_holds
    first, *_, last = result.figures["scores"]
    assert len(set(first)) == 1
    assert first[0] != pytest.approx(last[0], abs=0.1)
    lab.plot(result).canvas.draw()


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


def clockwise(x, t, omega):
    x1, x2, cos, sin = x[::2], x[1::2], torch.cos(t * omega), torch.sin(t * omega)
    return torch.stack([x1 * cos + x2 * sin, x2 * cos - x1 * sin], dim=-1).flatten()


def reflection(x, t, omega):
    x1, x2, cos, sin = x[::2], x[1::2], torch.cos(t * omega), torch.sin(t * omega)
    return torch.stack([x1 * cos + x2 * sin, x1 * sin - x2 * cos], dim=-1).flatten()


@pytest.mark.parametrize(
    ("wrong", "explanation"),
    [
        (reflection, "With other signs it is a reflection"),
        (lambda x, t, omega: x, "pairs are adjacent"),
        (halves, "pairs are adjacent"),
        (scale_by_position, "A rotation preserves norms"),
        (two_plus_signs, "A rotation preserves norms"),
        (lambda x, t, omega: x.roll(t), "depend on m - n only|pairs are adjacent"),
        (clockwise, "the rotation is by +t omega"),
        (lambda x, t, omega: x * math.nan, "A rotation preserves norms"),
    ],
)
def test_wrong_answers_fail_with_an_explanation(lab, wrong, explanation):
    checks = [check for check in lab.exercise.grade(wrong) if not check.passed]
    assert checks
    assert any(part in check.message for check in checks for part in explanation.split("|"))
    assert "dimension" in checks[0].message


def test_one_factor_for_all_queries_is_detected(lab, monkeypatch):
    """Dynamic NTK by the longest query: what a query sees would change as the text grows."""
    by_length = Rotary.further_rotations

    def for_all(self, keys):
        return [(0, rotate) for _, rotate in by_length(self, keys)[-1:]]

    monkeypatch.setattr(Rotary, "further_rotations", for_all)
    names = [check.name for check in lab.run().law if not check.passed]
    assert any("causal score" in name for name in names)
