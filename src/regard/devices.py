"""The device to compute on, chosen by name."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager

from regard.errors import UserError, suggest

DEVICES = ("auto", "cpu", "cuda", "mps")
KERNEL_CACHES = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "64", "LRU_CACHE_CAPACITY": "64"}


def resolve_device(name: str) -> str:
    """The PyTorch device of this name, if it is here. "auto" is "cuda" with a GPU, else "cpu".

    "auto" never selects "mps" (the GPU of an Apple computer), on which Regard is not tested.
    """
    import torch  # here: it takes a second, and the command line needs the message above first

    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if re.fullmatch(r"cuda(:\d+)?", name):
        check_cuda(name, torch.cuda.device_count() if torch.cuda.is_available() else 0)
    elif name in ("mps", "mps:0"):
        if not torch.backends.mps.is_available():
            raise UserError("PyTorch finds no MPS device here: use the device cpu")
    elif name not in ("cpu", "cpu:0"):
        hint = ' Did you mean "cuda"?' if name.startswith("gpu") else suggest(name, DEVICES)
        raise UserError(f'the device is auto, cpu, cuda, cuda:N or mps: got "{name}".{hint}')
    return name if name.startswith("cuda") else name.removesuffix(":0")


def limit_kernel_caches() -> None:
    """Keep the kernels of 64 shapes in each of PyTorch's two caches for the CPU, unless a user sets others.

    By default it keeps 1,024, about a megabyte each, and batches of a large file or of many clients have
    thousands of shapes: memory grows for minutes. With 64, decoding is as fast, and memory is flat. PyTorch
    reads these variables at its first matrix product.
    """
    for name, capacity in KERNEL_CACHES.items():
        os.environ.setdefault(name, capacity)


def check_cuda(name: str, count: int) -> None:
    """Raise an error unless one of `count` CUDA devices has this name."""
    if count == 0:
        raise UserError("PyTorch finds no CUDA device here: use the device cpu")
    index = int(name.partition(":")[2] or 0)
    if index >= count:
        devices = "one CUDA device" if count == 1 else f"{count} CUDA devices"
        last = "" if count == 1 else f" to cuda:{count - 1}"
        raise UserError(
            f"there is no device {name}: PyTorch finds {devices} here, use cuda:0{last}"
        )


def is_out_of_memory(error: RuntimeError) -> bool:
    """Whether the device or the host ran out of memory, in any of PyTorch's wordings."""
    messages = ("out of memory", "can't allocate memory", "ALLOC_FAILED")
    return any(message in str(error) for message in messages)


@contextmanager
def use_threads(count: int) -> Iterator[None]:
    """Compute with this many threads on a CPU."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
