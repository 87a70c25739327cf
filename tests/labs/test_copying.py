"""Copying: it fails when the look-up is not the law's, and grades what readers write."""

import pytest
import torch

from regard import UserError
from regard.attention import SCORES
from regard.labs.copying import query


@pytest.mark.parametrize("beta", [0, 3.5, 20])
def test_the_closed_form(lab, beta):
    found = lab.run(beta=beta, keys=7, width=11).figures
    assert found["alpha"] == pytest.approx(
        torch.tensor(beta).exp() / (torch.tensor(beta).exp() + 6)
    )


def test_a_scaled_score_is_noticed(lab, monkeypatch):
    monkeypatch.setitem(SCORES, "dot", SCORES["scaled-dot"])
    result = lab.run()
    assert not result.passed
    assert not result.checks[0].passed


def test_more_keys_than_room(lab):
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
def test_wrong_answers_fail_with_a_word_of_why(lab, wrong):
    failed = [remark for remark in lab.exercise.grade(wrong) if not remark.passed]
    assert failed
    assert "orthonormal keys of width" in failed[0].message
    assert "dot product" in failed[0].message or "e^beta" in failed[0].message
