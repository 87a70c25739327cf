"""Sampling the next token: temperature, top-k, top-p (nucleus sampling)."""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.models.interface import StateT, Tokens
from regard.search.constrain import Constrain
from regard.search.generate import Generation
from regard.search.graphs import Graphs
from regard.search.hypothesis import Hypothesis
from regard.search.run import round_columns, search
from regard.search.step import LogProbs, StepModel


@dataclass
class Sample(Generation):
    """A token drawn from the model's distribution, at a temperature, truncated to top k and top p."""

    uniform: Float[Tensor, "batch longest"]
    """For each token a number that is uniform in [0, 1)."""
    temperature: float
    top_k: int | None
    top_p: float | None

    def choose(self, log_probs: LogProbs) -> Tokens:
        # Relative to the maximum, in double precision: no temperature underflows all probabilities.
        relative = (log_probs - log_probs.amax(-1, keepdim=True)).double() / self.temperature
        probs, tokens = relative.softmax(-1).sort(-1, descending=True)
        probs = truncate(probs, self.top_k, self.top_p)
        cumulative = probs.cumsum(-1)
        # Inverse transform sampling over the remaining mass.
        threshold = self.uniform.gather(1, self.lengths[:, None]) * cumulative[:, -1:]
        sampled = torch.searchsorted(cumulative, threshold, right=True)
        last = (probs[:, 1:] > 0).sum(-1, keepdim=True)  # rounding must not select a later one
        return tokens.gather(1, torch.minimum(sampled, last))[:, 0]


@torch.inference_mode()
def sample(
    model: StepModel[StateT],
    memory: Any,
    max_lengths: Int[Tensor, " batch"],
    seeds: list[int],
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    check_every: int | None = None,
    constrain: Constrain | None = None,
    cuda_graphs: bool | Graphs = True,
) -> list[Hypothesis]:
    """One sample per row, which depends on the row's seed alone, not on the batch.

    The score is the model's log-probability at temperature 1.
    """
    columns = round_columns(int(max_lengths.max()))
    uniform = torch.stack([uniform_draws(seed, columns) for seed in seeds]).to(max_lengths.device)
    tensors, options = (max_lengths, uniform), (temperature, top_k, top_p)
    outputs = search(Sample, model, memory, tensors, options, check_every, constrain, cuda_graphs)
    return [output for [output] in outputs]


def uniform_draws(seed: int, count: int) -> Float[Tensor, " count"]:
    return torch.rand(count, generator=torch.Generator().manual_seed(seed))


def truncate(
    probs: Float[Tensor, "rows vocab"], top_k: int | None, top_p: float | None
) -> Float[Tensor, "rows vocab"]:
    """Probabilities in descending order, with 0 outside the top k and outside the nucleus."""
    if top_k is not None:
        ranks = torch.arange(probs.shape[1], device=probs.device)
        probs = probs.masked_fill(ranks >= top_k, 0.0)
    if top_p is not None:
        # A token stays if the more probable ones sum to less than top_p: the first always does.
        probs = probs.masked_fill(probs.cumsum(-1) - probs >= top_p, 0.0)
    return probs
