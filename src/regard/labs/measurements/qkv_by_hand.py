"""The worked example of lab qkv in plain Python: what a student computes by hand."""

import math
from collections.abc import Sequence

Matrix = Sequence[Sequence[float]]

STATES = ((5, 1), (4, 3), (-2, 6))
W_Q = ((1, 0), (2, 9))
W_K = ((0, 1), (6, 0))
W_V = ((4, 3), (9, 1))


def by_hand(
    states: Matrix, w_q: Matrix, w_k: Matrix, w_v: Matrix
) -> tuple[list[list[float]], list[list[float]]]:
    """(scores, values): all scores q_i . k_j, and the values, in plain Python"""
    queries, keys, values = (
        [[dot(row, state) for row in w] for state in states] for w in (w_q, w_k, w_v)
    )
    return [[dot(query, key) for key in keys] for query in queries], values


def dot(x: Sequence[float], y: Sequence[float]) -> float:
    return sum(a * b for a, b in zip(x, y, strict=True))


def softmax_weights(scores: Sequence[float], temperature: float) -> list[float]:
    """p_i = e^(e_i / T) / sum_j e^(e_j / T), in plain Python."""
    weights = [math.exp((score - max(scores)) / temperature) for score in scores]
    return [weight / sum(weights) for weight in weights]


def softmax_output(scores: Sequence[float], values: Matrix, temperature: float) -> list[float]:
    """The softmax output, in plain Python."""
    weights = softmax_weights(scores, temperature)
    return [dot(weights, column) for column in zip(*values, strict=True)]


def softmax_jacobian(scores: Sequence[float], temperature: float) -> list[list[float]]:
    """J_ij = d p_i / d e_j = p_i (1 if i = j else 0) - p_i p_j, that is diag(p) - p p^T, in plain Python."""
    p = softmax_weights(scores, temperature)
    return [[p[i] * ((i == j) - p[j]) for j in range(len(p))] for i in range(len(p))]
