"""Encoder-decoder Transformer, normalised before each block (Vaswani et al., 2017; Xiong et al., 2020).

    x = x + Attention(norm(x))        x = x + FeedForward(norm(x))

The decoder goes through the same code whether it reads a whole target or one token behind a cache.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from regard.attention import MultiHead, Position, causal_mask
from regard.models.dropout import Dropout
from regard.models.interface import Logits, Memory, Model, Record, Source, SourceMask, Target

Sequence = Float[Tensor, "batch length width"]
Places = Int[Tensor, "batch length"]
Heads = Float[Tensor, "batch heads key depth"]
AllHeads = Float[Tensor, "batch heads past depth"]
Weights = Float[Tensor, "batch heads query key"] | None
CrossWeights = Float[Tensor, "batch heads query source"] | None


class FeedForward(nn.Module):
    """W_2 relu(W_1 x + b_1) + b_2, at each position alone."""

    def __init__(self, width: int, inner: int, dropout: float) -> None:
        super().__init__()
        self.grow = nn.Linear(width, inner)
        self.shrink = nn.Linear(inner, width)
        self.dropout = Dropout(dropout)

    def forward(self, x: Sequence) -> Sequence:
        return self.shrink(self.dropout(torch.relu(self.grow(x))))


class EncoderBlock(nn.Module):
    """Self-attention over the whole source, then feed-forward."""

    def __init__(self, width: int, own: MultiHead, feed: FeedForward, dropout: float) -> None:
        super().__init__()
        self.own_norm, self.feed_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.own, self.feed = own, feed
        self.dropout = Dropout(dropout)

    def forward(
        self, x: Sequence, mask: SourceMask, at: Places, explain: bool
    ) -> tuple[Sequence, Weights]:
        normed = self.own_norm(x)
        keys, values = self.own.keys_values(normed, at)
        seen, weights = self.own(normed, keys, values, mask[:, None], at, at, explain)
        x = x + self.dropout(seen)
        return x + self.dropout(self.feed(self.feed_norm(x))), weights


@dataclass
class Past(Record):
    """Keys and values of the tokens a layer has read, in room that doubles and is written in place."""

    keys: Heads | None = None
    values: Heads | None = None
    length: int = 0

    def add(self, keys: Heads, values: Heads) -> tuple[AllHeads, AllHeads]:
        """Everything read so far, these included."""
        if self.keys is None or self.values is None:
            # A target read at once ends here, without a copy that would trouble its gradient.
            self.keys, self.values, self.length = keys, values, keys.shape[2]
            return keys, values
        start, end = self.length, self.length + keys.shape[2]
        if end > self.keys.shape[2]:
            self.keys, self.values = (self._grown(old, end) for old in (self.keys, self.values))
        self.keys[:, :, start:end] = keys
        self.values[:, :, start:end] = values
        self.length = end
        return self.keys[:, :, :end], self.values[:, :, :end]

    def _grown(self, old: Heads, needed: int) -> AllHeads:
        batch, heads, _, depth = old.shape
        room = old.new_empty(batch, heads, max(16, 2 * needed), depth)
        room[:, :, : self.length] = old[:, :, : self.length]
        return room


@dataclass
class LayerState(Record):
    """What one decoder layer remembers: keys and values of the source, and its own past."""

    source_keys: Heads
    source_values: Heads
    past: Past


@dataclass
class TransformerState(Record):
    """What the decoder remembers, and where everything it may look at stands."""

    layers: tuple[LayerState, ...]
    mask: Bool[Tensor, "batch source"]
    source_at: Int[Tensor, "batch source"]
    past_at: Int[Tensor, "batch past"]


class DecoderBlock(nn.Module):
    """Causal self-attention, cross-attention, feed-forward."""

    def __init__(
        self, width: int, own: MultiHead, cross: MultiHead, feed: FeedForward, dropout: float
    ) -> None:
        super().__init__()
        self.own_norm, self.cross_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.feed_norm = nn.LayerNorm(width)
        self.own, self.cross, self.feed = own, cross, feed
        self.dropout = Dropout(dropout)

    def begin(self, memory: Memory, at: Places) -> LayerState:
        return LayerState(*self.cross.keys_values(memory.states, at), Past())

    def forward(
        self, x: Sequence, at: Places, layer: LayerState, state: TransformerState, explain: bool
    ) -> tuple[Sequence, Weights, CrossWeights]:
        normed = self.own_norm(x)
        keys, values = layer.past.add(*self.own.keys_values(normed, at))
        causal = causal_mask(at, state.past_at)
        seen, own_weights = self.own(normed, keys, values, causal, at, state.past_at, explain)
        x = x + self.dropout(seen)
        seen, cross_weights = self.cross(
            self.cross_norm(x),
            layer.source_keys,
            layer.source_values,
            state.mask[:, None],
            at,
            state.source_at,
            explain,
        )
        x = x + self.dropout(seen)
        return x + self.dropout(self.feed(self.feed_norm(x))), own_weights, cross_weights


def places(mask: Bool[Tensor, "batch length"]) -> Int[Tensor, "batch length"]:
    """0, 1, 2, ... over the real tokens, wherever the padding is."""
    return (mask.cumsum(1) - 1).clamp(min=0)


class Transformer(Model):
    """Embedding, blocks, norm; the output map is the target embedding, transposed."""

    encoder: list[EncoderBlock]
    decoder: list[DecoderBlock]

    def __init__(
        self,
        source_embedding: nn.Embedding,
        target_embedding: nn.Embedding,
        position: Position,
        encoder: list[EncoderBlock],
        decoder: list[DecoderBlock],
        dropout: float,
    ) -> None:
        super().__init__()
        width = target_embedding.embedding_dim
        self.source_embedding, self.target_embedding = source_embedding, target_embedding
        for embedding in (source_embedding, target_embedding):
            nn.init.normal_(embedding.weight, std=width**-0.5)
        self.scale = math.sqrt(width)
        self.position = position
        self.encoder = nn.ModuleList(encoder)  # type: ignore[assignment]
        self.decoder = nn.ModuleList(decoder)  # type: ignore[assignment]
        self.encoder_norm, self.decoder_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.dropout = Dropout(dropout)

    def encode(self, source: Source, mask: SourceMask) -> Memory:
        return self._encode(source, mask, explain=False)[0]

    def begin(self, memory: Memory) -> TransformerState:
        source_at = places(memory.mask)
        layers = tuple(block.begin(memory, source_at) for block in self.decoder)
        return TransformerState(layers, memory.mask, source_at, source_at[:, :0])

    def step(
        self, tokens: Int[Tensor, " batch"], state: TransformerState
    ) -> tuple[Logits, TransformerState]:
        features, _ = self._decode(tokens[:, None], state, explain=False)
        return self.project(features[:, 0]), state

    def features(self, memory: Memory, target: Target) -> Float[Tensor, "batch target features"]:
        return self._decode(target, self.begin(memory), explain=False)[0]

    @property
    def output_map(self) -> tuple[Float[Tensor, "vocab features"], None]:
        return self.target_embedding.weight, None

    def explain(
        self, source: Source, mask: SourceMask, target: Target
    ) -> dict[str, Float[Tensor, "batch layers heads query key"]]:
        memory, encoder_weights = self._encode(source, mask, explain=True)
        _, decoder_weights = self._decode(target, self.begin(memory), explain=True)
        own, cross = zip(*decoder_weights, strict=True)
        by_mechanism = {"cross": cross, "encoder": encoder_weights, "decoder": own}
        return {name: torch.stack(list(weights), dim=1) for name, weights in by_mechanism.items()}

    def _embed(self, embedding: nn.Embedding, tokens: Places, at: Places) -> Sequence:
        return self.dropout(self.position.embed(embedding(tokens) * self.scale, at))

    def _encode(
        self, source: Source, mask: SourceMask, explain: bool
    ) -> tuple[Memory, list[Weights]]:
        at = places(mask)
        x, found = self._embed(self.source_embedding, source, at), []
        for block in self.encoder:
            x, weights = block(x, mask, at, explain)
            found.append(weights)
        return Memory(self.encoder_norm(x), mask), found

    def _decode(
        self, target: Target, state: TransformerState, explain: bool
    ) -> tuple[Sequence, list[tuple[Weights, CrossWeights]]]:
        start = state.past_at.shape[1]
        at = torch.arange(start, start + target.shape[1], device=target.device).expand_as(target)
        state.past_at = torch.cat([state.past_at, at], dim=1)
        x, found = self._embed(self.target_embedding, target, at), []
        for block, layer in zip(self.decoder, state.layers, strict=True):
            x, own, cross = block(x, at, layer, state, explain)
            found.append((own, cross))
        return self.decoder_norm(x), found
