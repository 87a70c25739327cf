"""Relative: every position has its class, and one that behaves like another class is detected."""

import math

import pytest
import torch
from torch import nn

from regard import config
from regard.attention import POSITIONS, Position
from regard.attention.positions import Alibi, Rotary, Sinusoidal
from regard.attention.positions import Relative as RelativePosition
from regard.labs.measurements import shifted_positions
from regard.labs.measurements.shifted_positions import CLASSES, MOVED, OTHER_ORDER, SENTENCE


def failed(result):
    return [check.name for check in result.checks if not check.passed]


def test_every_position_behaves_like_its_class(lab):
    """The lab at its defaults: the deliberate breaks of ALiBi fail here."""
    result = lab.run()
    assert result.passed, [check.message for check in result.checks if not check.passed]
    figures = result.figures
    assert {name.split(",")[0] for name in figures["cases"]} == set(POSITIONS)
    assert {"relative, form=query", "rotary, scaling=yarn"} < set(figures["cases"])
    for kind, change in zip(figures["classes"], figures["shifted"], strict=True):
        if kind == "relative":
            assert change == 0
        else:
            assert (change > 0.01) is (kind == "absolute")


def test_every_position_has_a_class():
    assert set(CLASSES) == set(POSITIONS)


def test_sentences_are_the_same_words():
    words = SENTENCE.split()
    assert [words[i] for i in MOVED] == OTHER_ORDER.split()
    assert sorted(MOVED) == list(range(len(words)))


def test_who_bites_is_lost_without_positions(lab):
    figures = lab.run().figures
    by_case = dict(zip(figures["cases"], figures["reordered"], strict=True))
    assert figures["words"] == ["the", "man", "bites", "the", "dog"]
    assert by_case["none"] == pytest.approx([0] * 5, abs=1e-12)
    assert all(change > 0.001 for change in by_case["sinusoidal"])


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("d_model", [8, 64])
def test_other_models(lab, seed, d_model):
    assert lab.run(seed=seed, d_model=d_model, shift=11).passed


class FlippedAlibi(Alibi):
    """Attends to far tokens."""

    def bias(self, query, query_position_ids, key_position_ids):
        return -super().bias(query, query_position_ids, key_position_ids)


class SteeperAlibi(Alibi):
    """Other slopes."""

    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.slopes *= 1.01


class AbsoluteRelative(RelativePosition):
    """Looks the query's position up, not the distance."""

    def bias(self, query, query_position_ids, key_position_ids):
        return super().bias(query, query_position_ids, 0 * key_position_ids)


class QuadraticRotary(Rotary):
    """Rotates by t^2 omega."""

    def rotate(self, heads, position_ids):
        return super().rotate(heads, position_ids**2)


class ConstantSinusoidal(Sinusoidal):
    """The same at every position."""

    def embed(self, x, position_ids):
        return super().embed(x, 0 * position_ids)


class IndexAdded(Position):
    """x + t"""

    def embed(self, x, position_ids):
        return x * (1 + position_ids[..., None])


@pytest.mark.parametrize(
    ("kind", "faulty", "detected"),
    [
        ("alibi", FlippedAlibi, "ALiBi's log(alpha_ij / alpha_ii)"),
        ("alibi", SteeperAlibi, "ALiBi's log(alpha_ij / alpha_ii)"),
        ("relative", AbsoluteRelative, "largest change of a weight by the shift, relative"),
        ("rotary", QuadraticRotary, "largest change of a weight by the shift, relative, up to"),
        ("sinusoidal", ConstantSinusoidal, "smallest change of a weight by the shift, absolute"),
        ("sinusoidal", ConstantSinusoidal, "smallest change of the most changed word"),
        ("none", IndexAdded, "largest change of a word's vector by the other order, without"),
    ],
)
def test_faulty_position_is_detected(lab, monkeypatch, kind, faulty, detected):
    monkeypatch.setitem(POSITIONS, kind, faulty)
    assert any(detected in name for name in failed(lab.run()))


def test_nan_is_detected(lab, monkeypatch):
    shift = shifted_positions.measure_shift
    changes = iter([0.0] * 3 + [math.nan])  # of the fourth position, which is relative

    def measure(*arguments):
        return shift(*arguments) + next(changes, 0.0)

    monkeypatch.setattr(shifted_positions, "measure_shift", measure)
    assert failed(lab.run()) == ["largest change of a weight by the shift, relative"]


def test_registered_position_is_measured_but_not_judged(lab, monkeypatch):
    class Mine(Position):
        def __init__(self, *sizes):
            super().__init__(*sizes)
            self.scale = nn.Parameter(torch.zeros(()))

    monkeypatch.setitem(POSITIONS, "mine", Mine)
    monkeypatch.setitem(config.EXTENSIONS, "position", {"mine"})
    result = lab.run()
    assert result.passed
    assert result.figures["cases"][-1] == "mine"
    assert result.notes == ["mine is not known to this lab: measured, not judged"]


def test_equivalent_answers_pass(lab):
    def with_constant(query_positions, key_positions, heads):
        return lab.exercise.solution(query_positions, key_positions, heads) + 3

    def by_loops(query_positions, key_positions, heads):
        rows = [[[-abs(int(j) - int(i)) / 2 ** (8 * h / heads) for j in key_positions]
                 for i in query_positions] for h in range(1, heads + 1)]  # fmt: skip
        return torch.tensor(rows, dtype=torch.float64)

    for answer in (with_constant, by_loops):
        assert all(check.passed for check in lab.exercise.grade(answer))


@pytest.mark.parametrize(
    ("change", "explanation"),
    [
        (lambda bias, queries, keys: -bias, "a bias is a penalty"),
        (lambda bias, queries, keys: bias.flip(0), "heads numbered h = 1 .. H"),
        (lambda bias, queries, keys: 2 * bias, "every token of distance"),
        (lambda bias, queries, keys: bias * queries[:, None], "Only the difference"),
        (lambda bias, queries, keys: bias.sqrt(), "a bias is a penalty"),  # NaN
        (lambda bias, queries, keys: 0 * bias, "every token of distance"),
        (
            lambda bias, queries, keys: bias.masked_fill(keys > queries[:, None], 0),
            "in both directions",
        ),
        (
            lambda bias, queries, keys: -(queries - queries[:, None]).abs()[:, :1] + 0 * bias,
            "every token of distance",  # ignores the keys
        ),
    ],
)
def test_wrong_answers_fail_with_an_explanation(lab, change, explanation):
    def wrong(queries, keys, heads):
        return change(lab.exercise.solution(queries, keys, heads), queries, keys)

    messages = [check.message for check in lab.exercise.grade(wrong) if not check.passed]
    assert any(explanation in message and "queries at [" in message for message in messages)
