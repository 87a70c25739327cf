"""Scores against their formulas in naive loops, and invariants over the registry."""

import math
from itertools import product

import pytest
import torch

from regard import config
from regard.attention import NORMALISERS, SCORES, SingleHead, attend
from regard.attention.scores import Location, Score
from regard.errors import UserError

BATCH, QUERY, KEY, DEPTH, KEY_DEPTH = 2, 3, 5, 7, 11
OPTIONS = {name: config.SingleHead(score=name).score.options for name in SCORES}


def key_dim(name: str) -> int:
    """Scores that take unprojected queries and keys are tested with two different dimensions."""
    return DEPTH if SCORES[name].projected else KEY_DEPTH


def build_score(name: str) -> Score:
    torch.manual_seed(1)
    return SCORES[name](DEPTH, key_dim(name), **OPTIONS[name]).double()


def inputs(name: str) -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(2)
    query = torch.randn(BATCH, QUERY, DEPTH, generator=random, dtype=torch.float64)
    return query, torch.randn(BATCH, KEY, key_dim(name), generator=random, dtype=torch.float64)


def dot(a: torch.Tensor, b: torch.Tensor) -> float:
    return sum(float(x) * float(y) for x, y in zip(a, b, strict=True))


FORMULAS = {
    "dummy": lambda score, q, k, i: -math.inf,
    "mean": lambda score, q, k, i: 0.0,
    "location": lambda score, q, k, i: (
        dot(score.index_scores.weight[i], q) + float(score.index_scores.bias[i])
    ),
    "additive": lambda score, q, k, i: sum(
        float(v) * math.tanh(float(a) + float(b)) for v, a, b in zip(score.v, q, k, strict=True)
    ),
    "dot": lambda score, q, k, i: dot(q, k),
    "scaled-dot": lambda score, q, k, i: dot(q, k) / math.sqrt(DEPTH),
    "bilinear": lambda score, q, k, i: dot(q, [dot(row, k) for row in score.linear.weight]),
}


def test_every_score_has_a_formula():
    assert set(FORMULAS) == set(SCORES)


@torch.no_grad()
@pytest.mark.parametrize("name", FORMULAS)
def test_score_equals_its_formula(name):
    score, (query, keys) = build_score(name), inputs(name)
    result = score(query, keys)
    assert result.shape == (BATCH, QUERY, KEY)
    for b, q, k in product(range(BATCH), range(QUERY), range(KEY)):
        expected = FORMULAS[name](score, query[b, q], keys[b, k], k)
        assert float(result[b, q, k]) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("name", SCORES)
def test_scores_accept_any_number_of_batch_dimensions(name):
    score, (query, keys) = build_score(name), inputs(name)
    expected = score(query, keys)
    torch.testing.assert_close(score(query[1], keys[1]), expected[1])
    torch.testing.assert_close(score(query[:, None], keys[:, None]), expected[:, None])


@pytest.mark.parametrize("name", SCORES)
def test_the_score_of_a_query_does_not_depend_on_other_queries(name):
    score, (query, keys) = build_score(name), inputs(name)
    torch.testing.assert_close(score(query[:, 1:2], keys), score(query, keys)[:, 1:2])


@pytest.mark.parametrize("name", SCORES)
def test_the_score_of_a_key_does_not_depend_on_later_keys(name):
    score, (query, keys) = build_score(name), inputs(name)
    torch.testing.assert_close(score(query, keys[:, :-2]), score(query, keys)[:, :, :-2])


@pytest.mark.parametrize("normaliser", NORMALISERS)
@pytest.mark.parametrize("name", SCORES)
def test_a_query_with_all_keys_masked_gets_zeros_and_finite_gradients(name, normaliser):
    torch.manual_seed(3)
    dims = (13, 13) if SCORES[name].projected else (DEPTH, KEY_DEPTH)
    score = SCORES[name](*dims, **OPTIONS[name])
    layer = SingleHead(DEPTH, KEY_DEPTH, 13, score, NORMALISERS[normaliser]).double()
    query = torch.randn(BATCH, QUERY, DEPTH, dtype=torch.float64, requires_grad=True)
    states = torch.randn(BATCH, KEY, KEY_DEPTH, dtype=torch.float64, requires_grad=True)
    mask = torch.ones(BATCH, QUERY, KEY, dtype=torch.bool)
    mask[0, 1], mask[1, :, 3] = False, False
    context, weights = layer(query, layer.keys(states), states, mask)
    assert (context[0, 1] == 0).all()
    assert (weights[~mask] == 0).all()
    assert context.isfinite().all()
    context.square().sum().backward()
    grads = [query.grad, states.grad, *(parameter.grad for parameter in layer.parameters())]
    assert all(grad is None or grad.isfinite().all() for grad in grads)
    assert query.grad is None or (query.grad[0, 1] == 0).all()
    assert (states.grad[1, 3] == 0).all()


def test_dummy_attends_to_no_key_and_mean_equally_to_all_unmasked_keys():
    query, values = inputs("mean")
    mask = torch.tensor([[True] * 5, [True, True, True, False, False]])[:, None]
    context, weights = attend(build_score("dummy")(query, values), values, mask)
    assert (context == 0).all()
    assert (weights == 0).all()
    context, weights = attend(build_score("mean")(query, values), values, mask)
    torch.testing.assert_close(context[0], values[0].mean(0).expand(QUERY, -1))
    torch.testing.assert_close(context[1], values[1, :3].mean(0).expand(QUERY, -1))


def test_location_ignores_the_keys():
    score, (query, keys) = build_score("location"), inputs("location")
    assert torch.equal(score(query, keys), score(query, keys * 17 + 1))


def test_location_rejects_more_keys_than_max_length():
    score = Location(3, 3, max_length=4)
    assert score(torch.zeros(1, 1, 3), torch.zeros(1, 4, 3)).shape == (1, 1, 4)
    with pytest.raises(UserError, match="supports at most 4 keys and got 5: shorten"):
        score(torch.zeros(1, 1, 3), torch.zeros(1, 5, 3))


def test_a_projected_score_requires_equal_dimensions():
    with pytest.raises(ValueError, match=r"query_dim \(3\) and key_dim \(5\) must be equal"):
        SCORES["dot"](3, 5)


def test_a_score_without_forward_is_abstract():
    with pytest.raises(TypeError, match=r"abstract.* forward"):
        Score(3, 3)
