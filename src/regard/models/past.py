"""What a stack of blocks remembers of what it has read, and where that stands."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.models.interface import State

Heads = Float[Tensor, "batch kept key _"]
AllHeads = Float[Tensor, "batch kept past _"]


@dataclass
class Past(State):
    """Keys and values of the tokens a layer has read, in room that doubles and is written in place.

    All beginnings of a sentence share it: which of it is a beginning's own is a mask, and when
    beginnings trade places nothing but that mask moves.
    """

    keys: Heads | None = None
    values: Heads | None = None
    length: int = 0

    def add(self, keys: Heads, values: Heads) -> tuple[AllHeads, AllHeads]:
        """Everything read so far, these included."""
        if self.keys is None or self.values is None:
            # A text read at once ends here, without a copy that would trouble its gradient.
            self.keys, self.values, self.length = keys, values, keys.shape[2]
            return keys, values
        start, end = self.length, self.length + keys.shape[2]
        if torch.is_grad_enabled() and (keys.requires_grad or self.keys.requires_grad):
            # What a gradient goes through must not be written over.
            self.keys, self.values = (
                torch.cat([old[:, :, :start], new], dim=2)
                for old, new in ((self.keys, keys), (self.values, values))
            )
            self.length = end
            return self.keys, self.values
        if end > self.keys.shape[2]:
            self.keys, self.values = (self._grown(old, end) for old in (self.keys, self.values))
        self.keys[:, :, start:end] = keys
        self.values[:, :, start:end] = values
        self.length = end
        return self.keys[:, :, :end], self.values[:, :, :end]

    def _grown(self, old: Heads, needed: int) -> AllHeads:
        batch, heads, _, depth = old.shape
        room = old.new_empty(batch, heads, max(16, 2 * needed), depth)
        room[:, :, : self.length] = old[:, :, : self.length]
        return room

    def spread(self, beam: int) -> "Past":
        return self

    def reorder(self, slots: Int[Tensor, "batch beam"]) -> "Past":
        return self

    def _map(self, change: Callable[[Tensor], Tensor]) -> "Past":
        """Of the room, only what is used."""
        if self.keys is None or self.values is None:
            return Past()
        keys, values = (change(old[:, :, : self.length]) for old in (self.keys, self.values))
        return Past(keys, values, self.length)
