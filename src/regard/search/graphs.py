"""Search steps as CUDA graphs.

On a GPU a step is some hundred small kernels, and launching them takes longer than running them. A graph
launches all of them at once. It computes in the same tensors at every replay, so the decoder state is
reserved (see `DecoderState.reserve`) and comes in few shapes, each captured once: the batch shrinks to sizes
in a fixed list, and the caches grow by doubling. A step writes its results into the tensors that it reads.

The first computation of a shape runs without a graph, with a check that the host never waits for the GPU;
the second is captured. A model that cannot be captured runs as before, with one warning.
"""

import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.nn.attention import sdpa_kernel

from regard.cuda_graph import ATTENTION_BACKENDS, HostSyncError, forbid_host_sync
from regard.devices import is_out_of_memory
from regard.errors import RegardWarning
from regard.models.interface import Model, structure_of
from regard.search.captured import CallGraph, Captured, Pool, StepGraph, share
from regard.search.fingerprint import Fingerprint
from regard.search.state import Search, Steps
from regard.search.step import StepModel

MEMORY_FRACTION = 1 / 8  # of the GPU's memory, for the tensors of captured graphs


class Graphs:
    """The CUDA graphs of one model, those used last first to go; for one thread at a time."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.pool = Pool(device)
        self.seen: set[Hashable] = set()
        self.captured: OrderedDict[Hashable, Captured] = OrderedDict()
        self.max_bytes = int(
            MEMORY_FRACTION * torch.cuda.get_device_properties(device).total_memory
        )
        self.is_off = False
        self.lock = threading.RLock()

    @contextmanager
    def use(self) -> Iterator[None]:
        with self.lock, torch.cuda.device(self.device), sdpa_kernel(ATTENTION_BACKENDS):
            yield

    def turn_off(self, reason: str) -> None:
        """Decode without graphs from now on."""
        self.is_off = True
        self.captured.clear()
        warnings.warn(f"decoding runs without CUDA graphs: {reason}", RegardWarning, stacklevel=2)

    def call(self, name: Hashable, function: Callable[..., Any], inputs: tuple[Any, ...]) -> Any:
        """function(*inputs); the result is valid until the next call of any graph of this name."""
        key = name, structure_of(inputs)
        if self.is_off:
            return function(*inputs)
        if key not in self.seen:
            try:
                with forbid_host_sync():
                    result = function(*inputs)
            except HostSyncError as error:
                self.turn_off(str(error))
                return function(*inputs)
            self.seen.add(key)
            return result
        captured = self.find(key, lambda: CallGraph(function, inputs, self.pool))
        return captured.replay(inputs) if captured else function(*inputs)

    def advance(self, model: StepModel[Any], search: Search, length: int, count: int) -> Any:
        """`count` steps after the first `length` tokens."""
        key = search.structure()
        if not self.is_off and key not in self.seen:
            search, length, count = self.check(model, search, key), length + 1, count - 1
        if not self.is_off and count > 0:
            captured = self.find(key, lambda: StepGraph(model, search, self.pool))
            if captured:
                return captured.replay(search, count)
        return Steps(model).advance(search, length, count)

    def check(self, model: StepModel[Any], search: Search, key: Hashable) -> Search:
        """One step without a graph, and whether it can be captured."""
        try:
            with forbid_host_sync():
                after = share(search).step(model)
        except HostSyncError as error:
            self.turn_off(str(error))
            return search.step(model)
        if after.structure() != key:
            self.turn_off("the decoder state of this model changes its shape at every step")
        self.seen.add(key)
        return after

    def find(self, key: Hashable, capture: Callable[[], "Captured"]) -> Any:
        """The graph of this key, captured now if it is new; None if that fails."""
        if key not in self.captured:
            try:
                self.captured[key] = capture()
            except RuntimeError as error:
                reason = str(error).strip().split("\n")[0]
                self.turn_off("out of memory" if is_out_of_memory(error) else reason)
                return None
            while len(self.captured) > 1 and self.bytes() > self.max_bytes:
                self.captured.popitem(last=False)
        self.captured.move_to_end(key)
        return self.captured[key]

    def bytes(self) -> int:
        return sum(captured.bytes for captured in self.captured.values())


# --- the graphs of each model ---------------------------------------------------------------------

GRAPHS: WeakKeyDictionary[Model[Any, Any], tuple[Fingerprint, Graphs]] = WeakKeyDictionary()


def find_graphs(model: object, device: torch.device) -> Graphs | None:
    """The graphs of a model on a GPU, if they are still valid, else new ones; None: it runs without."""
    if device.type != "cuda" or not isinstance(model, Model):
        return None
    fingerprint = Fingerprint.of(model)
    if fingerprint is None:
        return None
    found = GRAPHS.get(model)
    if found is None or found[0] != fingerprint:
        found = GRAPHS[model] = fingerprint, Graphs(device)
    return None if found[1].is_off else found[1]
