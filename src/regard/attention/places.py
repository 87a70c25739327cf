"""Which tokens the rows and columns of attention weights are, for a normaliser that depends on it.

A plain normaliser sees only scores. One that changes the weights of a certain token (an intervention) must
also know where they are: with a KV cache, a beam or a window, the index of a key is not its position.
"""

from dataclasses import dataclass
from typing import Protocol, cast, runtime_checkable

from jaxtyping import Bool, Int
from torch import Tensor

from regard.attention.normalise import Normaliser


@dataclass(frozen=True)
class Places:
    """The positions of the queries and keys of a tensor of scores."""

    queries: Int[Tensor, "#batch query"]
    keys: Int[Tensor, "#batch key"]
    mask: Bool[Tensor, "#batch 1 #query key"] | None = None
    """Which keys each query may attend to; None: all. Positions of others mean nothing."""
    prefix_lengths: Int[Tensor, " #batch"] | None = None
    """In a decoder-only model, whose source and target are one sequence: the length of the source, while the
    queries are target tokens; None while the source is read."""


@runtime_checkable
class PlacedNormaliser(Protocol):
    """A normaliser for the scores of any places."""

    def at(self, places: Places) -> Normaliser:
        """The normaliser of the scores at these places."""
        ...


AnyNormaliser = Normaliser | PlacedNormaliser


def place(normalise: AnyNormaliser, places: Places) -> Normaliser:
    """The normaliser of the scores at these places."""
    # At every step of every layer, and `isinstance` of a protocol takes as long as a small kernel.
    at = getattr(normalise, "at", None)
    return cast(Normaliser, normalise) if at is None else at(places)
