"""Where a token stands, said in at most one of three places, each doing nothing by default.

`embed` is called once by the model; `rotate` and `bias` by every self-attention. Positions are passed
in as numbers, never guessed from a length: a cache or a left pad cannot shift them.
"""

import math
from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import embedding

from regard.errors import UserError

At = Int[Tensor, "batch length"]


class Position(nn.Module):
    """NoPE: says nothing. The other kinds override one of the three."""

    max_length: int | None = None
    """How many places it knows, from 0 on; None: any number."""

    def __init__(self, width: int, heads: int, head_dim: int) -> None:
        super().__init__()

    def embed(
        self, x: Float[Tensor, "batch length width"], at: At
    ) -> Float[Tensor, "batch length width"]:
        """Added to the embedding, once."""
        return x

    def rotate(
        self, heads: Float[Tensor, "batch heads length depth"], at: At
    ) -> Float[Tensor, "batch heads length depth"]:
        """Turns queries and keys, in every self-attention."""
        return heads

    def bias(
        self,
        query: Float[Tensor, "batch heads query depth"],
        query_at: Int[Tensor, "batch query"],
        key_at: Int[Tensor, "batch key"],
    ) -> Float[Tensor, "#batch heads query key"] | None:
        """Added to the scores, in every self-attention."""
        return None


# --- added to the embedding -----------------------------------------------------------------------


class Sinusoidal(Position):
    """PE_2i(t) = sin(t / base^(2i/D)), PE_2i+1(t) = cos(the same) (Vaswani et al., 2017)"""

    omega: Tensor

    def __init__(self, width: int, heads: int, head_dim: int, base: float) -> None:
        super().__init__(width, heads, head_dim)
        self.register_buffer("omega", frequencies(width, base), persistent=False)

    def embed(
        self, x: Float[Tensor, "batch length width"], at: At
    ) -> Float[Tensor, "batch length width"]:
        angle = at[..., None] * self.omega
        waves = torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(-2)
        return x + waves[..., : x.shape[-1]].to(x.dtype)


class Learned(Position):
    """x + P[t], a table with a row for each of the first `max_length` positions (GPT-1 to 3)"""

    def __init__(self, width: int, heads: int, head_dim: int, max_length: int) -> None:
        super().__init__(width, heads, head_dim)
        self.max_length = max_length
        # As large as the sinusoids, whose mean square is 1/2: the two kinds start alike.
        self.table = nn.Parameter(torch.randn(max_length, width) * math.sqrt(0.5))

    def embed(
        self, x: Float[Tensor, "batch length width"], at: At
    ) -> Float[Tensor, "batch length width"]:
        if self._may_overrun(at) and (last := int(at.max())) >= len(self.table):
            raise UserError(
                f'the position "learned" has a table of {len(self.table)} places and was asked for '
                f"place {last + 1}: shorten the text, or train with a larger max_length"
            )
        return x + embedding(at, self.table).to(x.dtype)

    def _may_overrun(self, at: At) -> bool:
        """Whether it is worth looking at the numbers.

        On an accelerator a look would wait for the device at every step, so it is taken only when
        more tokens are read at once than the table has places. A single step too far (which a
        translator never takes: it asks the model's `room`) is then caught by the look-up itself,
        which fails there too, only less politely; nothing is ever clamped.
        """
        return at.numel() > 0 and (at.device.type == "cpu" or at.shape[1] > len(self.table))


# --- added to the score ---------------------------------------------------------------------------


def distance(
    query_at: Int[Tensor, "batch query"], key_at: Int[Tensor, "batch key"]
) -> Int[Tensor, "batch query key"]:
    """How far on from the query at i the key at j stands: j - i."""
    return key_at[:, None, :] - query_at[:, :, None]


class Relative(Position):
    """Learned by clipped distance r = max(-m, min(m, j - i)), in every layer anew.

    bias     e_ij + b_h[r]               a number for each head (T5: Raffel et al., 2020, whose
                                         buckets widen with the distance and serve all layers)
    query    e_ij + q_i . a[r] / sqrt(d) a vector for all heads (Shaw et al., 2018): with the score
                                         scaled-dot this is q_i . (k_j + a[r]) / sqrt(d), theirs
    """

    def __init__(self, width: int, heads: int, head_dim: int, form: str, max_distance: int) -> None:
        super().__init__(width, heads, head_dim)
        self.form, self.max_distance = form, max_distance
        columns, spread = (heads, width) if form == "bias" else (head_dim, head_dim)
        self.table = nn.Parameter(torch.randn(2 * max_distance + 1, columns) * spread**-0.5)

    def bias(
        self,
        query: Float[Tensor, "batch heads query depth"],
        query_at: Int[Tensor, "batch query"],
        key_at: Int[Tensor, "batch key"],
    ) -> Float[Tensor, "batch heads query key"]:
        furthest = self.max_distance
        row = distance(query_at, key_at).clamp(-furthest, furthest) + furthest
        if self.form == "bias":
            return embedding(row, self.table).permute(0, 3, 1, 2).to(query.dtype)
        # Every distance first, then each key's: [b h query 2m+1], not [b query key depth].
        every = query @ self.table.to(query.dtype).T / math.sqrt(query.shape[-1])
        return every.gather(-1, row[:, None].expand(-1, query.shape[1], -1, -1))


