"""Position encodings. Each acts in one of three methods, which do nothing by default.

`embed` is called once by the model; `rotate` and `bias` by every self-attention layer. Positions are
passed in as `position_ids`, never inferred from a length: a cache or left padding cannot shift them.
(`further_rotations` is for rotations that depend on the query: `rotate` cannot know which query a key will
meet.)

Alone, in a model of your own: options have the defaults of the config.

    >>> rotary = POSITIONS["rotary"](64, heads=4)
    >>> queries = torch.randn(1, 4, 5, 16)                      # [batch heads length head_dim]
    >>> rotary.rotate(queries, torch.arange(5)[None]).shape
    torch.Size([1, 4, 5, 16])
    >>> embedded = torch.randn(1, 5, 64)                        # [batch length d_model]
    >>> POSITIONS["sinusoidal"](64).embed(embedded, torch.arange(5)[None]).shape
    torch.Size([1, 5, 64])
"""

import math
from collections.abc import Callable
from functools import partial
from itertools import count, takewhile

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import embedding

from regard import config
from regard.attention.bias_rules import BiasRule, ClippedBias, LinearBias
from regard.errors import UserError

PositionIds = Int[Tensor, "batch length"]
Heads = Float[Tensor, "batch heads length depth"]
Rotation = Callable[[Heads, PositionIds], Heads]


class Position(nn.Module):
    """NoPE: no position encoding. The other kinds override one of the three methods."""

    max_length: int | None = None
    """Number of positions it supports, starting at 0; None: unlimited."""
    score_scale: float = 1.0
    """Factor of every score, in every self-attention layer: an inverse temperature of the softmax."""

    def __init__(self, d_model: int, heads: int = 1, head_dim: int | None = None) -> None:
        super().__init__()
        self.head_dim = head_dim or divide_heads(d_model, heads)

    def embed(
        self, x: Float[Tensor, "batch length d_model"], position_ids: PositionIds
    ) -> Float[Tensor, "batch length d_model"]:
        """Adds to the embeddings, once per model."""
        return x

    def rotate(self, heads: Heads, position_ids: PositionIds) -> Heads:
        """Rotates queries and keys, in every self-attention layer."""
        return heads

    def further_rotations(self, keys: int) -> list[tuple[int, Rotation]]:
        """[(n, R), ..]: a query that may attend to more than n of `keys` keys needs R of both.

        R follows `rotate`. The n ascend, and the last R that applies is the only one.
        """
        return []

    def bias(
        self,
        query: Float[Tensor, "batch heads query depth"],
        query_position_ids: Int[Tensor, "batch query"],
        key_position_ids: Int[Tensor, "batch key"],
    ) -> Float[Tensor, "#batch heads query key"] | None:
        """Adds to the scores, in every self-attention layer."""
        return None

    def bias_rule(self, query: Heads) -> BiasRule | None:
        """`bias` as a rule, which long sequences need: a matrix would fill the memory.

        A kind that overrides `bias` alone works there too, only more slowly.
        """
        return None


def divide_heads(d_model: int, heads: int) -> int:
    """The usual dimension of a head, d_model / heads."""
    if d_model % heads:
        raise UserError(f"heads ({heads}) must divide d_model ({d_model}), or give head_dim")
    return d_model // heads


# The defaults of all options below are those of the config.
SINUSOIDAL, LEARNED = config.Sinusoidal(), config.LearnedPosition()
RELATIVE, ROTARY = config.Relative(), config.Rotary()


# --- added to the embedding -----------------------------------------------------------------------


class Sinusoidal(Position):
    """PE_2i(t) = sin(t / base^(2i/D)), PE_2i+1(t) = cos(the same) (Vaswani et al., 2017)"""

    omega: Tensor

    def __init__(
        self,
        d_model: int,
        heads: int = 1,
        head_dim: int | None = None,
        base: float = SINUSOIDAL.base,
    ) -> None:
        super().__init__(d_model, heads, head_dim)
        self.register_buffer("omega", frequencies(d_model, base), persistent=False)

    def embed(
        self, x: Float[Tensor, "batch length d_model"], position_ids: PositionIds
    ) -> Float[Tensor, "batch length d_model"]:
        angles = position_ids[..., None] * self.omega
        encoding = torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-2)
        return x + encoding[..., : x.shape[-1]].to(x.dtype)


