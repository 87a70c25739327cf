"""Layers that attend. They own the projections and share one `attend`.

Keys and values are made once (`keys`, `keys_values`) and passed back in, so a decoder that goes word
by word does not make them again at every step.
"""

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from regard.attention.attend import attend, attend_fused
from regard.attention.normalise import Normaliser, softmax
from regard.attention.positions import Position
from regard.attention.scores import ScaledDot, Score
from regard.linear import Linear

Heads = Float[Tensor, "batch heads key depth"]


class SingleHead(nn.Module):
    """a = attend(e(W_q q, W_k h), h): the values are the encoder's states themselves."""

    def __init__(
        self,
        query_width: int,
        key_width: int,
        kq_width: int,
        score: Score,
        normalise: Normaliser = softmax,
    ) -> None:
        super().__init__()
        projected = score.projected
        self.query = Linear(query_width, kq_width, bias=False) if projected else nn.Identity()
        self.key = Linear(key_width, kq_width, bias=False) if projected else nn.Identity()
        self.score = score
        self.normalise = normalise

    def keys(self, states: Float[Tensor, "batch key width"]) -> Float[Tensor, "batch key kq_width"]:
        """W_k h, made once a sentence."""
        return self.key(states)

    def forward(
        self,
        query: Float[Tensor, "batch query query_width"],
        keys: Float[Tensor, "batch key kq_width"],
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


class MultiHead(nn.Module):
    """h attentions side by side, concatenated, then one linear map (Vaswani et al., 2017)."""

    def __init__(
        self,
        width: int,
        heads: int,
        head_width: int,
        score: Score,
        normalise: Normaliser = softmax,
        position: Position | None = None,
    ) -> None:
        super().__init__()
        self.heads = heads
        self.query = Linear(width, heads * head_width, bias=False)
        self.key_value = Linear(width, 2 * heads * head_width, bias=False)
        self.output = Linear(heads * head_width, width, bias=False)
        self.score = score
        self.normalise = normalise
        self.position = position or Position(width, heads, head_width)

    def keys_values(
        self, x: Float[Tensor, "batch key width"], at: Int[Tensor, "batch key"]
    ) -> tuple[Heads, Heads]:
        """W_k x, turned by its position, and W_v x, for every head: what a cache holds."""
        keys, values = (self._apart(half) for half in self.key_value(x).chunk(2, dim=-1))
        return self.position.rotate(keys, at), values

    def _apart(self, x: Float[Tensor, "batch length joined"]) -> Heads:
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def forward(
        self,
        x: Float[Tensor, "batch query width"],
        keys: Heads,
        values: Heads,
        mask: Bool[Tensor, "batch #query key"] | None,
        query_at: Int[Tensor, "batch query"],
        key_at: Int[Tensor, "batch key"],
        explain: bool = False,
    ) -> tuple[Float[Tensor, "batch query width"], Float[Tensor, "batch heads query key"] | None]:
        """(output, weights): fused and without weights, unless they are asked for."""
        query = self.position.rotate(self._apart(self.query(x)), query_at)
        bias = self.position.bias(query, query_at, key_at)
        allowed = None if mask is None else mask[:, None]
        fused = type(self.score) is ScaledDot and self.normalise is softmax and bias is None
        if fused and not explain:
            context, weights = attend_fused(query, keys, values, allowed), None
        else:
            scores = self.score(query, keys)
            scores = scores if bias is None else scores + bias
            context, weights = attend(scores, values, allowed, self.normalise)
        output = self.output(context.transpose(1, 2).flatten(2))  # heads side by side again
        return output, weights if explain else None
