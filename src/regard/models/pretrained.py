"""Hugging Face models behind our interface: decoder-only and encoder-decoder.

    logits = W (logit_scale features) + b

Their vocabulary is in our order (see `load_pretrained`), so ids need no conversion. For the KV caches, see
`hf_cache`.
"""

import inspect
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from itertools import cycle, islice
from typing import Any, Generic

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from regard.attention.normalise import softmax
from regard.models.capture import Offsets, Weights, capture_weights, find_attention_layers
from regard.models.hf_cache import CachedState, LayerCaches, from_hf_cache, to_hf_cache
from regard.models.interface import (
    AttentionLayer,
    AttentionWeights,
    Logits,
    Memory,
    MemoryT,
    Model,
    Rows,
    Source,
    SourceMask,
    StateT,
    Target,
    Tokens,
)
from regard.models.transformer_base import position_ids_of
from regard.text.vocabulary import EOS

Features = Float[Tensor, "batch target features"]

SUPPRESSED_LOGIT = -100.0  # a bias that acts as minus infinity, but is finite: inf - inf is NaN


class Pretrained(Model[MemoryT, StateT], Generic[MemoryT, StateT]):
    """What both kinds share: the output projection, and the capture of attention weights."""

    suppression: Tensor
    supports_cuda_graphs: bool = False  # Hugging Face's masks depend on whether there is padding

    def __init__(self, hf_model: Any, logit_scale: float, suppressed_ids: Iterable[int]) -> None:
        """`suppressed_ids` are never generated."""
        super().__init__()
        self.hf_model, self.logit_scale = hf_model, logit_scale
        self.context = getattr(hf_model.config.get_text_config(), "max_position_embeddings", None)
        suppression = torch.zeros(len(self.head.weight))
        suppression[list(suppressed_ids)] = SUPPRESSED_LOGIT
        self.register_buffer("suppression", suppression, persistent=False)
        # A buffer there, which our files would not hold: here it is a parameter.
        bias = getattr(hf_model, "final_logits_bias", None)
        self.bias = None if bias is None else nn.Parameter(bias[0].clone(), requires_grad=False)

    @property
    def head(self) -> Any:
        return self.hf_model.get_output_embeddings()

    @property
    def output_projection(self) -> tuple[Float[Tensor, "vocab features"], Float[Tensor, " vocab"]]:
        weight, bias = self.head.weight, self.suppression
        for added in (self.bias, self.head.bias):
            bias = bias if added is None else bias + added
        return weight, bias.to(weight.dtype)

    def vocab_parameters(self) -> dict[str, list[Tensor]]:
        embedding = self.hf_model.get_input_embeddings().weight
        tensors = (embedding, self.head.weight, self.head.bias, self.bias)
        unique = {id(tensor): tensor for tensor in tensors if tensor is not None}
        return {"source": [embedding], "target": list(unique.values())}

    def capture(
        self, layers: list[nn.Module], need_weights: bool, *offsets: Offsets
    ) -> AbstractContextManager[list[Weights]]:
        """Capture the weights if asked to, or if a normaliser is patched: fused attention ignores it.

        The layers have these offsets in turn.
        """
        patched = any(layer.normalise is not softmax for layer in layers)
        if not need_weights and not patched:
            return nullcontext([])
        return capture_weights(layers, [*islice(cycle(offsets), len(layers))])


# --- decoder-only ---------------------------------------------------------------------------------


@dataclass
class PromptMemory(Memory):
    """The source's last states, the KV cache of each layer, and a mask over it."""

    caches: LayerCaches
    cache_mask: SourceMask


@dataclass
class PretrainedDecoderState(CachedState):
    cache_mask: Bool[Tensor, "rows past"]
    next_position_ids: Rows
    source_length: int
    """Of the longest source: target tokens come after it."""


