"""The library's self-attention with each of its positions: shared by the labs on positions."""

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard import config
from regard.attention import NORMALISERS, POSITIONS, SCORES, MultiHead, Position
from regard.errors import UserError
from regard.labs.measurements.config_variants import list_variants
from regard.models.build import build_kind

HEADS = 4

Tokens = Float[Tensor, "length dim"]
PositionIds = Int[Tensor, " length"]


class SelfAttention:
    """x -> A(x): the position embeds, then four heads attend, in float64."""

    def __init__(self, d_model: int, position: Position) -> None:
        head_dim = d_model // HEADS
        score = SCORES["scaled-dot"](head_dim, head_dim)
        self.layer = MultiHead(d_model, HEADS, head_dim, score, position=position).double()

    @torch.no_grad()
    def __call__(
        self, x: Tokens, position_ids: PositionIds, mask: Tensor | None = None
    ) -> tuple[Tokens, Float[Tensor, "heads query key"]]:
        """(output, attention weights)"""
        ids = position_ids[None]
        embedded = self.layer.position.embed(x[None], ids)
        keys_values = self.layer.keys_values(embedded, ids)
        output, weights = self.layer(embedded, *keys_values, mask, ids, ids, need_weights=True)
        assert weights is not None
        return output[0], weights[0]


class ScoringHead:
    """e(q, k) = q . k as one attention head computes it with W_Q = W_K = 1, positions included.

    The normaliser `none` returns the scores as they are, so what the layer does to queries, keys and scores
    can be read from its weights.
    """

    def __init__(self, dim: int, position: Position) -> None:
        score, normalise = SCORES["dot"](dim, dim), NORMALISERS["none"]
        self.layer = MultiHead(dim, 1, dim, score, normalise, position).double()
        identity = torch.eye(dim, dtype=torch.float64)
        with torch.no_grad():
            self.layer.query.weight.copy_(identity)
            self.layer.key_value.weight.copy_(identity.repeat(2, 1))

    @torch.no_grad()
    def __call__(
        self,
        queries: Tokens,
        query_ids: PositionIds,
        keys: Tokens,
        key_ids: PositionIds,
        mask: Bool[Tensor, "query key"] | None = None,
    ) -> Float[Tensor, "query key"]:
        """The score of each query for each key; 0 for a masked key."""
        position = self.layer.position
        queries = position.embed(queries[None], query_ids[None])
        keys_values = self.layer.keys_values(
            position.embed(keys[None], key_ids[None]), key_ids[None]
        )
        mask = None if mask is None else mask[None]
        _, scores = self.layer(
            queries, *keys_values, mask, query_ids[None], key_ids[None], need_weights=True
        )
        assert scores is not None
        return scores[0, 0]


def position_tables() -> Iterator[tuple[str, Any]]:
    """The config of each option of each kind of position, by a name such as "rotary, scaling=ntk"."""
    for variant in list_variants(config.Position):
        if variant.value["kind"] in POSITIONS:  # interleaved is rotary, in some layers
            table = config.Transformer(position=variant.value).position
            yield variant.name.removeprefix("kind=").replace(" ", ", "), table


def list_positions(d_model: int) -> Iterator[tuple[str, Position]]:
    """Each of these positions, for four heads."""
    for name, table in position_tables():
        with suppress(UserError):  # a registered kind may lack defaults
            yield name, build_kind("position", table, d_model, HEADS, d_model // HEADS)
