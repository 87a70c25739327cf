"""Choices of attention: scores, normalisers, positions, heads."""

# pyright: reportInvalidTypeForm=false

from typing import Literal

from pydantic import Field, model_validator

from regard.config.table import Table, one_of


class PlainScore(Table):
    kind: Literal["scaled-dot", "dot", "additive", "bilinear", "mean", "dummy"] = "scaled-dot"


class Location(Table):
    kind: Literal["location"] = "location"
    max_length: int = Field(default=256, ge=1)
    """The largest number of places it can look at."""


class PlainNormaliser(Table):
    kind: Literal["softmax", "argmax", "sparsemax", "none"] = "softmax"


class NoPosition(Table):
    kind: Literal["none"] = "none"


class Sinusoidal(Table):
    kind: Literal["sinusoidal"] = "sinusoidal"
    base: float = Field(default=10_000.0, gt=0)
    """The slowest wave is almost this many times slower than the fastest."""


class LearnedPosition(Table):
    kind: Literal["learned"] = "learned"
    max_length: int = Field(default=1024, ge=1)
    """Places in the table; what stands beyond them is refused."""


class Relative(Table):
    kind: Literal["relative"] = "relative"
    form: Literal["bias", "query"] = "bias"
    """What a distance adds to a score: a number for each head, or a vector that the query meets."""
    max_distance: int = Field(default=32, ge=1)
    """Whatever stands further away counts as this far."""


class Alibi(Table):
    kind: Literal["alibi"] = "alibi"


class Turning(Table):
    """Pairs turned by the position, at a ladder of frequencies."""

    base: float = Field(default=10_000.0, gt=0)
    scaling: Literal["none", "linear", "ntk", "yarn"] = "none"
    """How the frequencies are slowed down for longer texts, ..."""
    factor: float = Field(default=1.0, ge=1)
    """... how many times longer, ..."""
    original_length: int = Field(default=512, ge=1)
    """... and longer than what: the length without scaling, in tokens (only yarn asks)."""

    @model_validator(mode="after")
    def _factor(self) -> "Turning":
        if self.scaling != "none" and self.factor == 1:
            raise ValueError(f'the scaling "{self.scaling}" does nothing without a factor above 1')
        return self


class Rotary(Turning):
    kind: Literal["rotary"] = "rotary"


class Interleaved(Turning):
    """Rotary in most layers, no positions in every n-th (iRoPE)."""

    kind: Literal["interleaved"] = "interleaved"
    every: int = Field(default=4, ge=2)
    """The n: with 4, the fourth layer of a stack goes without, the eighth, ..."""

    @property
    def rotary(self) -> Rotary:
        """What the other layers have."""
        return Rotary(**self.model_dump(exclude={"kind", "every"}))


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


# Positions that speak in self-attention, and so only where there is any.
IN_ATTENTION = (Relative, Alibi, Rotary, Interleaved)


class NoAttention(Table):
    """The bottleneck: the decoder sees the encoder's last state and nothing else."""

    kind: Literal["none"] = "none"


class SingleHead(Table):
    kind: Literal["single-head"] = "single-head"
    score: Score = PlainScore()
    normaliser: Normaliser = PlainNormaliser()
    kq_width: int = Field(default=128, ge=1)
    """Common width of projected queries and keys."""


class ManyHeads(Table):
    """What all kinds of heads leave to choose."""

    heads: int = Field(default=4, ge=1)
    head_width: int | None = Field(default=None, ge=1)
    """Width of one head; the model's width divided by the number of heads if not given."""
    score: Score = PlainScore()
    normaliser: Normaliser = PlainNormaliser()
    window: int | None = Field(default=None, ge=1)
    """Self-attention sees only what stands less than this many places away; everything if not given."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Share of the weights that training leaves out."""


class MultiHead(ManyHeads):
    kind: Literal["multi-head"] = "multi-head"
    key_value_heads: int | None = Field(default=None, ge=1)
    """Keys and values, each shared by equally many heads: 1 is multi-query, some are grouped-query;
    as many as there are heads if not given."""

    @model_validator(mode="after")
    def _groups(self) -> "MultiHead":
        if self.key_value_heads and self.heads % self.key_value_heads:
            allowed = ", ".join(str(n) for n in range(1, self.heads + 1) if self.heads % n == 0)
            raise ValueError(
                f"{self.heads} heads cannot share {self.key_value_heads} keys and values equally: "
                f"key_value_heads may be {allowed}"
            )
        return self


class Latent(ManyHeads):
    """Keys and values made from one small vector that all heads share (DeepSeek-V2)."""

    kind: Literal["latent"] = "latent"
    latent: int = Field(default=128, ge=1)
    """Width of that vector, the only thing of a token that a cache holds, ..."""
    rope: int = Field(default=16, ge=2)
    """... beside a key of this width, shared too, which the position turns; none where it turns none."""

    @model_validator(mode="after")
    def _pairs(self) -> "Latent":
        if self.rope % 2:
            raise ValueError(f"rotary turns pairs, so rope must be even, not {self.rope}")
        return self
