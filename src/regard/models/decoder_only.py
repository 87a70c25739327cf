"""Decoder-only Transformer: source and target in one sequence with causal self-attention.

    w_1 .. w_n <end> <begin> m_1 .. m_k        loss on the tokens after <begin>

The source is read once; the target continues from the cache of each layer. In a prefix LM (Raffel et al.,
2020) the source is fully visible to itself: only the target is causal.
"""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.attention import MaskRule, Position
from regard.models.interface import (
    AttentionLayer,
    AttentionWeights,
    DecoderState,
    Logits,
    Memory,
    Source,
    SourceMask,
    Target,
    Tokens,
)
from regard.models.layers import Block
from regard.models.mixers import AttentionInputs, Weights
from regard.models.transformer_base import (
    TransformerBase,
    TransformerState,
    choose_mask,
    position_ids_of,
    shared_window,
)

Activations = Float[Tensor, "batch length d_model"]


@dataclass
class DecoderOnlyMemory(Memory):
    """The last layer's states of the source, and the cache of each layer."""

    caches: tuple[DecoderState, ...]


class DecoderOnly(TransformerBase[DecoderOnlyMemory, TransformerState]):
    """Embeddings, blocks, final norm, output projection."""

    is_decoder_only = True
    decoder: list[Block]

    def __init__(
        self,
        source_embedding: nn.Embedding,
        target_embedding: nn.Embedding,
        position: Position,
        decoder: list[Block],
        norm: nn.Module,
        tie_embeddings: bool,
        dropout: float,
        is_prefix_lm: bool = False,
    ) -> None:
        super().__init__(source_embedding, target_embedding, position, tie_embeddings, dropout)
        self.decoder = nn.ModuleList(decoder)  # type: ignore[assignment]
        self.norm = norm
        self.is_prefix_lm = is_prefix_lm

    def max_target_length(self, source_length: int) -> int | None:
        max_length = self.position.max_length
        return None if max_length is None else max(0, max_length - source_length)

    def init_state(self, memory: DecoderOnlyMemory) -> TransformerState:
        """The cache holds the source, or the part of it that a target token may attend to."""
        window = shared_window(self.decoder)
        if window is None:
            return self._init_whole_state(memory)
        lengths, keep = memory.mask.sum(1), min(window - 1, memory.mask.shape[1])
        # The last tokens of each source, with padding (-1, -2, ..) on the left: the target comes next.
        position_ids = lengths[:, None] - keep + torch.arange(keep, device=lengths.device)
        is_token, position_ids = position_ids >= 0, position_ids.clamp(min=0)
        index = position_ids[:, None, :, None]  # real tokens are first in the memory
        caches = tuple(c._map(lambda x: x.take_along_dim(index, dim=2)) for c in memory.caches)
        return TransformerState(
            caches, position_ids, lengths, is_token[:, None], window, (1,) * keep, lengths, None
        )

    def _init_whole_state(self, memory: DecoderOnlyMemory) -> TransformerState:
        """Without eviction, so that a key of the source has the index of its token."""
        # New records of the same tensors: appending to them does not change the memory.
        caches = tuple(replace(cache) for cache in memory.caches)
        position_ids, lengths = position_ids_of(memory.mask), memory.mask.sum(1)
        return TransformerState(
            caches, position_ids, lengths, memory.mask[:, None], None, (), lengths, None
        )

    def step(self, tokens: Tokens, state: TransformerState) -> tuple[Logits, TransformerState]:
        by_sentence = tokens.view(len(state.next_position_ids), -1)  # [batch beam]
        inputs = state.append_one_per_hypothesis(by_sentence.shape[1])
        x = self._embed(self.target_embedding, by_sentence, inputs.position_ids)
        features, _ = self._run_blocks(x, inputs, state.caches, need_weights=False)
        return self.project(features.flatten(0, 1)), state

    def features(
        self, memory: DecoderOnlyMemory, target: Target
    ) -> Float[Tensor, "batch target features"]:
        state = self._init_whole_state(memory)
        return self._decode_target(target, state, need_weights=False)[0]

    def _attention_weights(
        self, source: Source, mask: SourceMask, target: Target
    ) -> dict[str, AttentionWeights]:
        """A target token's weights on the source are "cross", those on the target "decoder"."""
        memory, source_weights = self._encode(source, mask, need_weights=True)
        state = self._init_whole_state(memory)
        _, target_weights = self._decode_target(target, state, need_weights=True)
        source_layers = [w for w in source_weights if w is not None]
        target_layers = [w for w in target_weights if w is not None]
        if not target_layers:  # a state space has no weights
            return {}
        weights, length = torch.stack(target_layers, dim=1), source.shape[1]
        return {
            "cross": weights[..., :length],
            "encoder": torch.stack(source_layers, dim=1),
            "decoder": weights[..., length:],
        }

    def attention_layers(self) -> dict[str, list[AttentionLayer]]:
        """One mechanism: the same layers read source and target."""
        layers = [a for block in self.decoder for a in block.mixer.attention_layers()]
        return {"decoder": layers} if layers else {}

    def _encode(
        self, source: Source, mask: SourceMask, need_weights: bool
    ) -> tuple[DecoderOnlyMemory, list[Weights]]:
        position_ids = position_ids_of(mask)
        latest = None if self.is_prefix_lm else 0
        rule = MaskRule(position_ids, position_ids, mask, latest, is_self=True)
        inputs = AttentionInputs(position_ids, position_ids, choose_mask(rule), mask)
        caches = tuple(block.mixer.init_cache(len(source)) for block in self.decoder)
        x = self._embed(self.source_embedding, source, position_ids)
        states, weights = self._run_blocks(x, inputs, caches, need_weights)
        return DecoderOnlyMemory(states, mask, caches), weights

    def _decode_target(
        self, target: Target, state: TransformerState, need_weights: bool
    ) -> tuple[Activations, list[Weights]]:
        """Read a target, or its continuation, at once."""
        inputs = state.append_tokens(target.shape[1])
        x = self._embed(self.target_embedding, target, inputs.position_ids)
        return self._run_blocks(x, inputs, state.caches, need_weights)

    def _run_blocks(
        self,
        x: Activations,
        inputs: AttentionInputs,
        caches: tuple[DecoderState, ...],
        need_weights: bool,
    ) -> tuple[Activations, list[Weights]]:
        all_weights = []
        for block, cache in zip(self.decoder, caches, strict=True):
            x, weights = block(x, inputs, cache, need_weights)
            all_weights.append(weights)
        return self.norm(x), all_weights
