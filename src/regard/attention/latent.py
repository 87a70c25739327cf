"""Heads that share one small latent vector for each token (DeepSeek-V2, arXiv 2405.04434)."""

import math

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.functional import rms_norm

from regard.attention.heads import Held, ManyHeads, Seen, Sequence, apart, joined
from regard.attention.normalise import Normaliser, softmax
from regard.attention.positions import Position
from regard.attention.scores import ScaledDot, Score
from regard.linear import Linear


class Latent(ManyHeads):
    """c = RMSNorm(W_dkv x); for each head, with R what the position turns,

        keys [W_uk c ; R W_kr x]      values W_uv c      queries [W_q x ; R W_qr x]

    A cache holds c and R W_kr x, which all heads share: `latent_dim + rope_dim` numbers for each token.
    Turned keys cannot be made from c after the fact, hence a part of their own, `rope_dim` wide, for a
    position that turns ("decoupled"). Where none does, in cross-attention say, `rope_dim` is 0. (As in the
    paper's smaller model, queries are not compressed; no cache holds them.)
    """

    def __init__(
        self,
        width: int,
        heads: int,
        head_dim: int,
        latent_dim: int,
        rope_dim: int,
        score: Score,
        normalise: Normaliser = softmax,
        position: Position | None = None,
        window: int | None = None,
        dropout: float = 0.0,
    ) -> None:
        position = position or Position(width, heads, rope_dim or head_dim)
        super().__init__(heads, score, normalise, position, window, dropout)
        self.parts, self.held = (rope_dim, head_dim), (rope_dim, latent_dim)
        self.query = Linear(width, heads * (head_dim + rope_dim), bias=False)
        self.down = Linear(width, latent_dim + rope_dim, bias=False)
        self.scale = nn.Parameter(torch.ones(latent_dim))
        self.up = Linear(latent_dim, 2 * heads * head_dim, bias=False)
        self.output = Linear(heads * head_dim, width, bias=False)

    def keys_values(self, x: Sequence, at: Int[Tensor, "batch length"]) -> tuple[Held, Held]:
        """What all heads share, c and R W_kr x, in the places of keys and values."""
        turned, c = self.down(x)[:, None].split(self.held, dim=-1)
        c = rms_norm(c, c.shape[-1:], self.scale.to(c.dtype), eps=1e-6)
        return c, self.position.rotate(turned, at)

    def forward(
        self,
        x: Float[Tensor, "batch query width"],
        keys: Held,
        values: Held,
        mask: Bool[Tensor, "batch #query key"] | None,
        query_at: Int[Tensor, "batch query"],
        key_at: Int[Tensor, "batch key"],
        explain: bool = False,
    ) -> Seen:
        c, shared = keys, values
        turned, query = apart(self.query(x), self.heads).split(self.parts, dim=-1)
        turned = self.position.rotate(turned, query_at)
        # A position knows one width: that of the part it turns, or, if it turns none, of the whole.
        spoken = turned if turned.shape[-1] else query
        bias = self.position.bias(spoken, query_at, key_at)
        allowed = self._mask(mask, query_at, key_at)
        if self._absorbs(x.shape[1], c.shape[2]):
            up_keys, up_values = self.up.weight.unflatten(0, (2, self.heads, -1))
            # The score will divide by the root of the width it sees; this head's is another.
            seen, wanted = sum(self.held), sum(self.parts)
            query = torch.cat([query @ up_keys, turned], dim=-1) * math.sqrt(seen / wanted)
            found = self._attend(query, beside(c, shared), c, allowed, bias, explain)
            context, weights = found[0] @ up_values.transpose(1, 2), found[1]
        else:
            halves = self.up(c[:, 0]).chunk(2, dim=-1)
            own, values = (apart(half, self.heads) for half in halves)
            query, keys = beside(query, turned), beside(own, shared.expand(-1, self.heads, -1, -1))
            context, weights = self._attend(query, keys, values, allowed, bias, explain)
        return self.output(joined(context)), weights

    def _absorbs(self, query: int, key: int) -> bool:
        """Is it less work to take the query to c than every c to keys and values?

        q . W_uk c = W_uk^T q . c, and the sum of alpha W_uv c is W_uv of the sum of alpha c: all heads
        then look at the same c. Products for each head: 2 q d l + 2 q k l, against 2 k d l + 2 q k d.
        """
        (_, depth), (_, latent) = self.parts, self.held
        saved = depth * latent * (key - query) - query * key * (latent - depth)
        return type(self.score) is ScaledDot and saved > 0


def beside(
    one: Float[Tensor, "batch heads length _"], other: Float[Tensor, "batch heads length _"]
) -> Float[Tensor, "batch heads length _"]:
    """[one ; other]"""
    return torch.cat([one, other], dim=-1) if other.shape[-1] else one
