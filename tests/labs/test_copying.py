"""Copying: the checks fail for another score, and the worksheet is graded."""

import pytest
import torch

from regard import UserError
from regard.attention import SCORES
from regard.labs.copying import query


@pytest.mark.parametrize("beta", [0, 3.5, 20])
def test_closed_form(lab, beta):
    figures = lab.run(beta=beta, keys=7, width=11).figures
    assert figures["alpha"] == pytest.approx(
        torch.tensor(beta).exp() / (torch.tensor(beta).exp() + 6)
    )


def test_scaled_score_is_detected(lab, monkeypatch):
    monkeypatch.setitem(SCORES, "dot", SCORES["scaled-dot"])
    result = lab.run()
    assert not result.passed
    assert not result.checks[0].passed


def test_more_keys_than_dimensions(lab):
    with pytest.raises(UserError, match="12 orthonormal keys need a width of 12 or more, not 11"):
        lab.run(keys=12, width=11)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda keys, j, beta: beta * keys[0],
        lambda keys, j, beta: keys[j],
        lambda keys, j, beta: beta * (keys[j] + 0.1 * keys[j - 1]),
        lambda keys, j, beta: -query(keys, j, beta),
    ],
)
def test_wrong_answers_fail_with_an_explanation(lab, wrong):
    failed = [check for check in lab.exercise.grade(wrong) if not check.passed]
    assert failed
    assert "orthonormal keys of dimension" in failed[0].message
    assert "dot product" in failed[0].message or "e^beta" in failed[0].message
