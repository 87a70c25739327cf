"""Encoder-decoder Transformer (Vaswani et al., 2017).

The decoder runs the same code for a whole target and for one token after a cache. The hypotheses of a
sentence are several queries over the same source keys.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from regard.attention import MaskRule, Position
from regard.models.interface import (
    AttentionLayer,
    AttentionWeights,
    Logits,
    Memory,
    Source,
    SourceMask,
    Target,
    Tokens,
)
from regard.models.layers import Block, CrossBlock, CrossWeights
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
class EncoderDecoderState(TransformerState):
    """The decoder's caches, and the source for cross-attention."""

    source_keys_values: tuple[tuple[Tensor, Tensor], ...]
    """Keys and values of the source, for each layer."""
    source_mask: Bool[Tensor, "batch source"]
    source_position_ids: Int[Tensor, "batch source"]


class Transformer(TransformerBase[Memory, EncoderDecoderState]):
    """Embeddings, encoder blocks, decoder blocks, final norms, output projection."""

    encoder: list[Block]
    decoder: list[CrossBlock]

    def __init__(
        self,
        source_embedding: nn.Embedding,
        target_embedding: nn.Embedding,
        position: Position,
        encoder: list[Block],
        decoder: list[CrossBlock],
        norms: tuple[nn.Module, nn.Module],
        tie_embeddings: bool,
        dropout: float,
    ) -> None:
        super().__init__(source_embedding, target_embedding, position, tie_embeddings, dropout)
        self.encoder = nn.ModuleList(encoder)  # type: ignore[assignment]
        self.decoder = nn.ModuleList(decoder)  # type: ignore[assignment]
        self.encoder_norm, self.decoder_norm = norms

    def max_target_length(self, source_length: int) -> int | None:
        max_length = self.position.max_length
        return 0 if max_length is not None and source_length > max_length else max_length

    def init_state(self, memory: Memory) -> EncoderDecoderState:
        position_ids = position_ids_of(memory.mask)
        return EncoderDecoderState(
            caches=tuple(block.mixer.init_cache(len(position_ids)) for block in self.decoder),
            key_position_ids=position_ids[:, :0],
            next_position_ids=torch.zeros_like(position_ids[:, 0]),
            cache_mask=None,
            window=shared_window(self.decoder),
            cached_at=(),
            prefix_lengths=None,
            next_slots=None,
            source_keys_values=tuple(
                block.cross_attention.keys_values(memory.states, position_ids)
                for block in self.decoder
            ),
            source_mask=memory.mask,
            source_position_ids=position_ids,
        )

    def step(
        self, tokens: Tokens, state: EncoderDecoderState
    ) -> tuple[Logits, EncoderDecoderState]:
        by_sentence = tokens.view(len(state.source_mask), -1)  # [batch beam]
        inputs = state.append_one_per_hypothesis(by_sentence.shape[1])
        features, _ = self._decode(by_sentence, inputs, state, need_weights=False)
        return self.project(features.flatten(0, 1)), state

    def features(self, memory: Memory, target: Target) -> Float[Tensor, "batch target features"]:
        return self._decode_target(target, self.init_state(memory), need_weights=False)[0]

    def _attention_weights(
        self, source: Source, mask: SourceMask, target: Target
    ) -> dict[str, AttentionWeights]:
        memory, encoder_weights = self._encode(source, mask, need_weights=True)
        _, weights = self._decode_target(target, self.init_state(memory), need_weights=True)
        decoder_weights, cross_weights = zip(*weights, strict=True)
        by_layer = {"cross": cross_weights, "encoder": encoder_weights, "decoder": decoder_weights}
        # A state-space mixer has no weights, in any layer.
        present = {name: [w for w in ws if w is not None] for name, ws in by_layer.items()}
        return {name: torch.stack(layers, dim=1) for name, layers in present.items() if layers}

    def attention_layers(self) -> dict[str, list[AttentionLayer]]:
        layers: dict[str, list[AttentionLayer]] = {
            "encoder": [a for block in self.encoder for a in block.mixer.attention_layers()],
            "decoder": [a for block in self.decoder for a in block.mixer.attention_layers()],
            "cross": [block.cross_attention for block in self.decoder],
        }
        return {name: attention for name, attention in layers.items() if attention}

    def _encode(
        self, source: Source, mask: SourceMask, need_weights: bool
    ) -> tuple[Memory, list[Weights]]:
        position_ids = position_ids_of(mask)
        rule = MaskRule(position_ids, position_ids, mask, is_self=True)
        inputs = AttentionInputs(position_ids, position_ids, choose_mask(rule), mask)
        x, all_weights = self._embed(self.source_embedding, source, position_ids), []
        for block in self.encoder:
            x, weights = block(x, inputs, block.mixer.init_cache(len(x)), need_weights)
            all_weights.append(weights)
        return Memory(self.encoder_norm(x), mask), all_weights

    def _decode_target(
        self, target: Target, state: EncoderDecoderState, need_weights: bool
    ) -> tuple[Activations, list[tuple[Weights, CrossWeights]]]:
        """Read a target, or its continuation, at once."""
        return self._decode(target, state.append_tokens(target.shape[1]), state, need_weights)

    def _decode(
        self,
        tokens: Int[Tensor, "batch length"],
        inputs: AttentionInputs,
        state: EncoderDecoderState,
        need_weights: bool,
    ) -> tuple[Activations, list[tuple[Weights, CrossWeights]]]:
        x, all_weights = self._embed(self.target_embedding, tokens, inputs.position_ids), []
        source_inputs = (state.source_mask, state.source_position_ids)
        layers = zip(self.decoder, state.caches, state.source_keys_values, strict=True)
        for block, cache, keys_values in layers:
            x, *weights = block(x, inputs, cache, keys_values, *source_inputs, need_weights)
            all_weights.append(tuple(weights))
        return self.decoder_norm(x), all_weights
