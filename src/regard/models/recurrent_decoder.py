"""Three forms of a recurrent decoder. Each reads a whole target, or one token at a time.

    parallel        d_i = cell(x_i, d_(i-1))               a_i = Attn(d_i, H)             out = [a_i ; d_i]
    input-feeding   d_i = cell([x_i ; a_(i-1)], d_(i-1))   a_i = Attn(d_i, H)             out = [a_i ; d_i]
    tutorial        d_i = cell(z_i, d_(i-1))               a_i = Attn([d_(i-1) ; x_i], H) out = d_i
                    z_i = ReLU(W_c [x_i ; a_i] + b_c)

In the parallel form (the homework's) the context does not enter the recurrence, so a whole target is one
call of the cell and one batched attention. The other two need a loop over time.
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
from regard.models.interface import DecoderState

Embedded = Float[Tensor, "rows target embedding"]
Features = Float[Tensor, "rows target features"]
Weights = Float[Tensor, "rows target source"] | None


@dataclass
class RecurrentState(DecoderState):
    """The state of each layer, the last context vector, and the source's keys and values."""

    layers: Float[Tensor, "batch beam layers state"]
    context: Float[Tensor, "batch beam context"]
    keys: Float[Tensor, "batch source kq_dim"]
    values: Float[Tensor, "batch source dim"]
    mask: Bool[Tensor, "batch source"]
    next_position_ids: Int[Tensor, " batch"]
    """Position of the next token."""

    def expand(self, beam: int) -> "RecurrentState":
        layers, context = (x.repeat_interleave(beam, dim=1) for x in (self.layers, self.context))
        return replace(self, layers=layers, context=context)

    def reorder(self, beam_indices: Int[Tensor, "batch beam"]) -> "RecurrentState":
        sentence = torch.arange(len(beam_indices), device=beam_indices.device)[:, None]
        layers, context = self.layers[sentence, beam_indices], self.context[sentence, beam_indices]
        return replace(self, layers=layers, context=context)

    def update(
        self,
        layers: Float[Tensor, "rows layers state"],
        context: Float[Tensor, "rows context"] | None = None,
        tokens: int = 1,
    ) -> "RecurrentState":
        """The state after reading `tokens`, from the new layer states and context of each row."""
        layers = layers.unflatten(0, (len(self.mask), -1))
        if context is not None:
            context = context.unflatten(0, (len(self.mask), -1))
        return replace(
            self,
            layers=layers,
            context=self.context if context is None else context,
            next_position_ids=self.next_position_ids + tokens,
        )


DecoderOutput = tuple[Features, Weights, RecurrentState]


