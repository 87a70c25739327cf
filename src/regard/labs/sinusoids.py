"""Sinusoids: a shift by k positions is a fixed rotation, the same at every position."""

import math
from collections.abc import Callable, Iterator
from typing import ClassVar

import torch
from jaxtyping import Float
from matplotlib.figure import Figure
from pydantic import Field
from torch import Generator, Tensor

from regard.attention import POSITIONS, Position
from regard.config import Sinusoidal
from regard.diagrams.themes import Theme
from regard.labs.lab import Check, Exercise, Findings, Lab, Parameters, Result, ResultTable, Value
from regard.labs.measurements.rotations import (
    FLOAT32_ROUNDING,
    ROUNDING,
    Omega,
    angle_difference,
    frequencies,
    min_max_by_distance,
    relative_distances,
    rotation_matrix,
)
from regard.labs.measurements.self_attention import ScoringHead
from regard.labs.plotting import add_legend, add_subplots

MIN_CHANGE = 0.1  # relative change of PE(t), and of PE(s) . PE(t), from which a reader can see it

Table = Float[Tensor, "length dim"]


class SinusoidsParameters(Parameters):
    d_model: int = Field(32, ge=2, le=512, multiple_of=2)
    """D, dimension of the encoding: D/2 pairs of a sine and a cosine."""
    length: int = Field(64, ge=8, le=512)
    """Number of positions to measure."""
    shift: int = Field(5, ge=0, le=64)
    """k, number of positions to shift by; 0 rotates nothing."""
    base: float = Field(10_000.0, ge=10, le=1e6)
    """Base of the frequencies: about the ratio of the highest to the lowest."""


def make_position(d_model: int, base: float) -> Position:
    """The library's sinusoidal position."""
    return POSITIONS["sinusoidal"](d_model, 1, d_model, **Sinusoidal(base=base).options).double()


def encode_positions(d_model: int, length: int, base: float = 10_000.0) -> Table:
    """PE(0), PE(1), ... as the library adds them to embeddings, here to zeros."""
    zeros = torch.zeros(1, length, d_model, dtype=torch.float64)
    return make_position(d_model, base).embed(zeros, torch.arange(length)[None])[0]


def score_positions(d_model: int, length: int, base: float) -> Float[Tensor, "length length"]:
    """PE(s) . PE(t): the scores of an attention head with W_Q = W_K = 1, for embeddings of 0."""
    head = ScoringHead(d_model, make_position(d_model, base))
    zeros, ids = torch.zeros(length, d_model, dtype=torch.float64), torch.arange(length)
    return head(zeros, ids, zeros, ids)


def measure_frequencies(table: Table) -> Omega:
    """The angle by which each pair (sin, cos) rotates from position 0 to 1."""
    sines, cosines = table[1].unflatten(0, (-1, 2)).unbind(-1)
    return torch.atan2(sines, cosines)


def shift(k: int, d_model: int, base: float) -> Float[Tensor, "dim dim"]:
    """R_k: each pair (sin a, cos a) becomes (sin(a + k omega), cos(a + k omega))."""
    # The sine comes first, so the rotation has the opposite sign.
    return rotation_matrix(-k * frequencies(d_model, base))


def fit_rotations(table: Table, k: int) -> Float[Tensor, "pairs 2 2"]:
    """For each pair, the least-squares 2 x 2 matrix that maps PE(t) to PE(t + k) for all t."""
    pairs = table.unflatten(-1, (-1, 2)).transpose(0, 1)
    steps = pairs.shape[1] - k
    return torch.linalg.lstsq(pairs[:, :steps], pairs[:, k:]).solution.transpose(1, 2)


# --- the exercise ---------------------------------------------------------------------------------


