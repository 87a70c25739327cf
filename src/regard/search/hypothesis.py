"""The result of a search."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Hypothesis:
    """Output token ids with their log-probability."""

    ids: list[int]
    """Ends with the EOS token, unless the length limit was reached first."""
    score: float
    """Total log-probability, EOS included."""
    normalised: float
    """The score that ranked it: beam search divides by length^length_penalty."""
