"""Multi-head: the variance of two heads, the failure rate, and the failures that the checks detect."""

import math
from statistics import NormalDist

import pytest
import torch

from regard.attention import SCORES, heads
from regard.labs.averaging import query
from regard.labs.noisy_heads import average_heads, queries
from regard.labs.single_query import dot_product_attention


def failed(result):
    return [i for i, check in enumerate(result.checks) if not check.passed]


def test_mean_of_heads_is_the_mean_of_lookups():
    generator = torch.Generator().manual_seed(0)
    keys = torch.randn(3, 5, 7, dtype=torch.float64, generator=generator)
    values = torch.randn(5, 7, dtype=torch.float64, generator=generator)
    head_queries = torch.randn(2, 7, dtype=torch.float64, generator=generator)
    output = average_heads(head_queries, keys, values)
    assert torch.allclose(
        output, sum(dot_product_attention(q, keys, values)[0] for q in head_queries) / 2
    )


def test_two_heads_have_lower_variance(lab):
    figures = lab.run().figures
    assert figures["variance_ratio"] < 0.01
    assert figures["variances"][0][1] / figures["variances"][0][0] == figures["variance_ratio"]
    assert figures["variance_ratios"][2] < 0.2  # although key a is sometimes missed


@pytest.mark.parametrize("margin", [0, 2.5])
def test_failure_rate(lab, margin):
    figures = lab.run(beta=8, sigma=0.4, keys=7, margin=margin).figures
    critical = (math.log(6) + margin) / 8
    either = 1 - (1 - NormalDist(1, 0.4).cdf(critical)) ** 2
    stretched = NormalDist(1, math.sqrt(0.5)).cdf(critical)
    assert figures["failure_probabilities"] == pytest.approx([either, 0, stretched], abs=1e-5)
    assert figures["failure_rates"] == pytest.approx([either, 0, stretched], abs=0.03)


def test_heads_that_share_a_query_are_detected(lab, monkeypatch):
    fold_groups = heads.fold_groups
    monkeypatch.setattr(
        heads, "fold_groups", lambda x, groups: fold_groups(x[:, :1].expand_as(x), groups)
    )
    assert failed(lab.run()) == [0, 1, 2, 3]


def test_heads_that_attend_to_both_keys_are_detected(lab, monkeypatch):
    fold_groups = heads.fold_groups
    monkeypatch.setattr(
        heads,
        "fold_groups",
        lambda x, groups: fold_groups(x.sum(1, keepdim=True).expand_as(x), groups),
    )
    assert failed(lab.run()) == [0, 1, 2, 3]


def test_scaled_score_is_detected(lab, monkeypatch):
    monkeypatch.setitem(SCORES, "dot", SCORES["scaled-dot"])
    assert {0, 1, 2, 3} <= set(failed(lab.run()))


def test_no_draw_needs_to_meet_the_condition(lab):
    assert lab.run(beta=1, sigma=0.01, margin=10, draws=1000).passed


def both_keys(means, a, b, beta):
    return query(means, a, b, beta).repeat(2, 1)


@pytest.mark.parametrize(
    "wrong",
    [
        both_keys,
        lambda means, a, b, beta: queries(means, a, a, beta),
        lambda means, a, b, beta: queries(means, a, b, 1),
        lambda means, a, b, beta: torch.stack([beta * means[a], query(means, a, b, beta)]),
        lambda means, a, b, beta: queries(means, a, b, beta) + beta * means[:2],
    ],
)
def test_wrong_answers_fail_with_an_explanation(lab, wrong):
    checks = [check for check in lab.exercise.grade(wrong) if not check.passed]
    assert "A head that attends to both keys selects the longer one" in checks[0].message
    assert "m = " in checks[0].message


@pytest.mark.parametrize(
    "right",
    [
        lambda means, a, b, beta: queries(means, b, a, beta),
        lambda means, a, b, beta: queries(means, a, b, 2 * beta),
        lambda means, a, b, beta: queries(means, a, b, 2 * beta) - beta * means[[b, a]],
    ],
)
def test_equivalent_answers_pass(lab, right):
    assert all(check.passed for check in lab.exercise.grade(right))
