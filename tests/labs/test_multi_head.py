"""Multi-head: the variance of two heads, the failure rate, and the failures that the checks detect."""

import math
from statistics import NormalDist

import pytest
import torch

from regard.attention import SCORES, heads
from regard.labs.averaging import query
from regard.labs.measurements import noisy_heads
from regard.labs.measurements.noisy_heads import average_heads, queries
from regard.labs.measurements.single_query import dot_product_attention


def failed(result):
    return [i for i, check in enumerate(result.law) if not check.passed]


def test_mean_of_heads_is_the_mean_of_lookups():
    generator = torch.Generator().manual_seed(0)
    keys = torch.randn(3, 5, 7, dtype=torch.float64, generator=generator)
    values = torch.randn(5, 7, dtype=torch.float64, generator=generator)
    head_queries = torch.randn(2, 7, dtype=torch.float64, generator=generator)
    output = average_heads(head_queries[None], keys, values)
    assert torch.allclose(
        output, sum(dot_product_attention(q, keys, values)[0] for q in head_queries) / 2
    )


@pytest.mark.parametrize("scaled", [False, True])
def test_mean_of_heads_whose_queries_differ_by_draw(scaled):
    generator = torch.Generator().manual_seed(0)
    keys = torch.randn(3, 5, 7, dtype=torch.float64, generator=generator)
    values = torch.randn(5, 7, dtype=torch.float64, generator=generator)
    head_queries = torch.randn(3, 2, 7, dtype=torch.float64, generator=generator)
    output = average_heads(head_queries, keys, values, scaled)
    for draw in range(3):
        lookups = [dot_product_attention(q, keys[draw], values, scaled) for q in head_queries[draw]]
        assert torch.allclose(output[draw], sum(a for a, _ in lookups) / 2)


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
    root = math.sqrt(critical)  # of lambda^2, if the queries are made from the noisy keys
    inside = NormalDist(1, 0.4).cdf(root) - NormalDist(1, 0.4).cdf(-root)
    expected = [either, 0, stretched, 1 - (1 - inside) ** 2]
    assert figures["failure_probabilities"] == pytest.approx(expected, abs=1e-5)
    assert figures["failure_rates"] == pytest.approx(expected, abs=0.03)


def test_heads_that_share_a_query_are_detected(lab, monkeypatch):
    fold_groups = heads.fold_groups
    monkeypatch.setattr(
        heads, "fold_groups", lambda x, groups: fold_groups(x[:, :1].expand_as(x), groups)
    )
    assert failed(lab.run()) == [0, 1, 2, 3, 4, 5, 6, 7, 12, 13]


def test_heads_that_attend_to_both_keys_are_detected(lab, monkeypatch):
    fold_groups = heads.fold_groups
    monkeypatch.setattr(
        heads,
        "fold_groups",
        lambda x, groups: fold_groups(x.sum(1, keepdim=True).expand_as(x), groups),
    )
    assert failed(lab.run()) == [0, 1, 2, 3, 4, 5, 6, 7, 12, 13]


def test_scaled_score_is_detected(lab, monkeypatch):
    monkeypatch.setitem(SCORES, "dot", SCORES["scaled-dot"])
    assert {0, 1, 2, 3, 4, 6} <= set(failed(lab.run(beta=12)))


def test_unscaled_score_is_detected_where_it_should_be_scaled(lab, monkeypatch):
    monkeypatch.setattr(
        noisy_heads, "make_score", lambda width, scaled: SCORES["dot"](width, width)
    )
    assert lab.run(beta=38).law_holds
    assert {0, 2, 4, 6} <= set(failed(lab.run(beta=38, scaled=True)))


def test_scaled_scores_need_queries_sqrt_d_times_as_long(lab):
    short, long = (lab.run(keys=4, scaled=True, beta=beta) for beta in (10, 50))
    assert short.law_holds
    assert not short.effect_is_present
    assert long.passed
    same = lab.run(keys=4, beta=25)
    assert long.figures["failure_rates"] == same.figures["failure_rates"]


