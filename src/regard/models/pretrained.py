"""Models of Hugging Face's, behind our interface: a decoder alone, or an encoder and a decoder.

    logits = W (scale features) + b

Their vocabulary is in our order (see `adopt`), so ids go in and out as they are; for what they remember
from step to step, see `caches`.
"""

import inspect
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from regard.attention.normalise import softmax
from regard.models.caches import Cached, Layers, closed, opened
from regard.models.interface import (
    AttentionLayer,
    Logits,
    Memory,
    Model,
    Rows,
    Source,
    SourceMask,
    Target,
)
from regard.models.transformer_base import position_ids_of
from regard.models.watch import Weights, attention_layers, watched
from regard.text.vocabulary import EOS

Features = Float[Tensor, "batch target features"]

NEVER = -100.0  # on a logit: as good as minus infinity, and still a number to calculate with


class Pretrained(Model):
    """What both kinds share: the output map, and eyes on every layer that attends."""

    silence: Tensor
    supports_cuda_graphs: bool = False  # whether padding is there at all is asked on the way

    def __init__(self, hugging: Any, scale: float, silent: Iterable[int]) -> None:
        """`silent`: ids of ours that the model never says."""
        super().__init__()
        self.hugging, self.scale = hugging, scale
        self.places = getattr(hugging.config.get_text_config(), "max_position_embeddings", None)
        silence = torch.zeros(len(self.head.weight))
        silence[list(silent)] = NEVER
        self.register_buffer("silence", silence, persistent=False)
        kept = getattr(hugging, "final_logits_bias", None)  # no weight there, but here it is saved
        self.bias = None if kept is None else nn.Parameter(kept[0].clone(), requires_grad=False)

    @property
    def head(self) -> Any:
        return self.hugging.get_output_embeddings()

    @property
    def output_projection(self) -> tuple[Float[Tensor, "vocab features"], Float[Tensor, " vocab"]]:
        weight, bias = self.head.weight, self.silence
        for added in (self.bias, self.head.bias):
            bias = bias if added is None else bias + added
        return weight, bias.to(weight.dtype)

    def vocab_parameters(self) -> dict[str, list[Tensor]]:
        embedding = self.hugging.get_input_embeddings().weight
        found = (embedding, self.head.weight, self.head.bias, self.bias)
        once = {id(tensor): tensor for tensor in found if tensor is not None}
        return {"source": [embedding], "target": list(once.values())}

    def watching(
        self, layers: list[nn.Module], need_weights: bool
    ) -> AbstractContextManager[list[Weights]]:
        """A layer that is meddled with must be watched: the fused attention has no normaliser."""
        meddled = any(layer.normalise is not softmax for layer in layers)
        return watched(layers) if need_weights or meddled else nullcontext([])


# --- a decoder alone ------------------------------------------------------------------------------


@dataclass
class ReadPrompt(Memory):
    """The source's last states, each layer's past, and what of it counts."""

    layers: Layers
    read: SourceMask


@dataclass
class SequenceState(Cached):
    read: Bool[Tensor, "rows past"]
    next_at: Rows


class PretrainedDecoder(Pretrained):
    """Source and target in one sequence: head prefix w_1 .. w_n separator m_1 .. m_k <end>

    <begin> is the last token of the separator. The source's <end> says nothing that the separator does
    not: unless it is alone, it is not read.
    """

    def __init__(self, hugging: Any, scale: float, silent: Iterable[int]) -> None:
        super().__init__(hugging, scale, silent)
        self.layers = attention_layers(hugging)
        told = inspect.signature(hugging.base_model.forward).parameters
        self.takes_positions = "position_ids" in told
        self.supports_cuda_graphs = self.takes_masks = takes_masks(hugging)

    def max_target_length(self, source_length: int) -> int | None:
        return None if self.places is None else max(0, self.places - source_length)

    def encode(self, source: Source, mask: SourceMask) -> ReadPrompt:
        return self._encode(source, mask, need_weights=False)[0]

    def init_state(self, memory: ReadPrompt) -> SequenceState:
        return SequenceState(memory.layers, 1, memory.read, memory.read.sum(1))

    def step(self, tokens: Rows, state: SequenceState) -> tuple[Logits, SequenceState]:
        features, state, _ = self._read(tokens[:, None], state, need_weights=False)
        return self.project(features[:, 0]), state

    def features(self, memory: ReadPrompt, target: Target) -> Features:
        return self._read(target, self.init_state(memory), need_weights=False)[0]

    def attention_weights(
        self, source: Source, mask: SourceMask, target: Target
    ) -> dict[str, Float[Tensor, "batch layers heads query key"]]:
        """Of a target token's weights, those on the source are "cross", the rest "decoder"."""
        memory, over_source = self._encode(source, mask, need_weights=True)
        _, _, over_all = self._read(target, self.init_state(memory), need_weights=True)
        weights, border = torch.stack(over_all, dim=1), source.shape[1]
        return {
            "cross": weights[..., :border],
            "encoder": torch.stack(over_source, dim=1),
            "decoder": weights[..., border:],
        }

    def attention_layers(self) -> dict[str, list[AttentionLayer]]:
        return {"decoder": self.layers}  # type: ignore[dict-item]

    def _encode(
        self, source: Source, mask: SourceMask, need_weights: bool
    ) -> tuple[ReadPrompt, list[Weights]]:
        first = torch.arange(source.shape[1], device=source.device) == 0
        read = mask & ((source != EOS) | first)
        states, layers, found = self._through(source, (), read, position_ids_of(read), need_weights)
        return ReadPrompt(states, mask, layers, read), found

    def _read(
        self, tokens: Target, state: SequenceState, need_weights: bool
    ) -> tuple[Features, SequenceState, list[Weights]]:
        """A target, or its next part."""
        count = tokens.shape[1]
        at = state.next_at[:, None] + torch.arange(count, device=tokens.device)
        read = torch.cat([state.read, torch.ones_like(at, dtype=torch.bool)], dim=1)
        states, layers, found = self._through(tokens, state.layers, read, at, need_weights)
        going = replace(state, layers=layers, read=read, next_at=state.next_at + count)
        return self.scale * states, going, found

    def _through(
        self,
        tokens: Target,
        layers: Layers,
        read: Bool[Tensor, "batch past"],
        at: Int[Tensor, "batch target"],
        need_weights: bool,
    ) -> tuple[Features, Layers, list[Weights]]:
        with self.watching(self.layers, need_weights) as found:
            out = self.hugging.base_model(
                input_ids=tokens,
                attention_mask=self._mask(read, tokens) if self.takes_masks else read.long(),
                past_key_values=opened(layers),
                use_cache=True,
                **({"position_ids": at} if self.takes_positions else {}),
            )
        return out.last_hidden_state, closed(out.past_key_values), found

    def _mask(
        self, read: Bool[Tensor, "batch past"], tokens: Target
    ) -> Float[Tensor, "batch 1 target past"]:
        """0 where a token sees what is read up to its own place, elsewhere the lowest number there is."""
        place = torch.arange(read.shape[1], device=read.device)
        seen = read[:, None] & (place <= place[-tokens.shape[1] :, None])
        nothing = torch.zeros(seen.shape, dtype=self.head.weight.dtype, device=read.device)
        return nothing.masked_fill(~seen, torch.finfo(nothing.dtype).min)[:, None]


