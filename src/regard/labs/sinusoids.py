"""Sinusoids: to move on by k is one and the same rotation, wherever one stands."""

import math
from collections.abc import Callable, Iterator

import torch
from jaxtyping import Float
from matplotlib.figure import Figure
from pydantic import Field
from torch import Generator, Tensor

from regard.attention import POSITIONS
from regard.config import Sinusoidal
from regard.diagrams.themes import Theme
from regard.labs.lab import Check, Exercise, Findings, Lab, Parameters, Result, ResultTable
from regard.labs.plotting import add_legend, add_subplots
from regard.labs.rotations import (
    FLOAT32_ROUNDING,
    ROUNDING,
    Omega,
    angle_difference,
    frequencies,
    min_max_by_distance,
    relative_distances,
    rotation_matrix,
)

Table = Float[Tensor, "length width"]


class SinusoidsParameters(Parameters):
    width: int = Field(32, ge=2, le=512, multiple_of=2)
    """D, how wide an encoding is: D/2 pairs of a sine and a cosine."""
    length: int = Field(64, ge=8, le=512)
    """How many positions are looked at."""
    shift: int = Field(5, ge=1, le=64)
    """k, how far to move on."""
    base: float = Field(10_000.0, ge=10, le=1e6)
    """The slowest wave is almost this many times slower than the fastest."""


def encoding(width: int, length: int, base: float = 10_000.0) -> Table:
    """PE(0), PE(1), ... as the library adds them to embeddings of nothing."""
    position = POSITIONS["sinusoidal"](width, 1, width, **Sinusoidal(base=base).options).double()
    nothing = torch.zeros(1, length, width, dtype=torch.float64)
    return position.embed(nothing, torch.arange(length)[None])[0]


def paces(table: Table) -> Omega:
    """The angle by which each pair (sin, cos) turns from 0 to 1, measured."""
    sines, cosines = table[1].unflatten(0, (-1, 2)).unbind(-1)
    return torch.atan2(sines, cosines)


def shift(k: int, width: int, base: float) -> Float[Tensor, "width width"]:
    """R_k: each pair (sin a, cos a) becomes (sin(a + k omega), cos(a + k omega))."""
    # A sine first: the pair turns the other way.
    return rotation_matrix(-k * frequencies(width, base))


def fitted(table: Table, k: int) -> Float[Tensor, "pairs 2 2"]:
    """For each pair alone, the 2 x 2 map from PE(t) to PE(t + k) that fits best over all t."""
    pairs = table.unflatten(-1, (-1, 2)).transpose(0, 1)
    return torch.linalg.lstsq(pairs[:, :-k], pairs[:, k:]).solution.transpose(1, 2)


# --- the exercise ---------------------------------------------------------------------------------


def grade(answer: Callable[..., Tensor]) -> Iterator[Check]:
    """Any matrix will do that takes every PE(t) to PE(t + k), and keeps lengths."""
    for k, width, base in ((1, 2, 10_000.0), (3, 6, 10_000.0), (7, 10, 100.0)):
        table = encoding(width, 60 + k, base)
        given = f"k = {k}, width = {width}, base = {base:g}"
        made = answer(k, width, base)
        misses = (table[:60] @ made.T - table[k : 60 + k]).abs().amax(-1)
        t = int(misses.argmax())
        yield Check(
            f"|R PE(t) - PE(t + k)| at its largest, t = {t} ({given})",
            float(misses[t]),
            "<=",
            0,
            1e-4,
            hint="sin(a + b) = sin a cos b + cos a sin b and cos(a + b) = cos a cos b - sin a sin b, "
            "with b = k omega_i, omega_i = base^(-2i / width) for pair i = 0, 1, ...; R acts on columns, "
            f"and pair i is rows 2i (sine) and 2i + 1 (cosine). At t = 0 it is off by {misses[0]:.2g}.",
        )
        yield Check(
            f"|R^T R - 1| ({given})",
            float((made.T @ made - torch.eye(width, dtype=torch.float64)).abs().max()),
            "<=",
            0,
            1e-4,
            hint="A rotation keeps lengths and angles: its columns are orthonormal.",
        )


