"""A Transformer as a CTranslate2 model, weight by weight.

    scores       s q . k with a scale s of each layer; what else can be written so is (`Projections`)
    positions    in each layer (rotary, Shaw's relative), or a table added to the embeddings

Models that cannot be converted are refused by `regard.engines.obstacles`.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard import config
from regard.attention import MultiHead
from regard.attention.positions import Relative, Rotary, frequencies
from regard.attention.scores import Bilinear, Dot, Dummy, Mean
from regard.config import Config
from regard.config.attention import IN_ATTENTION
from regard.models.build import layer_position
from regard.models.layers import Block, CrossBlock, FeedForward, SwiGlu
from regard.models.transformer import Transformer
from regard.models.transformer_base import TransformerBase
from regard.text.tokenizer import TokenizerPair
from regard.text.vocabulary import BOS, EOS, SPECIAL_TOKENS, UNK, Tokenizer


@dataclass(frozen=True)
class Projections:
    """W_q, W_k, W_v, W_o and the scale s of softmax(s (W_q x) . (W_k x)), with which a layer is the same."""

    query: Float[Tensor, "rows d_model"]
    key: Float[Tensor, "kv_rows d_model"]
    value: Float[Tensor, "kv_rows d_model"]
    output: Float[Tensor, "d_model rows"]
    scale: float

    @classmethod
    def of(cls, layer: MultiHead) -> "Projections":
        key, value = layer.key_value.weight.detach().chunk(2)
        query, score = layer.query.weight.detach(), layer.score
        scale = layer.position.score_scale
        if isinstance(score, Mean):
            key = torch.zeros_like(key)  # e = 0
        elif isinstance(score, Dummy):
            value = torch.zeros_like(value)  # attends to nothing: the context is 0
        elif isinstance(score, Bilinear):
            by_head = key.unflatten(0, (layer.kv_heads, -1))
            key = (score.linear.weight.detach() @ by_head).flatten(0, 1)  # q . W (W_k x)
        elif not isinstance(score, Dot):
            scale /= math.sqrt(len(query) // layer.heads)
        return cls(query, key, value, layer.output.weight.detach(), scale)

    def repeat_keys(self, heads: int, kv_heads: int) -> "Projections":
        """The same with a key and a value for every head."""

        def repeat(weight: Tensor) -> Tensor:
            by_head = weight.unflatten(0, (kv_heads, -1))
            return by_head.repeat_interleave(heads // kv_heads, dim=0).flatten(0, 1)

        return Projections(
            self.query, repeat(self.key), repeat(self.value), self.output, self.scale
        )


class Converter:
    """Fills the specification of a Transformer, encoder-decoder or decoder-only."""

    def __init__(self, settings: Config, tokenizers: TokenizerPair, model: TransformerBase) -> None:
        assert isinstance(settings.model, config.TransformerBase)
        self.settings, self.tokenizers, self.model = settings, tokenizers, model
        self.table = settings.model

    def convert(self) -> Any:
        """The complete specification, with vocabularies and special tokens."""
        from ctranslate2 import specs

        if isinstance(self.model, Transformer):
            encoder, decoder = self.encoder(self.model), self.decoder(self.model)
            spec: Any = specs.TransformerSpec(encoder, decoder)
            spec.register_source_vocabulary(token_names(self.tokenizers.source))
            spec.register_target_vocabulary(token_names(self.tokenizers.target))
            spec.config.decoder_start_token = SPECIAL_TOKENS[BOS]
            spec.config.add_source_eos = self.tokenizers.source_eos
        else:
            spec = specs.TransformerDecoderModelSpec(self.decoder(self.model))
            spec.register_vocabulary(token_names(self.tokenizers.target))
        spec.config.bos_token, spec.config.eos_token = SPECIAL_TOKENS[BOS], SPECIAL_TOKENS[EOS]
        spec.config.unk_token = SPECIAL_TOKENS[UNK]
        norm: Any = next(
            m for m in self.model.modules() if isinstance(m, nn.LayerNorm | nn.RMSNorm)
        )
        spec.config.layer_norm_epsilon = norm.eps
        return spec

    def encoder(self, model: Transformer) -> Any:
        from ctranslate2.specs import transformer_spec

        spec: Any = transformer_spec.TransformerEncoderSpec(len(model.encoder), **self.options())
        spec.embeddings[0].weight = model.source_embedding.weight.detach()
        self.fill_stack(spec, model.encoder, model.encoder_norm)
        return spec

    def decoder(self, model: Any) -> Any:
        from ctranslate2.specs import transformer_spec

        has_encoder = isinstance(model, Transformer)
        spec: Any = transformer_spec.TransformerDecoderSpec(
            len(model.decoder),
            with_encoder_attention=has_encoder,
            alibi=isinstance(self.table.position, config.Alibi),
            **self.options(),
        )
        spec.embeddings.weight = model.target_embedding.weight.detach()
        spec.projection.weight = model.output_projection[0].detach()
        self.fill_stack(spec, model.decoder, model.decoder_norm if has_encoder else model.norm)
        for layer, block in zip(spec.layer, model.decoder, strict=True):
            if isinstance(block, CrossBlock):
                layer.attention = self.attention_spec(None)
                cross_attention: Any = block.cross_attention
                self.fill_attention(layer.attention, cross_attention, block.cross_norm)
        return spec

    def options(self) -> dict[str, Any]:
        """What a stack of layers is built with."""
        from ctranslate2.specs import common_spec

        table, activations = self.table, common_spec.Activation
        names = {"relu": activations.RELU, "gelu": activations.GELU, "swiglu": activations.SWISH}
        return {
            "num_heads": table.attention.heads,
            "num_heads_kv": self.kv_heads,
            "pre_norm": table.norm_position == "pre",
            "activation": names[table.activation],
            "ffn_glu": table.activation == "swiglu",
            "rms_norm": table.norm == "rms",
        }

    @property
    def kv_heads(self) -> int:
        assert isinstance(self.table.attention, config.MultiHead)
        return self.table.attention.kv_heads or self.table.attention.heads

    def attention_spec(self, layer: int | None) -> Any:
        """The self-attention of a layer, without weights; None: cross-attention."""
        from ctranslate2.specs import attention_spec

        position = layer_position(self.table.position, layer)
        return attention_spec.MultiHeadAttentionSpec(
            self_attention=layer is not None,
            rms_norm=self.table.norm == "rms",
            num_heads_kv=None if layer is None else self.kv_heads,
            head_dim=self.table.head_dim,
            relative_position=isinstance(position, config.Relative),
            **(rotary_options(position) if isinstance(position, config.Rotary) else {}),
        )

    def fill_stack(self, spec: Any, blocks: Iterable[Block], norm: nn.Module) -> None:
        """Positions, layers and the final norm of the encoder or the decoder."""
        for number, (layer, block) in enumerate(zip(spec.layer, blocks, strict=True)):
            layer.self_attention = self.attention_spec(number)
            attention: Any = block.mixer.attention_layers()[0]
            self.fill_attention(layer.self_attention, attention, block.mixer_norm)
            fill_feed_forward(layer.ffn, block.feed_forward, block.feed_forward_norm)
        if hasattr(spec, "layer_norm"):
            fill_norm(spec.layer_norm, norm)
        if not isinstance(self.table.position, IN_ATTENTION):
            spec.position_encodings.encodings = self.position_table()

    def position_table(self) -> Float[Tensor, "positions d_model"]:
        """What is added to the embedding at each position: nothing, sinusoids or a learned table."""
        length = count_positions(self.settings, self.tokenizers, self.model)
        zeros = torch.zeros(1, length, self.table.d_model)
        with torch.inference_mode():
            return self.model.position.embed(zeros, torch.arange(length)[None])[0].clone()

    def fill_attention(self, spec: Any, layer: MultiHead, norm: nn.Module) -> None:
        projections = Projections.of(layer)
        is_self = len(spec.linear) == 2
        if not is_self:  # there, CTranslate2 needs a key and a value for every head
            projections = projections.repeat_keys(layer.heads, layer.kv_heads)
        key_value = torch.cat([projections.key, projections.value])
        if is_self:
            spec.linear[0].weight = torch.cat([projections.query, key_value])
        else:
            spec.linear[0].weight, spec.linear[1].weight = projections.query, key_value
        spec.linear[-1].weight = projections.output
        spec.queries_scale = projections.scale
        fill_norm(spec.layer_norm, norm)
        if hasattr(spec, "rotary_scaling_long_factor"):
            assert isinstance(layer.position, Rotary)
            factors = (
                frequencies(layer.position.head_dim, self.table.position.base)
                / layer.position.omega
            )
            spec.rotary_scaling_long_factor = spec.rotary_scaling_short_factor = factors
        if isinstance(layer.position, Relative):
            # CTranslate2 scales q . (k + a[r]); ours is s q . k + q . a[r] / sqrt(d).
            factor = 1 / (projections.scale * math.sqrt(layer.position.head_dim))
            table = layer.position.table.detach() * factor
            spec.relative_position_keys = table
            spec.relative_position_values = torch.zeros_like(
                table
            )  # Shaw's second table: we have none


def rotary_options(position: config.Rotary) -> dict[str, Any]:
    """Options of an attention layer; a scaling is a factor for each frequency (CTranslate2's "Su")."""
    from ctranslate2.specs import attention_spec

    options = {"rotary_dim": 0, "rotary_interleave": True, "rotary_base": position.base}
    if position.scaling == "none":
        return options
    length = position.original_length
    lengths = {"original_max_position_embeddings": length, "max_position_embeddings": length}
    return options | lengths | {"rotary_scaling_type": attention_spec.RotaryScalingType.Su}


def fill_norm(spec: Any, norm: nn.Module) -> None:
    assert isinstance(norm, nn.LayerNorm | nn.RMSNorm)
    assert norm.weight is not None
    spec.gamma = norm.weight.detach()
    if isinstance(norm, nn.LayerNorm):
        spec.beta = norm.bias.detach()


def fill_linear(spec: Any, layer: nn.Linear) -> None:
    spec.weight = layer.weight.detach()
    if layer.bias is not None:
        spec.bias = layer.bias.detach()


def fill_feed_forward(spec: Any, layer: nn.Module, norm: nn.Module) -> None:
    fill_norm(spec.layer_norm, norm)
    if isinstance(layer, SwiGlu):
        fill_linear(spec.linear_0, layer.gate)
        fill_linear(spec.linear_0_noact, layer.up)
    else:
        assert isinstance(layer, FeedForward)
        fill_linear(spec.linear_0, layer.up)
    fill_linear(spec.linear_1, layer.down)


def count_positions(settings: Config, tokenizers: TokenizerPair, model: TransformerBase) -> int:
    """How many positions a table needs: those of the longest source and output."""
    if model.position.max_length is not None:
        return model.position.max_length
    source = tokenizers.max_tokens + 1
    search = settings.search
    return source + max(1, int(search.max_ratio * source + search.max_extra))


def token_names(tokenizer: Tokenizer) -> list[str]:
    """A different name for each token: its piece, with its id where another token has the same."""
    names: dict[str, None] = {}
    for index, piece in enumerate(tokenizer.vocab):
        names[piece if piece not in names else f"{piece}#{index}"] = None
    return list(names)