def takes_masks(hugging: Any) -> bool:
    """Whether a mask of ours, who sees whom, can take the place of the one its code would make.

    Theirs depends on whether anything is padded, and to know that, the host waits for the GPU.
    """
    module, table = inspect.getmodule(type(hugging)), hugging.config.get_text_config()
    near = getattr(table, "sliding_window", None) is not None
    kinds = set(getattr(table, "layer_types", None) or ["full_attention"])
    makes = hasattr(module, "create_causal_mask") and not hasattr(module, "build_alibi_tensor")
    return makes and not near and kinds == {"full_attention"}


# --- an encoder and a decoder ---------------------------------------------------------------------


@dataclass
class TwoSidedState(Cached):
    source: Layers
    """Keys and values of the source, once the first step has made them."""
    states: Float[Tensor, "rows source width"]
    mask: Bool[Tensor, "rows source"]


class PretrainedPair(Pretrained):
    """Source in the encoder, target in the decoder, cross-attention in between."""

    def __init__(self, hugging: Any, scale: float, silent: Iterable[int]) -> None:
        super().__init__(hugging, scale, silent)
        self.encoder_layers = attention_layers(hugging.get_encoder())
        self.decoder_layers = attention_layers(hugging.get_decoder())  # own, cross, own, cross, ...

    def max_target_length(self, source_length: int) -> int | None:
        return 0 if self.places is not None and source_length > self.places else self.places

    def encode(self, source: Source, mask: SourceMask) -> Memory:
        return self._encode(source, mask, need_weights=False)[0]

    def init_state(self, memory: Memory) -> TwoSidedState:
        return TwoSidedState((), 1, (), memory.states, memory.mask)

    def step(self, tokens: Rows, state: TwoSidedState) -> tuple[Logits, TwoSidedState]:
        from transformers import EncoderDecoderCache

        cache = EncoderDecoderCache(opened(state.layers), opened(state.source))
        features, _ = self._decode(tokens[:, None], state.states, state.mask, cache, False)
        own, cross = closed(cache.self_attention_cache), closed(cache.cross_attention_cache)
        return self.project(features[:, 0]), replace(state, layers=own, source=cross)

    def features(self, memory: Memory, target: Target) -> Features:
        return self._decode(target, memory.states, memory.mask, None, need_weights=False)[0]

    def attention_weights(
        self, source: Source, mask: SourceMask, target: Target
    ) -> dict[str, Float[Tensor, "batch layers heads query key"]]:
        memory, encoder = self._encode(source, mask, need_weights=True)
        _, decoder = self._decode(target, memory.states, mask, None, need_weights=True)
        found = {"cross": decoder[1::2], "encoder": encoder, "decoder": decoder[::2]}
        return {name: torch.stack(layers, dim=1) for name, layers in found.items()}

    def attention_layers(self) -> dict[str, list[AttentionLayer]]:
        decoder: Any = self.decoder_layers
        encoder: Any = self.encoder_layers
        return {"encoder": encoder, "decoder": decoder[::2], "cross": decoder[1::2]}

    def _encode(
        self, source: Source, mask: SourceMask, need_weights: bool
    ) -> tuple[Memory, list[Weights]]:
        with self.watching(self.encoder_layers, need_weights) as found:
            out = self.hugging.get_encoder()(input_ids=source, attention_mask=mask.long())
        return Memory(out.last_hidden_state, mask), found

    def _decode(
        self,
        tokens: Target,
        states: Float[Tensor, "batch source width"],
        mask: SourceMask,
        cache: Any,
        need_weights: bool,
    ) -> tuple[Features, list[Weights]]:
        with self.watching(self.decoder_layers, need_weights) as found:
            out = self.hugging.get_decoder()(
                input_ids=tokens,
                encoder_hidden_states=states,
                encoder_attention_mask=mask.long(),
                past_key_values=cache,
                use_cache=cache is not None,
            )
        return self.scale * out.last_hidden_state, found
