"""Sinusoids: a shifted place, another frequency or a lost phase is noticed."""

import math

import pytest
import torch

from regard.attention import POSITIONS
from regard.attention.positions import Sinusoidal


class Jump(Sinusoidal):
    """One place is left out."""

    def embed(self, x, at):
        return super().embed(x, at + (at > 20).long())


class Slow(Sinusoidal):
    """Waves that all go a little slower than the formula says."""

    def __init__(self, *sizes, **options):
        super().__init__(*sizes, **options)
        self.omega *= 0.9


class Sines(Sinusoidal):
    """Two sines a pair."""

    def embed(self, x, at):
        waves = super().embed(torch.zeros_like(x), at)[..., ::2]
        return x + waves.repeat_interleave(2, dim=-1)


def failed(result):
    return " ".join(check.name for check in result.checks if not check.passed)


def test_the_closed_form(lab):
    found = lab.run(width=6, length=13, shift=3).figures
    omegas = [10_000 ** (-i / 3) for i in range(3)]
    for distance, product in zip(found["distances"], found["most_products"], strict=True):
        assert product == pytest.approx(sum(math.cos(distance * w) for w in omegas), abs=1e-5)
    assert found["angles"] == pytest.approx([3 * w for w in omegas], rel=1e-6)


def test_a_place_that_is_left_out_is_noticed(lab, monkeypatch):
    monkeypatch.setitem(POSITIONS, "sinusoidal", Jump)
    names = failed(lab.run())
    assert "PE(t + k) - R_k PE(t)" in names
    assert "spread of PE(s) . PE(t)" in names


def test_other_frequencies_are_noticed(lab, monkeypatch):
    monkeypatch.setitem(POSITIONS, "sinusoidal", Slow)
    assert failed(lab.run()) == "largest relative difference of omega_i from base^(-2i / D)"


def test_a_pair_without_a_cosine_is_noticed(lab, monkeypatch):
    monkeypatch.setitem(POSITIONS, "sinusoidal", Sines)
    assert "spread of PE(s) . PE(t)" in failed(lab.run())


def test_another_right_answer(lab):
    def shift(k, width, base):
        whole = torch.zeros(width, width, dtype=torch.float64)
        for i in range(0, width, 2):
            whole[i, i + 1], whole[i + 1, i] = base ** (-i / width), -(base ** (-i / width))
        return torch.matrix_exp(k * whole)

    assert all(remark.passed for remark in lab.exercise.grade(shift))


@pytest.mark.parametrize(
    "change",
    [
        lambda right: right.T,
        lambda right: 2 * right,
        lambda right: torch.eye(len(right), dtype=torch.float64),
        lambda right: right.flip(0),
    ],
)
def test_wrong_answers_fail_with_a_word_of_why(lab, change):
    def wrong(*given):
        return change(lab.exercise.solution(*given))

    remarks = [remark for remark in lab.exercise.grade(wrong) if not remark.passed]
    assert remarks
    assert "k omega_i" in remarks[0].message
    assert "k = 1, width = 2" in remarks[0].message
