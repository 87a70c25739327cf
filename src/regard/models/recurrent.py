"""Recurrent encoder and decoder with attention (the form of the homework).

    h_t = [fwd(z)_t ; bwd(z)_t]      s = ReLU(W [h_fwd_T ; h_bwd_1] + b)      d_0 = s
    d_i = cell(W_d m_i, d_(i-1))     a_i = Attn(d_i, h_1..h_T)                logits = W_o [a_i ; d_i] + b_o

The context a_i does not feed back into the recurrence, so with teacher forcing the whole decoder is
one call of the cell and one batched attention: no loop over target positions.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from regard.attention import Position, SingleHead
from regard.models.interface import Logits, Memory, Model, Record, Source, SourceMask, Target

Sequence = Float[Tensor, "batch length width"]
Layers = Float[Tensor, "batch layers state"]
CellKind = type[nn.RNN] | type[nn.GRU] | type[nn.LSTM]

CELLS: dict[str, CellKind] = {"rnn": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}


class Cell(nn.Module):
    """One layer of a recurrent cell, one direction, batch first, its whole state in one tensor."""

    def __init__(self, cell: CellKind, width: int, hidden: int) -> None:
        super().__init__()
        self.cell = cell(width, hidden, batch_first=True)
        self.hidden = hidden
        self.state_width = hidden * 2 if cell is nn.LSTM else hidden

    def forward(
        self, x: Sequence, state: Float[Tensor, "batch state"] | None = None
    ) -> tuple[Float[Tensor, "batch length hidden"], Float[Tensor, "batch state"]]:
        """(output at every step, last state)"""
        start = None if state is None else state[None].contiguous()
        if self.state_width == self.hidden:
            output, last = self.cell(x, start)
            return output, last[0]
        if start is not None:
            hidden, memory = start.chunk(2, dim=-1)
            start = (hidden.contiguous(), memory.contiguous())
        output, (hidden, memory) = self.cell(x, start)
        return output, torch.cat([hidden[0], memory[0]], dim=-1)


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
        self.dropout = nn.Dropout(dropout)
        directions = 2 if bidirectional else 1
        self.width = hidden * directions
        widths = [embedding.embedding_dim] + [self.width] * (layers - 1)
        self.forwards = nn.ModuleList([Cell(cell, width, hidden) for width in widths])
        self.backwards = nn.ModuleList(
            [Cell(cell, width, hidden) for width in widths * (directions - 1)]
        )

    def forward(
        self, source: Source, mask: SourceMask
    ) -> tuple[Sequence, Float[Tensor, "batch width"]]:
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
    """The encoder's states and the decoder's first one."""

    start: Layers


@dataclass
class RecurrentState(Record):
    """The decoder's state, and what it attends to."""

    layers: Layers
    keys: Float[Tensor, "batch source kq_width"] | None
    values: Float[Tensor, "batch source width"]
    mask: Bool[Tensor, "batch source"]


class Recurrent(Model):
    """Encoder, bridge, decoder, attention (or none: the bottleneck), output map."""

    def __init__(
        self,
        encoder: Encoder,
        embedding: nn.Embedding,
        cell: CellKind,
        hidden: int,
        layers: int,
        attention: SingleHead | None,
        vocab: int,
        dropout: float,
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.embedding = embedding
        widths = [embedding.embedding_dim] + [hidden] * (layers - 1)
        cells = [Cell(cell, width, hidden) for width in widths]
        self.bridge = nn.Linear(encoder.width, layers * cells[0].state_width)
        self.cells = nn.ModuleList(cells)
        self.attention = attention
        context = encoder.width if attention else 0
        self.output = nn.Linear(context + hidden, vocab)
        self.dropout = nn.Dropout(dropout)

    def encode(self, source: Source, mask: SourceMask) -> RecurrentMemory:
        states, summary = self.encoder(source, mask)
        start = torch.relu(self.bridge(summary)).unflatten(1, (len(self.cells), -1))
        return RecurrentMemory(states, mask, start)

    def begin(self, memory: RecurrentMemory) -> RecurrentState:
        keys = self.attention.keys(memory.states) if self.attention else None
        return RecurrentState(memory.start, keys, memory.states, memory.mask)

    def step(
        self, tokens: Int[Tensor, " batch"], state: RecurrentState
    ) -> tuple[Logits, RecurrentState]:
        features, _, layers = self._read(tokens[:, None], state)
        return self.project(features[:, 0]), RecurrentState(
            layers, state.keys, state.values, state.mask
        )

    def features(
        self, memory: RecurrentMemory, target: Target
    ) -> Float[Tensor, "batch target features"]:
        return self._read(target, self.begin(memory))[0]

    def project(self, features: Float[Tensor, "*rows features"]) -> Float[Tensor, "*rows vocab"]:
        return self.output(self.dropout(features))

    def explain(
        self, source: Source, mask: SourceMask, target: Target
    ) -> dict[str, Float[Tensor, "batch layers heads query key"]]:
        weights = self._read(target, self.begin(self.encode(source, mask)))[1]
        return {} if weights is None else {"cross": weights[:, None, None]}

    def _read(
        self, target: Target, state: RecurrentState
    ) -> tuple[Sequence, Float[Tensor, "batch target source"] | None, Layers]:
        """([a_i ; d_i] at every target position, weights, last state of each layer)"""
        x, last = self.embedding(target), []
        for layer, cell in enumerate(self.cells):
            x, end = cell(self.dropout(x), state.layers[:, layer])
            last.append(end)
        layers = torch.stack(last, dim=1)
        if self.attention is None or state.keys is None:
            return x, None, layers
        context, weights = self.attention(x, state.keys, state.values, state.mask[:, None])
        return torch.cat([context, x], dim=-1), weights, layers
