"""Dropout with cheaper random numbers on a CPU."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

LEVELS = 2**16  # of 16 random bits


class Dropout(nn.Module):
    """x_i / (1 - p) with probability 1 - p, else 0, while training.

    On a CPU, PyTorch draws one slow random number for each element, which takes a quarter of a
    Transformer's training time. Here one draw of 64 bits decides on four elements; p is rounded to 1/65536.
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Float[Tensor, "*any"]) -> Float[Tensor, "*any"]:
        if not self.training or self.p == 0.0:
            return x
        if x.device.type != "cpu":
            return nn.functional.dropout(x, self.p)
        dropped = round(self.p * LEVELS)
        bits = torch.empty((x.numel() + 3) // 4, dtype=torch.int64)
        bits.random_(torch.iinfo(torch.int64).min, None)
        draws = bits.view(torch.int16)[: x.numel()].view(x.shape)
        keep = (draws >= dropped - LEVELS // 2).to(x.dtype)
        return x * keep.mul_(LEVELS / (LEVELS - dropped))
