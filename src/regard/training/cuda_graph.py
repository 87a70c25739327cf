"""CUDA graphs of training steps, and the check that a step can be captured."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from regard.errors import UserError
from regard.training.device import is_out_of_memory


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
    """A CUDA graph of a step on a fixed tensor of row numbers.

    All graphs share one memory pool: no result of a step lies in it.
    """

    def __init__(
        self, rows: Int[Tensor, " batch"], step: Callable[[Tensor], None], pool: Any
    ) -> None:
        self.rows = rows.clone()
        self.graph = torch.cuda.CUDAGraph()
        # Not `with torch.cuda.graph`, which first empties PyTorch's memory cache: half a second.
        self.graph.capture_begin(pool=pool)
        try:
            step(self.rows)
            self.graph.capture_end()
        except RuntimeError as error:
            if is_out_of_memory(error):
                raise
            reason = str(error).strip().split("\n")[0]
            raise UserError(
                f"training this model cannot be captured as a CUDA graph ({reason}): train with "
                "--set training.cuda_graphs=false"
            ) from error

    def replay(self, rows: Int[Tensor, " batch"]) -> None:
        self.rows.copy_(rows)
        self.graph.replay()
