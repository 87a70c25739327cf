"""What the pictures accept as weights: numpy or torch, of the right shape, finite."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from regard.errors import UserError

# How far rounding in half precision may carry a probability out of 0..1.
ROUNDING = 0.01


def checked(
    weights: Any, axes: str, source: Sequence[str], target: Sequence[str]
) -> Float[np.ndarray, "..."]:
    """The weights as a float array whose axes are `axes` and whose last two fit the tokens."""
    if hasattr(weights, "detach"):  # a tensor, without importing torch to ask
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
            f"expected one row a target token and one column a source token, "
            f"{len(target)} x {len(source)}, got weights of {array.shape[-2]} x {array.shape[-1]}: "
            f"pass the tokens these weights were computed for"
        )
    if not np.isfinite(array).all():
        raise UserError(
            f"{np.count_nonzero(~np.isfinite(array))} of {array.size} weights are not finite: "
            f"pass the weights after normalisation, or look for NaN in the model"
        )
    return array


def scale(weights: Float[np.ndarray, "..."]) -> tuple[float, float]:
    """The ends of the colour scale: 0 and 1, unless the weights leave them.

    Then 0 and the largest, or, when some are negative, the largest size on both sides of zero.
    """
    low, high = float(weights.min()), float(weights.max())
    if low >= -ROUNDING and high <= 1 + ROUNDING:
        return 0.0, 1.0
    if low >= -ROUNDING:
        return 0.0, high
    return -max(-low, high), max(-low, high)
