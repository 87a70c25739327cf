"""Rotary: queries and keys are rotated by position, so scores depend on the relative distance only."""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import ClassVar

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Generator, Tensor

from regard.attention.positions import SCALINGS
from regard.diagrams.themes import Theme
from regard.labs.cases import check_cases
from regard.labs.lab import Check, Exercise, Findings, Lab, Result, ResultTable, Value
from regard.labs.measurements.rotary_head import (
    Measurement,
    RotaryHead,
    RotaryParameters,
    measure_causal,
    rotate,
)
from regard.labs.measurements.rotary_scalings import FREQUENCIES
from regard.labs.measurements.rotations import FLOAT32_ROUNDING, ROUNDING, frequencies
from regard.labs.plotting import add_legend, add_subplots

# The library's omega_i are float32: over t positions, an angle is off by at most t times this.
ANGLE_ROUNDING = 2**-20
MIN_RANGE = 0.2  # the score must vary with the distance by this part of its typical size
MARKERS = "os^"  # one for each query position in the plot

COLUMNS = (
    *("scaling", "highest omega", "lowest omega", "largest difference from its formula"),
    *("score scale", "spread at one distance", "range over distances"),
)


Measurements = Mapping[str, Measurement]


def check_law(
    measured: Measurements, causal: Mapping[str, float], params: RotaryParameters
) -> Iterator[Check]:
    """Every scaling against its own formula, and against the properties of a rotation."""
    missing = [scaling for scaling in SCALINGS if scaling not in FREQUENCIES]
    yield Check(
        "scalings of the library without a formula here",
        len(missing),
        "=",
        0,
        hint=f"Nothing is known about {', '.join(missing)}.",
    )
    for scaling, m in measured.items():
        yield Check(
            f"scaling {scaling}: largest relative difference of omega_i from its formula",
            m.head.frequency_error(),
            "<=",
            0,
            FLOAT32_ROUNDING,
        )
        yield Check.worst(
            f"scaling {scaling}: factor of every score",
            m.head.scale.tolist(),
            "=",
            m.head.derived_scale,
            ROUNDING,
        )
    angle = params.length * ANGLE_ROUNDING
    errors = {
        "|R_t q - its matrix form| / |q|": (lambda m: m.rotation_errors["query"], angle),
        "|R_t k - its matrix form| / |k|": (lambda m: m.rotation_errors["key"], angle),
        "difference between matrix and complex form": (lambda m: m.complex_error, ROUNDING),
        "difference of |R_t x| / |x| from 1": (lambda m: m.norm_error, ROUNDING),
        "difference of a score from the closed form": (lambda m: m.score_error, angle),
        "number of parameters": (lambda m: m.head.parameter_count, 0),
    }
    for name, (error, tolerance) in errors.items():
        values = {scaling: error(m) for scaling, m in measured.items()}
        yield check_cases(f"largest {name}", values, "<=", 0, tolerance, "With scaling {}.")
    yield check_cases(
        "difference of a causal score from the closed form for its number of keys, up to 4 original lengths",
        causal,
        "<=",
        0,
        angle,
        "With scaling {}.",
    )


def check_effect(measured: Measurements) -> Iterator[Check]:
    """The score depends on the relative distance, and on nothing else."""
    yield check_cases(
        "largest spread of a score at one distance, as a part of its largest possible value",
        {scaling: m.spread for scaling, m in measured.items()},
        "<=",
        0,
        ROUNDING,
        "With scaling {}, the score depends on the absolute position.",
    )
    yield check_cases(
        "smallest range of a score over the distances from query 0, as a part of its typical size",
        {scaling: m.range for scaling, m in measured.items()},
        ">=",
        MIN_RANGE,
        hint="With scaling {}, the score hardly depends on the distance.",
    )


# --- the exercise ---------------------------------------------------------------------------------


