"""Decoder-only: source and target in one sequence, each token seeing itself and those before it.

    w_1 .. w_n <end> <begin> m_1 .. m_k        loss on what follows <begin>

The source is read once. What every layer has left of it, its past, is where each target begins.
"""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.attention import Position, causal_mask
from regard.models.interface import (
    Attending,
    Logits,
    Memory,
    Rows,
    Source,
    SourceMask,
    State,
    Target,
)
from regard.models.layers import Block
from regard.models.mixers import Reading, Weights
from regard.models.stack import Stacked, StackState, places

Sequence = Float[Tensor, "batch length width"]


@dataclass
class ReadSource(Memory):
    """The source's last states, and each layer's past."""

    pasts: tuple[State, ...]


class DecoderOnly(Stacked):
    """Embedding, blocks, norm; the output map is the target embedding, transposed, if it is tied."""

    decoder: list[Block]

    def __init__(
        self,
        source_embedding: nn.Embedding,
        target_embedding: nn.Embedding,
        position: Position,
        decoder: list[Block],
        norm: nn.Module,
        tied: bool,
        dropout: float,
    ) -> None:
        super().__init__(source_embedding, target_embedding, position, tied, dropout)
        self.decoder = nn.ModuleList(decoder)  # type: ignore[assignment]
        self.norm = norm

    def room(self, source: int) -> int | None:
        places = self.position.max_length
        return None if places is None else max(0, places - source)

    def encode(self, source: Source, mask: SourceMask) -> ReadSource:
        return self._encode(source, mask, explain=False)[0]

    def begin(self, memory: ReadSource) -> StackState:
        # New records of the same tensors: what is read from here on does not change the memory.
        pasts = tuple(replace(past) for past in memory.pasts)
        return StackState(pasts, places(memory.mask), memory.mask.sum(1), memory.mask[:, None])

    def step(self, tokens: Rows, state: StackState) -> tuple[Logits, StackState]:
        side_by_side = tokens.view(len(state.next_at), -1)
        reading = state.one_each(side_by_side.shape[1])
        x = self._embed(self.target_embedding, side_by_side, reading.at)
        features, _ = self._through(x, reading, state.pasts, explain=False)
        return self.project(features.flatten(0, 1)), state

    def features(
        self, memory: ReadSource, target: Target
    ) -> Float[Tensor, "batch target features"]:
        return self._read(target, self.begin(memory), explain=False)[0]

    def explain(
        self, source: Source, mask: SourceMask, target: Target
    ) -> dict[str, Float[Tensor, "batch layers heads query key"]]:
        """Of a target token's weights, those on the source are "cross", the rest "decoder"."""
        memory, first = self._encode(source, mask, explain=True)
        _, second = self._read(target, self.begin(memory), explain=True)
        over_source, over_all = ([w for w in found if w is not None] for found in (first, second))
        if not over_all:  # a state has no weights to show
            return {}
        weights, border = torch.stack(over_all, dim=1), source.shape[1]
        return {
            "cross": weights[..., :border],
            "encoder": torch.stack(over_source, dim=1),
            "decoder": weights[..., border:],
        }

    def attentions(self) -> dict[str, list[Attending]]:
        """One mechanism, whatever its weights are over: the same layers read source and target."""
        layers = [layer for block in self.decoder for layer in block.own.attentions()]
        return {"decoder": layers} if layers else {}

    def _encode(
        self, source: Source, mask: SourceMask, explain: bool
    ) -> tuple[ReadSource, list[Weights]]:
        at = places(mask)
        reading = Reading(at, at, causal_mask(at, at) & mask[:, None], mask)
        pasts = tuple(block.own.begin(len(source)) for block in self.decoder)
        x = self._embed(self.source_embedding, source, at)
        states, found = self._through(x, reading, pasts, explain)
        return ReadSource(states, mask, pasts), found

    def _read(
        self, target: Target, state: StackState, explain: bool
    ) -> tuple[Sequence, list[Weights]]:
        """A target, or its next part, at once."""
        reading = state.onwards(target.shape[1])
        x = self._embed(self.target_embedding, target, reading.at)
        return self._through(x, reading, state.pasts, explain)

    def _through(
        self, x: Sequence, reading: Reading, pasts: tuple[State, ...], explain: bool
    ) -> tuple[Sequence, list[Weights]]:
        found = []
        for block, past in zip(self.decoder, pasts, strict=True):
            x, weights = block(x, reading, past, explain)
            found.append(weights)
        return self.norm(x), found
