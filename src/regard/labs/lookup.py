"""One soft look-up among orthonormal keys: what the first four labs measure."""

import torch
from jaxtyping import Float
from torch import Generator, Tensor

from regard.attention import SCORES, attend

ROUNDING = 1e-9  # of float64, over a few hundred additions


def orthonormal(count: int, width: int, generator: Generator) -> Float[Tensor, "key width"]:
    """Keys of length one, each at a right angle to every other."""
    return torch.linalg.qr(torch.randn(width, count, dtype=torch.float64, generator=generator)).Q.T


def look_up(
    query: Float[Tensor, " width"],
    keys: Float[Tensor, "key width"],
    values: Float[Tensor, "key depth"],
) -> tuple[Float[Tensor, " depth"], Float[Tensor, " key"]]:
    """One unscaled dot-product look-up. (a, alpha)"""
    score = SCORES["dot"](len(query), keys.shape[-1])
    found, weights = attend(score(query[None], keys), values)
    return found[0], weights[0]
