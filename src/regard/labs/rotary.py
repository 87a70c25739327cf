"""Rotary: queries and keys are turned by where they stand, and only their distance shows."""

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

Vectors = Float[Tensor, "length width"]
Vector = Float[Tensor, " width"]


class RotaryParameters(Parameters):
    width: int = Field(16, ge=4, le=256, multiple_of=2)
    """d, how wide a head is: d/2 pairs."""
    length: int = Field(48, ge=4, le=256)
    """How many positions are looked at."""
    base: float = Field(10_000.0, ge=10, le=1e6)
    """The slowest pair turns almost this many times slower than the fastest."""
    factor: float = Field(4.0, gt=1, le=64)
    """s, how many times longer a text may be, for the kinds that are slowed down."""


class Turned:
    """What the library's rotary does to vectors, measured from outside."""

    def __init__(self, params: RotaryParameters, scaling: str) -> None:
        slowed = {"scaling": scaling, "factor": params.factor, "original_length": params.length}
        options = {"base": params.base} | slowed
        self.position = POSITIONS["rotary"](params.width, 1, params.width, **options).double()
        turned = self(torch.eye(params.width, dtype=torch.float64)[::2], torch.tensor([1]))
        cosines, sines = turned.unflatten(-1, (-1, 2)).diagonal(dim1=0, dim2=1)
        self.omega: Omega = torch.atan2(sines, cosines)
        self.stretch = torch.hypot(sines, cosines).mean()

    def __call__(self, x: Vectors, at: Int[Tensor, " places"]) -> Vectors:
        """R_t x, for one vector at many places or many at one."""
        count = max(len(x), len(at))
        places = at.expand(count)[None]
        return self.position.rotate(x.expand(count, -1)[None, None], places)[0, 0]

    def by_matrix(self, x: Vector, t: int) -> Vector:
        """A matrix of 2 x 2 rotations by t omega_i, times x."""
        return self.stretch * rotation_matrix(t * self.omega) @ x

    def by_complex(self, x: Vector, t: int) -> Vector:
        """(x1 + i x2) e^(i t omega)"""
        numbers = torch.complex(x[::2], x[1::2]) * torch.exp(1j * t * self.omega)
        return self.stretch * torch.view_as_real(numbers).flatten()

    def products(self, x: Vector, y: Vector, away: Tensor) -> Tensor:
        """<R_m x, R_n y> for each n - m: s^2 sum_i |x_i| |y_i| cos((n - m) omega_i + arg y_i - arg x_i)"""
        one, other = torch.complex(x[::2], x[1::2]), torch.complex(y[::2], y[1::2])
        angles = away[:, None] * self.omega + other.angle() - one.angle()
        return self.stretch**2 * (one.abs() * other.abs() * angles.cos()).sum(-1)


class Seen:
    """How the turned x and y behave over all pairs of places."""

    def __init__(self, turned: Turned, x: Vector, y: Vector, length: int) -> None:
        at = torch.arange(length)
        rows, columns = turned(x[None], at), turned(y[None], at)
        matrix, numbers = (
            torch.stack([form(x, t) for t in range(length)])
            for form in (turned.by_matrix, turned.by_complex)
        )
        self.least, self.most = min_max_by_distance(rows @ columns.T)
        self.closed = turned.products(x, y, relative_distances(length))
        self.norms = rows.norm(dim=-1) / x.norm()
        self.spread = float((self.most - self.least).max())
        off = torch.stack([self.most - self.closed, self.closed - self.least])
        self.off = float(off.abs().max())
        self.matrix = float((rows - matrix).abs().max())
        self.forms = float((matrix - numbers).abs().max())
        self.uneven = float(self.norms.max() - self.norms.min())


def worst(what: str, of: Mapping[str, float], relation: Literal["=", "<="], room: float) -> Check:
    """Zero is the law, for every scaling: the one that is furthest from it."""
    name = max(of, key=lambda scaling: of[scaling])
    return Check(f"largest {what}", of[name], relation, 0, room, hint=f"With scaling {name}.")


# --- the exercise ---------------------------------------------------------------------------------


def turn(x: Vector, t: int, omega: Omega) -> Vector:
    """(x1 cos - x2 sin, x2 cos + x1 sin) for each pair"""
    one, other, angle = x[::2], x[1::2], t * omega
    pairs = one * angle.cos() - other * angle.sin(), other * angle.cos() + one * angle.sin()
    return torch.stack(pairs, dim=-1).flatten()


