"""Receptive field: heads that attend to several positions, or to the wrong one, are detected."""

import pytest
import torch

from regard import UserError
from regard.attention import NORMALISERS, SCORES
from regard.attention.scores import ScaledDot
from regard.labs.measurements.argmax_stack import offset_stack, random_stack, sample_tokens
from regard.labs.receptive_field import offsets


class ZeroScore(ScaledDot):
    """Every key has score 0, so argmax selects the first."""

    def forward(self, query, keys):
        return 0 * super().forward(query, keys)


def test_bound_is_reached_and_gradients_mislead(lab):
    figures = lab.run().figures
    cases = list(zip(figures["heads"], figures["layers"], strict=True))
    assert cases == [(h, n) for h in (1, 2, 4) for n in (1, 2, 3)]
    assert figures["constructed"] == figures["bound"] == [2, 4, 8, 3, 9, 27, 5, 25, 125]
    assert figures["gradient"] == figures["positions"] == [b + 6 for b in figures["bound"]]


def test_equal_layers_grow_linearly(lab):
    result = lab.run(dilated=False)
    assert result.law_holds
    assert not result.effect_is_present
    assert result.figures["constructed"] == [1 + h * n for h in (1, 2, 4) for n in (1, 2, 3)]
    assert "With h = 4, n = 3, the bound is not reached" in result.effect[0].message
    lab.plot(result).canvas.draw()


@pytest.mark.parametrize(("heads", "layers"), [(1, 3), (2, 2), (3, 2)])
def test_dependencies_follow_the_selections(heads, layers):
    """Dependencies are the product over layers of (identity + selections)."""
    torch.manual_seed(0)
    x = torch.randn(23, 8, dtype=torch.float64)
    stack = random_stack(heads, layers)
    expected = torch.eye(23, dtype=torch.float64)
    for weights in stack.selections(x):
        assert torch.equal(weights.sum(-1), torch.ones(heads, 23, dtype=torch.float64))
        expected = (torch.eye(23) + weights.sum(0)) @ expected
    with torch.no_grad():  # inputs are changed: no gradient is involved
        assert torch.equal(stack.freeze(x).dependencies(x), expected > 0)


def test_head_attends_to_its_offset():
    x = sample_tokens(11, torch.Generator().manual_seed(0))
    (weights,) = offset_stack([[3, -2]], 11).selections(x)
    assert weights.argmax(-1).tolist() == [[(p + 3) % 11 for p in range(11)],
                                           [(p - 2) % 11 for p in range(11)]]  # fmt: skip


@pytest.mark.parametrize("name", ["softmax", "sparsemax"])
def test_heads_that_attend_to_more_are_detected(lab, monkeypatch, name):
    monkeypatch.setitem(NORMALISERS, "argmax", NORMALISERS[name])
    failed = [check for check in lab.run().checks if not check.passed]
    assert failed
    assert any(check.measured > check.expected for check in failed)


def test_heads_with_equal_scores_are_detected(lab, monkeypatch):
    monkeypatch.setitem(SCORES, "scaled-dot", ZeroScore)
    failed = [check for check in lab.run().checks if not check.passed]
    assert failed
    assert all("constructed heads" in check.name for check in failed)
    assert all(check.measured < check.expected for check in failed)


@pytest.mark.parametrize(
    "right",
    [
        lambda heads, layers: offsets(heads, layers)[::-1],
        lambda heads, layers: [[-step for step in row] for row in offsets(heads, layers)],
        lambda heads, layers: [[2 * s for s in row] for row in offsets(heads, layers)],
    ],
)
def test_equivalent_answers_pass(lab, right):
    assert all(check.passed for check in lab.exercise.grade(right))


@pytest.mark.parametrize(
    ("wrong", "explanation"),
    [
        (
            lambda heads, layers: [list(range(1, heads + 1))] * layers,
            "Two paths lead to one position",
        ),
        (lambda heads, layers: [[0] * heads] * layers, "Two paths lead to one position"),
        (
            lambda heads, layers: [
                [i * heads**n for i in range(1, heads + 1)] for n in range(layers)
            ],
            "sums must differ",
        ),
    ],
)
def test_wrong_answers_fail_with_an_explanation(lab, wrong, explanation):
    checks = [check for check in lab.exercise.grade(wrong) if not check.passed]
    assert checks
    assert explanation in checks[0].message
    assert "heads = " in checks[0].message


def test_offsets_too_large(lab):
    with pytest.raises(
        UserError, match=r"offsets\(1, 1\) returned \[\[10000\]\]: use smaller offsets"
    ):
        list(lab.exercise.grade(lambda heads, layers: [[10_000] * heads] * layers))
