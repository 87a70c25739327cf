"""The likeliest next token, again and again."""

from jaxtyping import Float, Int
from torch import Tensor

from regard.models.interface import Memory, Model
from regard.search.follow import follow
from regard.search.hypothesis import Hypothesis
from regard.search.step import best


def greedy(
    model: Model, memory: Memory, limits: Int[Tensor, " batch"], check_every: int | None = None
) -> list[Hypothesis]:
    """One output a row, of at most `limits` tokens."""
    return follow(model, memory, limits, likeliest, check_every)


def likeliest(
    chances: Float[Tensor, "rows vocab"], rows: Int[Tensor, " rows"], place: int
) -> tuple[Int[Tensor, " rows"], Float[Tensor, " rows"]]:
    """(token, its log-probability)"""
    found, tokens = best(chances, 1)
    return tokens[:, 0], found[:, 0]
