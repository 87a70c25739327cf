"""Copying: a large multiple of one key as the query retrieves that key's value."""

import math
from collections.abc import Callable, Iterator
from typing import ClassVar

import torch
from jaxtyping import Float
from matplotlib.figure import Figure
from torch import Generator, Tensor

from regard.diagrams.themes import Theme
from regard.labs.lab import Check, Exercise, Findings, Lab, Result, ResultTable, Value
from regard.labs.measurements.single_query import (
    ROUNDING,
    KeyParameters,
    dot_product_attention,
    explain_query_scaling,
    orthonormal_keys,
)
from regard.labs.plotting import add_legend, add_subplots

COPY_ERROR = (
    0.1  # |a - v_j| over the largest |v_i - v_j|, up to which the output counts as a copy of v_j
)
COPY_WEIGHT = 1 - COPY_ERROR  # alpha_j from which |a - v_j| is that small for any values


def attention_weight(beta: float, keys: int) -> float:
    """alpha_j = e^beta / (e^beta + m - 1)"""
    return 1 / (1 + (keys - 1) * math.exp(-beta))


def query(keys: Float[Tensor, "key dim"], j: int, beta: float) -> Float[Tensor, " dim"]:
    """The query beta k_j"""
    return beta * keys[j]


def grade(answer: Callable[..., Tensor]) -> Iterator[Check]:
    """Accept any query that gives alpha_j its closed form."""
    generator = torch.Generator().manual_seed(0)
    for count, dim, j, beta in ((2, 3, 0, 1.0), (5, 7, 3, 4.0), (11, 13, 10, 9.0)):
        keys = orthonormal_keys(count, dim, generator)
        case = f"{count} orthonormal keys of dimension {dim}, j = {j}, beta = {beta:g}"
        given = answer(keys.clone(), j, beta)
        weights = dot_product_attention(given, keys, keys)[1]
        yield Check(
            f"index of the key with the largest weight ({case})",
            int(weights.argmax()),
            "=",
            j,
            hint="The score is the dot product: which vector maximises it for k_j?",
        )
        yield Check(
            f"alpha_j ({case})",
            float(weights[j]),
            "=",
            attention_weight(beta, count),
            1e-6,
            hint=explain_query_scaling(given, query(keys, j, beta), keys)
            or "It should be e^beta / (e^beta + m - 1): q . k_j must be beta, and q . k_i = 0 for every "
            "other key.",
        )


class Copying(Lab):
    """q = beta k_j retrieves v_j."""

    name = "copying"
    claim = "A query that is a large multiple of one key copies that key's value"
    derivation = """
With orthonormal keys and q = beta k_j, the score of k_j is beta and every other score is 0. So

    alpha_j = e^beta / (e^beta + m - 1)

which tends to 1 as beta grows, so the output a = sum_i alpha_i v_i tends to v_j. The error is bounded by
|a - v_j| <= (1 - alpha_j) max_i |v_i - v_j|. With scaled scores q . k / sqrt(d), as in the Transformer,
replace beta by beta / sqrt(d): the query must be sqrt(d) times as long for the same copy.
"""
    parameters = KeyParameters
    absent: ClassVar[dict[str, Value]] = {"beta": 0}
    exercise = Exercise(
        starter='''
def query(keys, j, beta):
    """Return the query that copies value j.

    keys: a tensor [m, d] of orthonormal rows k_0 .. k_(m-1); j: index of the key; beta: the scale, above 0.
    Return a tensor [d] that gives key j the attention weight e^beta / (e^beta + m - 1). Scores are unscaled
    dot products.
    """
    raise NotImplementedError
''',
        solution=query,
        grade=grade,
        background="""
The attention weight of key i is alpha_i = e^(q . k_i) / sum_n e^(q . k_n), and the output is
a = sum_i alpha_i v_i. Orthonormal keys are unit vectors at right angles to each other: k_i . k_i = 1, and
k_i . k_n = 0 for n != i. So a query can give one key a high score and every other key a score of 0.
""",
    )

    def measure(self, params: KeyParameters, generator: Generator) -> Findings:
        keys = orthonormal_keys(params.keys, params.width, generator)
        values = torch.randn(params.keys, 7, dtype=torch.float64, generator=generator)
        j = int(torch.randint(params.keys, (), generator=generator))
        max_distance = float((values - values[j]).norm(dim=1).max())
        betas = [params.beta * step / 24 for step in range(25)]
        outputs = [
            dot_product_attention(query(keys, j, beta), keys, values, params.scaled)
            for beta in betas
        ]
        weights = [float(alpha[j]) for _, alpha in outputs]
        errors = [float((a - values[j]).norm()) for a, _ in outputs]
        closed_forms = [attention_weight(params.score(beta), params.keys) for beta in betas]
        bounds = [(1 - alpha) * max_distance for alpha in closed_forms]
        columns = betas, weights, closed_forms, errors, bounds
        no_copy = f"The output is no copy: v_j has only {weights[-1]:.0%} of the weight."
        return Findings(
            figures={
                "alpha": weights[-1],
                "closed_form": closed_forms[-1],
                "error": errors[-1],
                "bound": bounds[-1],
                "betas": betas,
                "alphas": weights,
                "closed_forms": closed_forms,
                "errors": errors,
                "bounds": bounds,
            },
            law=[
                Check.worst(
                    "largest difference of alpha_j from e^s / (e^s + m - 1), s the score of k_j",
                    (a - b for a, b in zip(weights, closed_forms, strict=True)),
                    "=",
                    0,
                    ROUNDING,
                ),
                Check.worst(
                    "largest excess of |a - v_j| over its bound, (1 - alpha_j) max |v_i - v_j|",
                    (error - bound for error, bound in zip(errors, bounds, strict=True)),
                    "<=",
                    0,
                    ROUNDING,
                ),
            ],
            effect=[
                # One far value makes any |a - v_j| a small share, so the weight is judged too.
                Check("alpha_j", weights[-1], ">=", COPY_WEIGHT, hint=no_copy),
                Check(
                    "|a - v_j| as a share of max |v_i - v_j|",
                    errors[-1] / max_distance,
                    "<=",
                    COPY_ERROR,
                    hint=no_copy,
                ),
            ],
            table=ResultTable(
                ["beta", "alpha_j", "closed form", "|a - v_j|", "its bound"],
                [list(row) for row in zip(*(column[::6] for column in columns), strict=True)],
            ),
        )

    def draw(self, result: Result, figure: Figure, colours: Theme) -> None:
        data = result.figures
        score = r"\beta / \sqrt{d}" if result.parameters["scaled"] else r"\beta"
        left, right = add_subplots(figure, colours, columns=2)
        closed_form = rf"$e^s / (e^s + m - 1)$, $s = {score}$"
        left.plot(data["betas"], data["closed_forms"], label=closed_form)
        left.plot(data["betas"], data["alphas"], "o", ms=4, label="measured")
        left.set(
            xlabel=r"$\beta$, norm of the query",
            ylabel=r"$\alpha_j$, attention weight on key j",
            ylim=(0, 1.03),
        )
        add_legend(left, colours, loc="lower right")
        bound = r"bound $(1 - \alpha_j)\,\max_i |v_i - v_j|$"
        right.plot(data["betas"], data["bounds"], label=bound)
        right.plot(data["betas"], data["errors"], "o", ms=4, label="measured")
        right.fill_between(data["betas"], data["bounds"], color=colours.series[0], alpha=0.12, lw=0)
        right.set(xlabel=r"$\beta$, norm of the query", ylabel=r"$|a - v_j|$", ylim=(0, None))
        add_legend(right, colours)
