"""What lets a token know of others: self-attention, or a state space; one face for both.

    y = mixer(x, reading, past)

A mixer reads tokens behind what it has read before, whether these are a whole text, its next part, or
one token for each of several beginnings of it. What it remembers is its `past`, which it adds to.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from regard.attention import ManyHeads
from regard.models.interface import Attending, State
from regard.models.past import Past
from regard.models.state_space import MixerState, StateSpace, compact

Sequence = Float[Tensor, "batch length width"]
Places = Int[Tensor, "batch length"]
Weights = Float[Tensor, "batch heads query key"] | None


@dataclass(frozen=True)
class Reading:
    """Tokens that are about to be read: where they stand, and what each may look at."""

    at: Places
    past_at: Int[Tensor, "batch past"]
    """Where all stand that have been read, these included."""
    mask: Bool[Tensor, "batch queries past"] | None = None
    """At which of those each token may look; None: at all."""
    real: Bool[Tensor, "batch length"] | None = None
    """Which of the tokens are no padding; None: all."""
    apart: bool = False
    """Are they the next tokens of so many beginnings, rather than one after another?"""


class Mixer(nn.Module, ABC):
    """Each token with those that it may look at."""

    @abstractmethod
    def begin(self, batch: int) -> State:
        """The past before anything is read."""

    @abstractmethod
    def forward(
        self, x: Sequence, reading: Reading, past: Any, explain: bool
    ) -> tuple[Sequence, Weights]:
        """(what each token gets, weights if they are asked for and there are any)"""

    def attentions(self) -> list[Attending]:
        """What makes those weights, if anything does."""
        return []


class SelfAttention(Mixer):
    """Attention over everything that has been read; the past is its keys and values.

    Several beginnings of one sentence are so many queries over the same keys: those of every token
    that any of the beginnings has read. Which of these are a beginning's own is a mask.
    """

    def __init__(self, attention: ManyHeads) -> None:
        super().__init__()
        self.attention = attention

    def attentions(self) -> list[Attending]:
        return [self.attention]

    def begin(self, batch: int) -> Past:
        return Past()

    def forward(
        self, x: Sequence, reading: Reading, past: Past, explain: bool
    ) -> tuple[Sequence, Weights]:
        keys, values = past.add(*self.attention.keys_values(x, reading.at))
        if reading.mask is None or self.attention.score.pairwise:
            places = reading.at, reading.past_at
            return self.attention(x, keys, values, reading.mask, *places, explain)
        return self._in_order(x, keys, values, reading, explain)

    def _in_order(
        self, x: Sequence, keys: Tensor, values: Tensor, reading: Reading, explain: bool
    ) -> tuple[Sequence, Weights]:
        """For a score that minds where a key stands among the others: what cannot be seen goes last."""
        mask, query_at, key_at = reading.mask, reading.at, reading.past_at
        assert mask is not None
        queries = x
        if reading.apart:  # each beginning has a past of its own
            beam = x.shape[1]
            queries, query_at = x.flatten(0, 1)[:, None], query_at.flatten()[:, None]
            mask = mask.flatten(0, 1)[:, None]
            keys, values, key_at = (
                old.repeat_interleave(beam, dim=0) for old in (keys, values, key_at)
            )
        place = compact(mask.any(1))
        keys, values = (move(old, 2, place[:, None, :, None]) for old in (keys, values))
        mask, key_at = move(mask, 2, place[:, None]), move(key_at, 1, place)
        seen, weights = self.attention(queries, keys, values, mask, query_at, key_at, explain)
        if weights is not None:
            weights = weights.gather(-1, place[:, None, None].expand_as(weights))
        return seen.view_as(x), weights


def move(x: Tensor, dim: int, place: Int[Tensor, "..."]) -> Tensor:
    """What stands at i along a dimension goes to place[i]."""
    return torch.zeros_like(x).scatter(dim, place.expand_as(x), x)


@dataclass
class SpacePast(State):
    """The state of a state space after what each beginning has read."""

    window: Float[Tensor, "batch beam inner tail"]
    hidden: Float[Tensor, "batch beam inner state"]

    def spread(self, beam: int) -> "SpacePast":
        return SpacePast(*(x.repeat_interleave(beam, dim=1) for x in (self.window, self.hidden)))

    def reorder(self, slots: Int[Tensor, "batch beam"]) -> "SpacePast":
        sentence = torch.arange(len(slots), device=slots.device)[:, None]
        return SpacePast(self.window[sentence, slots], self.hidden[sentence, slots])


class Causal(Mixer):
    """A state space: a state of constant size is all it keeps of what it has read."""

    def __init__(self, space: StateSpace) -> None:
        super().__init__()
        self.space = space

    def begin(self, batch: int) -> SpacePast:
        start = self.space.start(batch)
        return SpacePast(start.window[:, None], start.hidden[:, None])

    def forward(
        self, x: Sequence, reading: Reading, past: SpacePast, explain: bool
    ) -> tuple[Sequence, Weights]:
        rows = x.flatten(0, 1)[:, None] if reading.apart else x
        before = MixerState(past.window.flatten(0, 1), past.hidden.flatten(0, 1))
        y, after = self.space(rows, reading.real, before)
        past.window, past.hidden = (
            new.unflatten(0, (len(x), -1)) for new in (after.window, after.hidden)
        )
        return y.view_as(x), None


class BothWays(Mixer):
    """Two state spaces over a whole text, one from each end; their outputs are added."""

    def __init__(self, forwards: StateSpace, backwards: StateSpace) -> None:
        super().__init__()
        self.forwards, self.backwards = forwards, backwards

    def begin(self, batch: int) -> Past:
        return Past()  # a whole text has none

    def forward(
        self, x: Sequence, reading: Reading, past: Past, explain: bool
    ) -> tuple[Sequence, Weights]:
        mirrored = None if reading.real is None else reading.real.flip(1)
        back = self.backwards(x.flip(1), mirrored)[0].flip(1)
        return self.forwards(x, reading.real)[0] + back, None
