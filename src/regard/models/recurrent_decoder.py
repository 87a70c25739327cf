"""Three forms of a recurrent decoder. Each reads a target at once or one token behind its state.

    parallel        d_i = cell(x_i, d_(i-1))               a_i = Attn(d_i, H)             out = [a_i ; d_i]
    input-feeding   d_i = cell([x_i ; a_(i-1)], d_(i-1))   a_i = Attn(d_i, H)             out = [a_i ; d_i]
    tutorial        d_i = cell(z_i, d_(i-1))               a_i = Attn([d_(i-1) ; x_i], H) out = d_i
                    z_i = ReLU(W_c [x_i ; a_i] + b_c)

In the parallel form (the homework's) the context does not feed back into the recurrence, so a whole
target is one call of the cell and one batched attention. The other two must go word by word.
"""

from abc import abstractmethod
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from regard.attention import SingleHead
from regard.models.cells import Cell, CellKind
from regard.models.dropout import Dropout
from regard.models.interface import Record

Embedded = Float[Tensor, "batch target embedding"]
Features = Float[Tensor, "batch target features"]
Weights = Float[Tensor, "batch target source"] | None


@dataclass
class DecoderState(Record):
    """The state of each layer, the last context, and what there is to attend to."""

    layers: Float[Tensor, "batch layers state"]
    context: Float[Tensor, "batch context"]
    keys: Float[Tensor, "batch source kq_width"]
    values: Float[Tensor, "batch source width"]
    mask: Bool[Tensor, "batch source"]


Reading = tuple[Features, Weights, DecoderState]


class Decoder(nn.Module):
    """Cells and attention (or none: the bottleneck)."""

    def __init__(
        self,
        cell: CellKind,
        embedding: int,
        hidden: int,
        layers: int,
        attention: SingleHead | None,
        context: int,
        dropout: float,
    ) -> None:
        super().__init__()
        self.hidden, self.layers = hidden, layers
        self.context = context if attention else 0
        self.width = self.context + hidden
        widths = [self.input_width(embedding)] + [hidden] * (layers - 1)
        cells = [Cell(cell, width, hidden) for width in widths]
        self.state_width = cells[0].state_width
        self.cells = nn.ModuleList(cells)
        self.attention = attention
        self.dropout = Dropout(dropout)

    @staticmethod
    def query_width(embedding: int, hidden: int) -> int:
        """How wide a query is that this form asks its attention."""
        return hidden

    def input_width(self, embedding: int) -> int:
        """How wide the input of the first cell is."""
        return embedding

    def begin(
        self,
        start: Float[Tensor, "batch layers state"],
        values: Float[Tensor, "batch source width"],
        mask: Bool[Tensor, "batch source"],
    ) -> DecoderState:
        """The state before the first word: no context yet."""
        keys = self.attention.keys(values) if self.attention else values
        return DecoderState(
            start, torch.zeros_like(values[:, 0, : self.context]), keys, values, mask
        )

    def forward(self, x: Embedded, state: DecoderState) -> Reading:
        """(what predicts the next token at each position, weights, the state after the last)"""
        hidden, layers = self.recur(x, state.layers)
        context, weights = self.look(hidden, state)
        return torch.cat([context, hidden], dim=-1), weights, replace(state, layers=layers)

    def recur(
        self, x: Float[Tensor, "batch target inputs"], layers: Float[Tensor, "batch layers state"]
    ) -> tuple[Float[Tensor, "batch target hidden"], Float[Tensor, "batch layers state"]]:
        """Through every layer of cells."""
        last = []
        for layer, cell in enumerate(self.cells):
            x, end = cell(self.dropout(x), layers[:, layer])
            last.append(end)
        return x, torch.stack(last, dim=1)

    def look(
        self, query: Float[Tensor, "batch target query_width"], state: DecoderState
    ) -> tuple[Float[Tensor, "batch target context"], Weights]:
        """(context, weights) of each query; without attention, a context of no width."""
        if self.attention is None:
            return query[..., :0], None
        return self.attention(query, state.keys, state.values, state.mask[:, None])


class WordByWord(Decoder):
    """A form whose context feeds back into the recurrence: `one` position after another."""

    def forward(self, x: Embedded, state: DecoderState) -> Reading:
        features, weights = [], []
        for word in x.split(1, dim=1):
            feature, weight, state = self.one(word, state)
            features.append(feature)
            weights.append(weight)
        seen = None if self.attention is None else torch.cat(weights, dim=1)
        return torch.cat(features, dim=1), seen, state

    @abstractmethod
    def one(self, x: Float[Tensor, "batch 1 embedding"], state: DecoderState) -> Reading:
        """Read one word."""


class InputFeeding(WordByWord):
    """The last context enters the cell beside the word."""

    def input_width(self, embedding: int) -> int:
        return embedding + self.context

    def one(self, x: Float[Tensor, "batch 1 embedding"], state: DecoderState) -> Reading:
        fed = torch.cat([x, state.context[:, None]], dim=-1)
        hidden, layers = self.recur(fed, state.layers)
        context, weights = self.look(hidden, state)
        after = replace(state, layers=layers, context=context[:, 0])
        return torch.cat([context, hidden], dim=-1), weights, after


class Tutorial(WordByWord):
    """Attention asks with the last state and the word; word and context together enter the cell."""

    def __init__(
        self,
        cell: CellKind,
        embedding: int,
        hidden: int,
        layers: int,
        attention: SingleHead | None,
        context: int,
        dropout: float,
    ) -> None:
        super().__init__(cell, embedding, hidden, layers, attention, context, dropout)
        self.width = hidden
        self.combine = nn.Linear(embedding + self.context, hidden)

    @staticmethod
    def query_width(embedding: int, hidden: int) -> int:
        return hidden + embedding

    def input_width(self, embedding: int) -> int:
        return self.hidden

    def one(self, x: Float[Tensor, "batch 1 embedding"], state: DecoderState) -> Reading:
        last = state.layers[:, -1:, : self.hidden]
        context, weights = self.look(torch.cat([last, x], dim=-1), state)
        fed = torch.relu(self.combine(torch.cat([x, context], dim=-1)))
        hidden, layers = self.recur(fed, state.layers)
        return hidden, weights, replace(state, layers=layers)


DECODERS: dict[str, type[Decoder]] = {
    "parallel": Decoder,
    "input-feeding": InputFeeding,
    "tutorial": Tutorial,
}