class Sinusoids(Lab):
    """PE(t + k) = R_k PE(t)."""

    name = "sinusoids"
    claim = "PE(t + k) is a fixed rotation of PE(t), so PE(s) · PE(t) depends on t - s only"
    derivation = """
PE(t) stacks pairs (sin t omega_i, cos t omega_i), omega_i = base^(-2i / D), i = 0 .. D/2 - 1. By the
addition theorems

    sin((t + k) omega) =  cos(k omega) sin(t omega) + sin(k omega) cos(t omega)
    cos((t + k) omega) = -sin(k omega) sin(t omega) + cos(k omega) cos(t omega)

so PE(t + k) = R_k PE(t), with R_k made of 2 x 2 rotations by k omega_i and no t in it: a linear layer can
look k places on. And sin a sin b + cos a cos b = cos(a - b), so

    PE(s) . PE(t) = sum_i cos((t - s) omega_i)

which is D/2 for s = t, and the same wherever the two stand.
"""
    parameters = SinusoidsParameters
    exercise = Exercise(
        starter='''
def shift(k, width, base):
    """The matrix that moves a sinusoidal encoding on by k places.

    PE(t) has an even width; its entries 2i and 2i + 1 are sin and cos of t base^(-2i / width).
    Return a tensor R [width, width], of which t is no part, with R @ PE(t) = PE(t + k) for every t.
    """
    raise NotImplementedError
''',
        solution=shift,
        grade=grade,
        background="""
PE(t) stacks pairs (sin t omega_i, cos t omega_i), omega_i = base^(-2i / width), i = 0 .. width/2 - 1.

    sin(a + b) = sin a cos b + cos a sin b        cos(a + b) = cos a cos b - sin a sin b
""",
    )

    def measure(self, params: SinusoidsParameters, generator: Generator) -> Findings:
        length, k = params.length, params.shift
        table = encoding(params.width, length + k, params.base)
        omega, formula = paces(table), frequencies(params.width, params.base)
        moved = table[:length] @ rotation_matrix(-k * omega).T
        found = fitted(table, k)
        turned, wanted = torch.atan2(found[:, 0, 1], found[:, 0, 0]), k * omega
        rigid = found.transpose(1, 2) @ found - torch.eye(2, dtype=torch.float64)
        products = table[:length] @ table[:length].T
        least, most = min_max_by_distance(products)
        away = relative_distances(length)
        closed = torch.cos(away[:, None] * omega).sum(-1)
        nearest = torch.stack([most - closed, closed - least])
        many = ROUNDING * params.width
        checks = {
            "relative difference of omega_i from base^(-2i / D)": (
                omega / formula - 1,
                FLOAT32_ROUNDING,
            ),
            "|PE(t + k) - R_k PE(t)|, over all t": (table[k:] - moved, ROUNDING),
            "|M^T M - 1|, M the best 2 x 2 map of a pair": (rigid, ROUNDING),
            "difference of the angle of M from k omega_i": (
                angle_difference(turned, wanted),
                ROUNDING,
            ),
            "spread of PE(s) . PE(t) at one distance": (most - least, many),
            "difference of PE(s) . PE(t) from sum_i cos((t - s) omega_i)": (nearest, many),
        }
        whole = 2 * math.pi
        series = {"least": least, "most": most, "closed": closed}
        return Findings(
            figures={
                "omegas": omega.tolist(),
                "distances": away.tolist(),
                "angles": turned.remainder(whole).tolist(),
                "closed_angles": wanted.remainder(whole).tolist(),
                **{f"{name}_products": values.tolist() for name, values in series.items()},
            },
            checks=[
                Check(f"largest {name}", float(found.abs().max()), "<=", 0, room)
                for name, (found, room) in checks.items()
            ],
            table=ResultTable(
                ["t - s", "least PE(s) . PE(t)", "most", "closed form"],
                [
                    [int(away[i]), *(float(values[i]) for values in series.values())]
                    for i in range(0, len(away), max(1, len(away) // 8))
                ],
            ),
        )

    def draw(self, result: Result, figure: Figure, colours: Theme) -> None:
        found, k = result.figures, result.parameters["shift"]
        left, right = add_subplots(figure, colours, columns=2)
        pairs = range(1, len(found["angles"]) + 1)
        told = rf"from $PE(t)$ to $PE(t + {k})$, fitted"
        left.plot(pairs, found["closed_angles"], label=rf"${k}\,\omega_i$ (modulo $2\pi$)")
        left.plot(pairs, found["angles"], "o", ms=4, label=told)
        left.set(yscale="log", xlabel="pair i", ylabel="turned by (radians)")
        away = found["distances"]
        right.plot(away, found["closed_products"], label=r"$\sum_i \cos((t - s)\,\omega_i)$")
        right.plot(away, found["most_products"], "o", ms=5, label="most, over all s")
        right.plot(away, found["least_products"], "o", ms=2.5, label="least, over all s")
        right.set(xlabel=r"distance $t - s$ (tokens)", ylabel=r"$PE(s) \cdot PE(t)$")
        for panel in (left, right):
            add_legend(panel, colours, loc="lower left", bbox_to_anchor=(0, 1), ncols=2)
