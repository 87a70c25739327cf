"""Search steps as CUDA graphs.

On a GPU a step is some hundred small kernels, and launching them takes longer than running them. A graph
launches all of them at once. It computes in the same tensors at every replay, so the decoder state is
reserved (see `DecoderState.reserve`) and comes in few shapes, each captured once: the batch shrinks to sizes
in a fixed list, and the caches grow by doubling. A step writes its results into the tensors that it reads.

The first computation of a shape runs without a graph, with a check that the host never waits for the GPU;
the second is captured. A model that cannot be captured runs as before, with one warning.
"""

import gc
import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.attention import sdpa_kernel

from regard.cuda_graph import ATTENTION_BACKENDS, HostSyncError, forbid_host_sync
from regard.devices import is_out_of_memory
from regard.errors import RegardWarning
from regard.models.interface import Model, R, Record, structure_of
from regard.search.constrain import Constrain
from regard.search.hypothesis import Hypothesis
from regard.search.state import Options, S, Search, Steps, run_search
from regard.search.step import StepModel, select_check_interval
from regard.search.traced import trace_steps
from regard.torch_private import all_modules, foreach_copy_, has_hooks, own_tensors

BATCHES = (1, 4, 16, 64, *(2**k for k in range(8, 16)))
SOURCE_STEP = 16  # sources are padded to a multiple of this length
FIRST_RESERVE = 16  # tokens; then twice as many each time
COLUMNS = 32  # the ids of a search have a multiple of these
MEMORY_FRACTION = 1 / 8  # of the GPU's memory, for the tensors of captured graphs


def search(
    kind: type[Search],
    model: StepModel[Any],
    memory: Any,
    tensors: Sequence[Tensor],
    options: Options,
    check_every: int | None,
    constrain: Constrain | None,
    cuda_graphs: "bool | Graphs",
) -> list[list[Hypothesis]]:
    """Run a search: of its `tensors`, the first are the maximum lengths."""
    max_lengths = tensors[0]
    limits = max_lengths.tolist()
    check_every = check_every or select_check_interval(max_lengths.device)
    options = (*options, round_columns(max(limits)))
    graphs = None if constrain else select_graphs(model, max_lengths.device, cuda_graphs)
    if graphs is None:
        steps = Steps(trace_steps(model, max_lengths), constrain)
        return run_search(steps, steps.start(kind, memory, tensors, options), limits, check_every)
    with graphs.use():
        steps = GraphSteps(model, graphs)
        return run_search(steps, steps.start(kind, memory, tensors, options), limits, check_every)


def encode(
    model: Model[Any, Any], source: Tensor, mask: Tensor, cuda_graphs: "bool | Graphs" = True
) -> Any:
    """`model.encode`, as a CUDA graph if possible."""
    graphs = select_graphs(model, source.device, cuda_graphs)
    if graphs is None:
        return model.encode(source, mask)
    with graphs.use():
        return copy_tensors(graphs.call("encode", model.encode, (source, mask)))