class Learned(Position):
    """x + P[t], a table with a row for each of the first `max_length` positions (GPT-1 to 3)"""

    def __init__(
        self,
        d_model: int,
        heads: int = 1,
        head_dim: int | None = None,
        max_length: int = LEARNED.max_length,
    ) -> None:
        super().__init__(d_model, heads, head_dim)
        self.max_length = max_length
        # The mean square of the sinusoids, 1/2: both kinds start at the same scale.
        self.table = nn.Parameter(torch.randn(max_length, d_model) * math.sqrt(0.5))

    def embed(
        self, x: Float[Tensor, "batch length d_model"], position_ids: PositionIds
    ) -> Float[Tensor, "batch length d_model"]:
        if self._may_exceed(position_ids) and (last := int(position_ids.max())) >= len(self.table):
            raise UserError(
                f'the position "learned" has a table of {len(self.table)} positions and was asked for '
                f"position {last + 1}: shorten the text, or train with a larger max_length"
            )
        return x + embedding(position_ids, self.table).to(x.dtype)

    def _may_exceed(self, position_ids: PositionIds) -> bool:
        """May a position id lie outside the table, so that all must be checked?

        On an accelerator the check would synchronise with the host at every step, so it runs there only
        if the sequence is longer than the table. A single step beyond the table (which a translator
        never takes: it asks the model's `max_target_length`) fails in the look-up itself, with a less
        helpful error; nothing is ever clamped.
        """
        on_cpu = position_ids.device.type == "cpu"
        return position_ids.numel() > 0 and (on_cpu or position_ids.shape[1] > len(self.table))


# --- added to the score ---------------------------------------------------------------------------


def relative_distance(
    query_position_ids: Int[Tensor, "batch query"], key_position_ids: Int[Tensor, "batch key"]
) -> Int[Tensor, "batch query key"]:
    """Signed relative distance j - i of the key at j from the query at i."""
    return key_position_ids[:, None, :] - query_position_ids[:, :, None]


class Relative(Position):
    """Learned per clipped distance r = max(-m, min(m, j - i)), separately in every layer.

    bias     e_ij + b_h[r]               a scalar per head (T5, Raffel et al., 2020, with buckets that
                                         widen with the distance, shared by all layers)
    query    e_ij + q_i . a[r] / sqrt(d) a vector for all heads (Shaw et al., 2018): with the score
                                         scaled-dot this is their q_i . (k_j + a[r]) / sqrt(d)
    """

    def __init__(
        self,
        d_model: int,
        heads: int = 1,
        head_dim: int | None = None,
        form: str = RELATIVE.form,
        max_distance: int = RELATIVE.max_distance,
    ) -> None:
        super().__init__(d_model, heads, head_dim)
        self.form, self.max_distance = form, max_distance
        columns, fan_in = (heads, d_model) if form == "bias" else (self.head_dim, self.head_dim)
        self.table = nn.Parameter(torch.randn(2 * max_distance + 1, columns) * fan_in**-0.5)

    def bias(
        self,
        query: Float[Tensor, "batch heads query depth"],
        query_position_ids: Int[Tensor, "batch query"],
        key_position_ids: Int[Tensor, "batch key"],
    ) -> Float[Tensor, "batch heads query key"]:
        limit = self.max_distance
        distances = relative_distance(query_position_ids, key_position_ids)
        index = distances.clamp(-limit, limit) + limit
        if self.form == "bias":
            return embedding(index, self.table).permute(0, 3, 1, 2).to(query.dtype)
        # All 2m+1 distances first, then gather each key's: [b h query 2m+1], not [b query key depth].
        by_distance = query @ self.table.to(query.dtype).T / math.sqrt(query.shape[-1])
        return by_distance.gather(-1, index[:, None].expand(-1, query.shape[1], -1, -1))

    def bias_rule(self, query: Heads) -> ClippedBias:
        if self.form == "bias":
            return ClippedBias(self.table.T[None, :, None])
        return ClippedBias(query @ self.table.to(query.dtype).T / math.sqrt(query.shape[-1]))


class Alibi(Position):
    """e_ij - 2^(-8 h / H) |j - i|, heads h = 1 .. H; no parameters (Press et al., 2022)

    With a causal mask only j <= i remain, as in the paper; without one, the bias is symmetric. One
    geometric sequence for any H: the paper interleaves two if H is not a power of two.
    """

    slopes: Tensor

    def __init__(self, d_model: int, heads: int = 1, head_dim: int | None = None) -> None:
        super().__init__(d_model, heads, head_dim)
        slopes = 2 ** (-8 * torch.arange(1, heads + 1) / heads)
        self.register_buffer("slopes", slopes, persistent=False)

    def bias(
        self,
        query: Float[Tensor, "batch heads query depth"],
        query_position_ids: Int[Tensor, "batch query"],
        key_position_ids: Int[Tensor, "batch key"],
    ) -> Float[Tensor, "batch heads query key"]:
        distances = relative_distance(query_position_ids, key_position_ids).abs()[:, None]
        return (-self.slopes[:, None, None] * distances).to(query.dtype)

    def bias_rule(self, query: Heads) -> LinearBias:
        return LinearBias(self.slopes)


# --- on queries and keys --------------------------------------------------------------------------


