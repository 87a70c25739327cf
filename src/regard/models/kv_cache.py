"""The KV cache of a self-attention layer."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import pad

from regard.models.interface import DecoderState

Heads = Float[Tensor, "batch kv_heads key _"]
CachedHeads = Float[Tensor, "batch kv_heads cached _"]


@dataclass
class KVCache(DecoderState):
    """Keys and values of the tokens read so far, in a buffer that grows by doubling and is written in place.

    All hypotheses of a sentence share it: a mask selects those of each hypothesis, and reordering
    hypotheses changes only that mask. With a sliding window, keys that no later token may attend to are
    evicted. In a reserved cache the buffer has its final size, and is attended to as a whole, with a mask.
    """

    keys: Heads | None = None
    values: Heads | None = None
    length: int = 0

    def append(
        self, keys: Heads, values: Heads, slots: Int[Tensor, " new"] | None = None
    ) -> tuple[CachedHeads, CachedHeads]:
        """All keys and values so far, the new ones included, which a reserved cache stores in `slots`."""
        if slots is not None:
            return self._write(keys, values, slots)
        if self.keys is None or self.values is None:
            # A sequence read at once needs no buffer, whose copy would be part of the backward pass.
            self.keys, self.values, self.length = keys, values, keys.shape[2]
            return keys, values
        start, end = self.length, self.length + keys.shape[2]
        if torch.is_grad_enabled() and (keys.requires_grad or self.keys.requires_grad):
            # Autograd needs the old tensors: do not write in place.
            self.keys, self.values = (
                torch.cat([old[:, :, :start], new], dim=2)
                for old, new in ((self.keys, keys), (self.values, values))
            )
            self.length = end
            return self.keys, self.values
        if end > self.keys.shape[2]:
            self.keys, self.values = (self._grow(old, end) for old in (self.keys, self.values))
        self.keys[:, :, start:end] = keys
        self.values[:, :, start:end] = values
        self.length = end
        return self.keys[:, :, :end], self.values[:, :, :end]

    def _grow(self, old: Heads, needed: int) -> CachedHeads:
        batch, heads, _, depth = old.shape
        buffer = old.new_empty(batch, heads, max(16, 2 * needed), depth)
        buffer[:, :, : self.length] = old[:, :, : self.length]
        return buffer

    def _write(
        self, keys: Heads, values: Heads, slots: Int[Tensor, " new"]
    ) -> tuple[CachedHeads, CachedHeads]:
        if self.keys is None or self.values is None:  # reserved before the first token
            self.keys, self.values = (
                new.new_zeros(*new.shape[:2], self.length, new.shape[3]) for new in (keys, values)
            )
        return self.keys.index_copy_(2, slots, keys), self.values.index_copy_(2, slots, values)

    def reserve(self, tokens: int) -> "KVCache":
        """`tokens` counts those of all hypotheses."""
        length = self.length + tokens
        if self.keys is None or self.values is None:
            return KVCache(length=length)
        # Zeros: a masked value of NaN would still be NaN in a weighted sum.
        keys, values = (
            pad(old[:, :, : self.length], (0, 0, 0, tokens)) for old in (self.keys, self.values)
        )
        return KVCache(keys, values, length)

    def evict(self, keep: int) -> None:
        """Forget all but the last `keep` tokens. Their part of the buffer is freed when it next grows."""
        if self.keys is not None and self.values is not None and keep < self.length:
            first = self.length - keep
            self.keys, self.values = self.keys[:, :, first:], self.values[:, :, first:]
            self.length = keep

    def expand(self, beam: int) -> "KVCache":
        return self

    def reorder(self, beam_indices: Int[Tensor, "batch beam"]) -> "KVCache":
        return self

    def _map(self, function: Callable[[Tensor], Tensor]) -> "KVCache":
        """Without the unused part of the buffer."""
        if self.keys is None or self.values is None:
            return KVCache(length=self.length)
        keys, values = (function(old[:, :, : self.length]) for old in (self.keys, self.values))
        return KVCache(keys, values, keys.shape[2])
