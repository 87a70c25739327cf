"""Steps of one sentence at a time, traced.

With one sentence, a step is a few hundred small operations, and about a third of its time in float32 goes
into calling them. A trace (`torch.jit.trace`) records the operations once and repeats them without Python.
It reads the model's own weights, packed, in int8 or neither.

A trace serves one number of hypotheses. The decoder state is reserved (see `DecoderState.reserve`), so that
steps change no shape; lengths of sources and caches may vary, but each new one is compared with a step that
is not traced. A model for which they differ, or that cannot be traced, runs as before.
"""

import threading
import warnings
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from jaxtyping import Int
from torch import Tensor, nn

from regard.attention import Position
from regard.models.interface import D, DecoderState, Logits, Model, Tokens, map_tensors
from regard.search.fingerprint import Fingerprint
from regard.search.step import StepModel
from regard.torch_private import all_modules

PAYS_AFTER = 128  # steps: about what a trace saves in as many more, it costs once
RESERVED = 32  # tokens
VERY_LONG = 2**20  # tokens
LOCK = threading.Lock()  # while a model is frozen
TOLERANCE = 1e-4  # of logits


@dataclass
class TracedState(DecoderState):
    """The decoder state of one sentence, with space for some more tokens."""

    state: DecoderState
    is_first: bool
    """Is this the state before the first token, without caches?"""
    free: int | None = None
    """For how many more tokens of each hypothesis there is space; None: it is not reserved."""
    after: list[Tensor] | None = None
    """The tensors of the state after a traced step, not yet in their places."""

    def unwrap(self) -> DecoderState:
        """The state with its tensors in their places."""
        if self.after is not None:
            self.state, self.after = put_tensors(self.state, self.after), None
        return self.state

    def expand(self, beam: int) -> "TracedState":
        free = None if self.free is None else self.free // beam
        return TracedState(self.unwrap().expand(beam), self.is_first, free)

    def reorder(self, beam_indices: Int[Tensor, "batch beam"]) -> "TracedState":
        return TracedState(self.unwrap().reorder(beam_indices), self.is_first, self.free)

    def _map(self, function: Callable[[Tensor], Tensor]) -> "TracedState":
        state = cast(DecoderState, map_tensors(function, self.unwrap()))
        return TracedState(state, self.is_first, self.free)

    def reserve(self, tokens: int) -> "TracedState":
        return TracedState(self.unwrap().reserve(tokens), self.is_first, tokens + (self.free or 0))


class TracedSteps:
    """A model whose steps for one sentence are traced, once there have been many: a `StepModel`."""

    def __init__(self, model: Model[Any, Any], fingerprint: Fingerprint | None = None) -> None:
        self.model, self.fingerprint = model, fingerprint
        self.traces: dict[int, Trace] = {}
        self.counts = Counter[int]()
        self.reason = find_reason(model)
        """Why this model is not traced; None: it is."""

    def init_state(self, memory: Any) -> TracedState:
        return TracedState(self.model.init_state(memory), is_first=True)

    def step(self, tokens: Tokens, state: TracedState) -> tuple[Logits, TracedState]:
        if state.free == 0:
            state = state.reserve(RESERVED)
        if self.reason is None and not state.is_first:
            self.counts[len(tokens)] += 1
            if self.counts[len(tokens)] > PAYS_AFTER:
                try:
                    return self._step_traced(tokens, state)
                except NotTraceableError as error:
                    self.reason = str(error)
        logits, after = self.model.step(tokens, state.unwrap())
        free = None if state.free is None else state.free - 1
        return logits, TracedState(after, False, free)

    def _step_traced(self, tokens: Tokens, state: TracedState) -> tuple[Logits, TracedState]:
        if state.free is None:
            state = state.reserve(RESERVED)
        assert state.free is not None
        trace = self.traces.get(len(tokens))
        if trace is None:
            trace = self.traces[len(tokens)] = Trace(self.model, tokens, state.unwrap())
        logits, tensors = trace(tokens, state)
        return logits, replace(state, free=state.free - 1, after=tensors)

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        return type(None), ()  # a copied model has other weights


