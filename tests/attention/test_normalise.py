"""Normalisers: invariants over the registry, and each against an independent computation."""

import pytest
import torch

from regard.attention import NORMALISERS
from regard.attention.normalise import argmax, none, softmax, sparsemax

INF = float("inf")
NORMALISED = [name for name in NORMALISERS if name != "none"]


def masked_scores(requires_grad: bool = False) -> torch.Tensor:
    """[2 3 5 7]: a third masked; one query with a single key, one with none."""
    random = torch.Generator().manual_seed(1)
    scores = torch.randn(2, 3, 5, 7, generator=random, dtype=torch.float64) * 2
    scores[torch.rand(2, 3, 5, 7, generator=random) < 1 / 3] = -INF
    scores[0, 1, 2] = -INF
    scores[0, 1, 3], scores[0, 1, 3, 4] = -INF, -2.5
    return scores.requires_grad_(requires_grad)


@pytest.mark.parametrize("name", NORMALISED)
def test_weights_sum_to_one_or_to_zero_if_all_keys_are_masked(name):
    scores = masked_scores()
    weights = NORMALISERS[name](scores)
    all_masked = (scores == -INF).all(-1)
    assert all_masked.sum() >= 1
    torch.testing.assert_close(weights.sum(-1), (~all_masked).double())
    assert (weights >= 0).all()
    assert (weights[all_masked] == 0).all()


@pytest.mark.parametrize("name", NORMALISERS)
def test_masked_weights_and_their_gradients_are_exactly_zero(name):
    scores = masked_scores(requires_grad=True)
    weights = NORMALISERS[name](scores)
    masked = scores == -INF
    assert (weights[masked] == 0).all()
    random = torch.Generator().manual_seed(2)
    (weights * torch.randn(weights.shape, generator=random)).sum().backward()
    assert scores.grad.isfinite().all()
    assert (scores.grad[masked] == 0).all()
    assert (scores.grad[~masked] != 0).any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("name", NORMALISERS)
def test_a_fully_masked_row_is_zeros_in_every_dtype(name, dtype):
    scores = torch.full((2, 3), -INF, dtype=dtype, requires_grad=True)
    weights = NORMALISERS[name](scores)
    weights.sum().backward()
    assert weights.dtype == dtype
    assert (weights == 0).all()
    assert (scores.grad == 0).all()


@pytest.mark.parametrize("name", NORMALISERS)
@pytest.mark.parametrize("value", [float("nan"), INF])
def test_nan_and_infinity_are_not_hidden(name, value):
    """One such score makes the whole row NaN; with `none`, only itself. Other rows stay as they are."""
    scores = masked_scores()
    for row in (
        (0, 1, 2),
        (0, 1, 3),
        (1, 2, 4),
    ):  # one with all other keys masked, one with all but one
        damaged = scores.clone()
        damaged[(*row, 5)] = value
        weights = NORMALISERS[name](damaged)
        context = weights[row] @ torch.ones(7, dtype=torch.float64)
        assert not context.isfinite()
        assert name == "none" or weights[row].isnan().all()
        damaged[row], weights[row] = scores[row], NORMALISERS[name](scores)[row]
        assert torch.equal(weights, NORMALISERS[name](scores))


@pytest.mark.parametrize("name", NORMALISERS)
def test_a_row_of_nan_is_not_a_masked_row(name):
    assert NORMALISERS[name](torch.full((2, 3), float("nan"))).isnan().all()


@pytest.mark.parametrize("name", NORMALISED)
@pytest.mark.parametrize("shift", [1e4, -1e4])
def test_weights_are_invariant_to_a_shift_of_all_scores(name, shift):
    scores = masked_scores()
    torch.testing.assert_close(NORMALISERS[name](scores + shift), NORMALISERS[name](scores))


@pytest.mark.parametrize("name", NORMALISERS)
def test_weights_are_equivariant_to_permutations_of_keys(name):
    scores = masked_scores()
    order = torch.tensor([3, 1, 6, 0, 5, 2, 4])
    torch.testing.assert_close(
        NORMALISERS[name](scores[..., order]), NORMALISERS[name](scores)[..., order]
    )


def test_softmax_equals_torch_where_a_key_is_allowed():
    scores = masked_scores()
    allowed = (scores > -INF).any(-1)
    torch.testing.assert_close(softmax(scores)[allowed], scores[allowed].softmax(-1))


def test_softmax_is_stable_for_huge_scores():
    weights = softmax(torch.tensor([[1e30, -1e30, 1e30]]))
    torch.testing.assert_close(weights, torch.tensor([[0.5, 0.0, 0.5]]))


def project(point: list[float]) -> list[float]:
    """The nearest point of the simplex; bisection for tau in sum max(x - tau, 0) = 1."""
    finite = [x for x in point if x > -INF]
    low, high = min(finite) - 1, max(finite)
    for _ in range(200):
        tau = (low + high) / 2
        above = sum(max(x - tau, 0.0) for x in finite) > 1
        low, high = (tau, high) if above else (low, tau)
    return [max(x - high, 0.0) for x in point]


def test_sparsemax_is_the_projection_onto_the_simplex():
    scores = masked_scores()
    weights = sparsemax(scores)
    for row, result in zip(scores.reshape(-1, 7), weights.reshape(-1, 7), strict=True):
        if (row > -INF).any():
            expected = torch.tensor(project(row.tolist()), dtype=torch.float64)
            torch.testing.assert_close(result, expected, atol=1e-12, rtol=0)


@pytest.mark.parametrize(
    ("scores", "weights"),
    [
        ([0.0, 0.0], [0.5, 0.5]),
        ([1.0, 0.0], [1.0, 0.0]),
        ([0.5, 0.0], [0.75, 0.25]),
        ([1.0, 0.8, 0.1], [0.6, 0.4, 0.0]),
        ([3.0, 1.0, -5.0], [1.0, 0.0, 0.0]),
        ([2.0, 2.0, 2.0, -INF], [1 / 3, 1 / 3, 1 / 3, 0.0]),
    ],
)
def test_sparsemax_worked_examples(scores, weights):
    torch.testing.assert_close(sparsemax(torch.tensor([scores])), torch.tensor([weights]))


def test_sparsemax_gradient_is_the_support_minus_its_mean():
    scores = masked_scores(requires_grad=True)
    weights = sparsemax(scores)
    upstream = torch.randn(weights.shape, generator=torch.Generator().manual_seed(3)).double()
    (weights * upstream).sum().backward()
    support = (weights > 0).double()
    size = support.sum(-1, keepdim=True).clamp(min=1)
    expected = support * (upstream - (support * upstream).sum(-1, keepdim=True) / size)
    torch.testing.assert_close(scores.grad, expected)


def test_argmax_is_one_hot_at_the_highest_score_and_the_first_of_equal_ones():
    scores = torch.tensor([[1.0, 5.0, 2.0], [4.0, 4.0, 4.0], [-INF, -3.0, -INF], [-INF] * 3])
    expected = torch.tensor([[0.0, 1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0] * 3])
    assert torch.equal(argmax(scores), expected)


def test_argmax_has_the_gradient_of_softmax():
    hard, soft = masked_scores(requires_grad=True), masked_scores(requires_grad=True)
    upstream = torch.randn(hard.shape, generator=torch.Generator().manual_seed(3)).double()
    (argmax(hard) * upstream).sum().backward()
    (softmax(soft) * upstream).sum().backward()
    assert torch.equal(hard.grad, soft.grad)


def test_none_returns_the_scores():
    scores = masked_scores()
    allowed = scores > -INF
    assert torch.equal(none(scores)[allowed], scores[allowed])
