"""Polynomial: the degrees inside and outside the softmax, and the failures that the checks detect."""

import itertools
import math

import pytest
import torch
from torch import nn

from regard.attention import NORMALISERS, SCORES
from regard.attention.scores import ScaledDot
from regard.labs.measurements import layer_parts
from regard.labs.measurements.layer_parts import FeedForwardTest, SelfAttention
from regard.labs.polynomial import entropy, fit_degree, scaled_output
from regard.linear import LinearBackend
from regard.models.layers import FEED_FORWARDS


def failed(checks):
    return [i for i, check in enumerate(checks) if not check.passed]


def test_figures(lab):
    result = lab.run()
    figures, entropies = result.figures, result.figures["entropies"]
    assert entropies == pytest.approx(figures["expected_entropies"])
    assert all(late < early for early, late in itertools.pairwise(entropies))
    assert 0 < entropies[-1] < entropies[0] < figures["uniform_entropy"]
    assert figures["feed_forwards"] == list(FEED_FORWARDS)


def test_parts_equal_formulas_written_out():
    attention, x = SelfAttention(12, 3), torch.randn(5, 12, dtype=torch.float64)
    with torch.no_grad():
        q = x @ attention.layer.query.weight.T
        k, v = (x @ attention.layer.key_value.weight.T).chunk(2, dim=1)
    for head in range(3):
        part = slice(4 * head, 4 * head + 4)
        scores = q[:, part] @ k[:, part].T / 2
        torch.testing.assert_close(attention.scores(x)[head], scores)
        torch.testing.assert_close(attention.quadratic_form(x)[head], scores)
        torch.testing.assert_close(attention.weights(x)[head], scores.softmax(1))
        torch.testing.assert_close(attention.values(x)[head], v[:, part])
    contexts = attention.weights(x) @ attention.values(x)
    torch.testing.assert_close(attention.project(contexts), attention.output(x))


def test_degree_and_entropy():
    assert fit_degree([1, 2, 4], [3, 24, 192]) == pytest.approx(3)
    assert entropy(torch.full((2, 3, 5), 0.2)) == pytest.approx(math.log(5))
    assert entropy(torch.eye(3)[None]) == 0


@pytest.mark.parametrize("scale", [0.1, 1, 1.5])
def test_effect_needs_a_large_input(lab, scale):
    result = lab.run(scale=scale)
    assert result.law_holds
    assert 0 in failed(result.effect)
    assert "not large enough to sharpen" in result.effect[0].message


class CubicScore(ScaledDot):
    def forward(self, query, keys):
        return super().forward(query, keys) * query.norm(dim=-1, keepdim=True)


class SaturatingScore(ScaledDot):
    def forward(self, query, keys):
        return torch.tanh(super().forward(query, keys))


class ShiftedScore(ScaledDot):
    """Quadratic, but not homogeneous."""

    def forward(self, query, keys):
        return super().forward(query + 1, keys)


@pytest.mark.parametrize(
    ("score", "checks"),
    [
        (CubicScore, [0, 1, 2, 4, 5]),
        (SaturatingScore, [0, 1, 2, 4, 5]),
        (ShiftedScore, [0, 4, 5]),
        (SCORES["dot"], [2]),
        (SCORES["mean"], [0, 1, 2, 5]),
    ],
)
def test_other_scores_are_detected(lab, monkeypatch, score, checks):
    monkeypatch.setitem(SCORES, "scaled-dot", score)
    assert failed(lab.run().law) == checks


def test_output_that_is_not_linear_is_detected(lab, monkeypatch):
    call = LinearBackend.__call__
    monkeypatch.setattr(
        LinearBackend,
        "__call__",
        lambda self, x, weight, bias=None: call(self, x, weight, bias) + 0.01 * (x * x).mean(),
    )
    assert {0, 3, 4, 6} <= set(failed(lab.run().law))


def test_scores_replaced_by_nan_are_detected(lab, monkeypatch):
    none = NORMALISERS["none"]

    def nan_in_one_place(scores):
        scores = none(scores).clone()
        scores[..., -1, -1] = torch.nan
        return scores

    monkeypatch.setitem(NORMALISERS, "none", nan_in_one_place)
    assert {0, 1, 2, 4, 5} <= set(failed(lab.run().law))


class WithFeedForward(nn.Module):
    """A function of [batch length d_model] in place of a feed-forward network."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


@pytest.mark.parametrize(
    ("function", "law", "effect"),
    [
        (lambda x: x + x.mean(1, keepdim=True), [8], []),  # equivariant, but mixes tokens
        (lambda x: x + torch.arange(x.shape[1])[:, None], [7], []),  # depends on the position
        (lambda x: x.cumsum(1), [7, 8], []),  # sees the tokens before
        (torch.ones_like, [], [2]),  # ignores its input
        (torch.relu, [], []),
    ],
)
def test_feed_forward_that_mixes_or_orders_tokens_is_detected(
    lab, monkeypatch, function, law, effect
):
    monkeypatch.setitem(FEED_FORWARDS, "gelu", lambda *_: WithFeedForward(function))
    result = lab.run()
    assert (failed(result.law), failed(result.effect)) == (law, effect)


def test_every_feed_forward_of_the_library_is_tested(lab, monkeypatch):
    built = []
    monkeypatch.setattr(
        layer_parts,
        "FEED_FORWARDS",
        {
            name: (lambda *args, n=name: built.append(n) or FEED_FORWARDS[n](*args))
            for name in FEED_FORWARDS
        },
    )
    assert lab.run().passed
    assert built == list(FEED_FORWARDS)


def test_feed_forward_test_sees_the_token_itself():
    x = torch.randn(7, 8, dtype=torch.float64)
    test = FeedForwardTest("relu", 8, x, torch.Generator().manual_seed(0))
    assert test.own_change > 0.1
    assert test.others_change == 0


@pytest.mark.parametrize(
    "wrong",
    [
        lambda e, v, c: c * (e.softmax(1) @ v),
        lambda e, v, c: (c**2 * e).softmax(1) @ v,
        lambda e, v, c: (c * e).softmax(1) @ (c * v),
        lambda e, v, c: (c**2 * e).softmax(1) @ (c**2 * v),
        lambda e, v, c: (c**2 * e).softmax(0) @ (c * v),
        lambda e, v, c: scaled_output(e, v, abs(c)),
        lambda e, v, c: (c**2 * e).exp() @ (c * v) / (c**2 * e).exp().sum(1, keepdim=True),
    ],
)
def test_wrong_answers_fail_with_an_explanation(lab, wrong):
    checks = [check for check in lab.exercise.grade(wrong) if not check.passed]
    assert "by which power of c does each grow?" in checks[0].message
    assert "tokens, c = " in checks[0].message


def test_equivalent_answer_passes(lab):
    def by_loops(scores, values, scale):
        rows = []
        for row in scores:
            weights = [math.exp(scale**2 * float(e - row.max())) for e in row]
            rows.append(
                sum(w * scale * v for w, v in zip(weights, values, strict=True)) / sum(weights)
            )
        return torch.stack(rows)

    assert all(check.passed for check in lab.exercise.grade(by_loops))
