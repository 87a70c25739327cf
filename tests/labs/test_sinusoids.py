"""Sinusoids: a skipped position, another frequency or a missing cosine is detected."""

import math

import pytest
import torch

from regard.attention import POSITIONS
from regard.attention.positions import Sinusoidal


class SkippedPosition(Sinusoidal):
    """Skips one position."""

    def embed(self, x, position_ids):
        return super().embed(x, position_ids + (position_ids > 20).long())


class LowerFrequencies(Sinusoidal):
    """Frequencies lower than the formula."""

    def __init__(self, *sizes, **options):
        super().__init__(*sizes, **options)
        self.omega *= 0.9


class SinesOnly(Sinusoidal):
    """Pairs of two sines."""

    def embed(self, x, position_ids):
        sines = super().embed(torch.zeros_like(x), position_ids)[..., ::2]
        return x + sines.repeat_interleave(2, dim=-1)


def failed(result):
    return " ".join(check.name for check in result.checks if not check.passed)


def test_closed_form(lab):
    figures = lab.run(d_model=6, length=13, shift=3).figures
    omegas = [10_000 ** (-i / 3) for i in range(3)]
    for distance, product in zip(figures["distances"], figures["max_products"], strict=True):
        assert product == pytest.approx(sum(math.cos(distance * w) for w in omegas), abs=1e-5)
    assert figures["angles"] == pytest.approx([3 * w for w in omegas], rel=1e-6)


def test_skipped_position_is_detected(lab, monkeypatch):
    monkeypatch.setitem(POSITIONS, "sinusoidal", SkippedPosition)
    names = failed(lab.run())
    assert "PE(t + k) - R_k PE(t)" in names
    assert "spread of PE(s) . PE(t)" in names


def test_other_frequencies_are_detected(lab, monkeypatch):
    monkeypatch.setitem(POSITIONS, "sinusoidal", LowerFrequencies)
    assert failed(lab.run()) == "largest relative difference of omega_i from base^(-2i / D)"


def test_pair_without_a_cosine_is_detected(lab, monkeypatch):
    monkeypatch.setitem(POSITIONS, "sinusoidal", SinesOnly)
    assert "spread of PE(s) . PE(t)" in failed(lab.run())


def test_scores_come_from_an_attention_head(lab, monkeypatch):
    """A head that ignores the embedding's positions has equal scores at every distance."""
    monkeypatch.setattr(
        "regard.labs.sinusoids.ScoringHead", lambda *_: lambda q, *rest: torch.zeros(len(q), len(q))
    )
    assert "difference of PE(s) . PE(t)" in failed(lab.run())


def test_no_shift_rotates_nothing(lab):
    result = lab.run(shift=0)
    assert result.law_holds
    assert failed(result) == "smallest |PE(t + k) - PE(t)| / |PE(t)|, over all t"
    lab.plot(result).canvas.draw()


def test_equivalent_answer_passes(lab):
    def shift(k, d_model, base):
        generator = torch.zeros(d_model, d_model, dtype=torch.float64)
        for i in range(0, d_model, 2):
            generator[i, i + 1], generator[i + 1, i] = (
                base ** (-i / d_model),
                -(base ** (-i / d_model)),
            )
        return torch.matrix_exp(k * generator)

    assert all(check.passed for check in lab.exercise.grade(shift))


@pytest.mark.parametrize(
    "change",
    [
        lambda right: right.T,
        lambda right: 2 * right,
        lambda right: torch.eye(len(right), dtype=torch.float64),
        lambda right: right.flip(0),
        lambda right: right * math.nan,
    ],
)
def test_wrong_answers_fail_with_an_explanation(lab, change):
    def wrong(*arguments):
        return change(lab.exercise.solution(*arguments))

    checks = [check for check in lab.exercise.grade(wrong) if not check.passed]
    assert checks
    assert "k omega_i" in checks[0].message
    assert "k = 1, d_model = 2" in checks[0].message