def test_bound_over_no_draw_never_passes(lab):
    result = lab.run(beta=1)
    assert result.law_holds
    assert not any(check.passed for check in result.effect)
    assert all("There is no case to measure" in result.effect[i].message for i in (3, 7, 11))


def test_two_heads_that_fail_in_a_third_of_the_draws(lab):
    result = lab.run(sigma=1, beta=50)
    assert result.law_holds
    assert [check.passed for check in result.effect[:4]] == [True, False, False, True]
    assert result.effect[2].measured == pytest.approx(0.31, abs=0.01)
    assert result.figures["failure_rates"][0] == pytest.approx(0.34, abs=0.01)


@pytest.mark.parametrize("seed", range(5))
def test_two_heads_help_under_each_noise_that_one_head_cannot_average(lab, seed):
    result = lab.run(seed=seed)
    assert result.passed
    assert [
        sum(f"({name})" in check.name for check in result.effect)
        for name in result.figures["noises"]
    ] == [4, 0, 4, 4]


def test_noise_under_which_two_heads_fail_too_often_is_judged(lab):
    result = lab.run(beta=12)
    assert result.law_holds
    (absent,) = (check for check in result.effect if not check.passed)
    assert "two heads far from (v_a + v_b) / 2 (key a stretched)" in absent.name
    assert absent.measured == pytest.approx(0.12, abs=0.01)


def test_effect_does_not_depend_on_the_margin(lab):
    narrow, wide = lab.run(margin=0), lab.run(margin=10)
    assert narrow.effect == wide.effect
    assert narrow.passed
    assert wide.passed
    assert wide.figures["failure_rates"][0] > narrow.figures["failure_rates"][0]


def test_one_head_that_does_not_swing_leaves_nothing_to_improve(lab):
    result = lab.run(sigma=0.01)
    assert result.law_holds
    assert [check.passed for check in result.effect[:4]] == [False, True, True, True]


def test_nan_in_one_draw_is_detected(lab, monkeypatch):
    def nan_in_the_last_draw(*args):
        output = average_heads(*args)
        output[-1] = torch.nan
        return output

    monkeypatch.setattr(noisy_heads, "average_heads", nan_in_the_last_draw)
    assert failed(lab.run(draws=1000)) == [0, 1, 2, 3, 4, 5, 6, 7, 12, 13]


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
        lambda means, a, b, beta: queries(means, a, b, 1e6 * beta),
        lambda means, a, b, beta: queries(means, a, b, 2 * beta),
        lambda means, a, b, beta: queries(means, a, b, 2 * beta) - beta * means[[b, a]],
        lambda means, a, b, beta: queries(means, a, b, beta) * math.nan,
    ],
)
def test_wrong_answers_fail_with_an_explanation(lab, wrong):
    checks = [check for check in lab.exercise.grade(wrong) if not check.passed]
    assert "A head that attends to both keys selects the longer one" in checks[0].message
    assert "m = " in checks[0].message


def orthogonal_to_the_keys(means):
    return torch.linalg.svd(means).Vh[-1]


@pytest.mark.parametrize(
    "right",
    [
        lambda means, a, b, beta: queries(means, b, a, beta),
        lambda means, a, b, beta: queries(means, a, b, beta) + orthogonal_to_the_keys(means),
    ],
)
def test_equivalent_answers_pass(lab, right):
    assert all(check.passed for check in lab.exercise.grade(right))


@pytest.mark.parametrize(
    ("factor", "explanation"),
    [(1, "query is sqrt(d) times too large"), (-1, "query lacks a factor sqrt(d)")],
)
def test_answer_for_scaled_scores_is_explained(lab, factor, explanation):
    def with_root(means, a, b, beta):
        return queries(means, b, a, beta) * means.shape[1] ** (factor / 2)

    checks = [check for check in lab.exercise.grade(with_root) if not check.passed]
    assert explanation in checks[0].message