def grade(answer: Callable[..., Tensor]) -> Iterator[Check]:
    """The matrix must map every PE(t) to PE(t + k), and be orthogonal."""
    for k, d_model, base in ((1, 2, 10_000.0), (3, 6, 10_000.0), (7, 10, 100.0)):
        table = encode_positions(d_model, 60 + k, base)
        case = f"k = {k}, d_model = {d_model}, base = {base:g}"
        matrix = answer(k, d_model, base)
        errors = (table[:60] @ matrix.T - table[k : 60 + k]).abs().amax(-1)
        t = int(errors.argmax())
        yield Check(
            f"largest |R PE(t) - PE(t + k)|, at t = {t} ({case})",
            float(errors[t]),
            "<=",
            0,
            1e-4,
            hint="sin(a + b) = sin a cos b + cos a sin b and cos(a + b) = cos a cos b - sin a sin b, "
            "with b = k omega_i, omega_i = base^(-2i / d_model) for pair i = 0, 1, ...; R acts on columns, "
            f"and pair i is rows 2i (sine) and 2i + 1 (cosine). At t = 0 the error is {errors[0]:.2g}.",
        )
        yield Check(
            f"|R^T R - 1| ({case})",
            float((matrix.T @ matrix - torch.eye(d_model, dtype=torch.float64)).abs().max()),
            "<=",
            0,
            1e-4,
            hint="A rotation preserves lengths and angles: its columns are orthonormal.",
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

so PE(t + k) = R_k PE(t), where R_k consists of 2 x 2 rotations by k omega_i and does not depend on t: a
linear layer can compute a shift by k positions. And sin a sin b + cos a cos b = cos(a - b), so

    PE(s) . PE(t) = sum_i cos((t - s) omega_i)

which is D/2 for s = t, and depends on t - s only. We read it from the scores of an attention head with
W_Q = W_K = 1, whose embeddings are 0. The effect: R_k moves PE(t), and the score falls with the distance.
"""
    parameters = SinusoidsParameters
    absent: ClassVar[dict[str, Value]] = {"shift": 0}
    exercise = Exercise(
        starter='''
def shift(k, d_model, base):
    """Return the matrix that shifts a sinusoidal encoding by k positions.

    PE(t) has an even dimension d_model; its elements 2i and 2i + 1 are sin and cos of t base^(-2i / d_model).
    Return a tensor R [d_model, d_model], independent of t, with R @ PE(t) = PE(t + k) for every t.
    """
    raise NotImplementedError
''',
        solution=shift,
        grade=grade,
        background="""
PE(t) stacks pairs (sin t omega_i, cos t omega_i), omega_i = base^(-2i / d_model), i = 0 .. d_model/2 - 1.

    sin(a + b) = sin a cos b + cos a sin b        cos(a + b) = cos a cos b - sin a sin b
""",
    )

    def measure(self, params: SinusoidsParameters, generator: Generator) -> Findings:
        length, k = params.length, params.shift
        table = encode_positions(params.d_model, length + k, params.base)
        omega, formula = measure_frequencies(table), frequencies(params.d_model, params.base)
        shifted = table[:length] @ rotation_matrix(-k * omega).T
        matrices = fit_rotations(table, k)
        angles, expected_angles = torch.atan2(matrices[:, 0, 1], matrices[:, 0, 0]), k * omega
        orthogonality = matrices.transpose(1, 2) @ matrices - torch.eye(2, dtype=torch.float64)
        minima, maxima = min_max_by_distance(score_positions(params.d_model, length, params.base))
        distances = relative_distances(length)
        closed_form = torch.cos(distances[:, None] * omega).sum(-1)
        differences = torch.stack([maxima - closed_form, closed_form - minima])
        moved = (table[k:] - table[:length]).norm(dim=-1) / table[:length].norm(dim=-1)
        lowest = minima / (params.d_model / 2)
        sum_rounding = ROUNDING * params.d_model
        errors = {
            "relative difference of omega_i from base^(-2i / D)": (
                omega / formula - 1,
                FLOAT32_ROUNDING,
            ),
            "|PE(t + k) - R_k PE(t)|, over all t": (table[k:] - shifted, ROUNDING),
            "|M^T M - 1|, M the fitted 2 x 2 matrix of a pair": (orthogonality, ROUNDING),
            "difference of the angle of M from k omega_i": (
                angle_difference(angles, expected_angles),
                ROUNDING,
            ),
            "spread of PE(s) . PE(t) at one distance": (maxima - minima, sum_rounding),
            "difference of PE(s) . PE(t) from sum_i cos((t - s) omega_i)": (
                differences,
                sum_rounding,
            ),
        }
        series = {"min": minima, "max": maxima, "closed_form": closed_form}
        return Findings(
            figures={
                "omegas": omega.tolist(),
                "distances": distances.tolist(),
                "moved": moved.tolist(),
                "angles": angles.remainder(2 * math.pi).tolist(),
                "expected_angles": expected_angles.remainder(2 * math.pi).tolist(),
                **{f"{name}_products": values.tolist() for name, values in series.items()},
            },
            law=[
                Check.worst(f"largest {name}", values.abs().flatten().tolist(), "<=", 0, tolerance)
                for name, (values, tolerance) in errors.items()
            ],
            effect=[
                Check.worst(
                    "smallest |PE(t + k) - PE(t)| / |PE(t)|, over all t",
                    moved.tolist(),
                    ">=",
                    MIN_CHANGE,
                    hint="The rotation is (almost) the identity.",
                ),
                Check(
                    "lowest PE(s) . PE(t), as a part of its value D/2 at s = t",
                    float(lowest.min()),
                    "<=",
                    1 - MIN_CHANGE,
                    hint="It hardly depends on the distance.",
                ),
            ],
            table=ResultTable(
                ["t - s", "minimum of PE(s) . PE(t)", "maximum", "closed form"],
                [
                    [int(distances[i]), *(float(values[i]) for values in series.values())]
                    for i in range(0, len(distances), max(1, len(distances) // 8))
                ],
            ),
        )

    def draw(self, result: Result, figure: Figure, colours: Theme) -> None:
        data, k = result.figures, result.parameters["shift"]
        left, right = add_subplots(figure, colours, columns=2)
        pairs = range(1, len(data["angles"]) + 1)
        fitted = rf"from $PE(t)$ to $PE(t + {k})$, fitted"
        left.plot(pairs, data["expected_angles"], label=rf"${k}\,\omega_i$ (modulo $2\pi$)")
        left.plot(pairs, data["angles"], "o", ms=4, label=fitted)
        left.set(xlabel="pair i", ylabel="rotation angle (radians)")
        left.set(yscale="log" if k else "linear")
        distances = data["distances"]
        label = r"$\sum_i \cos((t - s)\,\omega_i)$"
        right.plot(distances, data["closed_form_products"], label=label)
        right.plot(distances, data["max_products"], "o", ms=5, label="maximum over s")
        right.plot(distances, data["min_products"], "o", ms=2.5, label="minimum over s")
        right.set(xlabel=r"distance $t - s$ (tokens)", ylabel=r"$PE(s) \cdot PE(t)$")
        for panel in (left, right):
            add_legend(panel, colours, loc="lower left", bbox_to_anchor=(0, 1), ncols=2)
