"""Averaging: a query that points at two keys brings back the mean of their values, if it is long."""

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
    sample_two,
)

UNIT = 1 / math.sqrt(2)  # the beta at which beta (k_a + k_b) has length one
COUNTS = (2, 4, 8, 16, 32, 64, 128, 256, 512)


def share(beta: float, keys: float) -> float:
    """alpha_a = alpha_b = e^beta / (2 e^beta + m - 2)"""
    return 1 / (2 + (keys - 2) * math.exp(-beta))


def query(keys: Float[Tensor, "key width"], a: int, b: int, beta: float) -> Float[Tensor, " width"]:
    """Beta (k_a + k_b)"""
    return beta * (keys[a] + keys[b])


def unit_query(keys: Float[Tensor, "key width"], a: int, b: int) -> Float[Tensor, " width"]:
    """(k_a + k_b) / |k_a + k_b|: tempting, and too short"""
    both = keys[a] + keys[b]
    return both / both.norm()


def grade(answer: Callable[..., Tensor]) -> Iterator[Check]:
    """Any query will do that gives both weights their closed form."""
    generator = torch.Generator().manual_seed(0)
    for count, width, a, b, beta in ((3, 5, 0, 2, 2.0), (7, 11, 5, 1, 5.0), (13, 17, 12, 3, 9.0)):
        keys = orthonormal_keys(count, width, generator)
        given = f"{count} orthonormal keys of width {width}, a = {a}, b = {b}, beta = {beta:g}"
        weights = dot_product_attention(answer(keys.clone(), a, b, beta), keys, keys)[1]
        yield Check(
            f"alpha_a - alpha_b ({given})",
            float(weights[a] - weights[b]),
            "=",
            0,
            1e-6,
            hint="An average wants equal weights: the query's dot product with k_a must be that with k_b.",
        )
        yield Check(
            f"alpha_a ({given})",
            float(weights[a]),
            "=",
            share(beta, count),
            1e-6,
            hint="It should be e^beta / (2 e^beta + m - 2): q . k_a = q . k_b = beta, and q . k_i = 0 "
            "for every other key. A query of length one gives only q . k_a = 1 / sqrt(2).",
        )


