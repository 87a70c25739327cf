"""Encoder-decoder Transformer (Vaswani et al., 2017).

The decoder goes through the same code whether it reads a whole target or one token behind a cache.
Several beginnings of one sentence are so many queries over the same keys of the source.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from regard.attention import Position
from regard.models.interface import Attending, Logits, Memory, Rows, Source, SourceMask, Target
from regard.models.layers import Block, CrossBlock, CrossWeights
from regard.models.mixers import Reading, Weights
from regard.models.stack import Stacked, StackState, places

Sequence = Float[Tensor, "batch length width"]


@dataclass
class TransformerState(StackState):
    """What the decoder remembers, and the source it looks at."""

    sources: tuple[tuple[Tensor, Tensor], ...]
    """Its keys and values, for each layer."""
    mask: Bool[Tensor, "batch source"]
    source_at: Int[Tensor, "batch source"]


class Transformer(Stacked):
    """Embedding, blocks, norm; the output map is the target embedding, transposed, if it is tied."""

    encoder: list[Block]
    decoder: list[CrossBlock]

    def __init__(
        self,
        source_embedding: nn.Embedding,
        target_embedding: nn.Embedding,
        position: Position,
        encoder: list[Block],
        decoder: list[CrossBlock],
        norms: tuple[nn.Module, nn.Module],
        tied: bool,
        dropout: float,
    ) -> None:
        super().__init__(source_embedding, target_embedding, position, tied, dropout)
        self.encoder = nn.ModuleList(encoder)  # type: ignore[assignment]
        self.decoder = nn.ModuleList(decoder)  # type: ignore[assignment]
        self.encoder_norm, self.decoder_norm = norms

    def room(self, source: int) -> int | None:
        places = self.position.max_length
        return 0 if places is not None and source > places else places

    def encode(self, source: Source, mask: SourceMask) -> Memory:
        return self._encode(source, mask, explain=False)[0]

    def begin(self, memory: Memory) -> TransformerState:
        at = places(memory.mask)
        return TransformerState(
            pasts=tuple(block.own.begin(len(at)) for block in self.decoder),
            past_at=at[:, :0],
            next_at=torch.zeros_like(at[:, 0]),
            own=None,
            sources=tuple(block.cross.keys_values(memory.states, at) for block in self.decoder),
            mask=memory.mask,
            source_at=at,
        )

    def step(self, tokens: Rows, state: TransformerState) -> tuple[Logits, TransformerState]:
        side_by_side = tokens.view(len(state.mask), -1)
        reading = state.one_each(side_by_side.shape[1])
        features, _ = self._decode(side_by_side, reading, state, explain=False)
        return self.project(features.flatten(0, 1)), state

    def features(self, memory: Memory, target: Target) -> Float[Tensor, "batch target features"]:
        return self._read(target, self.begin(memory), explain=False)[0]

    def explain(
        self, source: Source, mask: SourceMask, target: Target
    ) -> dict[str, Float[Tensor, "batch layers heads query key"]]:
        memory, encoder_weights = self._encode(source, mask, explain=True)
        _, decoder_weights = self._read(target, self.begin(memory), explain=True)
        own, cross = zip(*decoder_weights, strict=True)
        found = {"cross": cross, "encoder": encoder_weights, "decoder": own}
        # What mixes tokens without attention has no weights, in any layer.
        shown = {name: [w for w in layers if w is not None] for name, layers in found.items()}
        return {name: torch.stack(layers, dim=1) for name, layers in shown.items() if layers}

    def attentions(self) -> dict[str, list[Attending]]:
        found = {
            "encoder": [layer for block in self.encoder for layer in block.own.attentions()],
            "decoder": [layer for block in self.decoder for layer in block.own.attentions()],
            "cross": [block.cross for block in self.decoder],
        }
        return {name: layers for name, layers in found.items() if layers}

    def _encode(
        self, source: Source, mask: SourceMask, explain: bool
    ) -> tuple[Memory, list[Weights]]:
        at = places(mask)
        reading = Reading(at, at, mask[:, None], mask)
        x, found = self._embed(self.source_embedding, source, at), []
        for block in self.encoder:
            x, weights = block(x, reading, block.own.begin(len(x)), explain)
            found.append(weights)
        return Memory(self.encoder_norm(x), mask), found

    def _read(
        self, target: Target, state: TransformerState, explain: bool
    ) -> tuple[Sequence, list[tuple[Weights, CrossWeights]]]:
        """A target, or its next part, at once."""
        return self._decode(target, state.onwards(target.shape[1]), state, explain)

    def _decode(
        self,
        tokens: Int[Tensor, "batch length"],
        reading: Reading,
        state: TransformerState,
        explain: bool,
    ) -> tuple[Sequence, list[tuple[Weights, CrossWeights]]]:
        x, found = self._embed(self.target_embedding, tokens, reading.at), []
        for block, past, source in zip(self.decoder, state.pasts, state.sources, strict=True):
            seen = (source, state.mask, state.source_at)
            x, own, cross = block(x, reading, past, *seen, explain)
            found.append((own, cross))
        return self.decoder_norm(x), found
