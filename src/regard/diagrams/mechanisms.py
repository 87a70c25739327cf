"""The attention mechanisms of a translation, each with the tokens of its keys and queries."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from regard.diagrams.arrays import Weights, validate_weights
from regard.errors import UserError

NO_ATTENTION = (
    "it has no attention at all, only a state of fixed size; to draw attention weights, train a model "
    "with attention"
)


@dataclass(frozen=True)
class Mechanism:
    """The weights [layer head query key] of one mechanism: rows are queries, columns are keys."""

    name: str
    weights: Weights
    keys: Sequence[str]
    queries: Sequence[str]

    @property
    def label(self) -> str:
        return "cross-attention" if self.name == "cross" else f"{self.name} self-attention"

    @property
    def key_name(self) -> str:
        """The name of the horizontal axis."""
        return "target so far (keys)" if self.name == "decoder" else "source (keys)"

    @property
    def query_name(self) -> str:
        """The name of the vertical axis."""
        return "source (queries)" if self.name == "encoder" else "target (queries)"


def list_mechanisms(
    attention: Any, source: Sequence[str], target: Sequence[str]
) -> dict[str, Mechanism]:
    """Every mechanism of `attention`: weights by name, or an array of cross-attention."""
    by_name = attention if isinstance(attention, Mapping) else {"cross": attention}
    decoder_input = ["<begin>", *target[:-1]]  # the target shifted right
    mechanisms = {}
    for name, weights in by_name.items():
        keys = decoder_input if name == "decoder" else source
        queries = source if name == "encoder" else target
        array = validate_weights(weights, "layer head target source", keys, queries)
        mechanisms[name] = Mechanism(name, array, keys, queries)
    return mechanisms


def select_mechanism(mechanisms: Mapping[str, Mechanism], name: str) -> Mechanism:
    if name not in mechanisms:
        available = f"it has {', '.join(mechanisms)}" if mechanisms else NO_ATTENTION
        raise UserError(f'this model has no "{name}" attention: {available}')
    return mechanisms[name]
