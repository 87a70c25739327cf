"""The device: computation dtype, CUDA stream, out-of-memory errors."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from regard.errors import UserError

ATTENTION_BACKENDS = [
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
]


def select_dtype(precision: str, device: str) -> torch.dtype:
    """The dtype of forward and backward pass. "auto" is bfloat16 on a GPU that has it, else float32."""
    if precision == "auto":
        is_cuda = device.startswith("cuda")
        supported = is_cuda and torch.cuda.is_bf16_supported(including_emulation=False)
        return torch.bfloat16 if supported else torch.float32
    if precision == "bfloat16" and device == "cpu":
        check_bfloat16_on_cpu()
    return getattr(torch, precision)


def check_bfloat16_on_cpu() -> None:
    """Multiply bfloat16 matrices in another process: some CPUs report bfloat16 and then crash."""
    probe = "import torch; x = torch.ones(64, 64, dtype=torch.bfloat16); x @ x"
    if subprocess.run([sys.executable, "-c", probe], capture_output=True).returncode:
        raise UserError(
            "this CPU cannot multiply bfloat16 matrices (a test process crashed): use "
            "training.precision=float32, or set ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 in the "
            "environment and try again"
        )


@contextmanager
def use_cuda_stream(device: str) -> Iterator[None]:
    """Run on a side stream: CUDA graphs cannot be captured on the default stream. On a CPU: nothing."""
    if not device.startswith("cuda"):
        yield
        return
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    # cuDNN attention plans each new shape for a third of a second, and is no faster at these sizes.
    with torch.cuda.stream(stream), sdpa_kernel(ATTENTION_BACKENDS):
        yield
    torch.cuda.current_stream().wait_stream(stream)


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


def is_out_of_memory(error: RuntimeError) -> bool:
    """Whether the device or the host ran out of memory, in any of PyTorch's wordings."""
    messages = ("out of memory", "can't allocate memory", "ALLOC_FAILED")
    return any(message in str(error) for message in messages)
