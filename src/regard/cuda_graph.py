"""CUDA graphs, and the check that a computation can be captured."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend

from regard.devices import is_out_of_memory
from regard.errors import UserError

# Without cuDNN's, which plans each new shape for a third of a second, and is no faster at these sizes.
ATTENTION_BACKENDS = [
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
]


class HostSyncError(Exception):
    """The host was about to wait for the GPU."""


@contextmanager
def forbid_host_sync() -> Iterator[None]:
    """Raise `HostSyncError` where the host would wait for the GPU: such a step cannot be captured.

    Check before capturing: a capture that fails corrupts the state of the GPU's random generator.
    """
    with warnings.catch_warnings():  # PyTorch warns once that this mode misses some syncs
        warnings.simplefilter("ignore")
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    except RuntimeError as error:
        if "synchronizing" not in str(error):
            raise
        raise HostSyncError(str(error).strip().split("\n")[0]) from error
    finally:
        torch.cuda.set_sync_debug_mode("default")


class CapturedStep:
    """A CUDA graph of a function of tensors; a replay copies new values into the same tensors.

    All graphs share one memory pool: no result of a step lies in it.
    """

    def __init__(self, step: Callable[..., None], inputs: Sequence[Tensor], pool: Any) -> None:
        self.inputs = [tensor.clone() for tensor in inputs]
        self.graph = torch.cuda.CUDAGraph()
        # Not `with torch.cuda.graph`, which first empties PyTorch's memory cache: half a second.
        self.graph.capture_begin(pool=pool)
        try:
            step(*self.inputs)
            self.graph.capture_end()
        except RuntimeError as error:
            if is_out_of_memory(error):
                raise
            reason = str(error).strip().split("\n")[0]
            raise UserError(
                f"training this model cannot be captured as a CUDA graph ({reason}): train with "
                "--set training.cuda_graphs=false"
            ) from error

    def replay(self, inputs: Sequence[Tensor]) -> None:
        for captured, tensor in zip(self.inputs, inputs, strict=True):
            captured.copy_(tensor)
        self.graph.replay()
