"""int8 matrix multiplications: each kernel computes the same integer sums, from a weight that is packed once.

    y = (q_x q_w^T) s_w / n,    q_x = round(n x)

x has rows in [-1, 1], n is the kernel's number of levels. Which kernel is exact, and which is fastest,
depends on the CPU: see `int8_probe.py`.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import torch
from jaxtyping import Float, Int8
from torch import Tensor

from regard import torch_private


class Int8Kernel(ABC):
    """The product with one weight."""

    levels: ClassVar[int] = 127

    @classmethod
    def is_available(cls) -> bool:
        """Whether the installed PyTorch has the kernel."""
        return True

    @abstractmethod
    def __init__(
        self, weight: Int8[Tensor, "outputs inputs"], scales: Float[Tensor, " outputs"]
    ) -> None:
        """Pack the weight."""

    @abstractmethod
    def __call__(self, x: Float[Tensor, "rows inputs"]) -> Float[Tensor, "rows outputs"]:
        """The product with x in [-1, 1]."""

    def packed_weights(self) -> Sequence[object]:
        """See `LinearBackend.packed_weights`."""
        packed = getattr(self, "packed", None)
        return () if packed is None else (packed,)


class Fbgemm(Int8Kernel):
    """FBGEMM's: it quantizes x while it packs it, and scales the sums as it writes them."""

    @classmethod
    def is_available(cls) -> bool:
        return torch_private.has_fbgemm()

    def __init__(
        self, weight: Int8[Tensor, "outputs inputs"], scales: Float[Tensor, " outputs"]
    ) -> None:
        self.packed = torch_private.pack_fbgemm_weight(weight, scales)

    def __call__(self, x: Float[Tensor, "rows inputs"]) -> Float[Tensor, "rows outputs"]:
        return torch_private.fbgemm_linear(x, self.levels, self.packed)


class Fbgemm7Bit(Fbgemm):
    """The same with activations of 7 bits, for CPUs without VNNI.

    Their instruction adds two products in 16 bits: 2 * 255 * 127 overflows, 2 * 127 * 127 does not.
    """

    levels = 63


class OneDnn(Int8Kernel):
    """oneDNN's, for uint8 activations."""

    @classmethod
    def is_available(cls) -> bool:
        return torch_private.can_pack_int8()

    def __init__(
        self, weight: Int8[Tensor, "outputs inputs"], scales: Float[Tensor, " outputs"]
    ) -> None:
        self.packed = torch_private.pack_int8_weight(weight)
        self.scales = scales / self.levels
        self.zero_points = torch.zeros_like(scales, dtype=torch.int8)
        self.zero_point = self.levels + 1
        self.offset = torch.tensor(self.zero_point + 0.5)  # rounds, since a conversion truncates

    def __call__(self, x: Float[Tensor, "rows inputs"]) -> Float[Tensor, "rows outputs"]:
        values = torch.add(self.offset, x, alpha=self.levels).to(torch.uint8)
        return torch_private.packed_int8_linear(
            values, self.zero_point, self.packed, self.scales, self.zero_points
        )


class IntMm(Int8Kernel):
    """PyTorch's own, for int8 activations. Every PyTorch has it, and nothing is packed."""

    def __init__(
        self, weight: Int8[Tensor, "outputs inputs"], scales: Float[Tensor, " outputs"]
    ) -> None:
        self.weight, self.scales = weight, scales / self.levels

    def __call__(self, x: Float[Tensor, "rows inputs"]) -> Float[Tensor, "rows outputs"]:
        values = (x * self.levels).round_().to(torch.int8)
        return torch_private.int_mm(values, self.weight.T) * self.scales


def int8_linear(
    x: Float[Tensor, "rows inputs"], kernel: Int8Kernel, bias: Float[Tensor, " outputs"] | None
) -> Float[Tensor, "rows outputs"]:
    """The product x W^T + b, with a scale for each row of x."""
    largest = x.abs().amax(-1, keepdim=True)
    # A row of zeros is NaN here, some integer in the kernel, and 0 again once it is scaled.
    y = kernel(x / largest)
    return y.mul_(largest) if bias is None else torch.addcmul(bias, y, largest, out=y)


KERNELS: dict[str, type[Int8Kernel]] = {
    "fbgemm": Fbgemm,
    "fbgemm-7-bit": Fbgemm7Bit,
    "onednn": OneDnn,
    "int_mm": IntMm,
}
