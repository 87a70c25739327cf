"""Rotary: queries and keys are rotated by position, so scores depend on the relative distance only."""

from collections.abc import Callable, Iterator, Mapping
from typing import Literal

import torch
from jaxtyping import Float, Int
from matplotlib.figure import Figure
from pydantic import Field
from torch import Generator, Tensor

from regard.attention import POSITIONS
from regard.attention.positions import SCALINGS
from regard.diagrams.themes import Theme
from regard.labs.lab import Check, Exercise, Findings, Lab, Parameters, Result, ResultTable
from regard.labs.plotting import add_legend, add_subplots
from regard.labs.rotations import (
    FLOAT32_ROUNDING,
    ROUNDING,
    Omega,
    frequencies,
    min_max_by_distance,
    relative_distances,
    rotation_matrix,
)

Vectors = Float[Tensor, "length dim"]
Vector = Float[Tensor, " dim"]

COLUMNS = "scaling", "spread at one distance", "|R_t x| / |x|", "parameters", "lowest omega"
ERRORS = {  # what is 0 for every scaling, and its attribute of Measurement
    "spread of <R_m x, R_n y> at one distance": "spread",
    "difference of <R_m x, R_n y> from the closed form": "closed_form_error",
    "difference between R_t x and its matrix form": "matrix_error",
    "difference between matrix and complex form": "complex_error",
    "difference of |R_t x| / |x| from 1": "norm_error",
}


class RotaryParameters(Parameters):
    head_dim: int = Field(16, ge=4, le=256, multiple_of=2)
    """d, dimension of a head: d/2 pairs."""
    length: int = Field(48, ge=4, le=256)
    """Number of positions to measure."""
    base: float = Field(10_000.0, ge=10, le=1e6)
    """Base of the frequencies: about the ratio of the highest to the lowest."""
    factor: float = Field(4.0, gt=1, le=64)
    """s, by how much the context is extended, for the scaled variants."""


class Rotation:
    """The library's rotary embedding, with frequencies measured from its outputs."""

    def __init__(self, params: RotaryParameters, scaling: str) -> None:
        options = {
            "base": params.base,
            "scaling": scaling,
            "factor": params.factor,
            "original_length": params.length,
        }
        dim = params.head_dim
        self.position = POSITIONS["rotary"](dim, 1, dim, **options).double()
        rotated = self(torch.eye(dim, dtype=torch.float64)[::2], torch.tensor([1]))
        cosines, sines = rotated.unflatten(-1, (-1, 2)).diagonal(dim1=0, dim2=1)
        self.omega: Omega = torch.atan2(sines, cosines)
        self.parameter_count = sum(p.numel() for p in self.position.parameters())

    def __call__(self, x: Vectors, position_ids: Int[Tensor, " positions"]) -> Vectors:
        """R_t x, for one vector at several positions or several vectors at one."""
        count = max(len(x), len(position_ids))
        position_ids = position_ids.expand(count)[None]
        return self.position.rotate(x.expand(count, -1)[None, None], position_ids)[0, 0]

    def by_matrix(self, x: Vector, t: int) -> Vector:
        """A block-diagonal matrix of 2 x 2 rotations by t omega_i, times x."""
        return rotation_matrix(t * self.omega) @ x

    def by_complex(self, x: Vector, t: int) -> Vector:
        """(x1 + i x2) e^(i t omega)"""
        numbers = torch.complex(x[::2], x[1::2]) * torch.exp(1j * t * self.omega)
        return torch.view_as_real(numbers).flatten()

    def products(self, x: Vector, y: Vector, distances: Tensor) -> Tensor:
        """<R_m x, R_n y> for each n - m: sum_i |x_i| |y_i| cos((n - m) omega_i + arg y_i - arg x_i)"""
        one, other = torch.complex(x[::2], x[1::2]), torch.complex(y[::2], y[1::2])
        angles = distances[:, None] * self.omega + other.angle() - one.angle()
        return (one.abs() * other.abs() * angles.cos()).sum(-1)


