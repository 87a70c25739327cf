"""CUDA graphs of functions of tensors, and of the steps of a search."""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from regard.models.interface import R, Record
from regard.search.state import Search
from regard.search.step import StepModel
from regard.torch_private import foreach_copy_


@dataclass
class Pool:
    """The memory that the graphs of a model share for intermediate tensors."""

    device: torch.device
    handle: Any = None


class Captured:
    """A CUDA graph. Intermediate tensors of all graphs of a model share one memory pool."""

    bytes: int

    def __init__(self, pool: Pool) -> None:
        self.graph, self.pool = torch.cuda.CUDAGraph(), pool

    @contextmanager
    def capture(self) -> Iterator[None]:
        """Capture what is computed in this context, on a side stream."""
        stream = capture_stream(self.pool.device)
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream), without_garbage_collection():
            # Not `with torch.cuda.graph`, which first empties PyTorch's memory cache: half a second.
            self.graph.capture_begin(pool=self.pool.handle)
            try:
                yield
            except BaseException:
                with suppress(RuntimeError):
                    self.graph.capture_end()
                raise
            self.graph.capture_end()
        torch.cuda.current_stream().wait_stream(stream)
        self.pool.handle = self.pool.handle or self.graph.pool()


class CallGraph(Captured):
    """A function of tensors and records; its result is in the same tensors at every replay."""

    def __init__(self, function: Callable[..., Any], inputs: tuple[Any, ...], pool: Pool) -> None:
        super().__init__(pool)
        self.inputs = copy_tensors(Arguments(inputs))
        with self.capture():
            self.result = function(*self.inputs.values)
        self.bytes = count_bytes(self.inputs, self.result)

    def replay(self, inputs: tuple[Any, ...]) -> Any:
        assign(self.inputs, Arguments(inputs))
        self.graph.replay()
        return share(self.result)


class StepGraph(Captured):
    """A step of a search, from a record of tensors into the same tensors."""

    def __init__(self, model: StepModel[Any], search: Search, pool: Pool) -> None:
        super().__init__(pool)
        self.search = copy_tensors(search)
        with self.capture():
            assign(self.search, share(self.search).step(model))
        self.bytes = count_bytes(self.search)

    def replay(self, search: Search, count: int) -> Search:
        assign(self.search, search)
        for _ in range(count):
            self.graph.replay()
        return share(self.search)


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    """To free the graphs of a model that is gone, during a capture, would make the capture fail."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@cache
def capture_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


@dataclass
class Arguments(Record):
    """The arguments of a function."""

    values: tuple[Any, ...]


def share(record: R) -> R:
    """A record of the same tensors: a model may replace them in it."""
    return record._map(lambda tensor: tensor)


def copy_tensors(record: R) -> R:
    """A record with its own memory for each tensor, also for one that occurs twice."""
    copied = record._map(
        lambda tensor: torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
    )
    assign(copied, record)
    return copied


def assign(record: Record, values: Record) -> None:
    """Copy the values of the tensors of another record into those of this one."""
    pairs = [
        (old, new)
        for old, new in zip(record.tensors(), values.tensors(), strict=True)
        if (old.data_ptr(), old.stride()) != (new.data_ptr(), new.stride())
    ]
    memory = {old.untyped_storage().data_ptr() for old, _ in pairs}
    # A new value may lie in a tensor of this record that is overwritten first.
    safe = [new.clone() if new.untyped_storage().data_ptr() in memory else new for _, new in pairs]
    if pairs:
        foreach_copy_([old for old, _ in pairs], safe)


def count_bytes(*records: Record) -> int:
    return sum(tensor.nbytes for record in records for tensor in record.tensors())
