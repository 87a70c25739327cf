"""What a search finds."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Hypothesis:
    """Output ids, and how likely the model finds them."""

    ids: list[int]
    """With the end token, unless the length limit came first."""
    score: float
    """Total log-probability, end token included."""
    normalised: float
    """What it was ranked by."""
