"""How well a model predicts references it is shown: one definition of loss and perplexity.

Teacher-forced, unsmoothed, per target token, end token included.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch

from regard.models.interface import Memory, Model
from regard.text.batch import Batch, Encoded
from regard.translator import batches


@dataclass(frozen=True)
class Likelihood:
    """Sums over sentences, from which every average follows."""

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


def total(parts: Iterable[Likelihood]) -> Likelihood:
    parts = list(parts)
    return Likelihood(*(sum(getattr(p, f) for p in parts) for f in ("nats", "tokens", "correct")))


def likelihoods(model: Model, data: Encoded, batch_tokens: int = 8192) -> list[Likelihood]:
    """One for each pair, in order."""
    device = next(model.parameters()).device
    found: dict[int, Likelihood] = {}
    was_training = model.training
    model.eval()
    with torch.inference_mode():
        for rows in batches(model, data, batch_tokens):
            found.update(zip(rows, of_batch(model, data.batch(rows).to(device)), strict=True))
    model.train(was_training)
    return [found[row] for row in range(len(data))]


def of_batch(model: Model, batch: Batch, memory: Memory | None = None) -> list[Likelihood]:
    """One for each pair of a batch, by the model as it stands; `memory` if the source was read before."""
    memory = model.encode(batch.source, batch.source_mask) if memory is None else memory
    chances = model.project(model.features(memory, batch.target)).float().log_softmax(-1)
    nats = -chances.gather(-1, batch.wanted[..., None])[..., 0] * batch.target_mask
    correct = (chances.argmax(-1) == batch.wanted) & batch.target_mask
    sums = [x.sum(1).tolist() for x in (nats.double(), batch.target_mask, correct)]
    return list(map(Likelihood, *sums))
