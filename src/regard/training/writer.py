"""Weights and checkpoints, written while the GPU goes on training.

On a GPU the tensors are copied to the host first, so training may change them while a thread writes the copy.
One file at a time, in order: when the next is due, or training ends, the last is complete, or its error is
raised. On a CPU the tensors are those that training changes, so they are written at once.
"""

import contextvars
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.models import weights


class Writer:
    """Writes files of tensors; `close` waits for the last."""

    def __init__(self, device: torch.device) -> None:
        self.threads = ThreadPoolExecutor(1) if device.type == "cuda" else None
        self.last: Future[None] | None = None

    def save(self, path: Path, tensors: Mapping[str, Tensor], record: dict[str, Any]) -> None:
        """`weights.save`, perhaps later."""
        if self.threads is None:
            weights.save(path, dict(tensors), record)
            return
        copies = {name: tensor.detach().contiguous().cpu() for name, tensor in tensors.items()}
        self.wait()
        context = contextvars.copy_context()  # which holds the locks of this thread
        self.last = self.threads.submit(context.run, weights.save, path, copies, record)

    def wait(self) -> None:
        """Until the last file is complete."""
        last, self.last = self.last, None
        if last is not None:
            last.result()

    def close(self) -> None:
        try:
            self.wait()
        finally:
            if self.threads is not None:
                self.threads.shutdown()


class NoWriter(Writer):
    """Writes nothing: of several processes that train one model, the first one writes."""

    def save(self, path: Path, tensors: Mapping[str, Tensor], record: dict[str, Any]) -> None:
        pass
