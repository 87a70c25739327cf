"""Linear layers with exchangeable backends.

The default backend is PyTorch's. A model used for inference only can keep a second copy of each weight in
the blocked layout of a CPU's fastest float32 kernel (oneDNN), or in int8.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import linear

from regard.torch_private import can_pack, pack_weight, packed_linear, version

MIN_OUTPUTS = 4096  # output elements, rows * outputs: smaller products do not gain from packing


class LinearBackend:
    """x W^T + b"""

    def __call__(
        self,
        x: Float[Tensor, "*rows inputs"],
        weight: Float[Tensor, "outputs inputs"],
        bias: Float[Tensor, " outputs"] | None = None,
    ) -> Float[Tensor, "*rows outputs"]:
        return linear(x, weight, bias)


class PackedBackend(LinearBackend):
    """The same in float32, from a copy of the weight in oneDNN's blocked layout.

    The copy is dropped as soon as the weight may change: it is modified, or a gradient may reach it.
    """

    def __init__(self, weight: Float[Tensor, "outputs inputs"]) -> None:
        self.packed: Tensor | None = None
        tracked = not weight.is_inference()  # inference tensors have no version counter
        if can_pack() and tracked and weight.device.type == "cpu" and weight.dtype is torch.float32:
            self.packed = pack_weight(weight.detach(), 128)
            self.version = version(weight)

    def __call__(
        self,
        x: Float[Tensor, "*rows inputs"],
        weight: Float[Tensor, "outputs inputs"],
        bias: Float[Tensor, " outputs"] | None = None,
    ) -> Float[Tensor, "*rows outputs"]:
        if self.packed is None:
            return linear(x, weight, bias)
        needs_grad = torch.is_grad_enabled() and weight.requires_grad
        if needs_grad or version(weight) != self.version or x.dtype is not torch.float32:
            self.packed = None
            return linear(x, weight, bias)
        if x.numel() // x.shape[-1] * weight.shape[0] < MIN_OUTPUTS:
            return linear(x, weight, bias)
        return packed_linear(x, self.packed, bias)

    def __reduce__(self) -> tuple[type[LinearBackend], tuple[()]]:
        return LinearBackend, ()  # a copied model has other weights


class Linear(nn.Linear):
    """PyTorch's Linear through a `LinearBackend`."""

    def __init__(self, in_features: int, out_features: int, bias: bool = True) -> None:
        super().__init__(in_features, out_features, bias)
        self.backend = LinearBackend()

    def forward(self, input: Float[Tensor, "*rows inputs"]) -> Float[Tensor, "*rows outputs"]:  # noqa: A002
        return self.backend(input, self.weight, self.bias)
