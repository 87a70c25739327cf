"""Layers that attend. They own the projections and share one `attend`.

Keys and values are made once (`keys`, `keys_values`) and passed back in, so a decoder that goes word
by word does not make them again at every step.
"""

from abc import ABC, abstractmethod

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from regard.attention.attend import attend, attend_fused
from regard.attention.masks import window_mask
from regard.attention.normalise import Normaliser, softmax
from regard.attention.positions import Position
from regard.attention.scores import ScaledDot, Score
from regard.errors import UserError
from regard.linear import Linear

Sequence = Float[Tensor, "batch length width"]
Heads = Float[Tensor, "batch heads length _"]
Held = Float[Tensor, "batch groups key _"]
Seen = tuple[Float[Tensor, "batch query width"], Float[Tensor, "batch heads query key"] | None]


class SingleHead(nn.Module):
    """a = attend(e(W_q q, W_k h), h): the values are the encoder's states themselves."""

    def __init__(
        self,
        query_width: int,
        key_width: int,
        kq_dim: int,
        score: Score,
        normalise: Normaliser = softmax,
    ) -> None:
        super().__init__()
        projected = score.projected
        self.query = Linear(query_width, kq_dim, bias=False) if projected else nn.Identity()
        self.key = Linear(key_width, kq_dim, bias=False) if projected else nn.Identity()
        self.score = score
        self.normalise = normalise

    def keys(self, states: Float[Tensor, "batch key width"]) -> Float[Tensor, "batch key kq_dim"]:
        """W_k h, made once a sentence."""
        return self.key(states)

    def forward(
        self,
        query: Float[Tensor, "batch query query_width"],
        keys: Float[Tensor, "batch key kq_dim"],
        values: Float[Tensor, "batch key width"],
        mask: Bool[Tensor, "batch #query key"] | None = None,
    ) -> tuple[Float[Tensor, "batch query width"], Float[Tensor, "batch query key"]]:
        """(context, weights)"""
        return attend(self.score(self.query(query), keys), values, mask, self.normalise)


class SingleQueryScaledDotProductAttention(nn.Module):
    """The course's layer: alpha = softmax(W_q d . W_k h / sqrt(kq_dim)), a = sum_t alpha_t h_t.

    `mask` is True for real words. The usual homework code has none, and then its results depend on
    how much padding a batch happens to hold.
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
        allowed = None if mask is None else mask[:, None]
        context, weights = self.attention(hidden[:, None], keys, states, allowed)
        return context[:, 0], weights[:, 0]


class ManyHeads(nn.Module, ABC):
    """h attentions side by side, concatenated, then one linear map (Vaswani et al., 2017).

    The kinds differ in how they make keys and values, and in what of these a cache holds. With a
    `window`, the query at t sees the keys at s with |t - s| < window, where the mask lets it.
    """

    output: Linear

    def __init__(
        self,
        heads: int,
        score: Score,
        normalise: Normaliser,
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
    def keys_values(self, x: Sequence, at: Int[Tensor, "batch length"]) -> tuple[Held, Held]:
        """What a cache holds of x: keys and values, or what both can be made from."""

    @abstractmethod
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
        """(output, weights): fused and without weights, unless they are asked for."""

    def _mask(
        self,
        mask: Bool[Tensor, "batch #query key"] | None,
        query_at: Int[Tensor, "batch query"],
        key_at: Int[Tensor, "batch key"],
    ) -> Bool[Tensor, "batch 1 _ key"] | None:
        """What the window leaves of the mask, for all heads alike."""
        if self.window is not None:
            near = window_mask(query_at, key_at, self.window)
            mask = near if mask is None else mask & near
        return None if mask is None else mask[:, None]

    def _attend(
        self,
        query: Float[Tensor, "batch heads query depth"],
        keys: Float[Tensor, "batch groups key depth"],
        values: Float[Tensor, "batch groups key value_depth"],
        mask: Bool[Tensor, "batch 1 #query key"] | None,
        bias: Float[Tensor, "#batch heads query key"] | None,
        explain: bool,
    ) -> tuple[
        Float[Tensor, "batch heads query value_depth"],
        Float[Tensor, "batch heads query key"] | None,
    ]:
        """(context, weights) of every head. Heads of one group share its keys and values."""
        heads, groups = query.shape[1], keys.shape[1]
        query, bias = folded(query, groups), None if bias is None else folded(bias, groups)
        if mask is not None and mask.shape[2] > 1:
            mask = mask.repeat(1, 1, heads // groups, 1) if groups < heads else mask
        dropped = self.dropout if self.training else 0.0
        if type(self.score) is ScaledDot and self.normalise is softmax and not explain:
            context = attend_fused(query, keys, values, mask, bias, dropped)
            return unfolded(context, heads), None
        scores = self.score(query, keys)
        scores = scores if bias is None else scores + bias
        context, weights = attend(scores, values, mask, self.normalise, dropped)
        return unfolded(context, heads), unfolded(weights, heads) if explain else None


def apart(x: Float[Tensor, "batch length joined"], heads: int) -> Heads:
    """Heads that lie side by side in the last dimension, in one of their own."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def joined(x: Heads) -> Float[Tensor, "batch length joined"]:
    """Side by side again."""
    return x.transpose(1, 2).flatten(2)


def folded(x: Heads, groups: int) -> Float[Tensor, "batch groups folded _"]:
    """The heads of a group as so many queries over the same keys, which so need no copies."""
    return x if x.shape[1] == groups else x.unflatten(1, (groups, -1)).flatten(2, 3)


def unfolded(x: Float[Tensor, "batch groups folded _"], heads: int) -> Heads:
    """A head for each query head again."""
    groups = x.shape[1]
    return x if groups == heads else x.unflatten(2, (heads // groups, -1)).flatten(1, 2)


class MultiHead(ManyHeads):
    """Queries W_q x for h heads; keys W_k x and values W_v x for g, each shared by h / g heads.

    g = h is multi-head attention (Vaswani et al., 2017), g = 1 multi-query (Shazeer, 2019), and
    whatever lies between grouped-query (Ainslie et al., 2023). A cache holds g keys and g values.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        head_dim: int,
        score: Score,
        normalise: Normaliser = softmax,
        position: Position | None = None,
        kv_heads: int | None = None,
        window: int | None = None,
        dropout: float = 0.0,
    ) -> None:
        position = position or Position(width, heads, head_dim)
        super().__init__(heads, score, normalise, position, window, dropout)
        self.kv_heads = kv_heads or heads
        if heads % self.kv_heads:
            raise UserError(
                f"{heads} heads cannot share {self.kv_heads} keys and values equally: "
                "kv_heads must divide heads"
            )
        self.query = Linear(width, heads * head_dim, bias=False)
        self.key_value = Linear(width, 2 * self.kv_heads * head_dim, bias=False)
        self.output = Linear(heads * head_dim, width, bias=False)

    def keys_values(self, x: Sequence, at: Int[Tensor, "batch length"]) -> tuple[Held, Held]:
        """W_k x, turned by its position, and W_v x."""
        halves = self.key_value(x).chunk(2, dim=-1)
        keys, values = (apart(half, self.kv_heads) for half in halves)
        return self.position.rotate(keys, at), values

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
        query = self.position.rotate(apart(self.query(x), self.heads), query_at)
        bias = self.position.bias(query, query_at, key_at)
        allowed = self._mask(mask, query_at, key_at)
        context, weights = self._attend(query, keys, values, allowed, bias, explain)
        return self.output(joined(context)), weights
