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
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from regard.attention import SingleHead
from regard.linear import Linear
from regard.models.cells import Cell, CellKind
from regard.models.dropout import Dropout
from regard.models.interface import State

Embedded = Float[Tensor, "rows target embedding"]
Features = Float[Tensor, "rows target features"]
Weights = Float[Tensor, "rows target source"] | None


@dataclass
class DecoderState(State):
    """The state of each layer, the last context, and what there is to attend to."""

    layers: Float[Tensor, "batch beam layers state"]
    context: Float[Tensor, "batch beam context"]
    keys: Float[Tensor, "batch source kq_dim"]
    values: Float[Tensor, "batch source width"]
    mask: Bool[Tensor, "batch source"]

    def spread(self, beam: int) -> "DecoderState":
        layers, context = (x.repeat_interleave(beam, dim=1) for x in (self.layers, self.context))
        return replace(self, layers=layers, context=context)

    def reorder(self, slots: Int[Tensor, "batch beam"]) -> "DecoderState":
        sentence = torch.arange(len(slots), device=slots.device)[:, None]
        layers, context = self.layers[sentence, slots], self.context[sentence, slots]
        return replace(self, layers=layers, context=context)

    def after(
        self,
        layers: Float[Tensor, "rows layers state"],
        context: Float[Tensor, "rows context"] | None = None,
    ) -> "DecoderState":
        """The state that a step leaves, from what it gives each row."""
        layers = layers.unflatten(0, (len(self.mask), -1))
        fed = self.context if context is None else context.unflatten(0, (len(self.mask), -1))
        return replace(self, layers=layers, context=fed)


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
        nothing = torch.zeros_like(values[:, :1, : self.context])
        return DecoderState(start[:, None], nothing, keys, values, mask)

    def forward(self, x: Embedded, state: DecoderState) -> Reading:
        """(what predicts the next token at each position, weights, the state after the last)"""
        hidden, layers = self.recur(x, state.layers.flatten(0, 1))
        context, weights = self.look(hidden, state)
        return torch.cat([context, hidden], dim=-1), weights, state.after(layers)

    def recur(
        self, x: Float[Tensor, "rows target inputs"], layers: Float[Tensor, "rows layers state"]
    ) -> tuple[Float[Tensor, "rows target hidden"], Float[Tensor, "rows layers state"]]:
        """Through every layer of cells."""
        last = []
        for layer, cell in enumerate(self.cells):
            x, end = cell(self.dropout(x), layers[:, layer])
            last.append(end)
        return x, torch.stack(last, dim=1)

    def look(
        self, query: Float[Tensor, "rows target query_width"], state: DecoderState
    ) -> tuple[Float[Tensor, "rows target context"], Weights]:
        """(context, weights) of each query; without attention, a context of no width."""
        if self.attention is None:
            return query[..., :0], None
        batch, shape = len(state.mask), query.shape[:2]
        # The rows of a sentence are so many queries over its keys, which are held once.
        together = query.reshape(batch, -1, query.shape[-1])
        found = self.attention(together, state.keys, state.values, state.mask[:, None])
        context, weights = (x.reshape(*shape, x.shape[-1]) for x in found)
        return context, weights


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
    def one(self, x: Float[Tensor, "rows 1 embedding"], state: DecoderState) -> Reading:
        """Read one word."""


class InputFeeding(WordByWord):
    """The last context enters the cell beside the word."""

    def input_width(self, embedding: int) -> int:
        return embedding + self.context

    def one(self, x: Float[Tensor, "rows 1 embedding"], state: DecoderState) -> Reading:
        fed = torch.cat([x, state.context.flatten(0, 1)[:, None]], dim=-1)
        hidden, layers = self.recur(fed, state.layers.flatten(0, 1))
        context, weights = self.look(hidden, state)
        after = state.after(layers, context[:, 0])
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
        self.combine = Linear(embedding + self.context, hidden)

    @staticmethod
    def query_width(embedding: int, hidden: int) -> int:
        return hidden + embedding

    def input_width(self, embedding: int) -> int:
        return self.hidden

    def one(self, x: Float[Tensor, "rows 1 embedding"], state: DecoderState) -> Reading:
        before = state.layers.flatten(0, 1)
        last = before[:, -1:, : self.hidden]
        context, weights = self.look(torch.cat([last, x], dim=-1), state)
        fed = torch.relu(self.combine(torch.cat([x, context], dim=-1)))
        hidden, layers = self.recur(fed, before)
        return hidden, weights, state.after(layers)


DECODERS: dict[str, type[Decoder]] = {
    "parallel": Decoder,
    "input-feeding": InputFeeding,
    "tutorial": Tutorial,
}