class Averaging(Lab):
    """q = beta (k_a + k_b) brings back (v_a + v_b) / 2."""

    name = "averaging"
    claim = (
        "A large multiple of the sum of two keys averages their values; the same query at length one "
        "does not"
    )
    derivation = """
With orthonormal keys and q = beta (k_a + k_b), the scores of k_a and k_b are beta and every other score
is 0. So

    alpha_a = alpha_b = e^beta / (2 e^beta + m - 2)

which goes to 1/2 as beta grows, and a goes to (v_a + v_b) / 2. It is tempting to give the query length
one, q = (k_a + k_b) / |k_a + k_b|. But |k_a + k_b| = sqrt(2), so this is beta = 1 / sqrt(2) = 0.707, and
the m - 2 other keys keep most of the weight: with m = 10, alpha_a = 0.168. The scale is not optional.
"""
    parameters = KeyParameters
    exercise = Exercise(
        starter='''
def query(keys, a, b, beta):
    """The query that averages values a and b.

    keys: a tensor [m, d] of orthonormal rows k_0 .. k_(m-1); a, b: which two; beta: how strongly, above 0.
    Return a tensor [d] whose weights on keys a and b are both e^beta / (2 e^beta + m - 2). Scores are
    plain dot products.
    """
    raise NotImplementedError
''',
        solution=query,
        grade=grade,
    )

    def measure(self, params: KeyParameters, generator: Generator) -> Findings:
        count = params.keys
        keys = orthonormal_keys(count, params.width, generator)
        values = torch.randn(count, 7, dtype=torch.float64, generator=generator)
        a, b = sample_two(count, generator)
        middle = (values[a] + values[b]) / 2
        widest = float((values - middle).norm(dim=1).max())

        betas = [params.beta * step / 24 for step in range(25)]
        queries = [*(query(keys, a, b, beta) for beta in betas), unit_query(keys, a, b)]
        outputs, alphas = map(
            torch.stack,
            zip(*(dot_product_attention(q, keys, values) for q in queries), strict=True),
        )
        alphas = alphas[:, [a, b]]
        closed = torch.tensor([share(x, count) for x in (*betas, UNIT)], dtype=torch.float64)
        off = (alphas - closed[:, None]).abs().amax(dim=1)
        misses = (outputs - middle).norm(dim=1).tolist()

        asked = [f"beta = {beta:g}" for beta in betas] + ["length one"]
        rows = list(zip(asked, *alphas.T.tolist(), closed.tolist(), misses, strict=True))
        return Findings(
            figures={
                "alpha": float(alphas[-2, 0]),
                "closed_form": share(params.beta, count),
                "miss": misses[-2],
                "unit_length": float(alphas[-1, 0]),
                "unit_length_closed_form": share(UNIT, count),
                "unit_length_miss": misses[-1],
                "betas": betas,
                "alphas_a": alphas[:-1, 0].tolist(),
                "alphas_b": alphas[:-1, 1].tolist(),
                "closed_forms": closed[:-1].tolist(),
                **self._by_count(params, generator),
            },
            checks=[
                Check(
                    "largest difference of alpha_a and alpha_b from e^beta / (2 e^beta + m - 2)",
                    float(off[:-1].max()),
                    "<=",
                    0,
                    ROUNDING,
                ),
                Check(
                    "how far a is from (v_a + v_b) / 2, against (1 - 2 alpha_a) max |v_i - (v_a + v_b) / 2|",
                    misses[-2],
                    "<=",
                    (1 - 2 * share(params.beta, count)) * widest,
                    ROUNDING,
                ),
                Check(
                    "alpha_a for a query of length one, which is beta = 1 / sqrt(2)",
                    float(alphas[-1, 0]),
                    "=",
                    share(UNIT, count),
                    ROUNDING,
                ),
            ],
            table=ResultTable(
                ["query", "alpha_a", "alpha_b", "closed form", "|a - (v_a + v_b) / 2|"],
                [list(row) for row in (*rows[:-1:6], rows[-1])],
            ),
        )

    def _by_count(
        self, params: KeyParameters, generator: Generator
    ) -> dict[str, list[int] | list[float]]:
        """alpha_a among few and many keys, of the long query and of the one of length one."""
        counts = [count for count in COUNTS if count <= params.width]
        crowds = [orthonormal_keys(count, params.width, generator) for count in counts]
        long = [
            dot_product_attention(query(keys, 0, 1, params.beta), keys, keys)[1][0]
            for keys in crowds
        ]
        unit = [dot_product_attention(unit_query(keys, 0, 1), keys, keys)[1][0] for keys in crowds]
        return {
            "counts": counts,
            "alphas_by_count": torch.stack(long).tolist(),
            "unit_lengths_by_count": torch.stack(unit).tolist(),
        }

    def draw(self, result: Result, figure: Figure, colours: Theme) -> None:
        found, beta = result.figures, float(result.parameters["beta"])
        left, right = add_subplots(figure, colours, columns=2)
        left.plot(found["betas"], found["closed_forms"], label=r"$e^\beta / (2 e^\beta + m - 2)$")
        left.plot(found["betas"], found["alphas_a"], "o", ms=5, label=r"$\alpha_a$, measured")
        left.plot(found["betas"], found["alphas_b"], "+", ms=9, label=r"$\alpha_b$, measured")
        left.plot([UNIT], [found["unit_length"]], "D", ms=7, label=r"$|q| = 1$, measured")
        left.annotate(
            f"{found['unit_length']:.3f}",
            (UNIT, found["unit_length"]),
            (8, -4),
            textcoords="offset points",
            color=colours.text,
            va="top",
        )
        left.set(
            xlabel=r"$\beta$ in $q = \beta\,(k_a + k_b)$",
            ylabel="weight on either key",
            ylim=(0, 0.53),
        )
        add_legend(left, colours, loc="lower right")
        counts, series = found["counts"], colours.series
        line = [counts[0] * (counts[-1] / counts[0]) ** (step / 99) for step in range(100)]
        for strength, name, style, colour, label in (
            (beta, "alphas_by_count", "o", series[0], rf"$\beta = {beta:g}$"),
            (UNIT, "unit_lengths_by_count", "D", series[3], r"$|q| = 1$, so $\beta = 1/\sqrt{2}$"),
        ):
            right.plot(line, [share(strength, m) for m in line], color=colour)
            right.plot(counts, found[name], style, ms=6, color=colour, label=label)
        right.set_xscale("log", base=2)
        right.xaxis.set_major_formatter("{x:g}")
        right.set(xlabel=r"$m$, number of keys", ylabel=r"$\alpha_a$", ylim=(0, 0.53))
        add_legend(right, colours, loc="upper right", bbox_to_anchor=(1, 0.9))
