"""Forced decoding: the log-probability that a model gives to an output that is already there."""

import math
from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from regard.errors import UserError
from regard.models.batching import batch_rows
from regard.models.ensemble import join_layers
from regard.models.interface import Memory, Model
from regard.text.batch import Batch, EncodedPairs

BATCH_TOKENS = 8192


@dataclass(frozen=True)
class ScoredPair:
    """What a model says about a given translation: the log-probability of each of its tokens."""

    source: list[str]
    """Tokens as strings; the target ends with the EOS token."""
    target: list[str]
    log_probs: list[float]
    """log p(token | source, tokens before it) of each target token, in nats."""
    weights: list[dict[str, Float[Tensor, "layer head query key"]]] | None = field(
        default=None, repr=False
    )
    """The attention weights of each member of an ensemble; one item for any other model."""

    @property
    def score(self) -> float:
        """Total log-probability, EOS included, as in `Translation.score`."""
        return math.fsum(self.log_probs)

    @property
    def perplexity(self) -> float:
        """exp(-score / tokens)."""
        return math.exp(min(-self.score / len(self.log_probs), 700.0))

    @property
    def attention(self) -> dict[str, Float[Tensor, "layer head query key"]]:
        """Weights by mechanism, as in `Translation.attention`."""
        return join_layers(self.members, dim=0)

    @property
    def members(self) -> list[dict[str, Float[Tensor, "layer head query key"]]]:
        """The weights of each member, as in `Translation.members`."""
        if self.weights is None:
            raise UserError("no attention weights: call score(pairs, attention=True)")
        return self.weights


def force(
    model: Model, batch: Batch, memory: Memory | None = None
) -> tuple[Float[Tensor, "batch target"], Bool[Tensor, "batch target"]]:
    """For every label, EOS included: log p(y_t | y_<t, x), and whether no token is more probable.

    0 and False at padding. Pass `memory` if the source is already encoded.
    """
    memory = model.encode(batch.source, batch.source_mask) if memory is None else memory
    log_probs = model.project(model.features(memory, batch.target)).float().log_softmax(-1)
    of_labels = log_probs.gather(-1, batch.labels[..., None])[..., 0]
    is_best = (log_probs.argmax(-1) == batch.labels) & batch.target_mask
    # Not a product: -inf at padding would give NaN.
    return of_labels.where(batch.target_mask, 0.0), is_best


def token_log_probs(
    model: Model, pairs: EncodedPairs, batch_tokens: int | None = None
) -> list[list[float]]:
    """For each pair, log p of each target token, then of EOS."""
    device = next(model.parameters()).device
    by_row: dict[int, list[float]] = {}
    with torch.inference_mode():
        for rows in batch_rows(model, pairs, batch_tokens or BATCH_TOKENS):
            log_probs, _ = force(model, pairs.batch(rows).to(device))
            for row, values in zip(rows, log_probs.tolist(), strict=True):
                by_row[row] = values[: len(pairs.target[row]) + 1]
    return [by_row[row] for row in range(len(pairs))]
