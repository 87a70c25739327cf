"""Validation of attention weights: numpy or torch, the right shape, finite."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from regard.errors import UserError

Weights = Float[np.ndarray, "..."]
# How far rounding in half precision may move a probability outside 0..1.
TOLERANCE = 0.01
# The ends that a colour scale of weights between 0 and 1 may have: few, so that pictures compare.
SCALE_ENDS = (1.0, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01)


def validate_weights(
    weights: Any, axes: str, source: Sequence[str], target: Sequence[str]
) -> Float[np.ndarray, "..."]:
    """Convert to a float array with the axes named in `axes`; the last two must match the tokens."""
    if hasattr(weights, "detach"):  # a tensor, detected without importing torch
        weights = weights.detach().cpu().float().numpy()
    try:
        array = np.asarray(weights, dtype=float)
    except (TypeError, ValueError):
        raise UserError(
            f"expected weights as an array [{axes}], got a {type(weights).__name__} that is not one"
        ) from None
    if array.ndim != len(axes.split()):
        raise UserError(f"expected weights of shape [{axes}], got {list(array.shape)}")
    if 0 in array.shape:
        raise UserError(f"nothing to draw: the weights [{axes}] have shape {list(array.shape)}")
    if array.shape[-2:] != (len(target), len(source)):
        raise UserError(
            f"expected one row per target token and one column per source token, "
            f"{len(target)} x {len(source)}, got weights of {array.shape[-2]} x {array.shape[-1]}: "
            f"pass the tokens these weights were computed for"
        )
    if not np.isfinite(array).all():
        raise UserError(
            f"{np.count_nonzero(~np.isfinite(array))} of {array.size} weights are not finite: "
            f"pass the weights after normalisation, or check the model for NaN"
        )
    return array


def colour_limits(weights: Float[np.ndarray, "..."]) -> tuple[float, float]:
    """The limits of the colour scale. Of weights between 0 and 1, the end is 1, 0.5, 0.2, 0.1, ..: the
    smallest that includes all of them, so that diffuse attention is visible too.

    Otherwise (0, max), or (-max |w|, max |w|) if some weights are negative.
    """
    low, high = float(weights.min()), float(weights.max())
    if low >= -TOLERANCE and high <= 1 + TOLERANCE:
        return 0.0, min(end for end in SCALE_ENDS if end >= min(high, 1.0))
    if low >= -TOLERANCE:
        return 0.0, high
    return -max(-low, high), max(-low, high)


def describe_scale(limits: tuple[float, float], quantity: str) -> str:
    """What the colours show, and where the scale ends if not at 1."""
    low, high = limits
    if limits == (0, 1):
        return quantity
    is_probability = low == 0 and high in SCALE_ENDS
    return f"{quantity} (scale {'ends at' if is_probability else 'to'} {high:.3g})"