class Measurement:
    """Properties of the rotated x and y over all pairs of positions."""

    def __init__(self, rotation: Rotation, x: Vector, y: Vector, length: int) -> None:
        self.rotation = rotation
        position_ids = torch.arange(length)
        rows, columns = rotation(x[None], position_ids), rotation(y[None], position_ids)
        by_matrix, by_complex = (
            torch.stack([form(x, t) for t in range(length)])
            for form in (rotation.by_matrix, rotation.by_complex)
        )
        self.min, self.max = min_max_by_distance(rows @ columns.T)
        self.closed_form = rotation.products(x, y, relative_distances(length))
        self.norms = rows.norm(dim=-1) / x.norm()
        self.spread = float((self.max - self.min).max())
        differences = torch.stack([self.max - self.closed_form, self.closed_form - self.min])
        self.closed_form_error = float(differences.abs().max())
        self.matrix_error = float((rows - by_matrix).abs().max())
        self.complex_error = float((by_matrix - by_complex).abs().max())
        self.norm_error = float(self.norms.sub(1).abs().max())


def check_worst(
    name: str, values: Mapping[str, float], relation: Literal["=", "<="], tolerance: float
) -> Check:
    """The value must be 0 for every scaling: check the largest."""
    scaling = max(values, key=lambda scaling: values[scaling])
    hint = f"With scaling {scaling}."
    return Check(f"largest {name}", values[scaling], relation, 0, tolerance, hint=hint)


def check_rotations(
    measured: Mapping[str, Measurement], params: RotaryParameters
) -> Iterator[Check]:
    """Every scaling against the properties of a rotation; unscaled, also its frequencies."""
    for label, name in ERRORS.items():
        values = {scaling: getattr(m, name) for scaling, m in measured.items()}
        yield check_worst(label, values, "<=", ROUNDING * params.head_dim)
    counts = {scaling: m.rotation.parameter_count for scaling, m in measured.items()}
    yield check_worst("number of parameters", counts, "=", 0)
    unscaled, formula = measured["none"], frequencies(params.head_dim, params.base)
    yield Check(
        "largest relative difference of omega_i from its formula",
        float((unscaled.rotation.omega / formula - 1).abs().max()),
        "<=",
        0,
        FLOAT32_ROUNDING,
    )


# --- the exercise ---------------------------------------------------------------------------------


def rotate(x: Vector, t: int, omega: Omega) -> Vector:
    """(x1 cos - x2 sin, x2 cos + x1 sin) for each pair"""
    x1, x2, angle = x[::2], x[1::2], t * omega
    pairs = x1 * angle.cos() - x2 * angle.sin(), x2 * angle.cos() + x1 * angle.sin()
    return torch.stack(pairs, dim=-1).flatten()


