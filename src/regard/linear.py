"""Linear maps, laid out for the machine that computes them.

A map is PyTorch's own product until it is given another: for a model that is only read, a weight can be
kept a second time in the blocks that a CPU's fastest float32 kernel reads (oneDNN's), or in int8.
"""

from functools import cache

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import linear

ENOUGH = 4096  # outputs of one product; below, a product is over before the layout pays


class Product:
    """x W^T + b"""

    def __call__(
        self,
        x: Float[Tensor, "*rows inputs"],
        weight: Float[Tensor, "outputs inputs"],
        bias: Float[Tensor, " outputs"] | None = None,
    ) -> Float[Tensor, "*rows outputs"]:
        return linear(x, weight, bias)


class Packed(Product):
    """The same, still in float32, from a copy of the weight in oneDNN's blocks.

    A weight that a gradient may reach is about to change: the copy is dropped there and then.
    """

    def __init__(self, weight: Float[Tensor, "outputs inputs"]) -> None:
        self.packed: Tensor | None = None
        known = not weight.is_inference()  # else nothing would tell that it has changed
        if can_pack() and known and weight.device.type == "cpu" and weight.dtype is torch.float32:
            self.packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), 128)
            self.version = weight._version

    def __call__(
        self,
        x: Float[Tensor, "*rows inputs"],
        weight: Float[Tensor, "outputs inputs"],
        bias: Float[Tensor, " outputs"] | None = None,
    ) -> Float[Tensor, "*rows outputs"]:
        if self.packed is None:
            return linear(x, weight, bias)
        trained = torch.is_grad_enabled() and weight.requires_grad
        if trained or weight._version != self.version or x.dtype is not torch.float32:
            self.packed = None
            return linear(x, weight, bias)
        if x.numel() // x.shape[-1] * weight.shape[0] < ENOUGH:
            return linear(x, weight, bias)
        return torch.ops.mkldnn._linear_pointwise(x, self.packed, bias, "none", [], "")

    def __reduce__(self) -> tuple[type[Product], tuple[()]]:
        return Product, ()  # a copy has weights of its own


@cache
def can_pack() -> bool:
    """Does this PyTorch, on this CPU, have oneDNN's product?"""
    try:
        eye = torch.ops.mkldnn._reorder_linear_weight(torch.eye(16), 16)
        x = torch.arange(32.0).view(2, 16)
        return torch.equal(torch.ops.mkldnn._linear_pointwise(x, eye, None, "none", [], ""), x)
    except (AttributeError, RuntimeError):
        return False


class Linear(nn.Linear):
    """PyTorch's Linear, by way of a `Product`."""

    def __init__(self, inputs: int, outputs: int, bias: bool = True) -> None:
        super().__init__(inputs, outputs, bias)
        self.product = Product()

    def forward(self, input: Float[Tensor, "*rows inputs"]) -> Float[Tensor, "*rows outputs"]:  # noqa: A002
        return self.product(input, self.weight, self.bias)
