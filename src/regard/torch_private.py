"""The private PyTorch functions that Regard calls, each with a public fallback.

PyTorch may rename or remove a private function in any release. Where the installed version lacks one, the
fallback computes the same result, only slower. No other module of Regard uses a private name of PyTorch.
"""

import inspect
import math
import sys
import warnings
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Optional

import torch
from jaxtyping import Float, Int, Int8, UInt8
from torch import Tensor
from torch.nn.functional import linear


def version(tensor: Tensor) -> int | float:
    """How many times the tensor has been modified in place (`Tensor._version`).

    Without the counter, NaN: it differs from itself, so a caller that compares has to assume a modification.
    """
    return getattr(tensor, "_version", math.nan)


def all_modules(module: torch.nn.Module) -> list[torch.nn.Module]:
    """The module and all modules in it, some perhaps twice: ten times as fast as `modules()`."""
    if "_modules" not in vars(module):
        return list(module.modules())
    found = [module]
    for part in found:  # grows while it is read
        found.extend(child for child in vars(part)["_modules"].values() if child is not None)
    return found


def has_hooks(module: torch.nn.Module) -> bool:
    """Whether a call of this module, not of those in it, also calls a hook."""
    return bool(
        getattr(module, "_forward_hooks", None) or getattr(module, "_forward_pre_hooks", None)
    )


def own_tensors(module: torch.nn.Module) -> list[Tensor]:
    """Parameters and buffers of this module, not of those in it: ten times as fast as the iterators."""
    table = vars(module)
    if "_parameters" not in table or "_buffers" not in table:
        return [*module.parameters(recurse=False), *module.buffers(recurse=False)]
    tensors = (*table["_parameters"].values(), *table["_buffers"].values())
    return [tensor for tensor in tensors if tensor is not None]


# --- lists of tensors, a few kernels for all of them ----------------------------------------------


