"""Loss and perplexity: -log p(target | source), teacher-forced, without label smoothing.

Averaged per target token, EOS included.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch

from regard.models.batching import batch_rows
from regard.models.interface import Memory, Model
from regard.search.forced import BATCH_TOKENS, force
from regard.text.batch import Batch, EncodedPairs


@dataclass(frozen=True)
class Likelihood:
    """Sums over one or more sentences, from which all averages are computed."""

    nats: float
    tokens: int
    correct: int

    @property
    def loss(self) -> float:
        return self.nats / self.tokens

    @property
    def perplexity(self) -> float:
        return math.exp(min(self.loss, 700.0))

    @property
    def token_accuracy(self) -> float:
        return self.correct / self.tokens

    def bits_per_character(self, characters: int) -> float:
        return self.nats / math.log(2) / characters


def aggregate(parts: Iterable[Likelihood]) -> Likelihood:
    """The sum over sentences."""
    parts = list(parts)
    return Likelihood(*(sum(getattr(p, f) for p in parts) for f in ("nats", "tokens", "correct")))


def likelihoods(
    model: Model, data: EncodedPairs, batch_tokens: int = BATCH_TOKENS
) -> list[Likelihood]:
    """The likelihood of each pair, in order."""
    device = next(model.parameters()).device
    by_row: dict[int, Likelihood] = {}
    was_training = model.training
    model.eval()
    with torch.inference_mode():
        for rows in batch_rows(model, data, batch_tokens):
            batch = data.batch(rows).to(device)
            by_row.update(zip(rows, batch_likelihoods(model, batch), strict=True))
    model.train(was_training)
    return [by_row[row] for row in range(len(data))]


def batch_likelihoods(model: Model, batch: Batch, memory: Memory | None = None) -> list[Likelihood]:
    """The likelihood of each pair in a batch; pass `memory` if the source is already encoded."""
    log_probs, correct = force(model, batch, memory)
    sums = [x.sum(1).tolist() for x in (-log_probs.double(), batch.target_mask, correct)]
    return list(map(Likelihood, *sums))
