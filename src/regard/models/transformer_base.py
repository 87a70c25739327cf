"""Shared by encoder-decoder and decoder-only Transformers: decoder state, embeddings, output projection."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Generic

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.functional import pad

from regard.attention import Mask, MaskRule, Position, is_long
from regard.models.dropout import Dropout
from regard.models.interface import DecoderState, MemoryT, Model, StateT
from regard.models.layers import Block
from regard.models.mixers import AttentionInputs

Ids = Int[Tensor, "batch length"]
Activations = Float[Tensor, "batch length d_model"]


def position_ids_of(mask: Bool[Tensor, "batch length"]) -> Int[Tensor, "batch length"]:
    """0, 1, 2, ... over the real tokens, wherever the padding is."""
    return (mask.cumsum(1) - 1).clamp(min=0)


def choose_mask(rule: MaskRule) -> Mask:
    """The mask of a sequence: a matrix or, if it is long, the rule itself."""
    return rule if is_long(rule.key_position_ids.shape[1]) else rule.matrix()


def shared_window(blocks: Iterable[Block]) -> int | None:
    """The widest window of all blocks; None: some block needs all tokens."""
    windows = [block.mixer.window for block in blocks]
    widest = max((window for window in windows if window is not None), default=None)
    return None if None in windows else widest


@dataclass
class TransformerState(DecoderState):
    """The cache of each layer, and the positions of the cached tokens."""

    caches: tuple[DecoderState, ...]
    key_position_ids: Int[Tensor, "batch cached"]
    next_position_ids: Int[Tensor, " batch"]
    """Position of the next token."""
    cache_mask: Bool[Tensor, "batch beam cached"] | None
    """Which cached tokens belong to each hypothesis; None: there is one, and all belong to it."""
    window: int | None
    """A token needs only cached tokens at a distance below this, so the others are evicted; None: all."""
    cached_at: tuple[int, ...]
    """With a window: how many tokens, of all hypotheses, are cached at each of the last w - 1 positions."""
    prefix_lengths: Int[Tensor, " batch"] | None
    """In a decoder-only model, the length of the source, which comes before the first token."""
    next_slots: Int[Tensor, " batch"] | None
    """In a reserved state, the slot of the caches for the next token, the same for all sentences. With a
    window the caches are rings, and the slot is this number modulo their length."""

    def expand(self, beam: int) -> "TransformerState":
        mask = self.cache_mask
        if mask is None:
            mask = torch.ones_like(self.key_position_ids[:, None], dtype=torch.bool)
        caches = tuple(cache.expand(beam) for cache in self.caches)
        state = replace(self, caches=caches, cache_mask=mask.repeat_interleave(beam, dim=1))
        return state._widen_ring() if beam > 1 and self._is_ring else state

    def reorder(self, beam_indices: Int[Tensor, "batch beam"]) -> "TransformerState":
        caches, mask = tuple(cache.reorder(beam_indices) for cache in self.caches), self.cache_mask
        if mask is not None:
            mask = mask.gather(1, beam_indices[..., None].expand(-1, -1, mask.shape[-1]))
        return replace(self, caches=caches, cache_mask=mask)

    @property
    def _is_ring(self) -> bool:
        """Is it reserved with a window? New tokens then replace those that have left the window."""
        return self.window is not None and self.next_slots is not None

    def reserve(self, tokens: int) -> "TransformerState":
        """With a window of w tokens, w slots for each hypothesis are enough for any number of tokens."""
        mask, cached = self.cache_mask, self.key_position_ids.shape[1]
        if mask is None:
            mask = torch.ones_like(self.key_position_ids[:, None], dtype=torch.bool)
        slots = tokens * mask.shape[1]
        if self.window is not None:
            slots = min(slots, self.window * mask.shape[1] - cached)
        next_slots = self.next_slots
        if next_slots is None:
            next_slots = torch.full_like(self.next_position_ids, cached)
        elif slots == 0:
            return self
        return replace(
            self,
            caches=tuple(cache.reserve(slots) for cache in self.caches),
            key_position_ids=pad(self.key_position_ids, (0, slots)),
            cache_mask=pad(mask, (0, slots)),
            cached_at=(),
            next_slots=next_slots,
        )

    def _widen_ring(self) -> "TransformerState":
        """The slots from the oldest to the newest, then those that more hypotheses need."""
        assert self.window is not None
        assert self.next_slots is not None
        assert self.cache_mask is not None
        cached = self.key_position_ids.shape[1]
        order = torch.arange(cached, device=self.next_slots.device) + self.next_slots[0]
        order = order.remainder(cached)
        state = replace(
            self,
            caches=tuple(c._map(lambda x: x.index_select(2, order)) for c in self.caches),
            key_position_ids=self.key_position_ids[:, order],
            cache_mask=self.cache_mask[..., order],
            next_slots=torch.full_like(self.next_slots, cached),
        )
        return state.reserve(self.window)

    def append_one_per_hypothesis(self, beam: int) -> AttentionInputs:
        """Append the positions of one token for each of `beam` hypotheses; return their attention inputs."""
        position_ids = self.next_position_ids[:, None].expand(-1, beam)
        self.next_position_ids = self.next_position_ids + 1
        if self.next_slots is not None:
            return self._fill_slots(position_ids)
        self.key_position_ids = torch.cat([self.key_position_ids, position_ids], dim=1)
        if self.cache_mask is not None:
            # Each new token belongs to one hypothesis.
            new = torch.eye(beam, dtype=torch.bool, device=position_ids.device)
            new = new.expand(len(position_ids), -1, -1)
            self.cache_mask = torch.cat([self.cache_mask, new], dim=-1)
        inputs = AttentionInputs(
            position_ids,
            self.key_position_ids,
            self.cache_mask,
            one_per_hypothesis=True,
            prefix_lengths=self.prefix_lengths,
        )
        return self._evict(inputs, (beam,))

    def _fill_slots(self, position_ids: Int[Tensor, "batch beam"]) -> AttentionInputs:
        """`append_one_per_hypothesis` of a reserved state."""
        assert self.next_slots is not None
        assert self.cache_mask is not None
        beam = position_ids.shape[1]
        slots = self.next_slots[0] + torch.arange(beam, device=position_ids.device)
        if self._is_ring:
            slots = slots.remainder(self.key_position_ids.shape[1])
        new = torch.eye(beam, dtype=torch.bool, device=position_ids.device)
        new = new.expand(len(position_ids), -1, -1)
        self.key_position_ids.index_copy_(1, slots, position_ids)
        self.cache_mask.index_copy_(2, slots, new)
        self.next_slots = self.next_slots + beam
        return AttentionInputs(
            position_ids,
            self.key_position_ids,
            self.cache_mask,
            one_per_hypothesis=True,
            prefix_lengths=self.prefix_lengths,
            slots=slots,
        )

    def append_tokens(self, count: int) -> AttentionInputs:
        """Append the positions of `count` tokens of the only hypothesis; return inputs with a causal mask."""
        steps = torch.arange(count, device=self.next_position_ids.device)
        position_ids = self.next_position_ids[:, None] + steps
        self.key_position_ids = torch.cat([self.key_position_ids, position_ids], dim=1)
        self.next_position_ids = self.next_position_ids + count
        visible = None
        if self.cache_mask is not None:
            new = torch.ones_like(position_ids, dtype=torch.bool)[:, None]
            self.cache_mask = torch.cat([self.cache_mask, new], dim=-1)
            visible = self.cache_mask[:, 0]
        is_self = count == self.key_position_ids.shape[1]
        mask = choose_mask(
            MaskRule(position_ids, self.key_position_ids, visible, latest=0, is_self=is_self)
        )
        inputs = AttentionInputs(
            position_ids, self.key_position_ids, mask, prefix_lengths=self.prefix_lengths
        )
        return self._evict(inputs, (1,) * count)

    def _evict(self, inputs: AttentionInputs, added: tuple[int, ...]) -> AttentionInputs:
        """Forget the tokens that none after `inputs` may attend to; inputs with which the caches do too.

        Slots are counted, padding included, so that no size depends on values on the device.
        """
        if self.window is None:
            return inputs
        cached_at = (*self.cached_at, *added)
        self.cached_at = cached_at[max(0, len(cached_at) - (self.window - 1)) :]
        keep = sum(self.cached_at)
        first = self.key_position_ids.shape[1] - keep
        self.key_position_ids = self.key_position_ids[:, first:]
        if self.cache_mask is not None:
            self.cache_mask = self.cache_mask[..., first:]
        return replace(inputs, keep=keep)


class TransformerBase(Model[MemoryT, StateT], Generic[MemoryT, StateT]):
    """Embeddings with positions, and the output projection."""

    def __init__(
        self,
        source_embedding: nn.Embedding,
        target_embedding: nn.Embedding,
        position: Position,
        tie_embeddings: bool,
        dropout: float,
    ) -> None:
        super().__init__()
        vocab, d_model = target_embedding.weight.shape
        self.source_embedding, self.target_embedding = source_embedding, target_embedding
        for embedding in (source_embedding, target_embedding):
            nn.init.normal_(embedding.weight, std=d_model**-0.5)
        self.scale = math.sqrt(d_model)
        self.position = position
        self.output = None if tie_embeddings else nn.Linear(d_model, vocab, bias=False)
        self.dropout = Dropout(dropout)

    @property
    def output_projection(self) -> tuple[Float[Tensor, "vocab features"], None]:
        tied = self.target_embedding.weight
        return tied if self.output is None else self.output.weight, None

    def vocab_parameters(self) -> dict[str, list[Tensor]]:
        untied = [] if self.output is None else [self.output.weight]
        return {
            "source": [self.source_embedding.weight],
            "target": [self.target_embedding.weight, *untied],
        }

    def _embed(self, embedding: nn.Embedding, tokens: Ids, position_ids: Ids) -> Activations:
        return self.dropout(self.position.embed(embedding(tokens) * self.scale, position_ids))
