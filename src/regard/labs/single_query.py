"""Dot-product attention of one query over orthonormal keys: shared by the first four labs."""

import math
from collections.abc import Sequence
from typing import Self

import torch
from jaxtyping import Float
from pydantic import Field, model_validator
from torch import Generator, Tensor

from regard.attention import SCORES, attend
from regard.labs.lab import Parameters

ROUNDING = 1e-9  # float64 rounding error over a few hundred additions


class KeyParameters(Parameters):
    beta: float = Field(12.0, ge=0, le=50)
    """Scale of the query: its dot product with each key it targets."""
    keys: int = Field(10, ge=2, le=512)
    """m, the number of keys."""
    width: int = Field(64, ge=2, le=1024)
    """d, the dimension of the keys; at least m, or the keys cannot be orthonormal."""

    @model_validator(mode="after")
    def _check_width(self) -> Self:
        if self.keys > self.width:
            raise ValueError(
                f"{self.keys} orthonormal keys need a width of {self.keys} or more, not {self.width}"
            )
        return self


def orthonormal_keys(count: int, width: int, generator: Generator) -> Float[Tensor, "key width"]:
    """Random keys of unit length, orthogonal to each other."""
    return torch.linalg.qr(torch.randn(width, count, dtype=torch.float64, generator=generator)).Q.T


def sample_two(count: int, generator: Generator) -> tuple[int, int]:
    """Two different random indices a and b below `count`."""
    a, b = torch.randperm(count, generator=generator)[:2].tolist()
    return a, b


def dot_product_attention(
    query: Float[Tensor, " width"],
    keys: Float[Tensor, "*draw key width"],
    values: Float[Tensor, "key depth"],
) -> tuple[Float[Tensor, "*draw depth"], Float[Tensor, "*draw key"]]:
    """Unscaled dot-product attention, (output, weights), for each draw of the keys."""
    draws, width = keys.shape[:-2], keys.shape[-1]
    score = SCORES["dot"](len(query), width)
    scores = score(query.expand(*draws, 1, len(query)), keys)
    output, weights = attend(scores, values.expand(*draws, *values.shape))
    return output[..., 0, :], weights[..., 0, :]


def closed_form_output(
    scores: Float[Tensor, "*draw selected"],
    values: Float[Tensor, "key depth"],
    selected: Sequence[int],
) -> Float[Tensor, "*draw depth"]:
    """The attention output when the selected keys have these scores and the other r keys have score 0:

    a = (sum_c e^(score_c) v_c + r mean(other values)) / (sum_c e^(score_c) + r)
    """
    others = [i for i in range(len(values)) if i not in selected]
    rest = scores.new_full((*scores.shape[:-1], 1), math.log(len(others)))
    weights = torch.cat([scores, rest], dim=-1).softmax(-1)
    return weights @ torch.cat([values[list(selected)], values[others].mean(0, keepdim=True)])
