"""Attention masks. One polarity everywhere: True = may be attended to.

A mask is a matrix [batch query key] or, for long sequences, the rule by which the matrix is computed.
"""

from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Bool, Int
from torch import Tensor


def padding_mask(lengths: Int[Tensor, " batch"], size: int) -> Bool[Tensor, "batch {size}"]:
    """True for the first `lengths[b]` positions of row b: real tokens, not padding."""
    return torch.arange(size, device=lengths.device) < lengths[:, None]


def causal_mask(
    query_position_ids: Int[Tensor, "*batch query"], key_position_ids: Int[Tensor, "*batch key"]
) -> Bool[Tensor, "*batch query key"]:
    """True where the key is at or before the query: no query attends to a later position."""
    return key_position_ids[..., None, :] <= query_position_ids[..., :, None]


def window_mask(
    query_position_ids: Int[Tensor, "*batch query"],
    key_position_ids: Int[Tensor, "*batch key"],
    window: int,
) -> Bool[Tensor, "*batch query key"]:
    """True where |query position - key position| < window."""
    return (key_position_ids[..., None, :] - query_position_ids[..., :, None]).abs() < window


@dataclass(frozen=True)
class MaskRule:
    """Which keys a query may attend to: those that are visible, with key position - query position <= latest,
    and |key position - query position| < window.

    A matrix has query x key numbers, 1 GiB of them for 32,768 tokens; this record has query + key.
    """

    query_position_ids: Int[Tensor, "batch query"]
    """Consecutive for consecutive queries; padding repeats the last one."""
    key_position_ids: Int[Tensor, "batch key"]
    """No two visible keys of a sentence have the same position."""
    visible: Bool[Tensor, "batch key"] | None = None
    """False for padding; None: all keys are visible."""
    latest: int | None = None
    """0 is a causal mask; None: a query may attend to any later key."""
    window: int | None = None
    """Width of a sliding window; None: any distance."""
    is_self: bool = False
    """Query i and key i are the same token, and padding is behind the others."""
    cache: dict[object, object] = field(default_factory=dict, repr=False, compare=False)
    """What the layers of a model derive from the rule, once for all of them."""

    @property
    def is_plain_causal(self) -> bool:
        """May query i attend to exactly the keys 0 .. i? So for real tokens; no output of padding is used."""
        return self.is_self and self.latest == 0 and self.window is None

    @property
    def is_by_key(self) -> bool:
        """May all queries attend to the same keys?"""
        return self.latest is None and self.window is None

    def within(self, window: int | None) -> "MaskRule":
        """The rule restricted to a window."""
        if window is None:
            return self
        narrow = self.cache.setdefault(window, replace(self, window=window, cache={}))
        assert isinstance(narrow, MaskRule)
        return narrow

    def matrix(self) -> Bool[Tensor, "batch _ key"] | None:
        """The rule as a mask; one row if all queries may attend to the same keys, None if to all."""
        query, key = self.query_position_ids, self.key_position_ids
        mask = None if self.visible is None else self.visible[:, None]
        if self.latest is not None:
            past = causal_mask(query + self.latest if self.latest else query, key)
            mask = past if mask is None else past & mask
        if self.window is not None:
            near = window_mask(query, key, self.window)
            mask = near if mask is None else mask & near
        return mask

    def rows(self, start: int, stop: int) -> "MaskRule":
        """The rule for the queries start .. stop - 1."""
        queries = self.query_position_ids[:, start:stop]
        return replace(self, query_position_ids=queries, is_self=False, cache={})

    def columns(self, start: int, stop: int) -> "MaskRule":
        """The rule for the keys start .. stop - 1."""
        visible = None if self.visible is None else self.visible[:, start:stop]
        keys = self.key_position_ids[:, start:stop]
        return replace(self, key_position_ids=keys, visible=visible, is_self=False, cache={})

    def needed_keys(self, start: int, stop: int) -> tuple[int, int]:
        """(first, last + 1) of the keys that the queries start .. stop - 1 may attend to, or more keys."""
        keys = self.key_position_ids.shape[1]
        if not self.is_self:
            return 0, keys
        first = 0 if self.window is None else max(0, start - self.window + 1)
        reaches = [n for n in (self.latest, self.window) if n is not None]
        return first, min(keys, stop + max(0, min(reaches))) if reaches else keys


Mask = Bool[Tensor, "batch _ key"] | MaskRule | None
