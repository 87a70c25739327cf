"""One soft look-up among orthonormal keys: what the first four labs measure."""

import math
from collections.abc import Sequence
from typing import Self

import torch
from jaxtyping import Float
from pydantic import Field, model_validator
from torch import Generator, Tensor

from regard.attention import SCORES, attend
from regard.labs.lab import Parameters

ROUNDING = 1e-9  # of float64, over a few hundred additions


class KeyParameters(Parameters):
    beta: float = Field(12.0, ge=0, le=50)
    """How strongly the query points at its keys."""
    keys: int = Field(10, ge=2, le=512)
    """m, how many keys there are."""
    width: int = Field(64, ge=2, le=1024)
    """d, how wide a key is; at least m, or the keys cannot be orthonormal."""

    @model_validator(mode="after")
    def _room(self) -> Self:
        if self.keys > self.width:
            raise ValueError(
                f"{self.keys} orthonormal keys need a width of {self.keys} or more, not {self.width}"
            )
        return self


def orthonormal_keys(count: int, width: int, generator: Generator) -> Float[Tensor, "key width"]:
    """Keys of length one, each at a right angle to every other."""
    return torch.linalg.qr(torch.randn(width, count, dtype=torch.float64, generator=generator)).Q.T


def sample_two(count: int, generator: Generator) -> tuple[int, int]:
    """A and b: two different numbers below `count`."""
    a, b = torch.randperm(count, generator=generator)[:2].tolist()
    return a, b


def dot_product_attention(
    query: Float[Tensor, " width"],
    keys: Float[Tensor, "*draw key width"],
    values: Float[Tensor, "key depth"],
) -> tuple[Float[Tensor, "*draw depth"], Float[Tensor, "*draw key"]]:
    """One unscaled dot-product look-up, in each draw of the keys. (a, alpha)"""
    draws, width = keys.shape[:-2], keys.shape[-1]
    score = SCORES["dot"](len(query), width)
    scores = score(query.expand(*draws, 1, len(query)), keys)
    found, weights = attend(scores, values.expand(*draws, *values.shape))
    return found[..., 0, :], weights[..., 0, :]


def closed_form_output(
    scores: Float[Tensor, "*draw chosen"],
    values: Float[Tensor, "key depth"],
    chosen: Sequence[int],
) -> Float[Tensor, "*draw depth"]:
    """The closed form of a, where only the chosen keys have a score and the other r have 0:

    a = (sum_c e^(score_c) v_c + r mean(other values)) / (sum_c e^(score_c) + r)
    """
    others = [i for i in range(len(values)) if i not in chosen]
    rest = scores.new_full((*scores.shape[:-1], 1), math.log(len(others)))
    shares = torch.cat([scores, rest], dim=-1).softmax(-1)
    return shares @ torch.cat([values[list(chosen)], values[others].mean(0, keepdim=True)])