def grade(answer: Callable[..., Tensor]) -> Iterator[Check]:
    """The rotation must preserve norms, depend on the distance only, and rotate pair i by t omega_i."""
    generator = torch.Generator().manual_seed(0)
    for dim, m, n, shift in ((2, 0, 1, 5), (6, 3, 7, 11), (10, 20, 1, 100)):
        omega = frequencies(dim, 10_000.0)
        case = f"dimension {dim}"

        def rotated(x: Tensor, t: int, omega: Tensor = omega) -> Tensor:
            return answer(x.clone(), t, omega.clone())

        x, y = torch.randn(2, dim, dtype=torch.float64, generator=generator)
        yield Check(
            f"|R_t x| / |x| ({case}, t = {n})",
            float(rotated(x, n).norm() / x.norm()),
            "=",
            1,
            1e-5,
            hint="A rotation preserves norms: each pair (x1, x2) keeps x1^2 + x2^2, as cos^2 + sin^2 = 1.",
        )
        yield Check(
            f"<R_m x, R_n y> with m and n shifted by {shift} ({case}, m = {m}, n = {n})",
            float(rotated(x, m + shift) @ rotated(y, n + shift)),
            "=",
            float(rotated(x, m) @ rotated(y, n)),
            1e-5,
            hint="It must depend on m - n only: rotate (x1, x2) by one angle, proportional to t.",
        )
        units = torch.eye(dim, dtype=torch.float64)
        for j in (1, dim - 2):
            yield Check(
                f"<e, R_t e> for e = unit vector {j} ({case}, t = {n})",
                float(units[j] @ rotated(units[j], n)),
                "=",
                float(torch.cos(n * omega[j // 2])),
                1e-5,
                hint=f"Element {j} belongs to pair {j // 2}, which rotates by t omega[{j // 2}]: pairs are "
                "adjacent, (0, 1), (2, 3), .. (Some code pairs halves: the same, up to a permutation.)",
            )


class Rotary(Lab):
    """<R_m x, R_n y> depends on m - n only."""

    name = "rotary"
    claim = "Rotary preserves norms, has no parameters, and makes scores depend on the relative distance only"
    derivation = """
R_t rotates pair i of a query or key by the angle t omega_i, omega_i = base^(-2(i - 1) / d), i = 1 .. d/2:

    matrix    (x1, x2) -> (x1 cos - x2 sin, x2 cos + x1 sin)
    complex   x1 + i x2 -> (x1 + i x2) e^(i t omega)

Rotations preserve norms, and R_m^T R_n = R_(n - m), so

    <R_m x, R_n y> = <x, R_(n - m) y> = sum_i |x_i| |y_i| cos((n - m) omega_i + arg y_i - arg x_i)

with x_i, y_i the pairs as complex numbers: absolute positions cancel. Scaling the omega_i for longer contexts
(linear, ntk, yarn) does not change that; yarn also multiplies all scores by the same factor.
"""
    parameters = RotaryParameters
    exercise = Exercise(
        starter='''
def rotate(x, t, omega):
    """Return R_t x: a query or key rotated to position t.

    x: a tensor [d], d even; t: an int, the position; omega: a tensor [d/2], the angle in radians by which
    each pair rotates per position. Pairs are adjacent: (x[0], x[1]), (x[2], x[3]), ... Return a tensor [d].
    """
    raise NotImplementedError
''',
        solution=rotate,
        grade=grade,
        background="""
A pair (x1, x2) is a complex number x1 + i x2, and multiplying it by e^(i a) = cos a + i sin a rotates it by
the angle a. Position t rotates pair i by t omega_i, so a query at m and a key at n differ by (n - m) omega_i.
""",
    )

    def measure(self, params: RotaryParameters, generator: Generator) -> Findings:
        x, y = torch.randn(2, params.head_dim, dtype=torch.float64, generator=generator)
        measured = {
            scaling: Measurement(Rotation(params, scaling), x, y, params.length)
            for scaling in SCALINGS
        }
        rotations = [m.rotation for m in measured.values()]
        norms = [float(m.norms.mean()) for m in measured.values()]
        counts = [rotation.parameter_count for rotation in rotations]
        spreads = [m.spread for m in measured.values()]
        lowest = [float(rotation.omega.min()) for rotation in rotations]
        return Findings(
            figures={
                "scalings": list(measured),
                "distances": relative_distances(params.length).tolist(),
                "omegas": [rotation.omega.tolist() for rotation in rotations],
                "norms": norms,
                "parameters": counts,
                "min_products": [m.min.tolist() for m in measured.values()],
                "max_products": [m.max.tolist() for m in measured.values()],
                "closed_form_products": [m.closed_form.tolist() for m in measured.values()],
            },
            effect=[],
            law=list(check_rotations(measured, params)),
            table=ResultTable(
                COLUMNS,
                [list(row) for row in zip(measured, spreads, norms, counts, lowest, strict=True)],
            ),
        )

    def draw(self, result: Result, figure: Figure, colours: Theme) -> None:
        data = result.figures
        left, right = add_subplots(figure, colours, columns=2)
        distances = data["distances"]
        left.plot(distances, data["closed_form_products"][0], label="closed form")
        left.plot(distances, data["max_products"][0], "o", ms=5, label="maximum over m")
        left.plot(distances, data["min_products"][0], "o", ms=2.5, label="minimum over m")
        half = len(distances) // 2
        for i, name in enumerate(data["scalings"]):
            line = right.plot(
                distances[half:],
                data["closed_form_products"][i][half:],
                label={"none": "unscaled"}.get(name, name),
            )[0]
            right.plot(
                distances[half:], data["max_products"][i][half:], ".", ms=5, color=line.get_color()
            )
        for panel in (left, right):
            panel.set(xlabel=r"distance $n - m$ (tokens)", ylabel=r"$\langle R_m x, R_n y \rangle$")
            add_legend(panel, colours, loc="lower left", bbox_to_anchor=(0, 1), ncols=2)
