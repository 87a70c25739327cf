"""The likeliest next token, again and again."""

from jaxtyping import Int
from torch import Tensor

from regard.models.interface import Memory, Model
from regard.search.follow import follow
from regard.search.hypothesis import Hypothesis


def greedy(model: Model, memory: Memory, limits: Int[Tensor, " batch"]) -> list[Hypothesis]:
    """One output a row, of at most `limits` tokens."""
    return follow(model, memory, limits, lambda chances, rows, place: chances.argmax(-1))