def grade(answer: Callable[..., Tensor]) -> Iterator[Check]:
    """Any turn will do that keeps lengths, shows distances alone, and turns pair i by t omega_i."""
    generator = torch.Generator().manual_seed(0)
    for width, m, n, on in ((2, 0, 1, 5), (6, 3, 7, 11), (10, 20, 1, 100)):
        omega = frequencies(width, 10_000.0)
        given = f"width {width}"

        def made(x: Tensor, t: int, omega: Tensor = omega) -> Tensor:
            return answer(x.clone(), t, omega.clone())

        x, y = torch.randn(2, width, dtype=torch.float64, generator=generator)
        yield Check(
            f"|R_t x| / |x| ({given}, t = {n})",
            float(made(x, n).norm() / x.norm()),
            "=",
            1,
            1e-5,
            hint="Turning keeps lengths: each pair (x1, x2) keeps x1^2 + x2^2, as cos^2 + sin^2 = 1.",
        )
        yield Check(
            f"<R_m x, R_n y> moved on by {on} ({given}, m = {m}, n = {n})",
            float(made(x, m + on) @ made(y, n + on)),
            "=",
            float(made(x, m) @ made(y, n)),
            1e-5,
            hint="It must depend on m - n alone: turn x1 and x2 by one angle, in proportion to t.",
        )
        units = torch.eye(width, dtype=torch.float64)
        for j in (1, width - 2):
            yield Check(
                f"<e, R_t e> for e = unit vector {j} ({given}, t = {n})",
                float(units[j] @ made(units[j], n)),
                "=",
                float(torch.cos(n * omega[j // 2])),
                1e-5,
                hint=f"Entry {j} belongs to pair {j // 2}, which turns by t omega[{j // 2}]: pairs are "
                "neighbours, (0, 1), (2, 3), .. (Some code pairs halves: the same, up to an order of rows.)",
            )


class Rotary(Lab):
    """<R_m x, R_n y> depends on m - n only."""

    name = "rotary"
    claim = (
        "Rotary keeps norms, learns nothing, and lets a query and a key know only their distance"
    )
    derivation = """
R_t turns pair i of a query or key by the angle t omega_i, omega_i = base^(-2(i - 1) / d), i = 1 .. d/2:

    matrix    (x1, x2) -> (x1 cos - x2 sin, x2 cos + x1 sin)
    complex   x1 + i x2 -> (x1 + i x2) e^(i t omega)

Rotations keep norms, and R_m^T R_n = R_(n - m), so

    <R_m x, R_n y> = <x, R_(n - m) y> = sum_i |x_i| |y_i| cos((n - m) omega_i + arg y_i - arg x_i)

with x_i, y_i the pairs as complex numbers: absolute places drop out. Slowing the omega_i down for longer
texts (linear, ntk, yarn) changes nothing in that; yarn also stretches all vectors alike.
"""
    parameters = RotaryParameters
    exercise = Exercise(
        starter='''
def turn(x, t, omega):
    """R_t x: a query or key as it is at place t.

    x: a tensor [d], d even; t: a whole number; omega: a tensor [d/2], how far each pair turns from one place
    to the next, in radians. Pairs are neighbours: (x[0], x[1]), (x[2], x[3]), ... Return a tensor [d].
    """
    raise NotImplementedError
''',
        solution=turn,
        grade=grade,
        background="""
A pair (x1, x2) is a complex number x1 + i x2, and a product with e^(i a) = cos a + i sin a turns it by the
angle a. Place t turns pair i by t omega_i, so a query at m and a key at n differ by (n - m) omega_i.
""",
    )

    def measure(self, params: RotaryParameters, generator: Generator) -> Findings:
        x, y = torch.randn(2, params.width, dtype=torch.float64, generator=generator)
        made = {scaling: Turned(params, scaling) for scaling in SCALINGS}
        seen = {name: Seen(turned, x, y, params.length) for name, turned in made.items()}
        plain, formula = made["none"], frequencies(params.width, params.base)
        learned = {
            name: sum(p.numel() for p in t.position.parameters()) for name, t in made.items()
        }
        small = {
            "spread of <R_m x, R_n y> at one distance": {n: s.spread for n, s in seen.items()},
            "difference of <R_m x, R_n y> from the closed form": {
                n: s.off for n, s in seen.items()
            },
            "difference between R_t x and its matrix form": {n: s.matrix for n, s in seen.items()},
            "difference between matrix and complex form": {n: s.forms for n, s in seen.items()},
            "change of |R_t x| / |x| with t": {n: s.uneven for n, s in seen.items()},
        }
        stretched = float(seen["none"].norms.sub(1).abs().max())
        omega = float((plain.omega / formula - 1).abs().max())
        return Findings(
            figures={
                "scalings": list(made),
                "distances": relative_distances(params.length).tolist(),
                "omegas": [turned.omega.tolist() for turned in made.values()],
                "norms": [float(s.norms.mean()) for s in seen.values()],
                "parameters": list(learned.values()),
                "least_products": [s.least.tolist() for s in seen.values()],
                "most_products": [s.most.tolist() for s in seen.values()],
                "closed_products": [s.closed.tolist() for s in seen.values()],
            },
            checks=[
                *(worst(what, of, "<=", ROUNDING * params.width) for what, of in small.items()),
                worst("number of parameters", learned, "=", 0),
                Check(
                    "largest difference of |R_t x| / |x| from 1, unscaled",
                    stretched,
                    "<=",
                    0,
                    ROUNDING,
                ),
                Check(
                    "largest relative difference of omega_i from its formula",
                    omega,
                    "<=",
                    0,
                    FLOAT32_ROUNDING,
                ),
            ],
            table=ResultTable(
                [
                    "scaling",
                    "spread at one distance",
                    "|R_t x| / |x|",
                    "parameters",
                    "slowest omega",
                ],
                [
                    [n, s.spread, float(s.norms.mean()), learned[n], float(made[n].omega.min())]
                    for n, s in seen.items()
                ],
            ),
        )

    def draw(self, result: Result, figure: Figure, colours: Theme) -> None:
        found = result.figures
        left, right = add_subplots(figure, colours, columns=2)
        away = found["distances"]
        left.plot(away, found["closed_products"][0], label="closed form")
        left.plot(away, found["most_products"][0], "o", ms=5, label="most, over all m")
        left.plot(away, found["least_products"][0], "o", ms=2.5, label="least, over all m")
        half = len(away) // 2
        for i, name in enumerate(found["scalings"]):
            line = right.plot(
                away[half:],
                found["closed_products"][i][half:],
                label={"none": "unscaled"}.get(name, name),
            )[0]
            right.plot(
                away[half:], found["most_products"][i][half:], ".", ms=5, color=line.get_color()
            )
        for panel in (left, right):
            panel.set(xlabel=r"distance $n - m$ (tokens)", ylabel=r"$\langle R_m x, R_n y \rangle$")
            add_legend(panel, colours, loc="lower left", bbox_to_anchor=(0, 1), ncols=2)
