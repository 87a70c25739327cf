"""Relative: a shift of all positions changes attention only if positions are absolute."""

from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar

import torch
from jaxtyping import Float
from matplotlib.figure import Figure
from pydantic import Field
from torch import Generator, Tensor

from regard.attention import attend
from regard.diagrams.themes import Theme
from regard.labs.cases import check_cases
from regard.labs.lab import Check, Exercise, Findings, Lab, Parameters, Result, ResultTable, Value
from regard.labs.measurements.self_attention import HEADS
from regard.labs.measurements.shifted_positions import (
    OTHER_ORDER,
    SENTENCE,
    Case,
    Class,
    measure_alibi,
    measure_cases,
)
from regard.labs.plotting import add_subplots, draw_differences

ROUNDING = 1e-9  # of float64, through two layers
MIN_CHANGE = 0.01  # of an attention weight
MIN_REORDERED = (
    0.001  # of a word vector, relative to its norm: untrained encoders attend almost uniformly
)
ALIBI_LENGTH = 16  # positions at which ALiBi's slopes are measured


class RelativeParameters(Parameters):
    shift: int = Field(7, ge=0, le=64)
    """k, by how many positions every token is shifted."""
    d_model: int = Field(32, ge=8, le=256, multiple_of=8)
    """d, model dimension; four heads of dimension d/4, which must be even for rotary."""


def derive_alibi(
    query_ids: Sequence[int], key_ids: Sequence[int], heads: int
) -> Float[Tensor, "heads query key"]:
    """-2^(-8h / H) |j - i| for the heads h = 1 .. H (Press et al., 2022)"""
    biases = [
        [[-(2 ** (-8 * h / heads)) * abs(j - i) for j in key_ids] for i in query_ids]
        for h in range(1, heads + 1)
    ]
    return torch.tensor(biases, dtype=torch.float64)


# --- the exercise ---------------------------------------------------------------------------------


def alibi(query_positions: Tensor, key_positions: Tensor, heads: int) -> Tensor:
    """-2^(-8h / H) |j - i|"""
    slopes = 2.0 ** (-8 * torch.arange(1, heads + 1, dtype=torch.float64) / heads)
    distances = (key_positions - query_positions[:, None]).abs()
    return -slopes[:, None, None] * distances


def grade(answer: Callable[..., Tensor]) -> Iterator[Check]:
    """Accept any bias with ALiBi's attention weights: a constant for each query changes none."""
    for queries, keys, heads, shift in (
        ([0, 1], [0, 1], 1, 9),
        ([4], [0, 1, 2, 3, 4], 4, 5),
        ([2, 3, 19], [3, 0, 7, 19, 5], 8, 40),
    ):
        case = f"queries at {queries}, keys at {keys}, {heads} heads"
        weights, shifted = (
            attend_with_bias(answer(torch.tensor(queries) + k, torch.tensor(keys) + k, heads))
            for k in (0, shift)
        )
        derived, logs = derive_alibi(queries, keys, heads), weights.log()
        nearest = derived.argmax(-1, keepdim=True)
        yield Check(
            f"smallest log of the nearest key's weight over another's ({case})",
            float((logs.take_along_dim(nearest, dim=-1) - logs).min()),
            ">=",
            0,
            1e-9,
            hint="The nearest key should have the largest weight: a bias is a penalty, so negative.",
        )
        # A constant for each query changes no weight, so log-weights are compared within a query.
        yield Check(
            f"largest difference of log(alpha_ij / alpha_i0) from ALiBi's ({case})",
            float((logs - logs[..., :1] - (derived - derived[..., :1])).abs().max()),
            "<=",
            0,
            1e-5,
            hint="It should be -2^(-8h / H) (|j - i| - |j_0 - i|), heads numbered h = 1 .. H: every token of "
            "distance between the query and the key costs the same within a head, in both directions.",
        )
        yield Check(
            f"largest change of a weight when all positions are shifted by {shift} ({case})",
            float((shifted - weights).abs().max()),
            "<=",
            0,
            1e-9,
            hint="Only the difference of two positions may matter.",
        )


def attend_with_bias(bias: Tensor) -> Float[Tensor, "heads query key"]:
    """Attention weights where the bias is all there is to a score."""
    values = torch.zeros(len(bias), bias.shape[-1], 1, dtype=bias.dtype)
    return attend(bias, values)[1]


