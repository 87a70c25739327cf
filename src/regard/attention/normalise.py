"""Normalisers: scores to attention weights, over the last dimension.

A score of minus infinity marks a masked key, whose weight is exactly 0. A query with no key to attend to
gets zeros, never NaN, and no gradient. A score of NaN or plus infinity gives NaN (with `none`, itself): an
error of the model shows in its output.
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
    all_masked = (scores == float("-inf")).all(-1, keepdim=True)
    # A row of minus infinities would be 0 / 0, in the gradient too: replace it by finite scores.
    weights = scores.masked_fill(all_masked, 0.0).softmax(-1)
    return weights.masked_fill(all_masked, 0.0)


def argmax(scores: Scores) -> Weights:
    """One-hot at the highest score (the first of equal ones), with softmax's gradient (straight-through)."""
    soft = softmax(scores)
    one_hot = torch.zeros_like(soft).scatter_(-1, scores.argmax(-1, keepdim=True), 1.0)
    hard = one_hot.masked_fill(scores == float("-inf"), 0.0)
    # soft - soft.detach() is exactly 0, so the sum is exactly one-hot.
    return hard + (soft - soft.detach())


def sparsemax(scores: Scores) -> Weights:
    """max(e_i - tau, 0), the Euclidean projection onto the simplex (Martins and Astudillo, 2016)."""
    all_masked = (scores == float("-inf")).all(-1, keepdim=True)
    finite = scores.masked_fill(all_masked, 0.0)
    # tau >= max - 1, so every score at or below max - 1 (minus infinity included) gets weight 0.
    shifted = (finite - finite.amax(-1, keepdim=True)).clamp(min=-1.0)
    ordered = shifted.sort(-1, descending=True).values
    rank = torch.arange(1, shifted.shape[-1] + 1, device=scores.device, dtype=scores.dtype)
    cumulative = ordered.cumsum(-1)
    # At least 1: only with NaN, which then becomes tau, is no comparison true.
    support = (1 + rank * ordered > cumulative).sum(-1, keepdim=True).clamp(min=1)
    tau = (cumulative.gather(-1, support - 1) - 1) / support
    return (shifted - tau).clamp(min=0.0).masked_fill(all_masked, 0.0)


def none(scores: Scores) -> Weights:
    """The raw scores, with 0 for masked ones: an ablation of the normalisation."""
    return scores.masked_fill(scores == float("-inf"), 0.0)


NORMALISERS: dict[str, Normaliser] = {
    "softmax": softmax,
    "argmax": argmax,
    "sparsemax": sparsemax,
    "none": none,
}
