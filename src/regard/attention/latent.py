"""Multi-head latent attention: one compressed key/value vector per token (DeepSeek-V2, arXiv 2405.04434)."""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import rms_norm

from regard.attention.heads import (
    Activations,
    AttentionOutputs,
    Heads,
    KVHeads,
    MultiHeadBase,
    merge_heads,
    split_heads,
)
from regard.attention.masks import Mask
from regard.attention.normalise import softmax
from regard.attention.positions import Position
from regard.attention.scores import ScaledDot, Score
from regard.attention.token_positions import AnyNormaliser, TokenPositions
from regard.linear import Linear


class Latent(MultiHeadBase):
    """c = RMSNorm(W_dkv x); for each head, with R the rotation by the position,

        keys [W_uk c ; R W_kr x]      values W_uv c      queries [W_q x ; R W_qr x]

    The cache holds c and R W_kr x, which all heads share: `latent_dim + rope_dim` numbers per token.
    Rotated keys cannot be computed from c afterwards, hence the separate, "decoupled" key of dimension
    `rope_dim`; it is 0 where the position encoding does not rotate, as in cross-attention. (As in the
    paper's smaller model, queries are not compressed; no cache holds them.)
    """

    def __init__(
        self,
        d_model: int,
        heads: int,
        head_dim: int,
        latent_dim: int,
        rope_dim: int,
        score: Score,
        normalise: AnyNormaliser = softmax,
        position: Position | None = None,
        window: int | None = None,
        dropout: float = 0.0,
    ) -> None:
        position = position or Position(d_model, heads, rope_dim or head_dim)
        super().__init__(heads, score, normalise, position, window, dropout)
        self.query_dims, self.cache_dims = (rope_dim, head_dim), (rope_dim, latent_dim)
        self.query = Linear(d_model, heads * (head_dim + rope_dim), bias=False)
        self.down = Linear(d_model, latent_dim + rope_dim, bias=False)
        self.scale = nn.Parameter(torch.ones(latent_dim))
        self.up = Linear(latent_dim, 2 * heads * head_dim, bias=False)
        self.output = Linear(heads * head_dim, d_model, bias=False)

    def keys_values(
        self, x: Activations, position_ids: Int[Tensor, "batch length"]
    ) -> tuple[KVHeads, KVHeads]:
        """(c, R W_kr x): what the cache holds instead of keys and values."""
        rotary_key, c = self.down(x)[:, None].split(self.cache_dims, dim=-1)
        c = rms_norm(c, c.shape[-1:], self.scale.to(c.dtype), eps=1e-6)
        return c, self.position.rotate(rotary_key, position_ids)

    def forward(
        self,
        x: Float[Tensor, "batch query d_model"],
        keys: KVHeads,
        values: KVHeads,
        mask: Mask,
        query_position_ids: Int[Tensor, "batch query"],
        key_position_ids: Int[Tensor, "batch key"],
        need_weights: bool = False,
        prefix_lengths: Int[Tensor, " batch"] | None = None,
    ) -> AttentionOutputs:
        c, rotary_key = keys, values
        rotary_query, query = split_heads(self.query(x), self.heads).split(self.query_dims, dim=-1)
        rotary_query = self.position.rotate(rotary_query, query_position_ids)
        # A position encoding is built for one dimension: rope_dim if it rotates, else head_dim.
        bias_query = rotary_query if rotary_query.shape[-1] else query
        if (rule := self._long_rule(mask, need_weights)) is not None:
            head_keys, values = self._expand(c)
            rotary_key = rotary_key.expand(-1, self.heads, -1, -1)
            tensors = concatenate(query, rotary_query), concatenate(head_keys, rotary_key), values
            return self._attend_long(*tensors, rule, bias_query)
        bias = self.position.bias(bias_query, query_position_ids, key_position_ids)
        head_mask = self._window_mask(mask, query_position_ids, key_position_ids)
        token_positions = TokenPositions(
            query_position_ids, key_position_ids, head_mask, prefix_lengths
        )
        rotated = [
            (n, rotate(rotary_query, query_position_ids), rotate(rotary_key, key_position_ids))
            for n, rotate in self._rotations(c.shape[2], head_mask)
        ]
        if self._can_absorb(x.shape[1], c.shape[2]):
            up_keys, up_values = self.up.weight.unflatten(0, (2, self.heads, -1))
            # The score divides by the square root of the dimension it gets: correct for the difference.
            correction = math.sqrt(sum(self.cache_dims) / sum(self.query_dims))
            query = query @ up_keys
            rotated = [
                (n, torch.cat([query, q], dim=-1) * correction, concatenate(c, k))
                for n, q, k in rotated
            ]
            context, weights = self._attend(
                rotated, c, head_mask, bias, need_weights, token_positions
            )
            context = context @ up_values.transpose(1, 2)
        else:
            head_keys, values = self._expand(c)
            rotated = [
                (n, concatenate(query, q), concatenate(head_keys, k.expand(-1, self.heads, -1, -1)))
                for n, q, k in rotated
            ]
            context, weights = self._attend(
                rotated, values, head_mask, bias, need_weights, token_positions
            )
        return self.output(merge_heads(context)), weights

    def _expand(self, c: KVHeads) -> tuple[Heads, Heads]:
        """Keys W_uk c and values W_uv c of every head."""
        halves = self.up(c[:, 0]).chunk(2, dim=-1)
        keys, values = (split_heads(half, self.heads) for half in halves)
        return keys, values

    def _can_absorb(self, query: int, key: int) -> bool:
        """Is it cheaper to map the query into the latent space than every c to keys and values?

        q . W_uk c = W_uk^T q . c, and sum alpha W_uv c = W_uv sum alpha c: all heads then attend to the
        same c. Multiply-accumulates per head: 2 q d l + 2 q k l, instead of 2 k d l + 2 q k d.
        """
        (_, depth), (_, latent) = self.query_dims, self.cache_dims
        saved = depth * latent * (key - query) - query * key * (latent - depth)
        return type(self.score) is ScaledDot and saved > 0


def concatenate(
    first: Float[Tensor, "batch heads length _"], second: Float[Tensor, "batch heads length _"]
) -> Float[Tensor, "batch heads length _"]:
    """[first ; second] along the last dimension; the second may be empty."""
    return torch.cat([first, second], dim=-1) if second.shape[-1] else first
