"""Scores in, weights out, over the last dimension.

A score of minus infinity means "may not be attended to" and gets a weight of exactly 0. A query with
nothing to attend to gets zeros, never NaN, and passes no gradient.
"""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

Scores = Float[Tensor, "*batch query key"]
Weights = Float[Tensor, "*batch query key"]
Normaliser = Callable[[Tensor], Tensor]


def softmax(scores: Scores) -> Weights:
    """alpha_i = exp(e_i) / sum_j exp(e_j)"""
    allowed = scores > float("-inf")
    hopeless = ~allowed.any(-1, keepdim=True)
    # A row of minus infinities would be 0 / 0, in the gradient too: give it any finite scores.
    weights = scores.masked_fill(hopeless, 0.0).softmax(-1)
    return weights.masked_fill(hopeless, 0.0)


def argmax(scores: Scores) -> Weights:
    """One-hot at the best key (the first of equals); the gradient is softmax's (straight-through)."""
    soft = softmax(scores)
    best = torch.zeros_like(soft).scatter_(-1, scores.argmax(-1, keepdim=True), 1.0)
    hard = best.masked_fill(scores == float("-inf"), 0.0)
    # soft - soft.detach() is exactly 0, so the sum is exactly one-hot.
    return hard + (soft - soft.detach())


def sparsemax(scores: Scores) -> Weights:
    """max(e_i - tau, 0), the Euclidean projection on the simplex (Martins and Astudillo, 2016)."""
    hopeless = (scores == float("-inf")).all(-1, keepdim=True)
    finite = scores.masked_fill(hopeless, 0.0)
    # tau is never below max - 1, so whatever lies further down (minus infinity too) gets 0.
    shifted = (finite - finite.amax(-1, keepdim=True)).clamp(min=-1.0)
    ordered = shifted.sort(-1, descending=True).values
    rank = torch.arange(1, shifted.shape[-1] + 1, device=scores.device, dtype=scores.dtype)
    total = ordered.cumsum(-1)
    support = (1 + rank * ordered > total).sum(-1, keepdim=True)
    tau = (total.gather(-1, support - 1) - 1) / support
    return (shifted - tau).clamp(min=0.0).masked_fill(hopeless, 0.0)


def none(scores: Scores) -> Weights:
    """The raw scores, masked to 0: does training need the normalisation? (An ablation.)"""
    return scores.masked_fill(scores == float("-inf"), 0.0)


NORMALISERS: dict[str, Normaliser] = {
    "softmax": softmax,
    "argmax": argmax,
    "sparsemax": sparsemax,
    "none": none,
}
