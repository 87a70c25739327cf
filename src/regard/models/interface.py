"""The model interface, and the records that search handles without knowing their contents."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, fields
from typing import Generic, Protocol, TypeVar, runtime_checkable

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from regard.attention.token_positions import AnyNormaliser
from regard.linear import LinearBackend
from regard.models.padding import compaction_index, gather, scatter

Source = Int[Tensor, "batch source"]
SourceMask = Bool[Tensor, "batch source"]
Target = Int[Tensor, "batch target"]
Rows = Int[Tensor, " rows"]  # row indices
Tokens = Int[Tensor, " rows"]  # one token id per row
Logits = Float[Tensor, "rows vocab"]
AttentionWeights = Float[Tensor, "batch layers heads query key"]

R = TypeVar("R", bound="Record")
D = TypeVar("D", bound="DecoderState")


@dataclass
class Record:
    """A dataclass of batch-first tensors, tuples of them, and nested records.

    `select` consumes the record (a cache may be updated in place); `copy` branches.
    """

    def select(self: R, rows: Rows) -> R:
        """Sentence i of the result is sentence rows[i] of this record."""
        return self._map(Once(lambda tensor: tensor.index_select(0, rows)))

    def copy(self: R) -> R:
        """A record that shares no memory with this one."""
        return self._map(Once(lambda tensor: tensor.clone()))

    def cache_bytes(self) -> int:
        """Bytes of its floating-point tensors, each counted once; position ids and masks do not count."""
        sizes: dict[tuple[int, ...], int] = {}

        def count(tensor: Tensor) -> Tensor:
            # Not by storage: keys and values may be two halves of one projection.
            place = tensor.data_ptr(), *tensor.shape, *tensor.stride()
            sizes[place] = tensor.nbytes if tensor.is_floating_point() else 0
            return tensor

        self._map(count)
        return sum(sizes.values())

    def tensors(self) -> list[Tensor]:
        """Its tensors, in order."""
        found: list[Tensor] = []

        def collect(tensor: Tensor) -> Tensor:
            found.append(tensor)
            return tensor

        self._map(collect)
        return found

    def structure(self) -> Hashable:
        """Everything but the values of its tensors: types, shapes, and values that are not tensors."""
        return type(self), *(structure_of(getattr(self, f.name)) for f in fields(self))

    def _map(self: R, function: Callable[[Tensor], Tensor]) -> R:
        values = {f.name: map_tensors(function, getattr(self, f.name)) for f in fields(self)}
        return type(self)(**values)


class Once:
    """A function, called once for each tensor: one that occurs twice in a record stays one tensor."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        self.function = function
        self.results: dict[int, tuple[Tensor, Tensor]] = {}

    def __call__(self, tensor: Tensor) -> Tensor:
        if id(tensor) not in self.results:  # an id is unique while its tensor exists
            self.results[id(tensor)] = tensor, self.function(tensor)
        return self.results[id(tensor)][1]


def map_tensors(function: Callable[[Tensor], Tensor], value: object) -> object:
    """`function` applied to every tensor inside `value`; other values are returned unchanged."""
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, Record):
        return value._map(function)
    if isinstance(value, tuple):
        return tuple(map_tensors(function, item) for item in value)
    return value


def structure_of(value: object) -> Hashable:
    """`Record.structure` of any value inside a record."""
    if isinstance(value, Tensor):
        return value.shape, value.dtype
    if isinstance(value, Record):
        return value.structure()
    if isinstance(value, tuple):
        return tuple(structure_of(item) for item in value)
    return value if isinstance(value, Hashable) else id(value)


@dataclass
class DecoderState(Record, ABC):
    """A decoder's state, or a layer's cache in it, for one or several hypotheses per sentence.

    `step` takes and returns one row per hypothesis, those of a sentence next to each other. Tensors that
    depend only on the sentence are stored once and shared by its hypotheses.
    """

    @abstractmethod
    def expand(self: D, beam: int) -> D:
        """Repeat each hypothesis `beam` times. Consumes the state, like `reorder` and `select`."""

    @abstractmethod
    def reorder(self: D, beam_indices: Int[Tensor, "batch beam"]) -> D:
        """Hypothesis i of a sentence in the result is its hypothesis beam_indices[i] in this state."""

    def reserve(self: D, tokens: int) -> D:
        """The same state in tensors of fixed shape, with space for `tokens` more tokens of each hypothesis.

        Steps then change values, never shapes, so that they can be captured or compiled once. A state of
        constant size is its own.
        """
        return self


@dataclass
class Memory(Record):
    """The encoder's output: a state for each source token, and the source mask; real tokens first."""

    states: Float[Tensor, "batch source d_model"]
    mask: SourceMask


# The types that a model is generic over.
MemoryT = TypeVar("MemoryT", bound=Memory)
StateT = TypeVar("StateT", bound=DecoderState)


