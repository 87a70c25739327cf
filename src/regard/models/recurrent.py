"""Recurrent encoder and decoder with attention (the form of the homework).

    h_t = [fwd(z)_t ; bwd(z)_t]      s = ReLU(W [h_fwd_T ; h_bwd_1] + b)      d_0 = s

The decoder is one of the forms in `recurrent_decoder`.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from regard.attention import Position
from regard.linear import Linear
from regard.models.cells import Cell, CellKind
from regard.models.dropout import Dropout
from regard.models.interface import (
    Attending,
    Logits,
    Memory,
    Model,
    Rows,
    Source,
    SourceMask,
    Target,
)
from regard.models.recurrent_decoder import Decoder, DecoderState

Sequence = Float[Tensor, "batch length width"]


def reverse(x: Float[Tensor, "batch length *rest"], mask: Bool[Tensor, "batch length"]) -> Tensor:
    """Each row's real part back to front; the padding stays behind it."""
    place = torch.arange(mask.shape[1], device=mask.device)
    mirrored = mask.sum(1, keepdim=True) - 1 - place
    index = torch.where(mirrored >= 0, mirrored, place)
    return x.gather(1, index[..., None].expand_as(x))


def last_real(x: Sequence, mask: Bool[Tensor, "batch length"]) -> Float[Tensor, "batch width"]:
    """The state at each row's last real token."""
    index = (mask.sum(1) - 1)[:, None, None].expand(-1, 1, x.shape[-1])
    return x.gather(1, index)[:, 0]


class Encoder(nn.Module):
    """h_t = [fwd(z)_t ; bwd(z)_t] and the sentence [h_fwd_T ; h_bwd_1].

    Each direction sees the padding last, so what it says of the real words is untouched by it.
    """

    def __init__(
        self,
        embedding: nn.Embedding,
        cell: CellKind,
        hidden: int,
        layers: int,
        bidirectional: bool,
        position: Position,
        dropout: float,
    ) -> None:
        super().__init__()
        self.embedding = embedding
        self.position = position
        self.dropout = Dropout(dropout)
        directions = 2 if bidirectional else 1
        self.width = hidden * directions
        widths = [embedding.embedding_dim] + [self.width] * (layers - 1)
        back = widths if bidirectional else []
        self.forwards = nn.ModuleList([Cell(cell, width, hidden) for width in widths])
        self.backwards = nn.ModuleList([Cell(cell, width, hidden) for width in back])

    def forward(
        self, source: Source, mask: SourceMask
    ) -> tuple[Sequence, Float[Tensor, "batch width"]]:
        """(a state for each token, the sentence)"""
        at = torch.arange(source.shape[1], device=source.device).expand_as(source)
        x = self.position.embed(self.embedding(source), at)
        summary = x[:, 0]
        for layer, forwards in enumerate(self.forwards):
            x = self.dropout(x)
            output = forwards(x)[0]
            summary = last_real(output, mask)
            if self.backwards:
                mirrored = self.backwards[layer](reverse(x, mask))[0]
                summary = torch.cat([summary, last_real(mirrored, mask)], dim=-1)
                output = torch.cat([output, reverse(mirrored, mask)], dim=-1)
            x = output
        return x, summary


@dataclass
class RecurrentMemory(Memory):
    """The encoder's states, and the decoder's first one."""

    start: Float[Tensor, "batch layers state"]


class Recurrent(Model):
    """Encoder, bridge, decoder, output map."""

    def __init__(
        self,
        encoder: Encoder,
        embedding: nn.Embedding,
        decoder: Decoder,
        vocab: int,
        dropout: float,
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.embedding = embedding
        self.decoder = decoder
        self.bridge = Linear(encoder.width, decoder.layers * decoder.state_width)
        self.output = Linear(decoder.width, vocab)
        self.dropout = Dropout(dropout)

    def room(self, source: int) -> int | None:
        places = self.encoder.position.max_length
        return 0 if places is not None and source > places else None

    def encode(self, source: Source, mask: SourceMask) -> RecurrentMemory:
        states, summary = self.encoder(source, mask)
        start = torch.relu(self.bridge(summary)).unflatten(1, (self.decoder.layers, -1))
        return RecurrentMemory(states, mask, start)

    def begin(self, memory: RecurrentMemory) -> DecoderState:
        return self.decoder.begin(memory.start, memory.states, memory.mask)

    def step(self, tokens: Rows, state: DecoderState) -> tuple[Logits, DecoderState]:
        features, _, state = self.decoder(self.embedding(tokens[:, None]), state)
        return self.project(self.dropout(features[:, 0])), state

    def features(
        self, memory: RecurrentMemory, target: Target
    ) -> Float[Tensor, "batch target features"]:
        return self.dropout(self.decoder(self.embedding(target), self.begin(memory))[0])

    @property
    def output_map(self) -> tuple[Float[Tensor, "vocab features"], Float[Tensor, " vocab"]]:
        return self.output.weight, self.output.bias

    def by_token(self) -> dict[str, list[Tensor]]:
        target = [self.embedding.weight, self.output.weight, self.output.bias]
        return {"source": [self.encoder.embedding.weight], "target": target}

    def explain(
        self, source: Source, mask: SourceMask, target: Target
    ) -> dict[str, Float[Tensor, "batch layers heads query key"]]:
        state = self.begin(self.encode(source, mask))
        weights = self.decoder(self.embedding(target), state)[1]
        return {} if weights is None else {"cross": weights[:, None, None]}

    def attentions(self) -> dict[str, list[Attending]]:
        attention = self.decoder.attention
        return {} if attention is None else {"cross": [attention]}
