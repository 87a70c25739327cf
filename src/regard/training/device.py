"""The device: computation dtype, CUDA stream, random generators, out-of-memory errors."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor
from torch.nn.attention import sdpa_kernel

from regard.cuda_graph import ATTENTION_BACKENDS
from regard.devices import is_out_of_memory
from regard.errors import UserError


def select_dtype(precision: str, device: str) -> torch.dtype:
    """The dtype of forward and backward pass. "auto" is the fastest that the device computes natively."""
    if precision == "auto":
        return select_cuda_dtype(device) if device.startswith("cuda") else torch.float32
    if precision == "float16" and device == "cpu":
        raise UserError(
            "float16 is for a GPU, and slower than float32 on a CPU: use training.precision=float32"
        )
    if precision == "bfloat16" and device == "cpu":
        check_bfloat16_on_cpu()
    return getattr(torch, precision)


def select_cuda_dtype(device: str) -> torch.dtype:
    """bfloat16, or float16 on a GPU with tensor cores for that only (V100, T4), else float32."""
    with use_device(device):
        if torch.cuda.is_bf16_supported(including_emulation=False):
            return torch.bfloat16
        has_tensor_cores = torch.cuda.get_device_capability() >= (7, 0)
        return torch.float16 if has_tensor_cores else torch.float32


def check_bfloat16_on_cpu() -> None:
    """Multiply bfloat16 matrices in another process: some CPUs report bfloat16 and then crash."""
    probe = "import torch; x = torch.ones(64, 64, dtype=torch.bfloat16); x @ x"
    if subprocess.run([sys.executable, "-c", probe], capture_output=True).returncode:
        raise UserError(
            "this CPU cannot multiply bfloat16 matrices (a test process crashed): use "
            "training.precision=float32, or set ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 in the "
            "environment and try again"
        )


def use_device(device: str) -> AbstractContextManager[object]:
    """Make a CUDA device the current one, which streams, graphs and waits refer to."""
    return torch.cuda.device(device) if device.startswith("cuda") else nullcontext()


@contextmanager
def use_cuda_stream(device: str) -> Iterator[None]:
    """Run on a side stream: CUDA graphs cannot be captured on the default stream. On a CPU: nothing."""
    if not device.startswith("cuda"):
        yield
        return
    with use_device(device):
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream), sdpa_kernel(ATTENTION_BACKENDS):
            yield
        torch.cuda.current_stream().wait_stream(stream)


def get_rng_states(device: torch.device) -> dict[str, Tensor]:
    """The states of the random generators of the CPU and of this device, by kind of device."""
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    if device.type == "mps":
        states["mps"] = torch.mps.get_rng_state()
    return states


def set_rng_states(device: torch.device, states: dict[str, Tensor]) -> None:
    """Restore what `get_rng_states` returned, perhaps on another kind of device."""
    torch.set_rng_state(states["cpu"])
    if device.type == "cuda" and "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"], device)
    if device.type == "mps" and "mps" in states:
        torch.mps.set_rng_state(states["mps"])


@contextmanager
def report_out_of_memory(batch_tokens: int) -> Iterator[None]:
    """Turn PyTorch's out-of-memory errors into a `UserError` that says what to do."""
    try:
        yield
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        raise UserError(
            f"out of memory: lower training.batch_tokens (now {batch_tokens:,}) or choose a "
            "smaller model, and check what else uses the device"
        ) from None
