"""Encoder-decoder Transformer, normalised before each block (Vaswani et al., 2017; Xiong et al., 2020).

    x = x + Attention(norm(x))        x = x + FeedForward(norm(x))

The decoder goes through the same code whether it reads a whole target or one token behind a cache.
Several beginnings of one sentence are so many queries over the same keys: those of the source, and
those of every token that any of the beginnings has read. Which of these are a beginning's own is a
mask, and when beginnings trade places nothing but that mask moves.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from regard.attention import MultiHead, Position, causal_mask
from regard.linear import Linear
from regard.models.dropout import Dropout
from regard.models.interface import (
    Attending,
    Logits,
    Memory,
    Model,
    Record,
    Source,
    SourceMask,
    State,
    Target,
)

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
        self.grow = Linear(width, inner)
        self.shrink = Linear(inner, width)
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

    def _map(self, change: Callable[[Tensor], Tensor]) -> "Past":
        """Of the room, only what is used."""
        if self.keys is None or self.values is None:
            return Past()
        keys, values = (change(old[:, :, : self.length]) for old in (self.keys, self.values))
        return Past(keys, values, self.length)


@dataclass
class LayerState(Record):
    """What one decoder layer remembers: keys and values of the source, and its own past."""

    source_keys: Heads
    source_values: Heads
    past: Past


@dataclass
class TransformerState(State):
    """What the decoder remembers, and where everything it may look at stands."""

    layers: tuple[LayerState, ...]
    mask: Bool[Tensor, "batch source"]
    source_at: Int[Tensor, "batch source"]
    past_at: Int[Tensor, "batch past"]
    own: Bool[Tensor, "batch beam past"] | None = None
    """Which of the past each beginning has read; None: there is one, and it has read all of it."""
    place: int = 0
    """Where the next token stands."""

    def spread(self, beam: int) -> "TransformerState":
        own = self.past_at.new_ones(self.past_at[:, None].shape, dtype=torch.bool)
        own = own if self.own is None else self.own
        return replace(self, own=own.repeat_interleave(beam, dim=1))

    def reorder(self, slots: Int[Tensor, "batch beam"]) -> "TransformerState":
        if self.own is None:
            return self
        index = slots[..., None].expand(-1, -1, self.own.shape[-1])
        return replace(self, own=self.own.gather(1, index))


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
        self,
        x: Sequence,
        at: Places,
        mask: Bool[Tensor, "batch length past"] | None,
        layer: LayerState,
        state: TransformerState,
        explain: bool,
    ) -> tuple[Sequence, Weights, CrossWeights]:
        normed = self.own_norm(x)
        keys, values = layer.past.add(*self.own.keys_values(normed, at))
        if state.own is None or self.own.score.pairwise:
            seen, own_weights = self.own(normed, keys, values, mask, at, state.past_at, explain)
        else:
            seen, own_weights = self._one_by_one(normed, keys, values, at, state), None
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

    def _one_by_one(
        self, x: Sequence, keys: AllHeads, values: AllHeads, at: Places, state: TransformerState
    ) -> Sequence:
        """Each beginning with a past of its own, for a score that minds where a key stands."""
        assert state.own is not None
        # All have read equally many tokens: those of its own come first, in their order.
        ranked = state.own.int().sort(dim=-1, descending=True, stable=True)
        order = ranked.indices[..., : state.place + 1]
        sentence = torch.arange(len(order), device=order.device)[:, None, None]
        alone = (past.transpose(1, 2)[sentence, order] for past in (keys, values))
        keys, values = (past.flatten(0, 1).transpose(1, 2) for past in alone)
        key_at = state.past_at[sentence, order].flatten(0, 1)
        rows, row_at = x.flatten(0, 1)[:, None], at.flatten()[:, None]
        return self.own(rows, keys, values, None, row_at, key_at)[0].view_as(x)


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
        self, tokens: Int[Tensor, " rows"], state: TransformerState
    ) -> tuple[Logits, TransformerState]:
        side_by_side = tokens.view(len(state.mask), -1)
        at = torch.full_like(side_by_side, state.place)
        if state.own is not None:
            itself = torch.eye(at.shape[1], dtype=torch.bool, device=at.device)
            read = itself.expand(len(at), -1, -1)
            state.own = torch.cat([state.own, read], dim=-1)
        features, _ = self._decode(side_by_side, at, state.own, state, explain=False)
        state.place += 1
        return self.project(features.flatten(0, 1)), state

    def features(self, memory: Memory, target: Target) -> Float[Tensor, "batch target features"]:
        return self._read(target, self.begin(memory), explain=False)[0]

    @property
    def output_map(self) -> tuple[Float[Tensor, "vocab features"], None]:
        return self.target_embedding.weight, None

    def explain(
        self, source: Source, mask: SourceMask, target: Target
    ) -> dict[str, Float[Tensor, "batch layers heads query key"]]:
        memory, encoder_weights = self._encode(source, mask, explain=True)
        _, decoder_weights = self._read(target, self.begin(memory), explain=True)
        own, cross = zip(*decoder_weights, strict=True)
        by_mechanism = {"cross": cross, "encoder": encoder_weights, "decoder": own}
        return {name: torch.stack(list(weights), dim=1) for name, weights in by_mechanism.items()}

    def attentions(self) -> dict[str, list[Attending]]:
        return {
            "encoder": [block.own for block in self.encoder],
            "decoder": [block.own for block in self.decoder],
            "cross": [block.cross for block in self.decoder],
        }

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

    def _read(
        self, target: Target, state: TransformerState, explain: bool
    ) -> tuple[Sequence, list[tuple[Weights, CrossWeights]]]:
        """A target, or its next part, at once: each token sees itself and those before it."""
        start, state.place = state.place, state.place + target.shape[1]
        at = torch.arange(start, state.place, device=target.device).expand_as(target)
        mask = causal_mask(at, torch.cat([state.past_at, at], dim=1))
        return self._decode(target, at, mask, state, explain)

    def _decode(
        self,
        tokens: Places,
        at: Places,
        mask: Bool[Tensor, "batch length past"] | None,
        state: TransformerState,
        explain: bool,
    ) -> tuple[Sequence, list[tuple[Weights, CrossWeights]]]:
        """Tokens that stand at `at`, behind all that the state has read; the mask is among these."""
        state.past_at = torch.cat([state.past_at, at], dim=1)
        x, found = self._embed(self.target_embedding, tokens, at), []
        for block, layer in zip(self.decoder, state.layers, strict=True):
            x, own, cross = block(x, at, mask, layer, state, explain)
            found.append((own, cross))
        return self.decoder_norm(x), found
