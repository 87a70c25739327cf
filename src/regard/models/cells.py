"""Recurrent cells behind one face: one layer, one direction, batch first, the state in one tensor."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

CellKind = type[nn.RNN] | type[nn.GRU] | type[nn.LSTM]

CELLS: dict[str, CellKind] = {"rnn": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}


class Cell(nn.Module):
    """(output at every step, last state); an LSTM's state is its hidden state and memory, joined."""

    def __init__(self, cell: CellKind, width: int, hidden: int) -> None:
        super().__init__()
        self.cell = cell(width, hidden, batch_first=True)
        self.hidden = hidden
        self.state_width = hidden * 2 if cell is nn.LSTM else hidden

    def forward(
        self,
        x: Float[Tensor, "batch length width"],
        state: Float[Tensor, "batch state"] | None = None,
    ) -> tuple[Float[Tensor, "batch length hidden"], Float[Tensor, "batch state"]]:
        start = None if state is None else state[None].contiguous()
        if self.state_width == self.hidden:
            output, last = self.cell(x, start)
            return output, last[0]
        if start is not None:
            hidden, memory = start.chunk(2, dim=-1)
            start = (hidden.contiguous(), memory.contiguous())
        output, (hidden, memory) = self.cell(x, start)
        return output, torch.cat([hidden[0], memory[0]], dim=-1)
