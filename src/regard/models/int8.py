"""Dynamic int8 quantization of a trained model's linear layers, for inference on a CPU.

    y = (s_x q_x) (s_w q_w)^T + b,    q = round(x / s),    s = max |x| / 127

Weights are quantized once, with a scale for each output; activations at each call, with a scale for each
row. So no row depends on another, and the integer sums are exact. Small linear layers, recurrent cells,
embeddings and norms stay float32.
"""

import warnings
from collections.abc import Sequence
from functools import cache

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.errors import RegardWarning, UserError
from regard.linear import Linear, LinearBackend
from regard.models.int8_kernels import Int8Kernel, int8_linear
from regard.models.int8_probe import find_kernel
from regard.models.interface import Model
from regard.models.packed import pack_weights

MIN_WEIGHTS = 2**16  # in a smaller layer, quantizing the inputs costs what the int8 product saves


class Int8Backend(LinearBackend):
    """x W^T + b with x and W in int8."""

    def __init__(self, weight: Tensor, bias: Tensor | None, kernel: type[Int8Kernel]) -> None:
        values, scales = quantize(weight.detach())
        self.kernel = kernel(values, scales[:, 0].contiguous())
        self.bias = None if bias is None else bias.detach()

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
        y = int8_linear(x.reshape(-1, x.shape[-1]), self.kernel, self.bias)
        return y.view(*x.shape[:-1], -1)

    def packed_weights(self) -> Sequence[object]:
        return self.kernel.packed_weights()


def quantize(
    x: Float[Tensor, "rows inputs"],
) -> tuple[Int[Tensor, "rows inputs"], Float[Tensor, "rows 1"]]:
    """(q, s) with x ≈ s q, symmetric, with a scale for each row."""
    scales = (x.abs().amax(-1, keepdim=True) / 127).clamp_(min=1e-30)
    return (x / scales).round_().to(torch.int8), scales


def quantize_int8(model: Model) -> Model:
    """Quantize the model's linear layers and output projection to int8, in place.

    Where int8 is no faster than float32 (see `int8_probe.py`), the model stays float32, with a warning.
    """
    device = next(model.parameters()).device
    if device.type != "cpu":
        raise UserError(f"int8 is for a CPU, and this model is on {device}: use the device cpu")
    pack_weights(model)  # for the layers that stay float32
    kernel = find_kernel()
    if kernel is None:
        warn_of_float32()
        return model
    for module in model.modules():
        if isinstance(module, Linear) and module.weight.numel() >= MIN_WEIGHTS:
            module.backend = Int8Backend(module.weight, module.bias, kernel)
    for member in model.members:
        member.backend = Int8Backend(*member.output_projection, kernel)
    return model


@cache
def warn_of_float32() -> None:
    """Warn, once in a process."""
    warnings.warn(
        "int8 would be no faster than float32 on this CPU: float32 is used",
        RegardWarning,
        stacklevel=3,
    )
