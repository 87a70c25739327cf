"""Copying: the checks fail for another score, and the worksheet is graded."""

import pytest
import torch

from regard import UserError
from regard.attention import SCORES
from regard.labs.copying import query
from regard.labs.measurements import single_query


@pytest.mark.parametrize("beta", [0, 3.5, 20])
def test_closed_form(lab, beta):
    figures = lab.run(beta=beta, keys=7, width=11).figures
    assert figures["alpha"] == pytest.approx(
        torch.tensor(beta).exp() / (torch.tensor(beta).exp() + 6)
    )


def test_scaled_score_is_detected(lab, monkeypatch):
    monkeypatch.setitem(SCORES, "dot", SCORES["scaled-dot"])
    result = lab.run()
    assert not any(check.passed for check in result.checks)


def test_unscaled_score_is_detected_where_it_should_be_scaled(lab, monkeypatch):
    monkeypatch.setitem(SCORES, "scaled-dot", SCORES["dot"])
    assert not lab.run(scaled=True).law_holds


@pytest.mark.parametrize(("beta", "present"), [(12, False), (12 * 8, True)])
def test_scaled_scores_need_a_query_sqrt_d_times_as_long(lab, beta, present):
    result = lab.run(beta=beta, width=64, scaled=True)
    assert result.law_holds
    assert result.effect_is_present is present
    same = lab.run(beta=beta / 8, width=64)
    assert result.figures["alphas"] == pytest.approx(same.figures["alphas"])


def test_nothing_is_copied_at_beta_0(lab):
    result = lab.run(beta=0)
    assert result.law_holds
    assert not result.effect_is_present
    assert "v_j has only 10% of the weight" in result.effect[0].message


def test_two_thirds_of_the_weight_are_no_copy(lab):
    result = lab.run(keys=512, width=512, beta=7, seed=11)
    assert result.law_holds
    assert [check.passed for check in result.effect] == [False, True]
    assert result.effect[0].measured == pytest.approx(0.68, abs=0.01)


def test_output_beyond_its_bound_is_detected(lab, monkeypatch):
    attend = single_query.attend

    def away_from_the_values(scores, values):
        output, weights = attend(scores, values)
        return 3 * output, weights

    monkeypatch.setattr(single_query, "attend", away_from_the_values)
    assert [check.passed for check in lab.run().checks] == [True, False, True, False]


def test_nan_is_detected_at_any_beta(lab, monkeypatch):
    attend, calls = single_query.attend, []

    def nan_once(scores, values):
        calls.append(scores)
        output, weights = attend(scores, values)
        return (output, weights) if len(calls) != 7 else (output * torch.nan, weights * torch.nan)

    monkeypatch.setattr(single_query, "attend", nan_once)
    assert [check.passed for check in lab.run().law] == [False, False]


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


@pytest.mark.parametrize(
    ("factor", "explanation"),
    [(1, "query is sqrt(d) times too large"), (-1, "query lacks a factor sqrt(d)")],
)
def test_answer_for_scaled_scores_is_explained(lab, factor, explanation):
    def with_root(keys, j, beta):
        return query(keys, j, beta) * keys.shape[1] ** (factor / 2) + keys.sum(0)

    failed = [check for check in lab.exercise.grade(with_root) if not check.passed]
    assert explanation in failed[0].message
    assert "here scores are q . k, not q . k / sqrt(d)" in failed[0].message
