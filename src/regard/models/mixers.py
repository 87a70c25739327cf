"""Token mixers: self-attention or a state space, behind one interface.

    y = mixer(x, inputs, cache)

A mixer reads the tokens that follow those in its cache, and appends them to it: a whole sequence, its
continuation, or one token for each of several hypotheses.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from regard.attention import Mask, MaskRule, MultiHeadBase
from regard.models.interface import AttentionLayer, DecoderState
from regard.models.kv_cache import KVCache
from regard.models.padding import compaction_index, gather, scatter
from regard.models.state_space import StateSpace, StateSpaceState

Activations = Float[Tensor, "batch length d_model"]
Weights = Float[Tensor, "batch heads query key"] | None


@dataclass(frozen=True)
class AttentionInputs:
    """Positions and masks of the tokens to read."""

    position_ids: Int[Tensor, "batch length"]
    key_position_ids: Int[Tensor, "batch cached"]
    """Positions of all cached tokens, including these."""
    mask: Mask = None
    """Which cached tokens each token may attend to; None: all. A rule where a matrix would be large."""
    padding_mask: Bool[Tensor, "batch length"] | None = None
    """True for real tokens; None: no padding."""
    one_per_hypothesis: bool = False
    """True: one token for each hypothesis; False: consecutive tokens of one hypothesis."""
    prefix_lengths: Int[Tensor, " batch"] | None = None
    """The length of the source before target tokens, in a decoder-only model (see `TokenPositions`)."""
    keep: int | None = None
    """How many tokens stay cached, the last ones: no later token attends to the others. None: all."""
    slots: Int[Tensor, " length"] | None = None
    """Where a reserved cache stores these tokens; None: after the others."""


class TokenMixer(nn.Module, ABC):
    """Mixes information between tokens."""

    @property
    def window(self) -> int | None:
        """A token needs only cached tokens at a distance below this; None: all."""
        return None

    @abstractmethod
    def init_cache(self, batch: int) -> DecoderState:
        """The cache before any token."""

    @abstractmethod
    def forward(
        self, x: Activations, inputs: AttentionInputs, cache: Any, need_weights: bool
    ) -> tuple[Activations, Weights]:
        """(output, attention weights); no weights without `need_weights` or without attention."""

    def attention_layers(self) -> list[AttentionLayer]:
        """The layers that compute the attention weights."""
        return []


class SelfAttention(TokenMixer):
    """Self-attention over the KV cache.

    The hypotheses of a sentence are several queries over the same keys: those of all tokens that any
    hypothesis has read. A mask selects the tokens of each hypothesis.
    """

    def __init__(self, attention: MultiHeadBase) -> None:
        super().__init__()
        self.attention = attention

    def attention_layers(self) -> list[AttentionLayer]:
        return [self.attention]

    @property
    def window(self) -> int | None:
        # A score by index needs the older keys too: without them, all others would change their index.
        return self.attention.window if self.attention.score.pairwise else None

    def init_cache(self, batch: int) -> KVCache:
        return KVCache()

    def forward(
        self, x: Activations, inputs: AttentionInputs, cache: KVCache, need_weights: bool
    ) -> tuple[Activations, Weights]:
        new = self.attention.keys_values(x, inputs.position_ids)
        keys, values = cache.append(*new, inputs.slots)
        if inputs.keep is not None:
            cache.evict(inputs.keep)
        # A pairwise score depends on query and key alone, not on the index of the key.
        if inputs.mask is None or self.attention.score.pairwise:
            position_ids = inputs.position_ids, inputs.key_position_ids
            options = (inputs.mask, *position_ids, need_weights, inputs.prefix_lengths)
            return self.attention(x, keys, values, *options)
        return self._attend_compacted(x, keys, values, inputs, need_weights)

    def _attend_compacted(
        self,
        x: Activations,
        keys: Tensor,
        values: Tensor,
        inputs: AttentionInputs,
        need_weights: bool,
    ) -> tuple[Activations, Weights]:
        """For a score that depends on the index of a key: masked keys are moved behind the others."""
        mask, key_ids, query_ids = inputs.mask, inputs.key_position_ids, inputs.position_ids
        mask = mask.matrix() if isinstance(mask, MaskRule) else mask
        assert mask is not None
        queries, prefix_lengths = x, inputs.prefix_lengths
        if inputs.one_per_hypothesis:  # each hypothesis has its own keys: one batch row for each
            beam = x.shape[1]
            queries, query_ids = x.flatten(0, 1)[:, None], query_ids.flatten()[:, None]
            mask = mask.flatten(0, 1)[:, None]
            keys, values, key_ids = (
                old.repeat_interleave(beam, dim=0) for old in (keys, values, key_ids)
            )
            if prefix_lengths is not None:
                prefix_lengths = prefix_lengths.repeat_interleave(beam)
        index = compaction_index(mask.any(1))
        keys, values = (scatter(old, 2, index[:, None, :, None]) for old in (keys, values))
        mask, key_ids = scatter(mask, 2, index[:, None]), scatter(key_ids, 1, index)
        output, weights = self.attention(
            queries, keys, values, mask, query_ids, key_ids, need_weights, prefix_lengths
        )
        if weights is not None:
            weights = gather(weights, -1, index[:, None, None])
        return output.view_as(x), weights


@dataclass
class StateSpaceCache(DecoderState):
    """A `StateSpaceState` for each hypothesis: the last inputs of the convolution, and h."""

    window: Float[Tensor, "batch beam inner tail"]
    hidden: Float[Tensor, "batch beam inner state"]

    def expand(self, beam: int) -> "StateSpaceCache":
        window, hidden = (x.repeat_interleave(beam, dim=1) for x in (self.window, self.hidden))
        return StateSpaceCache(window, hidden)

    def reorder(self, beam_indices: Int[Tensor, "batch beam"]) -> "StateSpaceCache":
        sentence = torch.arange(len(beam_indices), device=beam_indices.device)[:, None]
        return StateSpaceCache(
            self.window[sentence, beam_indices], self.hidden[sentence, beam_indices]
        )


class CausalStateSpace(TokenMixer):
    """A state-space layer; its cache is a state of constant size."""

    def __init__(self, space: StateSpace) -> None:
        super().__init__()
        self.space = space

    def init_cache(self, batch: int) -> StateSpaceCache:
        start = self.space.init_state(batch)
        return StateSpaceCache(start.window[:, None], start.hidden[:, None])

    def forward(
        self, x: Activations, inputs: AttentionInputs, cache: StateSpaceCache, need_weights: bool
    ) -> tuple[Activations, Weights]:
        rows = x.flatten(0, 1)[:, None] if inputs.one_per_hypothesis else x
        before = StateSpaceState(cache.window.flatten(0, 1), cache.hidden.flatten(0, 1))
        y, after = self.space(rows, inputs.padding_mask, before)
        cache.window, cache.hidden = (
            new.unflatten(0, (len(x), -1)) for new in (after.window, after.hidden)
        )
        return y.view_as(x), None


class BidirectionalStateSpace(TokenMixer):
    """Two state-space layers over a whole sequence, one in each direction; their outputs are added."""

    def __init__(self, forwards: StateSpace, backwards: StateSpace) -> None:
        super().__init__()
        self.forwards, self.backwards = forwards, backwards

    def init_cache(self, batch: int) -> KVCache:
        return KVCache()  # unused: the whole sequence is read at once

    def forward(
        self, x: Activations, inputs: AttentionInputs, cache: KVCache, need_weights: bool
    ) -> tuple[Activations, Weights]:
        mask = inputs.padding_mask
        reversed_mask = None if mask is None else mask.flip(1)
        backward = self.backwards(x.flip(1), reversed_mask)[0].flip(1)
        return self.forwards(x, mask)[0] + backward, None
