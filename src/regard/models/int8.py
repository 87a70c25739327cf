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
from regard.linear import Linear, LinearBackend
from regard.models.interface import Model
from regard.models.packed import packed

LEAST = 2**17  # weights of a map; below, rounding its inputs costs what its product saves
ENOUGH = 2**17  # outputs of one product; below, oneDNN's own takes longer to begin than it saves


class Int8(LinearBackend):
    """x W^T + b with x and W in int8."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.weight, scales = rounded(weight.detach())
        self.scales = scales[:, 0].contiguous()
        self.bias = None if bias is None else bias.detach()
        self.packed = pack(self.weight) if fused() else None
        self.zeros = torch.zeros_like(self.scales, dtype=torch.int8)

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
        flat = x.reshape(-1, x.shape[-1])
        if self.packed is None or len(flat) * len(self.scales) <= ENOUGH:
            values, scales = rounded(flat)
            found = torch._int_mm(values, self.weight.T) * self.scales
        else:
            found, scales = self.in_one_go(flat)
        found = found.mul_(scales) if self.bias is None else found.mul_(scales).add_(self.bias)
        return found.view(*x.shape[:-1], -1)

    def in_one_go(
        self, x: Float[Tensor, "rows inputs"]
    ) -> tuple[Float[Tensor, "rows outputs"], Float[Tensor, "rows 1"]]:
        """(the product but for its rows' scales, these): oneDNN's own, which wants x from 0 to 255."""
        scales = largest(x)
        values = (x / scales).add_(ZERO).round_().to(torch.uint8)
        weight = (self.packed, self.scales, self.zeros, None)  # no bias yet: the scales come first
        plain = (1.0, 0, torch.float32, "none", [], "")
        return torch.ops.onednn.qlinear_pointwise(values, 1.0, ZERO, *weight, *plain), scales


ZERO = 128


def fused() -> bool:
    """Does PyTorch have oneDNN's product, and the CPU the instructions to sum it without overflow?"""
    known = getattr(torch.cpu, "_is_vnni_supported", lambda: False)
    return bool(known()) and hasattr(torch.ops.onednn, "qlinear_pointwise")


def pack(weight: Int[Tensor, "outputs inputs"]) -> Tensor:
    return torch.ops.onednn.qlinear_prepack(weight, None)


def largest(x: Float[Tensor, "rows inputs"]) -> Float[Tensor, "rows 1"]:
    """The step of each row: 127 of them reach to its largest value."""
    return (x.abs().amax(-1, keepdim=True) / 127).clamp_(min=1e-30)


def rounded(
    x: Float[Tensor, "rows inputs"],
) -> tuple[Int[Tensor, "rows inputs"], Float[Tensor, "rows 1"]]:
    """(q, s) with x = s q, nearly, a scale for each row."""
    scales = largest(x)
    return (x / scales).round_().to(torch.int8), scales


def int8(model: Model) -> Model:
    """The same model, its linear maps and its output map in int8."""
    device = next(model.parameters()).device
    if device.type != "cpu":
        raise UserError(f"int8 is for a CPU, and this model is on {device}: use --device cpu")
    check(announced())
    packed(model)  # for the maps that stay float32
    for part in model.modules():
        if isinstance(part, Linear) and part.weight.numel() >= LEAST:
            part.backend = Int8(part.weight, part.bias)
    model.backend = Int8(*model.output_projection)
    return model


TRIAL = """
import torch
from regard.models.int8 import Int8
x = torch.ones(64, 64)
assert (Int8(x, None)(x, x).round() == 64).all()
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
