"""Receptive field: heads that look at more than one position, or at the wrong one, are noticed."""

import pytest
import torch

from regard import UserError
from regard.attention import NORMALISERS, SCORES
from regard.attention.scores import ScaledDot
from regard.labs.receptive_field import circle, looking_at, offsets, random_stack


class Blind(ScaledDot):
    """Every key is as good as any other, so that argmax takes the first."""

    def forward(self, query, keys):
        return 0 * super().forward(query, keys)


def test_the_bound_is_reached_and_gradients_mislead(lab):
    found = lab.run().figures
    cases = list(zip(found["heads"], found["layers"], strict=True))
    assert cases == [(h, n) for h in (1, 2, 4) for n in (1, 2, 3)]
    assert found["built"] == found["bound"] == [2, 4, 8, 3, 9, 27, 5, 25, 125]
    assert found["gradient"] == found["positions"] == [b + 6 for b in found["bound"]]


@pytest.mark.parametrize(("heads", "layers"), [(1, 3), (2, 2), (3, 2)])
def test_the_trace_is_that_of_the_selections(heads, layers):
    """Reach, by hand: a product of who selects whom, or stays."""
    torch.manual_seed(0)
    x = torch.randn(23, 8, dtype=torch.float64)
    stack = random_stack(heads, layers)
    wanted = torch.eye(23, dtype=torch.float64)
    for weights in stack.selected(x):
        assert torch.equal(weights.sum(-1), torch.ones(heads, 23, dtype=torch.float64))
        wanted = (torch.eye(23) + weights.sum(0)) @ wanted
    assert torch.equal(stack.held(x).reach(x, outputs=23), wanted > 0)


def test_a_head_looks_where_it_should():
    x = circle(11, torch.Generator().manual_seed(0))
    (weights,) = looking_at([[3, -2]], 11).selected(x)
    assert weights.argmax(-1).tolist() == [[(p + 3) % 11 for p in range(11)],
                                           [(p - 2) % 11 for p in range(11)]]  # fmt: skip


@pytest.mark.parametrize("name", ["softmax", "sparsemax"])
def test_heads_that_look_at_more_are_noticed(lab, monkeypatch, name):
    monkeypatch.setitem(NORMALISERS, "argmax", NORMALISERS[name])
    failed = [check for check in lab.run().checks if not check.passed]
    assert failed
    assert any(check.measured > check.expected for check in failed)


def test_heads_that_look_nowhere_in_particular_are_noticed(lab, monkeypatch):
    monkeypatch.setitem(SCORES, "scaled-dot", Blind)
    failed = [check for check in lab.run().checks if not check.passed]
    assert failed
    assert all("built heads" in check.name for check in failed)
    assert all(check.measured < check.expected for check in failed)


@pytest.mark.parametrize(
    "right",
    [
        lambda heads, layers: offsets(heads, layers)[::-1],
        lambda heads, layers: [[-step for step in row] for row in offsets(heads, layers)],
        lambda heads, layers: [[2 * s for s in row] for row in offsets(heads, layers)],
    ],
)
def test_other_right_answers(lab, right):
    assert all(remark.passed for remark in lab.exercise.grade(right))


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (lambda heads, layers: [list(range(1, heads + 1))] * layers, "Two ways lead to one place"),
        (lambda heads, layers: [[0] * heads] * layers, "Two ways lead to one place"),
        (
            lambda heads, layers: [
                [i * heads**n for i in range(1, heads + 1)] for n in range(layers)
            ],
            "sums must differ",
        ),
    ],
)
def test_wrong_answers_fail_with_a_word_of_why(lab, wrong, told):
    remarks = [remark for remark in lab.exercise.grade(wrong) if not remark.passed]
    assert remarks
    assert told in remarks[0].message
    assert "heads = " in remarks[0].message


def test_offsets_too_large_to_try(lab):
    with pytest.raises(UserError, match=r"offsets\(1, 1\) gave \[\[10000\]\]: smaller ones do"):
        list(lab.exercise.grade(lambda heads, layers: [[10_000] * heads] * layers))