@runtime_checkable
class AttentionLayer(Protocol):
    """The part of an attention layer that can be patched: how its scores become weights.

    `normalise` gets scores [batch heads query key], with one row of the head axis for each query head,
    also where several share a key/value head; a layer with a single head may leave that axis out. A key's
    index is that of its token in the memory, where the real tokens come first (except in the steps of a
    decoder-only model with a sliding window, whose cache evicts source tokens). A layer also says where its
    queries and keys are: see `TokenPositions`.
    """

    normalise: AnyNormaliser


class Model(nn.Module, ABC, Generic[MemoryT, StateT]):
    """P(target | source), generic over the types of its memory and decoder state.

    `init_state` and `step` generate token by token; `features` reads a whole target at once.
    """

    supports_cuda_graphs: bool = True
    """Can a training step be captured as a CUDA graph? The step must not synchronise with the host."""
    is_decoder_only: bool = False
    """Are source and target one sequence, read by the same attention layers?"""
    saved_names: frozenset[str] | None = None
    """The parameters that a run folder holds; None: all."""

    def __init__(self) -> None:
        super().__init__()
        self.backend = LinearBackend()  # multiplies by the output projection

    @property
    def members(self) -> "Sequence[Model]":
        """The models of an ensemble; any other model is its own only member."""
        return [self]

    def encode(self, source: Source, mask: SourceMask) -> MemoryT:
        """Encode the source. Padding may be anywhere: it has no effect, and is last in the memory."""
        index = compaction_index(mask)
        return self._encode(scatter(source, 1, index), scatter(mask, 1, index), False)[0]

    @abstractmethod
    def _encode(
        self, source: Source, mask: SourceMask, need_weights: bool
    ) -> tuple[MemoryT, Sequence[Tensor | None]]:
        """(memory, the encoder's attention weights by layer, if needed), with the padding last."""

    @abstractmethod
    def init_state(self, memory: MemoryT) -> StateT:
        """The decoder state before the first token, with one hypothesis per sentence."""

    @abstractmethod
    def step(self, tokens: Tokens, state: StateT) -> tuple[Logits, StateT]:
        """Read one token per row; logits of the next token. Consumes the state."""

    def max_target_length(self, source_length: int) -> int | None:
        """Maximum target length in tokens; None: unlimited. 0: the source itself is too long."""
        return None

    @abstractmethod
    def features(self, memory: MemoryT, target: Target) -> Float[Tensor, "batch target features"]:
        """Teacher forcing: the input of the output projection at each target token."""

    @property
    @abstractmethod
    def output_projection(
        self,
    ) -> tuple[Float[Tensor, "vocab features"], Float[Tensor, " vocab"] | None]:
        """(W, b) of logits = W features + b; with them, a loss can avoid storing all logits."""

    def project(self, features: Float[Tensor, "*rows features"]) -> Float[Tensor, "*rows vocab"]:
        """Features to logits."""
        return self.backend(features, *self.output_projection)

    def attention_weights(
        self, source: Source, mask: SourceMask, target: Target
    ) -> dict[str, AttentionWeights]:
        """All attention weights by mechanism: "cross", "encoder", "decoder" (those the model has)."""
        index = compaction_index(mask)
        moved = scatter(source, 1, index), scatter(mask, 1, index)
        weights = self._attention_weights(*moved, target)
        for mechanism in weights.keys() & {"cross", "encoder"}:  # their keys are source tokens
            weights[mechanism] = gather(weights[mechanism], -1, index[:, None, None, None])
        if "encoder" in weights:
            weights["encoder"] = gather(weights["encoder"], -2, index[:, None, None, :, None])
        return weights

    @abstractmethod
    def _attention_weights(
        self, source: Source, mask: SourceMask, target: Target
    ) -> dict[str, AttentionWeights]:
        """`attention_weights` of a source with the padding last."""

    def vocab_parameters(self) -> dict[str, list[Tensor]]:
        """The tensors with one row per token of the "source" and of the "target" vocabulary."""
        return {"source": [], "target": []}

    def attention_layers(self) -> dict[str, list[AttentionLayer]]:
        """The layers that compute the attention weights, by mechanism, in order."""
        return {}

    def forward(
        self, source: Source, mask: SourceMask, target: Target
    ) -> Float[Tensor, "batch target vocab"]:
        """Teacher forcing: logits of the token after each target token."""
        return self.project(self.features(self.encode(source, mask), target))

    @property
    def decay_parameters(self) -> list[nn.Parameter]:
        """Parameters with weight decay: matrices, except those in a module's `no_weight_decay`."""
        exempt = {
            id(getattr(module, name))
            for module in self.modules()
            for name in getattr(module, "no_weight_decay", ())
        }
        return [
            p for p in self.parameters() if p.requires_grad and p.ndim > 1 and id(p) not in exempt
        ]

    @property
    def parameter_count(self) -> int:
        return sum(parameter.numel() for parameter in self.parameters())

    @property
    def trainable_count(self) -> int:
        return sum(parameter.numel() for parameter in self.parameters() if parameter.requires_grad)
