"""How a stack of causal blocks goes on reading: at once, or a token for each of several beginnings."""

import math
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from regard.attention import Position, causal_mask
from regard.models.dropout import Dropout
from regard.models.interface import Model, State
from regard.models.mixers import Reading

Ids = Int[Tensor, "batch length"]
Sequence = Float[Tensor, "batch length width"]


def places(mask: Bool[Tensor, "batch length"]) -> Int[Tensor, "batch length"]:
    """0, 1, 2, ... over the real tokens, wherever the padding is."""
    return (mask.cumsum(1) - 1).clamp(min=0)


@dataclass
class StackState(State):
    """What the layers remember, and where everything stands that they have read."""

    pasts: tuple[State, ...]
    past_at: Int[Tensor, "batch past"]
    next_at: Int[Tensor, " batch"]
    """Where the next token stands."""
    own: Bool[Tensor, "batch beam past"] | None
    """Which of the past each beginning has read; None: there is one, and it has read all of it."""

    def spread(self, beam: int) -> "StackState":
        own = self.past_at.new_ones(self.past_at[:, None].shape, dtype=torch.bool)
        own = own if self.own is None else self.own
        pasts = tuple(past.spread(beam) for past in self.pasts)
        return replace(self, pasts=pasts, own=own.repeat_interleave(beam, dim=1))

    def reorder(self, slots: Int[Tensor, "batch beam"]) -> "StackState":
        pasts, own = tuple(past.reorder(slots) for past in self.pasts), self.own
        if own is not None:
            own = own.gather(1, slots[..., None].expand(-1, -1, own.shape[-1]))
        return replace(self, pasts=pasts, own=own)

    def one_each(self, beam: int) -> Reading:
        """The next token of each of `beam` beginnings."""
        at = self.next_at[:, None].expand(-1, beam)
        self.past_at = torch.cat([self.past_at, at], dim=1)
        self.next_at = self.next_at + 1
        if self.own is not None:
            itself = torch.eye(beam, dtype=torch.bool, device=at.device).expand(len(at), -1, -1)
            self.own = torch.cat([self.own, itself], dim=-1)
        return Reading(at, self.past_at, self.own, apart=True)

    def onwards(self, count: int) -> Reading:
        """The next `count` tokens of the one beginning: each sees itself and those before it."""
        at = self.next_at[:, None] + torch.arange(count, device=self.next_at.device)
        self.past_at = torch.cat([self.past_at, at], dim=1)
        self.next_at = self.next_at + count
        mask = causal_mask(at, self.past_at)
        if self.own is not None:
            read = torch.ones_like(at, dtype=torch.bool)[:, None]
            self.own = torch.cat([self.own, read], dim=-1)
            mask = mask & self.own
        return Reading(at, self.past_at, mask)


class Stacked(Model):
    """What Transformers of both kinds share: embeddings with positions, and the output map."""

    def __init__(
        self,
        source_embedding: nn.Embedding,
        target_embedding: nn.Embedding,
        position: Position,
        tied: bool,
        dropout: float,
    ) -> None:
        super().__init__()
        vocab, width = target_embedding.weight.shape
        self.source_embedding, self.target_embedding = source_embedding, target_embedding
        for embedding in (source_embedding, target_embedding):
            nn.init.normal_(embedding.weight, std=width**-0.5)
        self.scale = math.sqrt(width)
        self.position = position
        self.output = None if tied else nn.Linear(width, vocab, bias=False)
        self.dropout = Dropout(dropout)

    @property
    def output_map(self) -> tuple[Float[Tensor, "vocab features"], None]:
        tied = self.target_embedding.weight
        return tied if self.output is None else self.output.weight, None

    def by_token(self) -> dict[str, list[Tensor]]:
        own = [] if self.output is None else [self.output.weight]
        return {
            "source": [self.source_embedding.weight],
            "target": [self.target_embedding.weight, *own],
        }

    def _embed(self, embedding: nn.Embedding, tokens: Ids, at: Ids) -> Sequence:
        return self.dropout(self.position.embed(embedding(tokens) * self.scale, at))
