"""An attention head with rotary positions, measured through its scores, beside what is derived for it."""

from dataclasses import replace

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from regard.attention import POSITIONS
from regard.labs.lab import Parameters
from regard.labs.measurements.rotary_scalings import (
    RotarySetting,
    derive_frequencies,
    derive_score_scale,
)
from regard.labs.measurements.rotations import Omega, spread_by_distance
from regard.labs.measurements.self_attention import ScoringHead

Vectors = Float[Tensor, "length dim"]
Vector = Float[Tensor, " dim"]
Scores = Float[Tensor, "query key"]


class RotaryParameters(Parameters):
    head_dim: int = Field(16, ge=4, le=256, multiple_of=2)
    """d, dimension of a head: d/2 pairs."""
    length: int = Field(48, ge=4, le=256)
    """Number of positions to measure."""
    base: float = Field(10_000.0, ge=10, le=1e6)
    """Base of the frequencies: about the ratio of the highest to the lowest."""
    factor: float = Field(4.0, gt=1, le=64)
    """s, by how much the context is extended, for the scaled variants."""
    original_length: int = Field(256, ge=256, le=1024)
    """Length of the context before it was extended, for the scaled variants."""
    rotate_keys: bool = True
    """Rotate keys as well as queries; if false, scores depend on the query's absolute position."""


def rotate(x: Vector, t: int, omega: Omega) -> Vector:
    """(x1 cos - x2 sin, x2 cos + x1 sin) for each pair"""
    x1, x2, angle = x[::2], x[1::2], t * omega
    pairs = x1 * angle.cos() - x2 * angle.sin(), x2 * angle.cos() + x1 * angle.sin()
    return torch.stack(pairs, dim=-1).flatten()