class Relative(Lab):
    """alpha(t + k) = alpha(t), unless positions are absolute."""

    name = "relative"
    claim = (
        "A shift of all positions changes attention if they are absolute, not if they are relative"
    )
    derivation = """
Let every position t become t + k. What happens to the score of query i and key j?

    none          q_i . k_j                                 there is nothing to shift
    relative      q_i . k_j + b[j - i]  (or q_i . a[j - i])  j - i is an integer and stays: exactly equal
    alibi         q_i . k_j - 2^(-8h / H) |j - i|           the same, for head h = 1 .. H
    rotary        <R_i q, R_j k> = <q, R_(j - i) k>         equal up to rounding: computed from i and j
    sinusoidal,   (x_i + p_i) W_Q . (x_j + p_j) W_K         absolute: p_(i + k) is not p_i
      learned

We shift the positions of one attention layer, embedding included, and compare attention weights. ALiBi's
slopes follow from the weights of a layer with W_Q = 0: log(alpha_ij / alpha_ii) = -2^(-8h / H) |j - i|.

Why order matters at all: "the dog bites the man" and "the man bites the dog" are the same words. Without
positions a bidirectional encoder gives each word the same vector in both, because self-attention is
permutation-equivariant: who bites whom is lost. With any position, the vectors differ.
"""
    parameters = RelativeParameters
    absent: ClassVar[dict[str, Value]] = {"shift": 0}
    exercise = Exercise(
        starter='''
def alibi(query_positions, key_positions, heads):
    """Return ALiBi's bias, which is added to the scores.

    query_positions, key_positions: integer tensors [n] and [m]; heads: H, the number of heads.
    Return a tensor [H, n, m]: for head h = 1 .. H (index h - 1), every token of distance between query and
    key lowers the score by 2^(-8h / H).
    """
    raise NotImplementedError
''',
        solution=alibi,
        grade=grade,
        background="""
A score that depends on positions through their difference only does not change when all are shifted. ALiBi
(attention with linear biases) has the simplest one: a penalty proportional to the distance |j - i|, steep in
the first heads, which attend to near tokens, and flat in the last ones. It has no parameters.
""",
    )

    def measure(self, params: RelativeParameters, generator: Generator) -> Findings:
        cases = list(measure_cases(params.d_model, params.shift, generator))
        ratios = measure_alibi(params.d_model, ALIBI_LENGTH)
        derived = derive_alibi(range(ALIBI_LENGTH), range(ALIBI_LENGTH), HEADS)
        return Findings(
            figures={
                "cases": [case.name for case in cases],
                "classes": [case.kind for case in cases],
                "shifted": [case.shifted for case in cases],
                "words": OTHER_ORDER.split(),
                "reordered": [case.reordered for case in cases],
                "alibi": ratios[:, 0].tolist(),
                "derived_alibi": derived[:, 0].tolist(),
            },
            law=[
                *self._check_law(cases),
                Check.worst(
                    "largest difference of ALiBi's log(alpha_ij / alpha_ii) from -2^(-8h / H) |j - i|",
                    (ratios - derived).abs().flatten().tolist(),
                    "<=",
                    0,
                    ROUNDING,
                ),
            ],
            effect=self._check_effect(cases),
            table=ResultTable(
                ["position", "class", "largest change by the shift", "by the other order"],
                [[case.name, case.kind, case.shifted, case.most_reordered] for case in cases],
            ),
            notes=[
                f"{case.name} is not known to this lab: measured, not judged"
                for case in cases
                if case.kind == "unknown"
            ],
        )

    @staticmethod
    def _check_law(cases: list[Case]) -> list[Check]:
        """Nothing changes by a shift if positions are relative, nor by another order if there are none."""
        tolerances: dict[Class, float] = {"relative": 0.0, "relative, up to rounding": ROUNDING}
        return [
            *(
                check_cases(
                    f"largest change of a weight by the shift, {kind}",
                    {case.name: case.shifted for case in cases if case.kind == kind},
                    "<=",
                    0,
                    tolerance,
                    "The absolute position matters with {}.",
                )
                for kind, tolerance in tolerances.items()
            ),
            check_cases(
                "largest change of a word's vector by the other order, without positions",
                {case.name: case.most_reordered for case in cases if case.name == "none"},
                "<=",
                0,
                ROUNDING,
                "The encoder sees the order without positions.",
            ),
        ]

    @staticmethod
    def _check_effect(cases: list[Case]) -> list[Check]:
        """A shift changes absolute positions, and another order the vectors with any position."""
        known = [case for case in cases if case.kind != "unknown"]
        return [
            check_cases(
                "smallest change of a weight by the shift, absolute",
                {case.name: case.shifted for case in known if case.kind == "absolute"},
                ">=",
                MIN_CHANGE,
                hint="The shift has no effect with {}.",
            ),
            check_cases(
                "smallest change of the most changed word by the other order, with positions",
                {case.name: case.most_reordered for case in known if case.name != "none"},
                ">=",
                MIN_REORDERED,
                hint="With {}, both sentences mean the same.",
            ),
        ]

    def draw(self, result: Result, figure: Figure, colours: Theme) -> None:
        data, k = result.figures, result.parameters["shift"]
        left, right = add_subplots(figure, colours, columns=2)
        shifted = {name: [x] for name, x in zip(data["cases"], data["shifted"], strict=True)}
        reordered = dict(zip(data["cases"], data["reordered"], strict=True))
        draw_differences(left, shifted, colours, ROUNDING, MIN_CHANGE)
        draw_differences(right, reordered, colours, ROUNDING, MIN_REORDERED)
        left.set(xlabel=f"largest change of an attention weight,\nall positions shifted by {k}")
        right.set(xlabel=f'change of each word vector, from\n"{SENTENCE}" to "{OTHER_ORDER}"')
        right.set_yticklabels([])
