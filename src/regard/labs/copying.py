"""Copying: a query that points at one key, strongly enough, brings back its value."""

import math
from collections.abc import Callable, Iterator

import torch
from jaxtyping import Float
from matplotlib.figure import Figure
from torch import Generator, Tensor

from regard.diagrams.themes import Theme
from regard.labs.lab import Check, Exercise, Findings, Lab, Result, ResultTable
from regard.labs.plotting import add_legend, add_subplots
from regard.labs.single_query import (
    ROUNDING,
    KeyParameters,
    dot_product_attention,
    orthonormal_keys,
)


def share(beta: float, keys: int) -> float:
    """alpha_j = e^beta / (e^beta + m - 1)"""
    return 1 / (1 + (keys - 1) * math.exp(-beta))


def query(keys: Float[Tensor, "key width"], j: int, beta: float) -> Float[Tensor, " width"]:
    """Beta k_j"""
    return beta * keys[j]


def grade(answer: Callable[..., Tensor]) -> Iterator[Check]:
    """Any query will do that gives alpha_j its closed form, and a the value."""
    generator = torch.Generator().manual_seed(0)
    for count, width, j, beta in ((2, 3, 0, 1.0), (5, 7, 3, 4.0), (11, 13, 10, 9.0)):
        keys = orthonormal_keys(count, width, generator)
        given = f"{count} orthonormal keys of width {width}, j = {j}, beta = {beta:g}"
        weights = dot_product_attention(answer(keys.clone(), j, beta), keys, keys)[1]
        yield Check(
            f"the key with the most weight ({given})",
            int(weights.argmax()),
            "=",
            j,
            hint="The score is the dot product: which vector has the largest one with k_j?",
        )
        yield Check(
            f"alpha_j ({given})",
            float(weights[j]),
            "=",
            share(beta, count),
            1e-6,
            hint="It should be e^beta / (e^beta + m - 1): q . k_j must be beta, and q . k_i = 0 for "
            "every other key.",
        )


class Copying(Lab):
    """q = beta k_j brings back v_j."""

    name = "copying"
    claim = "A query that is a large multiple of one key copies that key's value"
    derivation = """
With orthonormal keys and q = beta k_j, the score of k_j is beta and every other score is 0. So

    alpha_j = e^beta / (e^beta + m - 1)

which goes to 1 as beta grows, and a = sum_i alpha_i v_i goes to v_j. What is missing is
|a - v_j| <= (1 - alpha_j) max_i |v_i - v_j|.
"""
    parameters = KeyParameters
    exercise = Exercise(
        starter='''
def query(keys, j, beta):
    """The query that copies value j.

    keys: a tensor [m, d] of orthonormal rows k_0 .. k_(m-1); j: which value; beta: how strongly, above 0.
    Return a tensor [d] whose weight on key j is e^beta / (e^beta + m - 1). Scores are plain dot products.
    """
    raise NotImplementedError
''',
        solution=query,
        grade=grade,
        background="""
The weight of key i is alpha_i = e^(q . k_i) / sum_n e^(q . k_n), and a = sum_i alpha_i v_i comes back.
Orthonormal keys have length one and stand at right angles: k_i . k_i = 1, and k_i . k_n = 0 for n other
than i. So a query can give one key a high score while every other score stays 0.
""",
    )

    def measure(self, params: KeyParameters, generator: Generator) -> Findings:
        keys = orthonormal_keys(params.keys, params.width, generator)
        values = torch.randn(params.keys, 7, dtype=torch.float64, generator=generator)
        j = int(torch.randint(params.keys, (), generator=generator))
        widest = float((values - values[j]).norm(dim=1).max())
        betas = [params.beta * step / 24 for step in range(25)]
        found = [dot_product_attention(query(keys, j, beta), keys, values) for beta in betas]
        weights = [float(alpha[j]) for _, alpha in found]
        misses = [float((a - values[j]).norm()) for a, _ in found]
        closed = [share(beta, params.keys) for beta in betas]
        rows = zip(betas[::6], weights[::6], closed[::6], misses[::6], strict=True)
        return Findings(
            figures={
                "alpha": weights[-1],
                "closed_form": closed[-1],
                "miss": misses[-1],
                "betas": betas,
                "alphas": weights,
                "closed_forms": closed,
                "misses": misses,
            },
            checks=[
                Check(
                    "largest difference of alpha_j from e^beta / (e^beta + m - 1)",
                    max(abs(a - b) for a, b in zip(weights, closed, strict=True)),
                    "<=",
                    0,
                    ROUNDING,
                ),
                Check(
                    "how far a is from v_j, against (1 - alpha_j) max |v_i - v_j|",
                    misses[-1],
                    "<=",
                    (1 - closed[-1]) * widest,
                    ROUNDING,
                ),
            ],
            table=ResultTable(
                ["beta", "alpha_j", "closed form", "|a - v_j|"], [list(row) for row in rows]
            ),
        )

    def draw(self, result: Result, figure: Figure, colours: Theme) -> None:
        found = result.figures
        left, right = add_subplots(figure, colours, columns=2)
        left.plot(found["betas"], found["closed_forms"], label=r"$e^\beta / (e^\beta + m - 1)$")
        left.plot(found["betas"], found["alphas"], "o", ms=4, label="measured")
        left.set(
            xlabel=r"$\beta$, length of the query",
            ylabel=r"$\alpha_j$, weight on key j",
            ylim=(0, 1.03),
        )
        add_legend(left, colours)
        right.plot(found["betas"], found["misses"], "o-", ms=4)
        right.set(xlabel=r"$\beta$, length of the query", ylabel=r"$|a - v_j|$", ylim=(0, None))