def grade(answer: Callable[..., Tensor]) -> Iterator[Check]:
    """The rotation must preserve norms, depend on the distance only, and rotate pair i by +t omega_i."""
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
        for pair in range(dim // 2):
            output, angle = rotated(units[2 * pair], n), n * float(omega[pair])
            yield Check(
                f"element {2 * pair} of R_t e_{2 * pair}, a unit vector ({case}, t = {n})",
                float(output[2 * pair]),
                "=",
                math.cos(angle),
                1e-5,
                hint=f"Pair {pair} rotates by t omega[{pair}]: pairs are adjacent, (0, 1), (2, 3), .. (Some "
                "code pairs halves: the same, up to a permutation.)",
            )
            yield Check(
                f"element {2 * pair + 1} of R_t e_{2 * pair}, a unit vector ({case}, t = {n})",
                float(output[2 * pair + 1]),
                "=",
                math.sin(angle),
                1e-5,
                hint="(1, 0) becomes (cos, sin): the rotation is by +t omega, counter-clockwise. Rotating by "
                "-t omega has every property above, but it is not this one.",
            )
            other = rotated(units[2 * pair + 1], n)
            yield Check(
                f"difference of R_t e_{2 * pair + 1}, a unit vector, from (-sin, cos) ({case}, t = {n})",
                float(
                    (
                        other[2 * pair : 2 * pair + 2]
                        - other.new_tensor([-math.sin(angle), math.cos(angle)])
                    ).norm()
                ),
                "=",
                0,
                1e-5,
                hint="(0, 1) becomes (-sin, cos): (x1 cos - x2 sin, x2 cos + x1 sin). With other signs it is "
                "a reflection, which preserves norms too.",
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

with x_i, y_i the pairs as complex numbers: absolute positions cancel. If only queries were rotated, scores
would be <R_m x, y>, which depends on m. Scaling for a context s times as long changes the omega_i:

    linear    omega_i / s
    ntk       omega_i with the base b s^(d / (d - 2)): the highest stays, the lowest is divided by s
    yarn      g omega_i + (1 - g) omega_i / s, g rising from 0 to 1 between 1 and 32 rotations over the
              original length; also, every score is multiplied by (0.1 ln s + 1)^2
    dynamic-ntk   omega_i while a query has no more keys than the original length; then ntk with s = 2, 4,
              8, .. as the number of keys doubles. So a score depends on the distance only among queries
              with the same s: across a doubling, the same distance is rotated by other angles

We read everything from the scores of an attention head with W_Q = W_K = 1: R_t x from its scores with the
unit vectors at position 0, omega_i from the scores of neighbours.
"""
    parameters = RotaryParameters
    absent: ClassVar[dict[str, Value]] = {"rotate_keys": False}
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
            scaling: Measurement(RotaryHead(params, scaling), x, y, params.rotate_keys)
            for scaling in SCALINGS
            if scaling in FREQUENCIES
        }
        causal = {scaling: measure_causal(params, scaling, x, y) for scaling in measured}
        heads = [m.head for m in measured.values()]
        unscaled, last = measured["none"], params.length - 1
        distances = torch.arange(-last, last + 1, dtype=torch.float64)
        rows = [
            [
                *(scaling, float(m.head.omega.max()), float(m.head.omega.min())),
                *(m.head.frequency_error(), float(m.head.scale.mean()), m.spread, m.range),
            ]
            for scaling, m in measured.items()
        ]
        return Findings(
            figures={
                "scalings": list(measured),
                "omegas": [head.omega.tolist() for head in heads],
                "derived_omegas": [head.derived_omega for head in heads],
                "score_scales": [head.scale.tolist() for head in heads],
                "derived_score_scales": [head.derived_scale for head in heads],
                "parameters": [head.parameter_count for head in heads],
                "distances": distances.tolist(),
                "closed_form": unscaled.head.closed_form(x, y, distances).tolist(),
                "query_positions": (queries := sorted({0, last // 2, last})),
                "scores": unscaled.scores[queries].tolist(),
            },
            law=list(check_law(measured, causal, params)),
            effect=list(check_effect(measured)),
            table=ResultTable(COLUMNS, rows),
        )

    def draw(self, result: Result, figure: Figure, colours: Theme) -> None:
        left, right = add_subplots(figure, colours, columns=2)
        self._draw_scores(left, result.figures, colours)
        self._draw_frequencies(right, result.figures, colours)

    @staticmethod
    def _draw_scores(panel: Axes, data: dict, colours: Theme) -> None:
        """Scores of queries at several positions, over the one curve on which all should lie."""
        panel.plot(
            data["distances"],
            data["closed_form"],
            color=colours.dimmed,
            label=r"$\langle x, R_{n-m}\,y \rangle$, derived",
        )
        curves = zip(data["query_positions"], data["scores"], MARKERS, strict=False)
        for m, scores, marker in curves:
            distances = [n - m for n in range(len(scores))]
            panel.plot(distances, scores, marker, ms=4, mfc="none", label=f"query at $m = {m}$")
        panel.set(xlabel=r"distance $n - m$ (tokens)", ylabel=r"score of the key at $n$, unscaled")
        add_legend(panel, colours, loc="lower left", bbox_to_anchor=(0, 1), ncols=2)

    @staticmethod
    def _draw_frequencies(panel: Axes, data: dict, colours: Theme) -> None:
        """What a scaling makes of each frequency: measured dots over derived lines."""
        unscaled = data["derived_omegas"][data["scalings"].index("none")]
        series = zip(data["scalings"], data["omegas"], data["derived_omegas"], strict=True)
        for scaling, omegas, derived in series:
            measured, line = (
                [omega / original for omega, original in zip(values, unscaled, strict=True)]
                for values in (omegas, derived)
            )
            pairs = range(1, len(unscaled) + 1)
            label = {"none": "unscaled"}.get(scaling, scaling)
            dashed = "--" if scaling.startswith("dynamic") else "-"  # may lie on the line of ntk
            colour = panel.plot(pairs, line, dashed, lw=1.4, label=label)[0].get_color()
            panel.plot(pairs, measured, "o", ms=4, color=colour)
        panel.set(
            xlabel="pair i (lines: derived, dots: measured)",
            ylabel=r"$\omega_i$ / unscaled $\omega_i$",
            ylim=(0, None),
        )
        panel.xaxis.set_major_locator(MaxNLocator(integer=True))
        add_legend(panel, colours, loc="lower left", bbox_to_anchor=(0, 1), ncols=2)