class Decoder(nn.Module):
    """The parallel form: cells, then attention (or none: the bottleneck)."""

    def __init__(
        self,
        cell: CellKind,
        embedding_dim: int,
        hidden_dim: int,
        layers: int,
        attention: SingleHead | None,
        context_dim: int,
        dropout: float,
    ) -> None:
        super().__init__()
        self.hidden_dim, self.layers = hidden_dim, layers
        self.context_dim = context_dim if attention else 0
        self.output_dim = self.context_dim + hidden_dim
        input_dims = [self.input_dim(embedding_dim)] + [hidden_dim] * (layers - 1)
        cells = [Cell(cell, dim, hidden_dim) for dim in input_dims]
        self.state_dim = cells[0].state_dim
        self.cells = nn.ModuleList(cells)
        self.attention = attention
        self.dropout = Dropout(dropout)

    @staticmethod
    def query_dim(embedding_dim: int, hidden_dim: int) -> int:
        """Dimension of this form's attention queries."""
        return hidden_dim

    def input_dim(self, embedding_dim: int) -> int:
        """Input dimension of the first cell."""
        return embedding_dim

    def init_state(
        self,
        initial: Float[Tensor, "batch layers state"],
        values: Float[Tensor, "batch source dim"],
        mask: Bool[Tensor, "batch source"],
    ) -> RecurrentState:
        """The state before the first token, with a zero context."""
        keys = self.attention.keys(values) if self.attention else values
        context = torch.zeros_like(values[:, :1, : self.context_dim])
        start = torch.zeros_like(mask[:, 0], dtype=torch.int64)
        return RecurrentState(initial[:, None], context, keys, values, mask, start)

    def forward(self, x: Embedded, state: RecurrentState) -> DecoderOutput:
        """(features for the next token at each position, attention weights, the last state)"""
        hidden, layers = self.run_cells(x, state.layers.flatten(0, 1))
        context, weights = self.attend(hidden, state)
        state = state.update(layers, tokens=x.shape[1])
        return torch.cat([context, hidden], dim=-1), weights, state

    def run_cells(
        self, x: Float[Tensor, "rows target inputs"], layers: Float[Tensor, "rows layers state"]
    ) -> tuple[Float[Tensor, "rows target hidden"], Float[Tensor, "rows layers state"]]:
        """(output of the last layer, last state of each layer)"""
        last_states = []
        for layer, cell in enumerate(self.cells):
            x, last = cell(self.dropout(x), layers[:, layer])
            last_states.append(last)
        return x, torch.stack(last_states, dim=1)

    def attend(
        self, query: Float[Tensor, "rows target query_dim"], state: RecurrentState
    ) -> tuple[Float[Tensor, "rows target context"], Weights]:
        """(context, weights) of each query; without attention, a context of dimension 0."""
        if self.attention is None:
            return query[..., :0], None
        batch, shape = len(state.mask), query.shape[:2]
        # The rows of a sentence are several queries over its keys, which are stored once.
        by_sentence = query.reshape(batch, -1, query.shape[-1])
        offsets = torch.arange(shape[1], device=query.device).repeat(shape[0] // batch)
        position_ids = state.next_position_ids[:, None] + offsets
        output = self.attention(
            by_sentence, state.keys, state.values, state.mask[:, None], position_ids
        )
        context, weights = (x.reshape(*shape, x.shape[-1]) for x in output)
        return context, weights


class StepwiseDecoder(Decoder):
    """A form whose context enters the recurrence: a loop over time around `step`."""

    def forward(self, x: Embedded, state: RecurrentState) -> DecoderOutput:
        features, weights = [], []
        for token in x.split(1, dim=1):
            step_features, step_weights, state = self.step(token, state)
            features.append(step_features)
            weights.append(step_weights)
        all_weights = None if self.attention is None else torch.cat(weights, dim=1)
        return torch.cat(features, dim=1), all_weights, state

    @abstractmethod
    def step(self, x: Float[Tensor, "rows 1 embedding"], state: RecurrentState) -> DecoderOutput:
        """Read one token."""


class InputFeeding(StepwiseDecoder):
    """The last context is concatenated to the cell's input (Luong et al., 2015)."""

    def input_dim(self, embedding_dim: int) -> int:
        return embedding_dim + self.context_dim

    def step(self, x: Float[Tensor, "rows 1 embedding"], state: RecurrentState) -> DecoderOutput:
        cell_input = torch.cat([x, state.context.flatten(0, 1)[:, None]], dim=-1)
        hidden, layers = self.run_cells(cell_input, state.layers.flatten(0, 1))
        context, weights = self.attend(hidden, state)
        state = state.update(layers, context[:, 0])
        return torch.cat([context, hidden], dim=-1), weights, state


class Tutorial(StepwiseDecoder):
    """The query is the last state and the token; token and context, combined, are the cell's input."""

    def __init__(
        self,
        cell: CellKind,
        embedding_dim: int,
        hidden_dim: int,
        layers: int,
        attention: SingleHead | None,
        context_dim: int,
        dropout: float,
    ) -> None:
        super().__init__(cell, embedding_dim, hidden_dim, layers, attention, context_dim, dropout)
        self.output_dim = hidden_dim
        self.combine = Linear(embedding_dim + self.context_dim, hidden_dim)

    @staticmethod
    def query_dim(embedding_dim: int, hidden_dim: int) -> int:
        return hidden_dim + embedding_dim

    def input_dim(self, embedding_dim: int) -> int:
        return self.hidden_dim

    def step(self, x: Float[Tensor, "rows 1 embedding"], state: RecurrentState) -> DecoderOutput:
        layers = state.layers.flatten(0, 1)
        last = layers[:, -1:, : self.hidden_dim]
        context, weights = self.attend(torch.cat([last, x], dim=-1), state)
        cell_input = torch.relu(self.combine(torch.cat([x, context], dim=-1)))
        hidden, layers = self.run_cells(cell_input, layers)
        return hidden, weights, state.update(layers)


DECODERS: dict[str, type[Decoder]] = {
    "parallel": Decoder,
    "input-feeding": InputFeeding,
    "tutorial": Tutorial,
}
