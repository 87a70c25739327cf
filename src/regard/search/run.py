"""A search from a memory to outputs: step by step, traced (one sentence on a CPU), or as CUDA graphs."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from regard.models.interface import Model
from regard.search.captured import copy_tensors
from regard.search.constrain import Constrain
from regard.search.graphs import Graphs, find_graphs
from regard.search.hypothesis import Hypothesis
from regard.search.state import Options, S, Search, Steps, run_search
from regard.search.step import StepModel, select_check_interval
from regard.search.traced import trace_steps

BATCHES = (1, 4, 16, 64, *(2**k for k in range(8, 16)))
SOURCE_STEP = 16  # sources are padded to a multiple of this length
FIRST_RESERVE = 16  # tokens; then twice as many each time
COLUMNS = 32  # the ids of a search have a multiple of these


def search(
    kind: type[Search],
    model: StepModel[Any],
    memory: Any,
    tensors: Sequence[Tensor],
    options: Options,
    check_every: int | None,
    constrain: Constrain | None,
    cuda_graphs: bool | Graphs,
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
    model: Model[Any, Any], source: Tensor, mask: Tensor, cuda_graphs: bool | Graphs = True
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

    def __init__(self, model: StepModel[Any], graphs: Graphs) -> None:
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


def select_graphs(model: object, device: torch.device, cuda_graphs: bool | Graphs) -> Graphs | None:
    """Those given, those of the model, or none; a search of many batches looks for them once."""
    if isinstance(cuda_graphs, bool):
        return find_graphs(model, device) if cuda_graphs else None
    return None if cuda_graphs.is_off else cuda_graphs