class PretrainedDecoder(Pretrained[PromptMemory, PretrainedDecoderState]):
    """Source and target in one sequence: head prefix w_1 .. w_n separator m_1 .. m_k EOS

    BOS is the last token of the separator. EOS of the source is masked, as the separator already marks
    the end, unless it is the only token.
    """

    is_decoder_only = True

    def __init__(self, hf_model: Any, logit_scale: float, suppressed_ids: Iterable[int]) -> None:
        super().__init__(hf_model, logit_scale, suppressed_ids)
        self.layers = find_attention_layers(hf_model)
        parameters = inspect.signature(hf_model.base_model.forward).parameters
        self.accepts_position_ids = "position_ids" in parameters
        self.supports_cuda_graphs = self.accepts_4d_mask = accepts_4d_mask(hf_model)

    def max_target_length(self, source_length: int) -> int | None:
        return None if self.context is None else max(0, self.context - source_length)

    def init_state(self, memory: PromptMemory) -> PretrainedDecoderState:
        mask = memory.cache_mask
        return PretrainedDecoderState(memory.caches, 1, mask, mask.sum(1), mask.shape[1])

    def step(
        self, tokens: Tokens, state: PretrainedDecoderState
    ) -> tuple[Logits, PretrainedDecoderState]:
        features, state, _ = self._decode(tokens[:, None], state, need_weights=False)
        return self.project(features[:, 0]), state

    def features(self, memory: PromptMemory, target: Target) -> Features:
        return self._decode(target, self.init_state(memory), need_weights=False)[0]

    def _attention_weights(
        self, source: Source, mask: SourceMask, target: Target
    ) -> dict[str, AttentionWeights]:
        """A target token's weights on the source are "cross", the rest "decoder"."""
        memory, source_weights = self._encode(source, mask, need_weights=True)
        _, _, target_weights = self._decode(target, self.init_state(memory), need_weights=True)
        weights, length = torch.stack(target_weights, dim=1), source.shape[1]
        return {
            "cross": weights[..., :length],
            "encoder": torch.stack(source_weights, dim=1),
            "decoder": weights[..., length:],
        }

    def attention_layers(self) -> dict[str, list[AttentionLayer]]:
        return {"decoder": self.layers}  # type: ignore[dict-item]

    def _encode(
        self, source: Source, mask: SourceMask, need_weights: bool
    ) -> tuple[PromptMemory, list[Weights]]:
        is_first = torch.arange(source.shape[1], device=source.device) == 0
        cache_mask = mask & ((source != EOS) | is_first)
        states, caches, weights = self._forward(
            source, (), cache_mask, position_ids_of(cache_mask), Offsets(), need_weights
        )
        return PromptMemory(states, mask, caches, cache_mask), weights

    def _decode(
        self, tokens: Target, state: PretrainedDecoderState, need_weights: bool
    ) -> tuple[Features, PretrainedDecoderState, list[Weights]]:
        """Read a target, or its next tokens."""
        count = tokens.shape[1]
        position_ids = state.next_position_ids[:, None] + torch.arange(count, device=tokens.device)
        added = torch.ones_like(position_ids, dtype=torch.bool)
        cache_mask = torch.cat([state.cache_mask, added], dim=1)
        offsets = Offsets(state.cache_mask.shape[1], prefix_length=state.source_length)
        states, caches, weights = self._forward(
            tokens, state.caches, cache_mask, position_ids, offsets, need_weights
        )
        state = replace(
            state,
            caches=caches,
            cache_mask=cache_mask,
            next_position_ids=state.next_position_ids + count,
        )
        return self.logit_scale * states, state, weights

    def _forward(
        self,
        tokens: Target,
        caches: LayerCaches,
        cache_mask: Bool[Tensor, "batch past"],
        position_ids: Int[Tensor, "batch target"],
        offsets: Offsets,
        need_weights: bool,
    ) -> tuple[Features, LayerCaches, list[Weights]]:
        mask = self._mask(cache_mask, tokens) if self.accepts_4d_mask else cache_mask.long()
        with self.capture(self.layers, need_weights, offsets) as weights:
            out = self.hf_model.base_model(
                input_ids=tokens,
                attention_mask=mask,
                past_key_values=to_hf_cache(caches),
                use_cache=True,
                **({"position_ids": position_ids} if self.accepts_position_ids else {}),
            )
        return out.last_hidden_state, from_hf_cache(out.past_key_values), weights

    def _mask(
        self, cache_mask: Bool[Tensor, "batch past"], tokens: Target
    ) -> Float[Tensor, "batch 1 target past"]:
        """The causal mask to add to the scores: 0 where a token may attend, else the dtype's minimum."""
        index = torch.arange(cache_mask.shape[1], device=cache_mask.device)
        allowed = cache_mask[:, None] & (index <= index[-tokens.shape[1] :, None])
        zeros = torch.zeros(allowed.shape, dtype=self.head.weight.dtype, device=cache_mask.device)
        return zeros.masked_fill(~allowed, torch.finfo(zeros.dtype).min)[:, None]


def accepts_4d_mask(hf_model: Any) -> bool:
    """Whether our mask [batch 1 target past] can replace the one that Hugging Face would build.

    Theirs depends on whether there is any padding, which makes the host wait for the GPU.
    """
    module, table = inspect.getmodule(type(hf_model)), hf_model.config.get_text_config()
    is_windowed = getattr(table, "sliding_window", None) is not None
    layer_types = set(getattr(table, "layer_types", None) or ["full_attention"])
    is_causal = hasattr(module, "create_causal_mask") and not hasattr(module, "build_alibi_tensor")
    return is_causal and not is_windowed and layer_types == {"full_attention"}


# --- encoder-decoder ------------------------------------------------------------------------------


