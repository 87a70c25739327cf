"""Attention layers. They own the projections and share one `attend`.

Keys and values are computed once (`keys`, `keys_values`) and passed to `forward`, so that a decoder that
generates token by token does not recompute them at every step.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from regard.attention.attend import attend, attend_fused
from regard.attention.long import attend_long
from regard.attention.masks import Mask, MaskRule, window_mask
from regard.attention.normalise import Normaliser, softmax
from regard.attention.positions import Position, Rotation, divide_heads
from regard.attention.scores import ScaledDot, Score
from regard.attention.token_positions import (
    AnyNormaliser,
    PositionedNormaliser,
    TokenPositions,
    bind_positions,
)
from regard.errors import UserError
from regard.linear import Linear

Activations = Float[Tensor, "batch length d_model"]
Heads = Float[Tensor, "batch heads length _"]
KVHeads = Float[Tensor, "batch kv_heads key _"]
AttentionOutputs = tuple[
    Float[Tensor, "batch query d_model"], Float[Tensor, "batch heads query key"] | None
]


QueriesKeys = tuple[int, Float[Tensor, "batch heads query depth"], KVHeads]
"""(n, queries, keys) for the queries that may attend to more than n keys."""


class SingleHead(nn.Module):
    """a = attend(e(W_q q, W_k h), h): the values are the encoder states themselves."""

    def __init__(
        self,
        query_dim: int,
        key_dim: int,
        kq_dim: int,
        score: Score,
        normalise: AnyNormaliser = softmax,
    ) -> None:
        super().__init__()
        projected = score.projected
        self.query = Linear(query_dim, kq_dim, bias=False) if projected else nn.Identity()
        self.key = Linear(key_dim, kq_dim, bias=False) if projected else nn.Identity()
        self.score = score
        self.normalise = normalise

    def keys(self, states: Float[Tensor, "batch key dim"]) -> Float[Tensor, "batch key kq_dim"]:
        """W_k h, computed once per sentence."""
        return self.key(states)

    def forward(
        self,
        query: Float[Tensor, "batch query query_dim"],
        keys: Float[Tensor, "batch key kq_dim"],
        values: Float[Tensor, "batch key dim"],
        mask: Bool[Tensor, "batch #query key"] | None = None,
        query_position_ids: Int[Tensor, "batch query"] | None = None,
    ) -> tuple[Float[Tensor, "batch query dim"], Float[Tensor, "batch query key"]]:
        """(context, weights); the queries are at the positions 0, 1, ... by default."""
        scores = self.score(self.query(query), keys)
        normalise = self.normalise
        if isinstance(normalise, PositionedNormaliser):  # only then positions matter
            if query_position_ids is None:
                query_position_ids = torch.arange(query.shape[1], device=query.device)[None]
            normalise = normalise.at(self._token_positions(query_position_ids, keys, mask))
        return attend(scores, values, mask, normalise)

    @staticmethod
    def _token_positions(
        query_position_ids: Int[Tensor, "#batch query"],
        keys: Float[Tensor, "batch key kq_dim"],
        mask: Bool[Tensor, "batch #query key"] | None,
    ) -> TokenPositions:
        indices = torch.arange(keys.shape[1], device=keys.device)[None]
        return TokenPositions(query_position_ids, indices, None if mask is None else mask[:, None])


class SingleQueryScaledDotProductAttention(nn.Module):
    """The course's layer: alpha = softmax(W_q d . W_k h / sqrt(kq_dim)), a = sum_t alpha_t h_t.

    `mask` is True for real tokens. The usual homework code has no mask, so its results depend on the
    padding of the batch.
    """

    def __init__(self, enc_hid_dim: int, dec_hid_dim: int, kq_dim: int = 512) -> None:
        super().__init__()
        score = ScaledDot(kq_dim, kq_dim)
        self.attention = SingleHead(dec_hid_dim, enc_hid_dim * 2, kq_dim, score)

    def forward(
        self,
        hidden: Float[Tensor, "batch dec_hid_dim"],
        encoder_outputs: Float[Tensor, "src_len batch enc_hid_dim_twice"],
        mask: Bool[Tensor, "batch src_len"] | None = None,
    ) -> tuple[Float[Tensor, "batch enc_hid_dim_twice"], Float[Tensor, "batch src_len"]]:
        """(attended_val, alpha)"""
        states = encoder_outputs.transpose(0, 1)
        keys = self.attention.keys(states)
        key_mask = None if mask is None else mask[:, None]
        context, weights = self.attention(hidden[:, None], keys, states, key_mask)
        return context[:, 0], weights[:, 0]


class MultiHeadBase(nn.Module, ABC):
    """h attention heads in parallel, concatenated, then an output projection (Vaswani et al., 2017).

    The kinds differ in how they compute keys and values and in what the cache holds. With a `window`, a
    query attends only to keys at a distance below it (sliding-window attention).
    """

    output: Linear

    def __init__(
        self,
        heads: int,
        score: Score,
        normalise: AnyNormaliser,
        position: Position,
        window: int | None,
        dropout: float,
    ) -> None:
        super().__init__()
        self.heads = heads
        self.score = score
        self.normalise = normalise
        self.position = position
        self.window = window
        self.dropout = dropout

    @abstractmethod
    def keys_values(
        self, x: Activations, position_ids: Int[Tensor, "batch length"]
    ) -> tuple[KVHeads, KVHeads]:
        """The two tensors that the cache holds for x: keys and values, or a compressed form of both."""

    @abstractmethod
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
        """(output, weights); the fused kernel, which returns no weights, unless `need_weights`.

        `prefix_lengths`: see `TokenPositions`. With a rule as the mask, memory grows with the number of
        tokens, not its square, if no weights are needed and the kinds are scaled-dot and softmax.
        """

    def self_attend(
        self,
        x: Activations,
        mask: Mask = None,
        position_ids: Int[Tensor, "batch length"] | None = None,
        need_weights: bool = False,
    ) -> AttentionOutputs:
        """Self-attention over whole sequences, whose tokens are at the positions 0, 1, ... by default.

        A `MaskRule` as the mask has the same positions.
        """
        if position_ids is None:
            position_ids = torch.arange(x.shape[1], device=x.device).expand(x.shape[:2])
        keys, values = self.keys_values(x, position_ids)
        return self(x, keys, values, mask, position_ids, position_ids, need_weights)

    def _long_rule(self, mask: Mask, need_weights: bool) -> MaskRule | None:
        """The rule for attention without matrices; None if this layer needs them."""
        if not isinstance(mask, MaskRule) or need_weights:
            return None
        plain = type(self.score) is ScaledDot and self.normalise is softmax
        keys = mask.key_position_ids.shape[1]
        if not plain or self.position.further_rotations(keys):
            return None
        return mask.within(self.window)

    def _attend_long(
        self,
        query: Float[Tensor, "batch heads query _"],
        keys: KVHeads,
        values: KVHeads,
        rule: MaskRule,
        bias_query: Float[Tensor, "batch heads query _"],
    ) -> AttentionOutputs:
        arguments = query, keys, values, rule, self.position, bias_query
        context = attend_long(*arguments, self._dropout_p())
        return self.output(merge_heads(context)), None

    def _dropout_p(self) -> float:
        return self.dropout if self.training else 0.0

    def _window_mask(
        self,
        mask: Mask,
        query_position_ids: Int[Tensor, "batch query"],
        key_position_ids: Int[Tensor, "batch key"],
    ) -> Bool[Tensor, "batch 1 _ key"] | None:
        """The mask restricted to the window, with a dimension for the heads."""
        if isinstance(mask, MaskRule):
            mask = mask.matrix()
        if self.window is not None:
            near = window_mask(query_position_ids, key_position_ids, self.window)
            mask = near if mask is None else mask & near
        return None if mask is None else mask[:, None]

    def _rotations(
        self, keys: int, mask: Bool[Tensor, "batch 1 #query key"] | None
    ) -> list[tuple[int, Rotation]]:
        """(n, further rotation for the queries that may attend to more than n keys); the first is none.

        Without a mask, every query attends to all keys: the last rotation is that of all queries.
        """
        rotations = [(0, unrotated), *self.position.further_rotations(keys)]
        return rotations if mask is not None else rotations[-1:]

    def _attend(
        self,
        rotated: list[QueriesKeys],
        values: Float[Tensor, "batch kv_heads key value_depth"],
        mask: Bool[Tensor, "batch 1 #query key"] | None,
        bias: Float[Tensor, "#batch heads query key"] | None,
        need_weights: bool,
        token_positions: TokenPositions,
    ) -> tuple[
        Float[Tensor, "batch heads query value_depth"],
        Float[Tensor, "batch heads query key"] | None,
    ]:
        """(context, weights) of every head. The heads of a group share one key/value head.

        `normalise` is called once, with [batch heads query key], whatever is folded.
        """
        (_, query, keys), *_ = rotated
        heads, kv_heads, scale = query.shape[1], keys.shape[1], self.position.score_scale
        rotated = [(n, fold_groups(query, kv_heads), keys) for n, query, keys in rotated]
        bias = None if bias is None else fold_groups(bias, kv_heads)
        if mask is not None and mask.shape[2] > 1:
            mask = mask.repeat(1, 1, heads // kv_heads, 1) if kv_heads < heads else mask
        dropout_p = self._dropout_p()
        normaliser = bind_positions(self.normalise, token_positions)
        if type(self.score) is ScaledDot and normaliser is softmax and not need_weights:
            options = {"values": values, "mask": mask, "bias": bias}
            attend_to = partial(attend_fused, **options, dropout_p=dropout_p, scale=scale)
            return unfold_groups(select_by_length(attend_to, rotated, mask), heads), None
        scores = select_by_length(self.score, rotated, mask)
        scores = scores if scale == 1 else scores * scale
        scores = scores if bias is None else scores + bias
        normalise = partial(normalise_folded, normaliser, heads, kv_heads)
        context, weights = attend(scores, values, mask, normalise, dropout_p)
        weights = unfold_groups(weights, heads) if need_weights else None
        return unfold_groups(context, heads), weights


def select_by_length(
    compute: Callable[[Tensor, Tensor], Tensor],
    rotated: list[QueriesKeys],
    mask: Bool[Tensor, "batch 1 #query key"] | None,
) -> Float[Tensor, "batch kv_heads query _"]:
    """compute(queries, keys): for each query with the last pair that is for its number of keys."""
    (_, query, keys), *longer = rotated
    result = compute(query, keys)
    for length, query, keys in longer:
        assert mask is not None
        is_longer = mask.sum(-1, keepdim=True) > length
        result = torch.where(is_longer, compute(query, keys), result)
    return result


def normalise_folded(
    normalise: Normaliser, heads: int, kv_heads: int, scores: Tensor
) -> Float[Tensor, "batch kv_heads folded key"]:
    """The weights of scores whose groups are folded: `normalise` sees every head."""
    return fold_groups(normalise(unfold_groups(scores, heads)), kv_heads)


def unrotated(heads: Heads, position_ids: Int[Tensor, "batch length"]) -> Heads:
    return heads


def split_heads(x: Float[Tensor, "batch length concatenated"], heads: int) -> Heads:
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def merge_heads(x: Heads) -> Float[Tensor, "batch length concatenated"]:
    return x.transpose(1, 2).flatten(2)


def fold_groups(x: Heads, kv_heads: int) -> Float[Tensor, "batch kv_heads folded _"]:
    """The query heads of each group as extra queries of its key/value head, whose keys need no copies."""
    return x if x.shape[1] == kv_heads else x.unflatten(1, (kv_heads, -1)).flatten(2, 3)


def unfold_groups(x: Float[Tensor, "batch kv_heads folded _"], heads: int) -> Heads:
    """The inverse of `fold_groups`."""
    kv_heads = x.shape[1]
    return x if kv_heads == heads else x.unflatten(2, (heads // kv_heads, -1)).flatten(1, 2)


class MultiHead(MultiHeadBase):
    """Queries W_q x for h heads; keys W_k x and values W_v x for g heads, each shared by h / g query heads.

    g = h is multi-head attention (Vaswani et al., 2017), g = 1 multi-query (Shazeer, 2019), and
    1 < g < h grouped-query (Ainslie et al., 2023). The KV cache holds g keys and g values per token.

    Alone, it is scaled dot-product attention with softmax, without positions, head_dim = d_model / heads:

    >>> attention = MultiHead(64, heads=4)
    >>> x = torch.randn(2, 5, 64)                               # [batch length d_model]
    >>> causal = torch.ones(5, 5, dtype=torch.bool).tril()      # True = may be attended to
    >>> y, weights = attention.self_attend(x, causal.expand(2, 5, 5), need_weights=True)
    >>> y.shape, weights.shape
    (torch.Size([2, 5, 64]), torch.Size([2, 4, 5, 5]))
    """

    def __init__(
        self,
        d_model: int,
        heads: int,
        head_dim: int | None = None,
        score: Score | None = None,
        normalise: AnyNormaliser = softmax,
        position: Position | None = None,
        kv_heads: int | None = None,
        window: int | None = None,
        dropout: float = 0.0,
    ) -> None:
        head_dim = head_dim or divide_heads(d_model, heads)
        score = score or ScaledDot(head_dim, head_dim)
        position = position or Position(d_model, heads, head_dim)
        super().__init__(heads, score, normalise, position, window, dropout)
        self.kv_heads = kv_heads or heads
        if heads % self.kv_heads:
            raise UserError(f"kv_heads ({self.kv_heads}) must divide heads ({heads})")
        self.query = Linear(d_model, heads * head_dim, bias=False)
        self.key_value = Linear(d_model, 2 * self.kv_heads * head_dim, bias=False)
        self.output = Linear(heads * head_dim, d_model, bias=False)

    def keys_values(
        self, x: Activations, position_ids: Int[Tensor, "batch length"]
    ) -> tuple[KVHeads, KVHeads]:
        """W_k x, rotated by its position, and W_v x."""
        halves = self.key_value(x).chunk(2, dim=-1)
        keys, values = (split_heads(half, self.kv_heads) for half in halves)
        return self.position.rotate(keys, position_ids), values

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
        query = split_heads(self.query(x), self.heads)
        query = self.position.rotate(query, query_position_ids)
        if (rule := self._long_rule(mask, need_weights)) is not None:
            return self._attend_long(query, keys, values, rule, query)
        bias = self.position.bias(query, query_position_ids, key_position_ids)
        head_mask = self._window_mask(mask, query_position_ids, key_position_ids)
        rotated = [
            (n, rotate(query, query_position_ids), rotate(keys, key_position_ids))
            for n, rotate in self._rotations(keys.shape[2], head_mask)
        ]
        token_positions = TokenPositions(
            query_position_ids, key_position_ids, head_mask, prefix_lengths
        )
        context, weights = self._attend(
            rotated, values, head_mask, bias, need_weights, token_positions
        )
        return self.output(merge_heads(context)), weights