class RotaryHead:
    """One attention head with rotary positions, measured through its scores, beside what is derived."""

    def __init__(self, params: RotaryParameters, scaling: str) -> None:
        self.dim, self.length = params.head_dim, params.length
        extension = {"factor": params.factor, "original_length": params.original_length}
        options = {"base": params.base, "scaling": scaling, **extension}
        position = POSITIONS["rotary"](self.dim, 1, self.dim, **options)
        self.score = ScoringHead(self.dim, position)
        self.parameter_count = sum(parameter.numel() for parameter in position.parameters())
        # Frequencies are measured at the end of a full extended context, everything else at its start.
        self.end = max(self.dim, round(params.factor * params.original_length))
        self.scaling, self.setting = (
            scaling,
            RotarySetting(self.dim, params.base, length=self.length, **extension),
        )
        self.derived_omega = self.derive_omega(self.end).tolist()
        self.derived_scale = derive_score_scale(scaling, params.factor)
        self.omega, self.scale = self._measure_frequencies()

    def derive_omega(self, length: int) -> Omega:
        """The frequencies of a query with this many keys."""
        setting = replace(self.setting, length=length)
        return torch.tensor(derive_frequencies(self.scaling, setting), dtype=torch.float64)

    def _measure_frequencies(self) -> tuple[Omega, Omega]:
        """(omega, scale) of each pair: neighbours m, n = m - 1 and unit vectors e, e' of one pair.

        scale cos omega = <R_m e, R_n e>        scale sin omega = <R_m e, R_n e'>

        Zero vectors fill the context: a scaling may depend on the number of keys.
        """
        units = torch.eye(self.dim, dtype=torch.float64)
        keys, last = (
            torch.eye(self.end, self.dim, dtype=torch.float64),
            torch.tensor([self.end - 1]),
        )
        query_ids, key_ids = last.expand(self.dim // 2), (last - 1).expand(self.end)
        scores = self.score(units[::2], query_ids, keys, key_ids)[:, : self.dim]
        cosines, sines = scores.unflatten(-1, (-1, 2)).diagonal(dim1=0, dim2=1)
        return torch.atan2(sines, cosines), torch.hypot(sines, cosines)

    def frequency_error(self) -> float:
        """Largest relative difference of an omega_i from its formula."""
        derived = torch.tensor(self.derived_omega, dtype=torch.float64)
        return float((self.omega / derived - 1).abs().max())

    def rotated(self, x: Vector, *, as_key: bool) -> Vectors:
        """R_t x for every t: the scores of x with the unit vectors, which stay at position 0."""
        units, ids = torch.eye(self.dim, dtype=torch.float64), torch.arange(self.length)
        at_zero, x = torch.zeros(self.dim, dtype=torch.long), x.expand(self.length, -1)
        scores = (
            self.score(units, at_zero, x, ids).T if as_key else self.score(x, ids, units, at_zero)
        )
        return scores / self.derived_scale

    def by_matrix(self, x: Vector) -> Vectors:
        """(x1 cos - x2 sin, x2 cos + x1 sin), for every t"""
        omega = self.derive_omega(self.length)
        return torch.stack([rotate(x, t, omega) for t in range(self.length)])

    def by_complex(self, x: Vector) -> Vectors:
        """(x1 + i x2) e^(i t omega), for every t"""
        angles = torch.arange(self.length, dtype=torch.float64)[:, None] * self.derive_omega(
            self.length
        )
        return torch.view_as_real(as_complex(x) * torch.exp(1j * angles)).flatten(1)

    def closed_form(
        self, x: Vector, y: Vector, distances: Tensor, length: int | None = None
    ) -> Tensor:
        """sum_i |x_i| |y_i| cos((n - m) omega_i + arg y_i - arg x_i), times the scale, for each n - m"""
        one, other = as_complex(x), as_complex(y)
        omegas = self.derive_omega(length or self.length)
        pairs = zip(one.abs() * other.abs(), other.angle() - one.angle(), omegas, strict=True)
        total = sum(a * torch.cos(distances * omega + phase) for a, phase, omega in pairs)
        return self.derived_scale * torch.as_tensor(total)


def measure_causal(params: RotaryParameters, scaling: str, x: Vector, y: Vector) -> float:
    """Largest difference of a causal head's score from the closed form, far beyond its original length.

    Query t has t + 1 keys, so a scaling by the length at hand gives it frequencies of its own.
    """
    head = RotaryHead(params.model_copy(update={"original_length": params.length // 4}), scaling)
    ids = torch.arange(params.length)
    queries, keys = (vector.expand(params.length, -1) for vector in (x, y))
    causal = ids[:, None] >= ids
    scores = head.score(queries, ids, keys, ids, causal)
    errors = [
        largest(scores[t, : t + 1] - head.closed_form(x, y, (ids[: t + 1] - t).double(), t + 1))
        for t in range(params.length)
    ]
    return float(torch.tensor(errors).max()) / (head.derived_scale * score_bound(x, y))


def score_bound(x: Vector, y: Vector) -> float:
    """sum_i |x_i| |y_i|, the largest possible score"""
    return float((as_complex(x).abs() * as_complex(y).abs()).sum())


class Measurement:
    """What a head does to the query x and the key y, at every pair of positions."""

    def __init__(self, head: RotaryHead, x: Vector, y: Vector, rotate_keys: bool) -> None:
        self.head = head
        ids = torch.arange(head.length)
        key_ids = ids if rotate_keys else torch.zeros_like(ids)
        queries, keys = (vector.expand(head.length, -1) for vector in (x, y))
        self.scores: Scores = head.score(queries, ids, keys, key_ids)
        self.derived = head.closed_form(x, y, (key_ids - ids[:, None]).double())
        self.largest_score = head.derived_scale * score_bound(x, y)
        rotated = {"query": head.rotated(x, as_key=False), "key": head.rotated(y, as_key=True)}
        vectors = {"query": x, "key": y}
        self.rotation_errors = {
            name: largest(rotated[name] - head.by_matrix(vector)) / float(vector.norm())
            for name, vector in vectors.items()
        }
        self.complex_error = largest(head.by_matrix(x) - head.by_complex(x))
        self.norm_error = largest(
            torch.stack([rotated[n].norm(dim=-1) / v.norm() - 1 for n, v in vectors.items()])
        )
        self.score_error = largest(self.scores - self.derived) / self.largest_score
        self.spread = largest(spread_by_distance(self.scores)) / self.largest_score
        by_distance = self.scores[0]  # seen from the first query
        # With random phases, the terms of a score add up to about this.
        typical = head.derived_scale * float((as_complex(x).abs() * as_complex(y).abs()).norm())
        self.range = float(by_distance.max() - by_distance.min()) / typical


def as_complex(x: Vector) -> Tensor:
    """Each pair (x1, x2) as x1 + i x2"""
    return torch.complex(x[::2], x[1::2])


def largest(errors: Tensor) -> float:
    """The largest magnitude; NaN if there is one."""
    return float(errors.abs().max())
