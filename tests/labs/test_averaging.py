"""Averaging: the two equal weights, the unit-length query, and the failures that the checks detect."""

import math

import pytest
import torch

from regard.attention import SCORES
from regard.labs.averaging import query, unit_query


@pytest.mark.parametrize("beta", [0, 2.5, 20])
def test_closed_form(lab, beta):
    figures = lab.run(beta=beta, keys=7, width=11).figures
    assert figures["alpha"] == pytest.approx(math.exp(beta) / (2 * math.exp(beta) + 5))


def test_unit_length_query_gives_a_sixth(lab):
    figures = lab.run().figures
    assert figures["unit_alpha"] == pytest.approx(0.168, abs=5e-4)
    assert figures["alpha"] == pytest.approx(0.5, abs=1e-4)
    assert figures["unit_error"] > 1000 * figures["error"]


def test_scaled_score_is_detected(lab, monkeypatch):
    monkeypatch.setitem(SCORES, "dot", SCORES["scaled-dot"])
    assert [check.passed for check in lab.run().checks] == [False] * 4 + [True]


def test_score_biased_to_one_key_is_detected(lab, monkeypatch):
    class BiasedScore(SCORES["dot"]):
        def forward(self, query, keys):
            scores = super().forward(query, keys)
            return torch.where(scores == scores.amax(-1, keepdim=True), scores + 0.1, scores)

    monkeypatch.setitem(SCORES, "dot", BiasedScore)
    assert not lab.run().checks[0].passed


def test_unit_length_query_is_enough_for_two_keys(lab):
    result = lab.run(keys=2, width=2)
    assert result.law_holds
    assert [check.passed for check in result.effect] == [True, False]
    assert "the unit-length query averages as well" in result.effect[1].message
    assert result.figures["unit_alpha"] == pytest.approx(0.5)
    lab.plot(result).canvas.draw()


def test_short_query_does_not_average(lab):
    result = lab.run(beta=1)
    assert result.law_holds
    assert [check.passed for check in result.effect] == [False, True]


@pytest.mark.parametrize(("beta", "present"), [(12, False), (12 * 8, True)])
def test_scaled_scores_need_a_query_sqrt_d_times_as_long(lab, beta, present):
    result = lab.run(beta=beta, width=64, scaled=True)
    assert result.law_holds
    assert result.effect_is_present is present
    assert result.figures["alpha"] == pytest.approx(lab.run(beta=beta / 8).figures["alpha"])
    lab.plot(result).canvas.draw()


@pytest.mark.parametrize(
    ("wrong", "explanation"),
    [
        (lambda keys, a, b, beta: unit_query(keys, a, b), "only q . k_a = 1 / sqrt(2)"),
        (lambda keys, a, b, beta: beta * unit_query(keys, a, b), "e^beta / (2 e^beta + m - 2)"),
        (lambda keys, a, b, beta: beta * keys[a], "equal weights"),
        (lambda keys, a, b, beta: beta * (keys[a] + 0.9 * keys[b]), "equal weights"),
    ],
)
def test_wrong_answers_fail_with_an_explanation(lab, wrong, explanation):
    failed = [check for check in lab.exercise.grade(wrong) if not check.passed]
    assert explanation in failed[0].message
    assert "orthonormal keys of dimension" in failed[0].message


def test_equivalent_answer_passes(lab):
    """A constant added to every score leaves the softmax unchanged."""
    checks = lab.exercise.grade(lambda keys, a, b, beta: query(keys, a, b, beta) + keys.sum(0))
    assert all(check.passed for check in checks)


def test_answer_for_scaled_scores_is_explained(lab):
    def with_root(keys, a, b, beta):
        return query(keys, a, b, beta) * math.sqrt(keys.shape[1])

    failed = [check for check in lab.exercise.grade(with_root) if not check.passed]
    assert "query is sqrt(d) times too large" in failed[0].message