def foreach_copy_(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    """Copy each source into its target."""
    if hasattr(torch, "_foreach_copy_"):
        torch._foreach_copy_(list(targets), list(sources))
        return
    for target, source in zip(targets, sources, strict=True):
        target.copy_(source)


def foreach_sub(left: Sequence[Tensor], right: Sequence[Tensor]) -> list[Tensor]:
    """The difference left - right of each pair."""
    if hasattr(torch, "_foreach_sub"):
        return list(torch._foreach_sub(list(left), list(right)))
    return [a - b for a, b in zip(left, right, strict=True)]


def foreach_mul_(tensors: Sequence[Tensor], factor: Float[Tensor, ""]) -> None:
    """Multiply each tensor by `factor` in place."""
    if hasattr(torch, "_foreach_mul_"):
        torch._foreach_mul_(list(tensors), factor)
        return
    for tensor in tensors:
        tensor.mul_(factor)


def foreach_add_(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    """Add each source to its target in place."""
    if hasattr(torch, "_foreach_add_"):
        torch._foreach_add_(list(targets), list(sources))
        return
    for target, source in zip(targets, sources, strict=True):
        target.add_(source)


# --- optimizers -----------------------------------------------------------------------------------


class AdamW(torch.optim.AdamW):
    """PyTorch's AdamW without `torch._dynamo`, whose import takes 3 seconds.

    The methods of an optimizer are wrapped for `torch.compile`, and the wrappers import it when they are
    first called; this class calls what they wrap.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        skip_compiler(torch.optim.Optimizer)
        super().__init__(*args, **options)

    def step(self, closure: Any = None) -> Any:
        """One update; gradients are not differentiated."""
        with torch.no_grad():
            return inspect.unwrap(torch.optim.AdamW.step)(self, closure)


def skip_compiler(kind: type) -> None:
    """Let the wrapped methods of a class call what they wrap: a wrapper looks for its result first."""
    if "torch._dynamo" in sys.modules:
        return
    for method in vars(kind).values():
        wrapped = getattr(method, "__wrapped__", None)
        if callable(wrapped):
            vars(wrapped).setdefault("__dynamo_disable", wrapped)


# --- the compiler ---------------------------------------------------------------------------------


def allow_recompilations(count: int) -> None:
    """Let `torch.compile` compile a function for at least so many shapes; without the setting, for 8."""
    import torch._dynamo.config as settings

    for name in ("recompile_limit", "cache_size_limit"):  # newer and older versions of PyTorch
        if hasattr(settings, name):
            setattr(settings, name, max(count, getattr(settings, name)))
            return


# --- float32 linear layers with oneDNN's blocked weight layout ------------------------------------


@cache
def can_pack() -> bool:
    """Whether this PyTorch, on this CPU, has oneDNN's packed linear layer."""
    try:
        eye = torch.ops.mkldnn._reorder_linear_weight(torch.eye(16), 16)
        x = torch.arange(32.0).view(2, 16)
        return torch.equal(torch.ops.mkldnn._linear_pointwise(x, eye, None, "none", [], ""), x)
    except (AttributeError, RuntimeError):
        return False


def pack_weight(weight: Float[Tensor, "outputs inputs"], rows: int) -> Tensor:
    """A copy of the weight in oneDNN's layout for about `rows` input rows, else the weight itself."""
    return torch.ops.mkldnn._reorder_linear_weight(weight, rows) if can_pack() else weight


def packed_linear(
    x: Float[Tensor, "*rows inputs"], packed: Tensor, bias: Float[Tensor, " outputs"] | None
) -> Float[Tensor, "*rows outputs"]:
    """`x W^T + b` with W from `pack_weight`."""
    if not can_pack():
        return linear(x, packed, bias)
    call = scripted(call_onednn) if torch.jit.is_tracing() else call_onednn
    return call(x, packed, bias)


def call_onednn(x: Tensor, packed: Tensor, bias: Optional[Tensor]) -> Tensor:  # noqa: UP045 (TorchScript)
    return torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")


@cache
def scripted(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The function in TorchScript: a trace cannot record an operator with a list of optional numbers."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return torch.jit.script(inspect.unwrap(function))  # without the checks of our tests


# --- int8 matrix multiplications ------------------------------------------------------------------


def int_mm(
    x: Int8[Tensor, "rows inputs"], weight: Int8[Tensor, "inputs outputs"]
) -> Int[Tensor, "rows outputs"]:
    """`x W` of int8 matrices, summed exactly in int32."""
    if hasattr(torch, "_int_mm"):
        return torch._int_mm(x, weight)
    return (x.double() @ weight.double()).to(torch.int32)  # float64 is exact here, and uses BLAS


@cache
def can_pack_int8() -> bool:
    """Whether PyTorch has oneDNN's int8 linear layer. On some CPUs its sums overflow."""
    return hasattr(torch.ops.onednn, "qlinear_pointwise")


def pack_int8_weight(weight: Int8[Tensor, "outputs inputs"]) -> Tensor:
    """A copy of the int8 weight in oneDNN's layout, else the weight itself."""
    return torch.ops.onednn.qlinear_prepack(weight, None) if can_pack_int8() else weight


def packed_int8_linear(
    x: UInt8[Tensor, "rows inputs"],
    zero_point: int,
    packed: Tensor,
    scales: Float[Tensor, " outputs"],
    zero_points: Int8[Tensor, " outputs"],
) -> Float[Tensor, "rows outputs"]:
    """`(x - zero_point) W^T * scales`, x in uint8, W from `pack_int8_weight` with zero points of 0."""
    if not can_pack_int8():
        shifted = (x.to(torch.int16) - zero_point).to(torch.int8)
        return int_mm(shifted, packed.T) * scales
    call = scripted(call_onednn_int8) if torch.jit.is_tracing() else call_onednn_int8
    return call(x, zero_point, packed, scales, zero_points)


def call_onednn_int8(
    x: Tensor, zero_point: int, packed: Tensor, scales: Tensor, zero_points: Tensor
) -> Tensor:
    return torch.ops.onednn.qlinear_pointwise(
        x, 1.0, zero_point, packed, scales, zero_points, None, 1.0, 0, torch.float32, "none", [], ""
    )


@cache
def has_fbgemm() -> bool:
    """Whether PyTorch has FBGEMM's int8 linear layer, which quantizes its own input. It has no fallback."""
    return (
        "fbgemm" in torch.backends.quantized.supported_engines
        and hasattr(torch.ops.quantized, "linear_with_input_q_dq_qweight_dq_output_fp32")
        and hasattr(torch, "_make_per_channel_quantized_tensor")
    )


def pack_fbgemm_weight(
    weight: Int8[Tensor, "outputs inputs"], scales: Float[Tensor, " outputs"]
) -> Any:
    """A copy of the int8 weight, with the scale of each output, in FBGEMM's layout."""
    engine = torch.backends.quantized.engine
    zero_points = torch.zeros(len(scales), dtype=torch.long)
    try:
        torch.backends.quantized.engine = "fbgemm"
        with (
            warnings.catch_warnings()
        ):  # quantized tensors are deprecated; this function may go with them
            warnings.simplefilter("ignore")
            quantized = torch._make_per_channel_quantized_tensor(
                weight, scales.double(), zero_points, 0
            )
        return torch.ops.quantized.linear_prepack(quantized, None)
    finally:
        torch.backends.quantized.engine = engine


def fbgemm_linear(
    x: Float[Tensor, "rows inputs"], levels: int, packed: Any
) -> Float[Tensor, "rows outputs"]:
    """`round(levels x) / levels W^T * scales` for x in [-1, 1], W and scales from `pack_fbgemm_weight`."""
    linear_of = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32
    return linear_of(x, 1 / levels, levels + 1, packed)