class Rotary(Position):
    """(x1, x2) -> (x1 cos - x2 sin, x2 cos + x1 sin), pair i rotated by t omega_i (RoPE, Su et al., 2021)

    Preserves norms. Yarn scaling also multiplies the scores: longer contexts flatten the softmax. Dynamic
    NTK rotates further in long contexts.
    """

    omega: Tensor
    dynamic_length: int | None
    """Length up to which omega holds; None: for any length."""

    def __init__(
        self,
        d_model: int,
        heads: int = 1,
        head_dim: int | None = None,
        base: float = ROTARY.base,
        scaling: str = ROTARY.scaling,
        factor: float = ROTARY.factor,
        original_length: int = ROTARY.original_length,
    ) -> None:
        super().__init__(d_model, heads, head_dim)
        if self.head_dim % 2:
            raise UserError(f"rotary needs pairs, so head_dim must be even, not {self.head_dim}")
        scaled = SCALINGS[scaling](frequencies(self.head_dim, base), factor, original_length)
        self.register_buffer("omega", scaled, persistent=False)
        # The paper scales q and k; scaling the score includes the part of it that is not rotated.
        self.score_scale = (0.1 * math.log(factor) + 1) ** 2 if scaling == "yarn" else 1.0
        self.dynamic_length = original_length if scaling == "dynamic-ntk" else None

    def rotate(self, heads: Heads, position_ids: PositionIds) -> Heads:
        return rotate_pairs(heads, position_ids, self.omega)

    def further_rotations(self, keys: int) -> list[tuple[int, Rotation]]:
        """By t (ntk(omega, s) - omega), s = 2, 4, ..: with the rotation by t omega, by t ntk(omega, s).

        So the cache holds the same keys, whichever queries they will meet.
        """
        if (original := self.dynamic_length) is None:
            return []
        lengths = takewhile(lambda n: n < keys, (original * 2**level for level in count()))
        differences = {n: ntk(self.omega, 2 * n / original, original) - self.omega for n in lengths}
        return [(n, partial(rotate_pairs, omega=omega)) for n, omega in differences.items()]


Omega = Float[Tensor, " pairs"]


def rotate_pairs(heads: Heads, position_ids: PositionIds, omega: Omega) -> Heads:
    """(x1 + i x2) e^(i t omega): a pair as a complex number is rotated by one multiplication."""
    dtype = torch.promote_types(heads.dtype, torch.float32)
    angles = (position_ids[:, None, :, None] * omega).to(dtype)
    rotation = torch.polar(torch.ones_like(angles), angles)
    pairs = torch.view_as_complex(heads.to(dtype).unflatten(-1, (-1, 2)).contiguous())
    return torch.view_as_real(pairs * rotation).flatten(-2).to(heads.dtype)


def frequencies(dim: int, base: float) -> Omega:
    """omega_i = base^(-2i / dim), i = 0, 1, ..., one for each pair of dimensions."""
    return base ** -(torch.arange(0, dim, 2) / dim)


def unscaled(omega: Omega, factor: float, original_length: int) -> Omega:
    """omega_i"""
    return omega


def linear(omega: Omega, factor: float, original_length: int) -> Omega:
    """omega_i / s: position s t gets the angle that t had (position interpolation, Chen et al., 2023)"""
    return omega / factor


def ntk(omega: Omega, factor: float, original_length: int) -> Omega:
    """omega_i with base * s^(d / (d - 2)) (NTK-aware scaling, bloc97, 2023)

    That is omega_i s^(-i / last): the highest frequency stays, the lowest is divided by s.
    """
    pairs = len(omega)
    return omega * factor ** -(torch.arange(pairs, device=omega.device) / max(pairs - 1, 1))


def dynamic_ntk(omega: Omega, factor: float, original_length: int) -> Omega:
    """ntk(omega, s) with s = 1 if n <= L, else the smallest power of two >= n / L (emozilla, 2023)

    L is the original length, and n the length at hand: the number of keys that the query may attend to
    (t + 1 for a causal query at position t, the length of the text for a bidirectional one). Each query has
    its own, so that cached decoding equals the full forward pass, in any batch. (The first version takes
    s = n / L; with powers of two, as in Qwen, a key needs few different rotations.)

    These are the frequencies up to L, whatever `factor`; those beyond are in `Rotary.further_rotations`.
    """
    return omega


def yarn(omega: Omega, factor: float, original_length: int) -> Omega:
    """omega_i (g + (1 - g) / s), g rising from 0 to 1 between 1 and 32 rotations (Peng et al., 2023)

    Rotations are counted over the original length: high frequencies, which encode near distances, stay;
    low ones, which never complete a rotation, are interpolated. (As in the paper: a ramp over rotations,
    not, as in some implementations, over the pair index.)
    """
    rotations = original_length * omega / (2 * math.pi)
    ramp = ((rotations - 1) / (32 - 1)).clamp(0, 1)
    return omega * (ramp + (1 - ramp) / factor)


SCALINGS: dict[str, Callable[[Tensor, float, int], Tensor]] = {
    "none": unscaled,
    "linear": linear,
    "ntk": ntk,
    "yarn": yarn,
    "dynamic-ntk": dynamic_ntk,
}

POSITIONS: dict[str, type[Position]] = {
    "none": Position,
    "sinusoidal": Sinusoidal,
    "learned": Learned,
    "relative": Relative,
    "alibi": Alibi,
    "rotary": Rotary,
}