def trace_steps(model: StepModel[Any], max_lengths: Int[Tensor, " batch"]) -> StepModel[Any]:
    """The model with traced steps, for one sentence on a CPU; else the model itself."""
    one_on_cpu = len(max_lengths) == 1 and max_lengths.device.type == "cpu"
    if not one_on_cpu or not isinstance(model, Model):
        return model
    fingerprint = Fingerprint.of(model, versions=True)
    if fingerprint is None:
        return model
    steps = vars(model).get("traced_steps")
    if steps is None or steps.fingerprint != fingerprint:
        steps = vars(model)["traced_steps"] = TracedSteps(model, fingerprint)
    return steps


def find_reason(model: nn.Module) -> str | None:
    """Why a trace of the model would be wrong, where `Trace.check` would not always find out."""
    positions = [module for module in model.modules() if isinstance(module, Position)]
    if any(position.further_rotations(VERY_LONG) for position in positions):
        return "how its keys are rotated depends on their number"
    return None


class NotTraceableError(Exception):
    """Why a model cannot be traced."""


class Trace:
    """The operations of a step for one sentence with a certain number of hypotheses."""

    def __init__(self, model: Model[Any, Any], tokens: Tokens, state: DecoderState) -> None:
        self.model = model
        self.known: set[Hashable] = set()
        example = state.copy()

        def step(tokens: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
            logits, after = model.step(tokens, put_tensors(example, list(tensors)))
            return logits, *after.tensors()

        inputs = (tokens, *example.tensors())
        try:
            with LOCK, freeze(model), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about shapes in Python: `check` compares them
                module = Operations(step, model)
                self.operations: Any = torch.jit.trace(module, inputs, check_trace=False)
        except (RuntimeError, TypeError, ValueError, AttributeError) as error:
            raise NotTraceableError(str(error).strip().split("\n")[0]) from None

    def __call__(self, tokens: Tokens, state: TracedState) -> tuple[Logits, list[Tensor]]:
        tensors = state.state.tensors() if state.after is None else state.after
        shapes = tuple(tensor.shape for tensor in tensors)
        if shapes not in self.known:
            self.check(tokens, state.unwrap())
            self.known.add(shapes)
        logits, *tensors = self.operations(tokens, *tensors)
        return logits, tensors

    def check(self, tokens: Tokens, state: DecoderState) -> None:
        """Compare with a step that is not traced, for the shapes of this state."""
        traced, *_ = self.operations(tokens, *state.copy().tensors())
        logits, after = self.model.step(tokens, state.copy())
        if after.structure() != state.structure():
            raise NotTraceableError("the decoder state changes its shape at every step")
        if not torch.allclose(traced, logits, TOLERANCE, TOLERANCE):
            raise NotTraceableError("a step depends on more than the values of its tensors")


class Operations(nn.Module):
    """A function to trace, with the packed weights as attributes."""

    def __init__(self, function: Callable[..., Any], model: nn.Module) -> None:
        super().__init__()
        self.function = function
        backends = [backend for backend in find_attributes(model, "backend") if backend]
        packed = [item for backend in backends for item in backend.packed_weights()]
        for number, item in enumerate(packed):
            if isinstance(item, Tensor):
                self.register_buffer(f"packed_{number}", item)
            else:
                setattr(self, f"packed_{number}", item)

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        return self.function(*inputs)


def put_tensors(state: D, tensors: Sequence[Tensor]) -> D:
    """The state with other tensors."""
    remaining = iter(tensors)
    return cast(D, map_tensors(lambda _: next(remaining), state))


@contextmanager
def freeze(model: nn.Module) -> Iterator[None]:
    """No parameter requires a gradient, as the constants of a trace may not."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for parameter in trained:
        parameter.requires_grad = False
    try:
        yield
    finally:
        for parameter in trained:
            parameter.requires_grad = True


def find_attributes(model: nn.Module, name: str) -> list[Any]:
    """An attribute of every module; None where it has none."""
    return [vars(module).get(name) for module in all_modules(model)]
