"""Averaging: two equal weights, the query that is too short, and what is noticed when it breaks."""

import math

import pytest
import torch

from regard.attention import SCORES
from regard.labs.averaging import query, unit_query


@pytest.mark.parametrize("beta", [0, 2.5, 20])
def test_the_closed_form(lab, beta):
    found = lab.run(beta=beta, keys=7, width=11).figures
    assert found["alpha"] == pytest.approx(math.exp(beta) / (2 * math.exp(beta) + 5))


def test_the_unit_length_query_keeps_a_sixth(lab):
    found = lab.run().figures
    assert found["unit_length"] == pytest.approx(0.168, abs=5e-4)
    assert found["alpha"] == pytest.approx(0.5, abs=1e-4)
    assert found["unit_length_miss"] > 1000 * found["miss"]


def test_a_scaled_score_is_noticed(lab, monkeypatch):
    monkeypatch.setitem(SCORES, "dot", SCORES["scaled-dot"])
    assert [check.passed for check in lab.run().checks] == [False, False, False]


def test_a_head_that_prefers_one_key_is_noticed(lab, monkeypatch):
    class Leaning(SCORES["dot"]):
        def forward(self, query, keys):
            scores = super().forward(query, keys)
            return torch.where(scores == scores.amax(-1, keepdim=True), scores + 0.1, scores)

    monkeypatch.setitem(SCORES, "dot", Leaning)
    assert not lab.run().checks[0].passed


def test_the_fewest_keys_are_drawn(lab):
    result = lab.run(keys=2, width=2, beta=0)
    assert result.passed
    assert result.figures["unit_length"] == pytest.approx(0.5)
    lab.plot(result).canvas.draw()


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (lambda keys, a, b, beta: unit_query(keys, a, b), "only q . k_a = 1 / sqrt(2)"),
        (lambda keys, a, b, beta: beta * unit_query(keys, a, b), "e^beta / (2 e^beta + m - 2)"),
        (lambda keys, a, b, beta: beta * keys[a], "equal weights"),
        (lambda keys, a, b, beta: beta * (keys[a] + 0.9 * keys[b]), "equal weights"),
    ],
)
def test_wrong_answers_fail_with_a_word_of_why(lab, wrong, why):
    failed = [remark for remark in lab.exercise.grade(wrong) if not remark.passed]
    assert why in failed[0].message
    assert "orthonormal keys of width" in failed[0].message


def test_another_right_answer_passes(lab):
    """One more in every score changes no weight."""
    remarks = lab.exercise.grade(lambda keys, a, b, beta: query(keys, a, b, beta) + keys.sum(0))
    assert all(remark.passed for remark in remarks)