@dataclass
class PretrainedEncoderDecoderState(CachedState):
    cross_caches: LayerCaches
    """Keys and values of the source, computed at the first step."""
    states: Float[Tensor, "rows source d_model"]
    mask: Bool[Tensor, "rows source"]


class PretrainedEncoderDecoder(Pretrained[Memory, PretrainedEncoderDecoderState]):
    """Source in the encoder, target in the decoder, joined by cross-attention.

    What is computed for the decoder's prompt, if it has one, is dropped: the self-attention weights of a
    target token then sum to less than one, as it may attend to the prompt, too.
    """

    prompt: Tensor

    def __init__(
        self,
        hf_model: Any,
        logit_scale: float,
        suppressed_ids: Iterable[int],
        prompt_ids: Sequence[int] = (),
    ) -> None:
        """`prompt_ids`: what the decoder reads before BOS."""
        super().__init__(hf_model, logit_scale, suppressed_ids)
        prompt = torch.tensor(prompt_ids, dtype=torch.long)
        self.register_buffer("prompt", prompt, persistent=False)
        self.encoder_layers = find_attention_layers(hf_model.get_encoder())
        self.decoder_layers = find_attention_layers(
            hf_model.get_decoder()
        )  # self, cross, self, ...

    def max_target_length(self, source_length: int) -> int | None:
        if self.context is None:
            return None
        return 0 if source_length > self.context else self.context - len(self.prompt)

    def init_state(self, memory: Memory) -> PretrainedEncoderDecoderState:
        return PretrainedEncoderDecoderState((), 1, (), memory.states, memory.mask)

    def step(
        self, tokens: Tokens, state: PretrainedEncoderDecoderState
    ) -> tuple[Logits, PretrainedEncoderDecoderState]:
        from transformers import EncoderDecoderCache

        cache = EncoderDecoderCache(to_hf_cache(state.caches), to_hf_cache(state.cross_caches))
        next_tokens = tokens[:, None] if state.caches else self._prepend_prompt(tokens[:, None])
        features, _ = self._decode(next_tokens, state.states, state.mask, cache, False)
        caches = from_hf_cache(cache.self_attention_cache)
        cross_caches = from_hf_cache(cache.cross_attention_cache)
        state = replace(state, caches=caches, cross_caches=cross_caches)
        return self.project(features[:, -1]), state

    def features(self, memory: Memory, target: Target) -> Features:
        tokens = self._prepend_prompt(target)
        features, _ = self._decode(tokens, memory.states, memory.mask, None, need_weights=False)
        return features[:, len(self.prompt) :]

    def _prepend_prompt(self, target: Target) -> Int[Tensor, "batch longer"]:
        return torch.cat([self.prompt.expand(len(target), -1), target], dim=1)

    def _attention_weights(
        self, source: Source, mask: SourceMask, target: Target
    ) -> dict[str, AttentionWeights]:
        memory, encoder = self._encode(source, mask, need_weights=True)
        tokens, skipped = self._prepend_prompt(target), len(self.prompt)
        _, decoder = self._decode(tokens, memory.states, mask, None, need_weights=True)
        return {
            "cross": torch.stack(decoder[1::2], dim=1)[..., skipped:, :],
            "encoder": torch.stack(encoder, dim=1),
            "decoder": torch.stack(decoder[::2], dim=1)[..., skipped:, skipped:],
        }

    def attention_layers(self) -> dict[str, list[AttentionLayer]]:
        decoder: Any = self.decoder_layers
        encoder: Any = self.encoder_layers
        return {"encoder": encoder, "decoder": decoder[::2], "cross": decoder[1::2]}

    def _encode(
        self, source: Source, mask: SourceMask, need_weights: bool
    ) -> tuple[Memory, list[Weights]]:
        with self.capture(self.encoder_layers, need_weights, Offsets()) as weights:
            out = self.hf_model.get_encoder()(input_ids=source, attention_mask=mask.long())
        return Memory(out.last_hidden_state, mask), weights

    def _decode(
        self,
        tokens: Target,
        states: Float[Tensor, "batch source d_model"],
        mask: SourceMask,
        cache: Any,
        need_weights: bool,
    ) -> tuple[Features, list[Weights]]:
        prompt, cached = len(self.prompt), 0 if cache is None else cache.get_seq_length()
        # The positions of the prompt are negative: 0 is BOS.
        offsets = Offsets(cached - prompt, -prompt), Offsets(cached - prompt)  # self, cross, ...
        with self.capture(self.decoder_layers, need_weights, *offsets) as weights:
            out = self.hf_model.get_decoder()(
                input_ids=tokens,
                encoder_hidden_states=states,
                encoder_attention_mask=mask.long(),
                past_key_values=cache,
                use_cache=cache is not None,
            )
        return self.logit_scale * out.last_hidden_state, weights