class Alibi(Position):
    """e_ij - 2^(-8 h / H) |j - i|, heads h = 1 .. H; nothing is learned (Press et al., 2022)

    Under a causal mask the distance only looks back, as theirs does; without one, both ways alike.
    One geometric sequence for any H: theirs mixes two if H is not a power of two.
    """

    slopes: Tensor

    def __init__(self, width: int, heads: int, head_dim: int) -> None:
        super().__init__(width, heads, head_dim)
        slopes = 2 ** (-8 * torch.arange(1, heads + 1) / heads)
        self.register_buffer("slopes", slopes, persistent=False)

    def bias(
        self,
        query: Float[Tensor, "batch heads query depth"],
        query_at: Int[Tensor, "batch query"],
        key_at: Int[Tensor, "batch key"],
    ) -> Float[Tensor, "batch heads query key"]:
        away = distance(query_at, key_at).abs()[:, None]
        return (-self.slopes[:, None, None] * away).to(query.dtype)


# --- on queries and keys --------------------------------------------------------------------------


class Rotary(Position):
    """(x1, x2) -> (x1 cos - x2 sin, x2 cos + x1 sin), pair i turned by t omega_i (Su et al., 2021)

    Keeps norms, unless the scaling is yarn's: that also stretches queries and keys.
    """

    omega: Tensor

    def __init__(
        self,
        width: int,
        heads: int,
        head_dim: int,
        base: float,
        scaling: str,
        factor: float,
        original_length: int,
    ) -> None:
        super().__init__(width, heads, head_dim)
        if head_dim % 2:
            raise UserError(f"rotary turns pairs: a head must have an even width, not {head_dim}")
        scaled = SCALINGS[scaling](frequencies(head_dim, base), factor, original_length)
        self.register_buffer("omega", scaled, persistent=False)
        # Longer contexts flatten the softmax; yarn sharpens it again: q . k grows by the square.
        self.stretch = 0.1 * math.log(factor) + 1 if scaling == "yarn" else 1.0

    def rotate(
        self, heads: Float[Tensor, "batch heads length depth"], at: At
    ) -> Float[Tensor, "batch heads length depth"]:
        # A pair is a complex number, and turning it is one product: (x1 + i x2) e^(i t omega).
        exact = torch.promote_types(heads.dtype, torch.float32)
        angle = (at[:, None, :, None] * self.omega).to(exact)
        turn = torch.polar(torch.full_like(angle, self.stretch), angle)
        pairs = torch.view_as_complex(heads.to(exact).unflatten(-1, (-1, 2)).contiguous())
        return torch.view_as_real(pairs * turn).flatten(-2).to(heads.dtype)


Omega = Float[Tensor, " pairs"]


def frequencies(width: int, base: float) -> Omega:
    """omega_i = base^(-2i / width), i = 0, 1, ... one for each pair of dimensions."""
    return base ** -(torch.arange(0, width, 2) / width)


def unscaled(omega: Omega, factor: float, original_length: int) -> Omega:
    """omega_i"""
    return omega


def linear(omega: Omega, factor: float, original_length: int) -> Omega:
    """omega_i / s: position s t turns as far as t did (Chen et al., 2023)"""
    return omega / factor


def ntk(omega: Omega, factor: float, original_length: int) -> Omega:
    """omega_i with the base times s^(d / (d - 2)) (bloc97, 2023)

    That is omega_i s^(-i / last): the fastest pair keeps its pace, the slowest turns s times slower.
    """
    pairs = len(omega)
    return omega * factor ** -(torch.arange(pairs) / max(pairs - 1, 1))


def yarn(omega: Omega, factor: float, original_length: int) -> Omega:
    """omega_i (g + (1 - g) / s), g rising from 0 to 1 between 1 and 32 turns (Peng et al., 2023)

    Turns are counted over the original length: fast pairs, which know near distances, stay; slow
    ones, which never came round, are interpolated. (As in the paper: a ramp over turns, not, as in
    some implementations, over the numbers of the pairs.)
    """
    turns = original_length * omega / (2 * math.pi)
    stay = ((turns - 1) / (32 - 1)).clamp(0, 1)
    return omega * (stay + (1 - stay) / factor)


SCALINGS: dict[str, Callable[[Tensor, float, int], Tensor]] = {
    "none": unscaled,
    "linear": linear,
    "ntk": ntk,
    "yarn": yarn,
}

POSITIONS: dict[str, type[Position]] = {
    "none": Position,
    "sinusoidal": Sinusoidal,
    "learned": Learned,
    "relative": Relative,
    "alibi": Alibi,
    "rotary": Rotary,
}
