"""Greedy search: the most probable token at every step."""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from regard.models.interface import StateT, Tokens
from regard.search.constrain import Constrain
from regard.search.generate import Generation
from regard.search.graphs import Graphs
from regard.search.hypothesis import Hypothesis
from regard.search.run import search
from regard.search.step import LogProbs, StepModel, topk


@dataclass
class Greedy(Generation):
    """The most probable token of each row."""

    def choose(self, log_probs: LogProbs) -> Tokens:
        return topk(log_probs, 1)[1][:, 0]


@torch.inference_mode()
def greedy(
    model: StepModel[StateT],
    memory: Any,
    max_lengths: Int[Tensor, " batch"],
    check_every: int | None = None,
    constrain: Constrain | None = None,
    cuda_graphs: bool | Graphs = True,
) -> list[Hypothesis]:
    """One output per row, of at most `max_lengths` tokens."""
    outputs = search(Greedy, model, memory, (max_lengths,), (), check_every, constrain, cuda_graphs)
    return [output for [output] in outputs]
