"""Attention settings: scores, normalisers, position encodings, heads."""

# pyright: reportInvalidTypeForm=false

from typing import Literal

from pydantic import Field, model_validator

from regard.config import limits
from regard.config.table import Table, one_of


class PlainScore(Table):
    kind: Literal["scaled-dot", "dot", "additive", "bilinear", "mean", "dummy"] = "scaled-dot"


class Location(Table):
    kind: Literal["location"] = "location"
    max_length: int = Field(default=256, ge=1, le=limits.TOKENS)
    """Maximum number of keys."""


class PlainNormaliser(Table):
    kind: Literal["softmax", "argmax", "sparsemax", "none"] = "softmax"


class NoPosition(Table):
    kind: Literal["none"] = "none"


class Sinusoidal(Table):
    kind: Literal["sinusoidal"] = "sinusoidal"
    base: float = Field(default=10_000.0, gt=0, le=1e12)
    """Ratio of the longest wavelength to the shortest (almost)."""


class LearnedPosition(Table):
    kind: Literal["learned"] = "learned"
    max_length: int = Field(default=1024, ge=1, le=10**6)
    """Number of positions in the table; longer sequences are rejected."""


class Relative(Table):
    kind: Literal["relative"] = "relative"
    form: Literal["bias", "query"] = "bias"
    """Added to a score for each relative distance: a bias per head (T5), or the query's dot product with a
    learned vector (Shaw)."""
    max_distance: int = Field(default=32, ge=1, le=limits.TOKENS)
    """Larger distances are clipped to this."""


class Alibi(Table):
    kind: Literal["alibi"] = "alibi"


class RotaryBase(Table):
    """Pairs of dimensions rotated by position times a geometric series of frequencies."""

    base: float = Field(default=10_000.0, gt=0, le=1e12)
    """Base of the geometric series of frequencies."""
    scaling: Literal["none", "linear", "ntk", "yarn", "dynamic-ntk"] = "none"
    """How frequencies are scaled for a longer context: by a fixed factor or, with dynamic-ntk, by one that
    grows with the length at hand."""
    factor: float = Field(default=1.0, ge=1, le=10_000)
    """Context extension: new length / original length (not used by dynamic-ntk)."""
    original_length: int = Field(default=512, ge=1, le=10**7)
    """Original context length in tokens (used by yarn and dynamic-ntk)."""

    @model_validator(mode="after")
    def _check_factor(self) -> "RotaryBase":
        if self.scaling not in ("none", "dynamic-ntk") and self.factor == 1:
            raise ValueError(f'the scaling "{self.scaling}" does nothing without a factor above 1')
        return self


class Rotary(RotaryBase):
    kind: Literal["rotary"] = "rotary"


class Interleaved(RotaryBase):
    """Rotary in most layers, no position encoding in every n-th (iRoPE)."""

    kind: Literal["interleaved"] = "interleaved"
    nope_interval: int = Field(default=4, ge=2, le=limits.LAYERS)
    """The n: with 4, layers 4, 8, ... have no position encoding."""

    @property
    def rotary(self) -> Rotary:
        """The position encoding of the other layers."""
        return Rotary(**self.model_dump(exclude={"kind", "nope_interval"}))


Score = one_of(PlainScore, Location, extension="score")
Normaliser = one_of(PlainNormaliser, extension="normaliser")
Position = one_of(
    NoPosition,
    Sinusoidal,
    LearnedPosition,
    Relative,
    Alibi,
    Rotary,
    Interleaved,
    extension="position",
)


# Position encodings that act inside self-attention, so models without self-attention cannot use them.
IN_ATTENTION = (Relative, Alibi, Rotary, Interleaved)


class NoAttention(Table):
    """The bottleneck: the decoder gets only the encoder's last state."""

    kind: Literal["none"] = "none"


class SingleHead(Table):
    kind: Literal["single-head"] = "single-head"
    score: Score = PlainScore()
    """Score function of a query and a key."""
    normaliser: Normaliser = PlainNormaliser()
    """What turns scores into weights."""
    kq_dim: int = Field(default=128, ge=1, le=limits.DIM)
    """Common dimension of projected queries and keys."""


class MultiHeadBase(Table):
    """Settings common to all kinds of multi-head attention."""

    heads: int = Field(default=4, ge=1, le=limits.HEADS)
    """Number of attention heads."""
    head_dim: int | None = Field(default=None, ge=1, le=limits.DIM)
    """Dimension of one head; d_model / heads by default."""
    score: Score = PlainScore()
    """Score function of a query and a key."""
    normaliser: Normaliser = PlainNormaliser()
    """What turns scores into weights."""
    window: int | None = Field(default=None, ge=1, le=limits.COUNT)
    """Sliding-window self-attention: only keys at a distance below this; all keys by default."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Dropout on the attention weights."""


class MultiHead(MultiHeadBase):
    kind: Literal["multi-head"] = "multi-head"
    kv_heads: int | None = Field(default=None, ge=1, le=limits.HEADS)
    """Number of key/value heads, each shared by heads / kv_heads query heads: 1 is multi-query, between 1
    and heads is grouped-query; equal to heads by default."""

    @model_validator(mode="after")
    def _check_groups(self) -> "MultiHead":
        if self.kv_heads and self.heads % self.kv_heads:
            allowed = ", ".join(str(n) for n in range(1, self.heads + 1) if self.heads % n == 0)
            raise ValueError(
                f"kv_heads ({self.kv_heads}) does not divide heads ({self.heads}): "
                f"kv_heads may be {allowed}"
            )
        return self


class Latent(MultiHeadBase):
    """Multi-head latent attention: keys and values from one low-rank vector per token (DeepSeek-V2)."""

    kind: Literal["latent"] = "latent"
    latent_dim: int = Field(default=128, ge=1, le=limits.DIM)
    """Dimension of the compressed key/value vector that the cache holds for each token."""
    rope_dim: int = Field(default=16, ge=2, le=limits.DIM)
    """Dimension of the decoupled rotary key, shared by all heads and cached too; unused where the position
    encoding does not rotate."""

    @model_validator(mode="after")
    def _check_pairs(self) -> "Latent":
        if self.rope_dim % 2:
            raise ValueError(f"rotary needs pairs, so rope_dim must be even, not {self.rope_dim}")
        return self
