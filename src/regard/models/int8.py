"""Products in int8 on a CPU: quicker, nearly as good, and for a trained model only.

    y = (s_x q_x) (s_w q_w)^T + b,    q = round(x / s),    s = max |x| / 127

A weight is rounded once, with a scale for each output; what it is multiplied by is rounded at each
product, with a scale for each row. So no row knows of another, and the sums are exact. Small maps,
recurrent cells, embeddings and norms stay float32.
"""

import subprocess
import sys
from pathlib import Path

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.errors import UserError
from regard.linear import Linear, Product
from regard.models.blocks import blocks
from regard.models.interface import Model

LEAST = 2**17  # weights of a map; below, rounding its inputs costs what its product saves


class Int8(Product):
    """x W^T + b with x and W in int8."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.weight, self.scales = rounded(weight.detach())
        self.bias = None if bias is None else bias.detach()

    def __call__(
        self,
        x: Float[Tensor, "*rows inputs"],
        weight: Float[Tensor, "outputs inputs"],
        bias: Float[Tensor, " outputs"] | None = None,
    ) -> Float[Tensor, "*rows outputs"]:
        if torch.is_grad_enabled() and x.requires_grad:
            raise UserError(
                "a model in int8 cannot be trained: load it without int8, or use `regard train`"
            )
        values, scales = rounded(x.reshape(-1, x.shape[-1]))
        found = (torch._int_mm(values, self.weight.T) * self.scales.T).mul_(scales)
        found = found if self.bias is None else found.add_(self.bias)
        return found.view(*x.shape[:-1], -1)


def rounded(
    x: Float[Tensor, "rows inputs"],
) -> tuple[Int[Tensor, "rows inputs"], Float[Tensor, "rows 1"]]:
    """(q, s) with x = s q, nearly, a scale for each row."""
    scales = (x.abs().amax(-1, keepdim=True) / 127).clamp_(min=1e-30)
    return (x / scales).round_().to(torch.int8), scales


def int8(model: Model) -> Model:
    """The same model, its linear maps and its output map in int8."""
    device = next(model.parameters()).device
    if device.type != "cpu":
        raise UserError(f"int8 is for a CPU, and this model is on {device}: use --device cpu")
    check(announced())
    blocks(model)  # for the maps that stay float32
    for part in model.modules():
        if isinstance(part, Linear) and part.weight.numel() >= LEAST:
            part.product = Int8(part.weight, part.bias)
    model.product = Int8(*model.output_map)
    return model


TRIAL = """
import torch
x = torch.ones(64, 64, dtype=torch.int8)
assert (torch._int_mm(x, x) == 64).all()
"""


def announced() -> bool:
    """Does the CPU announce AMX? Some machines do, and fault when it is used."""
    try:
        return "amx_int8" in Path("/proc/cpuinfo").read_text()
    except OSError:
        return False


def check(doubtful: bool, trial: str = TRIAL) -> None:
    """Try a product in another process, where a fault ends nothing of the user's."""
    if doubtful and subprocess.run([sys.executable, "-c", trial], capture_output=True).returncode:
        raise UserError("int8 products fail on this machine's CPU: leave int8 out")
