"""Queries, keys, values: the worked example, and the failures that the checks detect."""

import pytest
import torch

from regard import UserError
from regard.attention import NORMALISERS, SCORES
from regard.attention.normalise import argmax, softmax
from regard.labs import qkv
from regard.labs.measurements.qkv_by_hand import softmax_jacobian, softmax_weights
from regard.labs.qkv import attention
from regard.linear import LinearBackend


def failed(result):
    return [i for i, check in enumerate(result.law) if not check.passed]


def test_worked_example(lab):
    figures = lab.run().figures
    assert figures["scores"] == [1054, 852, -396]
    assert figures["output"] == [23, 46]
    assert figures["softmax_output"] == pytest.approx([23, 46])


@pytest.mark.parametrize(("query", "scores"), [(1, [575, 471, -198]), (3, [1498, 1194, -612])])
def test_other_queries(lab, query, scores):
    result = lab.run(query=query)
    assert result.passed
    assert result.figures["scores"] == scores
    assert result.figures["output"] == [23, 46]


def test_softmax_mixes_at_high_temperature(lab):
    result = lab.run(temperature=400)
    assert result.law_holds
    assert not result.effect_is_present
    assert "takes only 61.34% of the weight" in result.effect[0].message
    figures = result.figures
    weights = torch.tensor([1054.0, 852.0, -396.0]).div(400).softmax(0)
    assert figures["softmax_weights"] == pytest.approx(weights.tolist())
    assert figures["output"] == [23, 46]


def test_query_out_of_range(lab):
    with pytest.raises(UserError, match="lab qkv: query: "):
        lab.run(query=4)


def test_scaled_score_is_detected(lab, monkeypatch):
    monkeypatch.setitem(SCORES, "dot", SCORES["scaled-dot"])
    assert failed(lab.run()) == [0, 2]  # the order of the keys is unchanged


def test_weights_that_act_on_rows_are_detected(lab, monkeypatch):
    monkeypatch.setattr(
        LinearBackend, "__call__", lambda self, x, weight, bias=None: x @ by_rows(weight)
    )
    assert failed(lab.run()) == [0, 1, 2]


def by_rows(weight):
    """Each 2 x 2 block as a map that acts on rows."""
    return torch.cat(weight.split(2), dim=1)


@pytest.mark.parametrize("other", ["none", "sparsemax"])
def test_other_normaliser_is_detected(lab, monkeypatch, other):
    replaced = {"none": "argmax", "sparsemax": "softmax"}[other]
    monkeypatch.setitem(NORMALISERS, replaced, NORMALISERS[other])
    assert failed(lab.run()) == {"none": [1, 3], "sparsemax": [2]}[other]


def hard(scores):
    """Argmax without a gradient."""
    return argmax(scores).detach()


def soft_forward(scores):
    """The right gradient, but softmax's weights."""
    return softmax(scores)


def too_steep(scores):
    """One-hot weights, with the gradient of softmax(2 e)."""
    soft = softmax(2 * scores)
    return argmax(scores).detach() + (soft - soft.detach())


@pytest.mark.parametrize(("wrong", "checks"), [(hard, [3]), (soft_forward, [1]), (too_steep, [3])])
def test_straight_through_gradient_is_judged(lab, monkeypatch, wrong, checks):
    monkeypatch.setitem(NORMALISERS, "argmax", wrong)
    assert failed(lab.run()) == checks


def test_gradient_by_hand_equals_finite_differences():
    scores, step = [3.0, 1.0, -2.0], 1e-6
    jacobian = softmax_jacobian(scores, 2.0)
    for j in range(3):
        shifted = [
            softmax_weights([s + sign * step * (i == j) for i, s in enumerate(scores)], 2.0)
            for sign in (2, -2)  # per unit of e / T
        ]
        slopes = [(high - low) / (2 * step) for high, low in zip(*shifted, strict=True)]
        assert [row[j] for row in jacobian] == pytest.approx(slopes, abs=1e-8)


def test_nan_at_one_temperature_is_detected(lab, monkeypatch):
    run_layer, calls = qkv.run_layer, []

    def nan_once(layer):
        calls.append(layer)
        scores, weights, output = run_layer(layer)
        return scores, weights, output * torch.nan if len(calls) == 9 else output

    monkeypatch.setattr(qkv, "run_layer", nan_once)
    assert failed(lab.run()) == [2]


@pytest.mark.parametrize(
    "wrong",
    [
        lambda h, q, k, v: (h @ v.T)[((h @ k.T) @ (h @ q.T).T).argmax(1)],
        lambda h, q, k, v: (h @ v.T)[((h @ q.T) @ (h @ k.T).T).argmin(1)],
        lambda h, q, k, v: ((h @ q.T) @ (h @ k.T).T).softmax(1) @ (h @ v.T),
        lambda h, q, k, v: h @ v.T,
        lambda h, q, k, v: attention(h, q, k, v) if len(h) > 3 else h @ v,
    ],
)
def test_wrong_answers_fail_with_an_explanation(lab, wrong):
    checks = [check for check in lab.exercise.grade(wrong) if not check.passed]
    assert "has the highest" in checks[0].message
    assert "states @ w_q.T" in checks[0].message


def test_equivalent_answer_passes(lab):
    def by_loops(states, w_q, w_k, w_v):
        values = [w_v @ state for state in states]
        best = [
            max(range(len(states)), key=lambda j, h=h: float((w_q @ h) @ (w_k @ states[j])))
            for h in states
        ]
        return torch.stack([values[j] for j in best])

    assert all(check.passed for check in lab.exercise.grade(by_loops))
