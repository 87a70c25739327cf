"""What every model can do, and the records that search carries about without looking inside."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Protocol, TypeVar, runtime_checkable

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from regard.attention.normalise import Normaliser
from regard.linear import Product

Source = Int[Tensor, "batch source"]
SourceMask = Bool[Tensor, "batch source"]
Target = Int[Tensor, "batch target"]
Rows = Int[Tensor, " rows"]
Logits = Float[Tensor, "rows vocab"]

R = TypeVar("R", bound="Record")
S = TypeVar("S", bound="State")


@dataclass
class Record:
    """Tensors whose first dimension is the batch, alone, in tuples, or in further records.

    `select` consumes the record it is given (a cache may be moved in place); `copy` branches.
    """

    def select(self: R, rows: Rows) -> R:
        """Sentence i of the result is sentence rows[i] of this one."""
        return self._map(lambda tensor: tensor.index_select(0, rows))

    def copy(self: R) -> R:
        """A record that shares no memory with this one."""
        return self._map(lambda tensor: tensor.clone())

    def remembered(self) -> int:
        """Bytes of what it holds of the text: numbers, not the places and masks that go with them."""
        sizes: list[int] = []

        def count(tensor: Tensor) -> Tensor:
            sizes.append(tensor.nbytes if tensor.is_floating_point() else 0)
            return tensor

        self._map(count)
        return sum(sizes)

    def _map(self: R, change: Callable[[Tensor], Tensor]) -> R:
        return type(self)(**{f.name: apply(change, getattr(self, f.name)) for f in fields(self)})


def apply(change: Callable[[Tensor], Tensor], value: Any) -> Any:
    """`change` on every tensor inside `value`; what is no tensor stays as it is."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, Record):
        return value._map(change)
    if isinstance(value, tuple):
        return tuple(apply(change, item) for item in value)
    return value


@dataclass
class State(Record, ABC):
    """What a decoder remembers of each sentence, for one beginning of its output or for several.

    `step` takes and gives a row for each beginning, those of a sentence side by side. What belongs to
    the sentence is held once, however many beginnings look at it.
    """

    @abstractmethod
    def spread(self: S, beam: int) -> S:
        """Each beginning becomes `beam` equal ones. Consumes the state, as all of these do."""

    @abstractmethod
    def reorder(self: S, slots: Int[Tensor, "batch beam"]) -> S:
        """Beginning i of a sentence goes on from what was its beginning slots[i]."""


@dataclass
class Memory(Record):
    """What the encoder leaves for the decoder: a state for each source token, and which are real."""

    states: Float[Tensor, "batch source width"]
    mask: SourceMask


@runtime_checkable
class Attending(Protocol):
    """A layer that attends, as far as one may meddle with it: how its scores become weights."""

    normalise: Normaliser


class Model(nn.Module, ABC):
    """P(target | source). `begin` and `step` go word by word; `features` reads a target at once."""

    recordable: bool = True
    """Can training be recorded as a CUDA graph? Nothing may ask the device for a number then."""

    def __init__(self) -> None:
        super().__init__()
        self.product = Product()

    @abstractmethod
    def encode(self, source: Source, mask: SourceMask) -> Memory:
        """Read the source."""

    @abstractmethod
    def begin(self, memory: Any) -> State:
        """The decoder's state before the first word: one beginning a sentence."""

    @abstractmethod
    def step(self, tokens: Rows, state: Any) -> tuple[Logits, Any]:
        """Read one token a row; logits of the next. Consumes the state it is given."""

    def room(self, source: int) -> int | None:
        """The longest target, in tokens, behind so long a source; None: any. 0: it cannot even be read."""
        return None

    @abstractmethod
    def features(self, memory: Any, target: Target) -> Float[Tensor, "batch target features"]:
        """What predicts the token after each target token, all at once."""

    @property
    @abstractmethod
    def output_map(self) -> tuple[Float[Tensor, "vocab features"], Float[Tensor, " vocab"] | None]:
        """(W, b) of logits = W features + b. A loss that has them need not keep every logit."""

    def project(self, features: Float[Tensor, "*rows features"]) -> Float[Tensor, "*rows vocab"]:
        """Features to logits."""
        return self.product(features, *self.output_map)

    @abstractmethod
    def explain(
        self, source: Source, mask: SourceMask, target: Target
    ) -> dict[str, Float[Tensor, "batch layers heads query key"]]:
        """Every attention weight, by mechanism: "cross", "encoder", "decoder". None is missing."""

    def by_token(self) -> dict[str, list[Tensor]]:
        """What has a row for each token of the "source" vocabulary, of the "target" one."""
        return {"source": [], "target": []}

    def attentions(self) -> dict[str, list[Attending]]:
        """The layers that make those weights, first layer first; a model without any has no key."""
        return {}

    def forward(
        self, source: Source, mask: SourceMask, target: Target
    ) -> Float[Tensor, "batch target vocab"]:
        """Teacher forcing: logits of the token after each target token."""
        return self.project(self.features(self.encode(source, mask), target))

    @property
    def decayed(self) -> list[nn.Parameter]:
        """What weight decay pulls on: matrices, but none that a part names in its `undecayed`."""
        kept = {
            id(getattr(part, name))
            for part in self.modules()
            for name in getattr(part, "undecayed", ())
        }
        return [
            p for p in self.parameters() if p.requires_grad and p.ndim > 1 and id(p) not in kept
        ]

    @property
    def parameter_count(self) -> int:
        return sum(parameter.numel() for parameter in self.parameters())

    @property
    def learned_count(self) -> int:
        """How many of them training changes."""
        return sum(parameter.numel() for parameter in self.parameters() if parameter.requires_grad)