def round_columns(length: int) -> int:
    return -(-length // COLUMNS) * COLUMNS


def round_batch(rows: int) -> int:
    """The smallest batch in the list that holds these rows."""
    return next((batch for batch in BATCHES if batch >= rows), rows)


class GraphSteps(Steps):
    """Steps as CUDA graphs, over a reserved decoder state."""

    def __init__(self, model: StepModel[Any], graphs: "Graphs") -> None:
        super().__init__(model)
        self.graphs = graphs
        self.reserved = FIRST_RESERVE  # tokens for which the decoder state has space

    def start(self, kind: type[S], memory: Any, tensors: Sequence[Tensor], options: Options) -> S:
        def first_step(memory: Any, *tensors: Tensor) -> S:
            first = Steps(self.model).start(kind, memory, tensors, options)
            return first.reserve(FIRST_RESERVE - 1)

        return self.graphs.call((kind, options), first_step, (memory, *tensors))

    def advance(self, search: S, length: int, count: int) -> S:
        while length + count > self.reserved:
            search, self.reserved = search.reserve(self.reserved), 2 * self.reserved
        return self.graphs.advance(self.model, search, length, count)

    def arrange(self, live: list[int], batch: int, is_overdue: bool) -> list[int] | None:
        """A batch in the list; a row that is done is replaced by a copy of a live one if it is overdue."""
        size = min(round_batch(len(live)), batch)
        return live + live[-1:] * (size - len(live)) if size < batch or is_overdue else None


class Graphs:
    """The CUDA graphs of one model, those used last first to go; for one thread at a time."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.pool: Any = None
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
        captured = self.find(key, lambda: CallGraph(function, inputs, self))
        return captured.replay(inputs) if captured else function(*inputs)

    def advance(self, model: StepModel[Any], search: S, length: int, count: int) -> S:
        """`count` steps after the first `length` tokens."""
        key = search.structure()
        if not self.is_off and key not in self.seen:
            search, length, count = self.check(model, search, key), length + 1, count - 1
        if not self.is_off and count > 0:
            captured = self.find(key, lambda: StepGraph(model, search, self))
            if captured:
                return captured.replay(search, count)
        return Steps(model).advance(search, length, count)

    def check(self, model: StepModel[Any], search: S, key: Hashable) -> S:
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


class Captured:
    """A CUDA graph. Intermediate tensors of all graphs of a model share one memory pool."""

    bytes: int

    def __init__(self, graphs: Graphs) -> None:
        self.graph, self.graphs = torch.cuda.CUDAGraph(), graphs

    @contextmanager
    def capture(self) -> Iterator[None]:
        """Capture what is computed in this context, on a side stream."""
        stream = capture_stream(self.graphs.device)
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream), without_garbage_collection():
            # Not `with torch.cuda.graph`, which first empties PyTorch's memory cache: half a second.
            self.graph.capture_begin(pool=self.graphs.pool)
            try:
                yield
            except BaseException:
                with suppress(RuntimeError):
                    self.graph.capture_end()
                raise
            self.graph.capture_end()
        torch.cuda.current_stream().wait_stream(stream)
        self.graphs.pool = self.graphs.pool or self.graph.pool()


class CallGraph(Captured):
    """A function of tensors and records; its result is in the same tensors at every replay."""

    def __init__(
        self, function: Callable[..., Any], inputs: tuple[Any, ...], graphs: Graphs
    ) -> None:
        super().__init__(graphs)
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

    def __init__(self, model: StepModel[Any], search: Search, graphs: Graphs) -> None:
        super().__init__(graphs)
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


# --- the graphs of each model ---------------------------------------------------------------------

GRAPHS: WeakKeyDictionary[Model[Any, Any], tuple["Fingerprint", Graphs]] = WeakKeyDictionary()


def select_graphs(model: object, device: torch.device, cuda_graphs: bool | Graphs) -> Graphs | None:
    """Those given, those of the model, or none; a search of many batches looks for them once."""
    if isinstance(cuda_graphs, bool):
        return find_graphs(model, device) if cuda_graphs else None
    return None if cuda_graphs.is_off else cuda_graphs


def find_graphs(model: object, device: torch.device) -> Graphs | None:
    """The graphs of a model on a GPU, if they are still valid, else new ones; None: it runs without."""
    if device.type != "cuda" or not isinstance(model, Model):
        return None
    modules = all_modules(model)
    if any(map(has_hooks, modules)):  # a replay would not call them
        return None
    fingerprint = Fingerprint.of(model, modules)
    found = GRAPHS.get(model)
    if found is None or found[0] != fingerprint:
        found = GRAPHS[model] = fingerprint, Graphs(device)
    return None if found[1].is_off else found[1]


@dataclass(frozen=True)
class Fingerprint:
    """What a graph depends on besides its inputs: where the weights are, and what is patched."""

    precision: str
    addresses: list[int]
    functions: list["Identity"]

    @classmethod
    def of(cls, model: Model[Any, Any], modules: list[nn.Module]) -> "Fingerprint":
        tables = [vars(module) for module in modules]
        replaced = ("encode", "init_state", "step", "project")
        functions = [t.get("normalise") for t in tables] + [vars(model).get(n) for n in replaced]
        return cls(
            torch.get_float32_matmul_precision(),
            [tensor.data_ptr() for module in modules for tensor in own_tensors(module)],
            [Identity(function) for function in functions if function is not None],
        )


class Identity:
    """An object that equals only itself, and is kept alive, so that no other gets its id."""

    def __init__(self, value: object) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Identity) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)
