"""Which tokens the rows and columns of attention weights are, for a normaliser that depends on it.

A plain normaliser sees only scores. One that changes the weights of a certain token (an intervention) must
also know where they are: with a KV cache, a beam or a window, the index of a key is not its position.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

from jaxtyping import Bool, Int
from torch import Tensor

from regard.attention.normalise import Normaliser


@dataclass(frozen=True)
class TokenPositions:
    """The positions of the queries and keys of a tensor of scores."""

    queries: Int[Tensor, "#batch query"]
    keys: Int[Tensor, "#batch key"]
    mask: Bool[Tensor, "#batch 1 #query key"] | None = None
    """Which keys each query may attend to; None: all. Positions of others mean nothing."""
    prefix_lengths: Int[Tensor, " #batch"] | None = None
    """In a decoder-only model, whose source and target are one sequence: the length of the source, while the
    queries are target tokens; None while the source is read."""


class PositionedNormaliser(ABC):
    """A normaliser that depends on the positions of the tokens."""

    @abstractmethod
    def at(self, positions: TokenPositions) -> Normaliser:
        """The normaliser of scores of tokens at these positions."""


AnyNormaliser = Normaliser | PositionedNormaliser


def bind_positions(normalise: AnyNormaliser, positions: TokenPositions) -> Normaliser:
    """The normaliser of scores of tokens at these positions."""
    return normalise.at(positions) if isinstance(normalise, PositionedNormaliser) else normalise
