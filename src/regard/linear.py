"""Linear layers with exchangeable backends.

The default backend is PyTorch's. A model used for inference only can keep copies of each weight in the
layouts that a CPU reads fastest in float32, or one in int8.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import linear

from regard.torch_private import can_pack, pack_weight, packed_linear, version


class LinearBackend:
    """x W^T + b"""

    def __call__(
        self,
        x: Float[Tensor, "*rows inputs"],
        weight: Float[Tensor, "outputs inputs"],
        bias: Float[Tensor, " outputs"] | None = None,
    ) -> Float[Tensor, "*rows outputs"]:
        return linear(x, weight, bias)

    def packed_weights(self) -> Sequence[object]:
        """Copies that are no plain tensors, so that a trace cannot store them as constants."""
        return ()


class PackedBackend(LinearBackend):
    """The same in float32, from copies of the weight in the layouts that a CPU reads fastest.

    For several rows that is oneDNN's blocked layout, for one row and a wide output W^T. The copies are
    dropped as soon as the weight may change: it is modified, or a gradient may reach it.
    """

    def __init__(self, weight: Float[Tensor, "outputs inputs"]) -> None:
        self.packed: Tensor | None = None
        tracked = not weight.is_inference()  # inference tensors have no version counter
        if can_pack() and tracked and weight.device.type == "cpu" and weight.dtype is torch.float32:
            self.packed = pack_weight(weight.detach(), 128)
            self.version = version(weight)
            wide = weight.shape[0] > weight.shape[1]
            self.for_one_row = weight.detach().T.contiguous().T if wide else None

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
            self.packed = self.for_one_row = None
            return linear(x, weight, bias)
        if x.numel() > x.shape[-1]:
            return packed_linear(x, self.packed, bias)
        return linear(x, weight if self.for_one_row is None else self.for_one_row, bias)

    def packed_weights(self) -> Sequence[object]:
        return () if self.packed is None else (self.packed,)

    def __reduce__(self) -> tuple[type[LinearBackend], tuple[()]]:
        return LinearBackend, ()  # a copied model has other weights


class Linear(nn.Linear):
    """PyTorch's Linear through a `LinearBackend`."""

    def __init__(self, in_features: int, out_features: int, bias: bool = True) -> None:
        super().__init__(in_features, out_features, bias)
        self.backend = LinearBackend()

    def forward(self, input: Float[Tensor, "*rows inputs"]) -> Float[Tensor, "*rows outputs"]:  # noqa: A002
        return self.backend(input, self.weight, self.bias)
