"""Multi-head: how much steadier two heads are, when they fail, and that sharing a head is noticed."""

import math
from statistics import NormalDist

import pytest
import torch

from regard.attention import SCORES, heads
from regard.labs.averaging import query
from regard.labs.noisy_heads import average_heads, queries
from regard.labs.single_query import dot_product_attention


def failed(result):
    return [number for number, check in enumerate(result.checks) if not check.passed]


def test_the_mean_of_heads_is_the_mean_of_look_ups():
    generator = torch.Generator().manual_seed(0)
    keys = torch.randn(3, 5, 7, dtype=torch.float64, generator=generator)
    values = torch.randn(5, 7, dtype=torch.float64, generator=generator)
    asked = torch.randn(2, 7, dtype=torch.float64, generator=generator)
    found = average_heads(asked, keys, values)
    assert torch.allclose(found, sum(dot_product_attention(q, keys, values)[0] for q in asked) / 2)


def test_two_heads_are_steadier(lab):
    found = lab.run().figures
    assert found["variance_ratio"] < 0.01
    assert found["variances"][0][1] / found["variances"][0][0] == found["variance_ratio"]
    assert found["variance_ratios"][2] < 0.2  # though key a is lost now and then


@pytest.mark.parametrize("margin", [0, 2.5])
def test_how_often_the_condition_fails(lab, margin):
    found = lab.run(beta=8, sigma=0.4, keys=7, margin=margin).figures
    least = (math.log(6) + margin) / 8
    either = 1 - (1 - NormalDist(1, 0.4).cdf(least)) ** 2
    stretched = NormalDist(1, math.sqrt(0.5)).cdf(least)
    assert found["failing_laws"] == pytest.approx([either, 0, stretched], abs=1e-5)
    assert found["failing"] == pytest.approx([either, 0, stretched], abs=0.03)


def test_heads_that_share_a_query_are_noticed(lab, monkeypatch):
    folded = heads.folded
    monkeypatch.setattr(heads, "folded", lambda x, groups: folded(x[:, :1].expand_as(x), groups))
    assert failed(lab.run()) == [0, 1, 2, 3]


def test_heads_that_swing_are_noticed(lab, monkeypatch):
    folded = heads.folded
    monkeypatch.setattr(
        heads, "folded", lambda x, groups: folded(x.sum(1, keepdim=True).expand_as(x), groups)
    )
    assert failed(lab.run()) == [0, 1, 2, 3]


def test_a_scaled_score_is_noticed(lab, monkeypatch):
    monkeypatch.setitem(SCORES, "dot", SCORES["scaled-dot"])
    assert {0, 1, 2, 3} <= set(failed(lab.run()))


def test_no_draw_may_meet_the_condition(lab):
    assert lab.run(beta=1, sigma=0.01, margin=10, draws=1000).passed


def _both(means, a, b, beta):
    return query(means, a, b, beta).repeat(2, 1)


@pytest.mark.parametrize(
    "wrong",
    [
        _both,
        lambda means, a, b, beta: queries(means, a, a, beta),
        lambda means, a, b, beta: queries(means, a, b, 1),
        lambda means, a, b, beta: torch.stack([beta * means[a], query(means, a, b, beta)]),
        lambda means, a, b, beta: queries(means, a, b, beta) + beta * means[:2],
    ],
)
def test_wrong_answers_fail_with_a_word_of_why(lab, wrong):
    remarks = [remark for remark in lab.exercise.grade(wrong) if not remark.passed]
    assert "A head that looks at both goes to the longer one" in remarks[0].message
    assert "m = " in remarks[0].message


@pytest.mark.parametrize(
    "right",
    [
        lambda means, a, b, beta: queries(means, b, a, beta),
        lambda means, a, b, beta: queries(means, a, b, 2 * beta),
        lambda means, a, b, beta: queries(means, a, b, 2 * beta) - beta * means[[b, a]],
    ],
)
def test_other_right_answers_pass(lab, right):
    assert all(remark.passed for remark in lab.exercise.grade(right))
