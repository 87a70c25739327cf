"""Dot-product attention of one query over orthonormal keys: shared by the first four labs."""

import math
from collections.abc import Sequence
from typing import Self

import torch
from jaxtyping import Float
from pydantic import Field, model_validator
from torch import Generator, Tensor

from regard.attention import SCORES, Score, attend
from regard.labs.lab import Parameters

ROUNDING = 1e-9  # float64 rounding error over a few hundred additions


class ScoreParameters(Parameters):
    scaled: bool = False
    """Divide the scores by sqrt(d), as scaled dot-product attention does."""

    def score_scale(self, dim: int) -> float:
        """The factor of q . k in the score: 1 / sqrt(d) if scaled, else 1."""
        return 1 / math.sqrt(dim) if self.scaled else 1.0


class KeyParameters(ScoreParameters):
    beta: float = Field(12.0, ge=0, le=400)
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

    def score(self, beta: float) -> float:
        """The score of a key k with q . k = beta."""
        return beta * self.score_scale(self.width)


def orthonormal_keys(count: int, width: int, generator: Generator) -> Float[Tensor, "key width"]:
    """Random keys of unit length, orthogonal to each other."""
    return torch.linalg.qr(torch.randn(width, count, dtype=torch.float64, generator=generator)).Q.T


def sample_two(count: int, generator: Generator) -> tuple[int, int]:
    """Two different random indices a and b below `count`."""
    a, b = torch.randperm(count, generator=generator)[:2].tolist()
    return a, b


def make_score(width: int, scaled: bool) -> Score:
    """The library's score q . k, or q . k / sqrt(d)."""
    return SCORES["scaled-dot" if scaled else "dot"](width, width)


def dot_product_attention(
    query: Float[Tensor, "*#draw width"],
    keys: Float[Tensor, "*draw key width"],
    values: Float[Tensor, "key depth"],
    scaled: bool = False,
) -> tuple[Float[Tensor, "*draw depth"], Float[Tensor, "*draw key"]]:
    """Dot-product attention, (output, weights), for each draw of the keys (and of the query)."""
    draws, width = keys.shape[:-2], keys.shape[-1]
    score = make_score(width, scaled)
    scores = score(query[..., None, :].expand(*draws, 1, width), keys)
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


def explain_scaling(
    answer: float | Tensor, solution: float | Tensor, dim: int, name: str = "answer"
) -> str:
    """A hint for an answer that is the solution times sqrt(d) or divided by it; otherwise empty."""
    given, right = (torch.as_tensor(x, dtype=torch.float64) for x in (answer, solution))
    root = math.sqrt(dim)
    for factor, relation in (
        (root, "is sqrt(d) times too large"),
        (1 / root, "lacks a factor sqrt(d)"),
    ):
        if given.shape == right.shape and torch.allclose(given, factor * right, rtol=1e-5):
            return (
                f"Your {name} {relation}, with sqrt(d) = {root:.3g}: here scores are q . k, not "
                "q . k / sqrt(d)."
            )
    return ""


def explain_query_scaling(
    answer: Float[Tensor, "*query width"],
    solution: Float[Tensor, "*query width"],
    keys: Float[Tensor, "key width"],
) -> str:
    """`explain_scaling` for queries, compared by their scores up to a constant, which softmax ignores."""

    def centred_scores(query: Tensor) -> Tensor:
        scores = query @ keys.T
        return scores - scores.mean(-1, keepdim=True)

    return explain_scaling(
        centred_scores(answer), centred_scores(solution), keys.shape[-1], "query"
    )
