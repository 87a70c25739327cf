"""Recurrent cells behind one interface: one layer, one direction, batch first, the state in one tensor."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

CellKind = type[nn.RNN] | type[nn.GRU] | type[nn.LSTM]

CELLS: dict[str, CellKind] = {"rnn": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}


class Cell(nn.Module):
    """(output at every step, last state); an LSTM's state is [h ; c]."""

    def __init__(self, cell: CellKind, input_dim: int, hidden_dim: int) -> None:
        super().__init__()
        self.cell = cell(input_dim, hidden_dim, batch_first=True)
        self.hidden_dim = hidden_dim
        self.state_dim = hidden_dim * 2 if cell is nn.LSTM else hidden_dim

    def forward(
        self,
        x: Float[Tensor, "batch length input"],
        state: Float[Tensor, "batch state"] | None = None,
    ) -> tuple[Float[Tensor, "batch length hidden"], Float[Tensor, "batch state"]]:
        initial = None if state is None else state[None].contiguous()
        if self.state_dim == self.hidden_dim:
            output, last = self.cell(x, initial)
            return output, last[0]
        if initial is not None:
            h, c = initial.chunk(2, dim=-1)
            initial = (h.contiguous(), c.contiguous())
        output, (h, c) = self.cell(x, initial)
        return output, torch.cat([h[0], c[0]], dim=-1)
