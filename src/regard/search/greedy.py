"""Greedy search: the most probable token at every step."""

from typing import Any

from jaxtyping import Float, Int
from torch import Tensor

from regard.models.interface import StateT
from regard.search.constrain import Constrain
from regard.search.generate import generate
from regard.search.hypothesis import Hypothesis
from regard.search.step import StepModel, topk


def greedy(
    model: StepModel[StateT],
    memory: Any,
    max_lengths: Int[Tensor, " batch"],
    check_every: int | None = None,
    constrain: Constrain | None = None,
) -> list[Hypothesis]:
    """One output per row, of at most `max_lengths` tokens."""
    return generate(model, memory, max_lengths, choose_best, check_every, constrain)


def choose_best(
    log_probs: Float[Tensor, "rows vocab"], rows: Int[Tensor, " rows"], step: int
) -> tuple[Int[Tensor, " rows"], Float[Tensor, " rows"]]:
    """The most probable token of each row, and its log-probability."""
    top, tokens = topk(log_probs, 1)
    return tokens[:, 0], top[:, 0]
