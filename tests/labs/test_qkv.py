"""Queries, keys, values: the worked example, and the failures that the checks detect."""

import pytest
import torch

from regard import UserError
from regard.attention import NORMALISERS, SCORES
from regard.labs.qkv import attention
from regard.linear import LinearBackend


def failed(result):
    return [i for i, check in enumerate(result.checks) if not check.passed]


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
    figures = lab.run(temperature=400).figures
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
    assert failed(lab.run()) == [{"none": 1, "sparsemax": 2}[other]]


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
