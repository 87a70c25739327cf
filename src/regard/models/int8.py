"""Dynamic int8 quantization of a trained model's linear layers, for inference on a CPU.

    y = (s_x q_x) (s_w q_w)^T + b,    q = round(x / s),    s = max |x| / 127

Weights are quantized once, with a scale for each output; activations at each call, with a scale for each
row. So no row depends on another, and the integer sums are exact. Small linear layers, recurrent cells,
embeddings and norms stay float32.
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
from regard.models.packed import pack_weights
from regard.torch_private import can_pack_int8, int_mm, pack_int8_weight, packed_int8_linear

MIN_WEIGHTS = 2**17  # in a smaller layer, quantizing the inputs costs what the int8 product saves
MIN_OUTPUTS = 2**17  # of one product; below, oneDNN's kernel takes longer to start than it saves
ZERO_POINT = 128  # of the uint8 activations that oneDNN's kernel takes


class Int8Backend(LinearBackend):
    """x W^T + b with x and W in int8."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.weight, scales = quantize(weight.detach())
        self.scales = scales[:, 0].contiguous()
        self.bias = None if bias is None else bias.detach()
        self.packed = pack_int8_weight(self.weight) if can_pack_int8() else None
        self.zero_points = torch.zeros_like(self.scales, dtype=torch.int8)

    def __call__(
        self,
        x: Float[Tensor, "*rows inputs"],
        weight: Float[Tensor, "outputs inputs"],
        bias: Float[Tensor, " outputs"] | None = None,
    ) -> Float[Tensor, "*rows outputs"]:
        if torch.is_grad_enabled() and x.requires_grad:
            raise UserError(
                "an int8 model cannot be trained: load it without int8, or use `regard train`"
            )
        flat = x.reshape(-1, x.shape[-1])
        if self.packed is None or len(flat) * len(self.scales) <= MIN_OUTPUTS:
            values, scales = quantize(flat)
            y = int_mm(values, self.weight.T) * self.scales
        else:
            scales = row_scales(flat)
            values = (flat / scales).add_(ZERO_POINT).round_().to(torch.uint8)
            # The kernel's own bias would come before the scales of the rows.
            y = packed_int8_linear(values, ZERO_POINT, self.packed, self.scales, self.zero_points)
        y = y.mul_(scales) if self.bias is None else y.mul_(scales).add_(self.bias)
        return y.view(*x.shape[:-1], -1)


def row_scales(x: Float[Tensor, "rows inputs"]) -> Float[Tensor, "rows 1"]:
    """The scale s = max |x| / 127 of each row."""
    return (x.abs().amax(-1, keepdim=True) / 127).clamp_(min=1e-30)


def quantize(
    x: Float[Tensor, "rows inputs"],
) -> tuple[Int[Tensor, "rows inputs"], Float[Tensor, "rows 1"]]:
    """(q, s) with x ≈ s q, symmetric, with a scale for each row."""
    scales = row_scales(x)
    return (x / scales).round_().to(torch.int8), scales


def quantize_int8(model: Model) -> Model:
    """Quantize the model's linear layers and output projection to int8, in place."""
    device = next(model.parameters()).device
    if device.type != "cpu":
        raise UserError(f"int8 is for a CPU, and this model is on {device}: use the device cpu")
    check_int8(has_amx())
    pack_weights(model)  # for the layers that stay float32
    for module in model.modules():
        if isinstance(module, Linear) and module.weight.numel() >= MIN_WEIGHTS:
            module.backend = Int8Backend(module.weight, module.bias)
    model.backend = Int8Backend(*model.output_projection)
    return model


CHECK = """
import torch
from regard.models.int8 import Int8Backend
x = torch.ones(64, 64)
assert (Int8Backend(x, None)(x, x).round() == 64).all()
"""


def has_amx() -> bool:
    """Whether the CPU reports AMX. Some machines report it, and crash when it is used."""
    try:
        return "amx_int8" in Path("/proc/cpuinfo").read_text()
    except OSError:
        return False


def check_int8(needed: bool, script: str = CHECK) -> None:
    """If needed, try an int8 product in a subprocess, where a crash does no harm."""
    if needed and subprocess.run([sys.executable, "-c", script], capture_output=True).returncode:
        raise UserError("int8 products fail on this machine's CPU: do not use int8")
