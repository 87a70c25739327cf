"""Averaging: a large multiple of k_a + k_b as the query retrieves the mean of v_a and v_b."""

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
    sample_two,
)
from regard.labs.plotting import add_legend, add_subplots

UNIT_BETA = 1 / math.sqrt(2)  # the beta for which beta (k_a + k_b) is a unit vector
MIN_SHARE = (
    0.45  # of each key, from which the output counts as their average: 90 % for both, 1/2 at most
)
KEY_COUNTS = (2, 4, 8, 16, 32, 64, 128, 256, 512)


def attention_weight(beta: float, keys: float) -> float:
    """alpha_a = alpha_b = e^beta / (2 e^beta + m - 2)"""
    return 1 / (2 + (keys - 2) * math.exp(-beta))


def query(keys: Float[Tensor, "key dim"], a: int, b: int, beta: float) -> Float[Tensor, " dim"]:
    """The query beta (k_a + k_b)"""
    return beta * (keys[a] + keys[b])


def unit_query(keys: Float[Tensor, "key dim"], a: int, b: int) -> Float[Tensor, " dim"]:
    """(k_a + k_b) / |k_a + k_b|: tempting, but too short"""
    both = keys[a] + keys[b]
    return both / both.norm()


def check_law(
    alphas: Float[Tensor, "query 2"],
    closed_form: Float[Tensor, " query"],
    error: float,
    max_distance: float,
) -> Iterator[Check]:
    """The weights against their closed form, and the error at the largest beta against its bound.

    The last query is the one of unit length.
    """
    differences = alphas - closed_form[:, None]
    yield Check.worst(
        "largest difference of alpha_a and alpha_b from e^s / (2 e^s + m - 2), s the score of k_a",
        differences[:-1].flatten().tolist(),
        "=",
        0,
        ROUNDING,
    )
    yield Check(
        "|a - (v_a + v_b) / 2|, bounded by (1 - 2 alpha_a) max |v_i - (v_a + v_b) / 2|",
        error,
        "<=",
        (1 - 2 * float(closed_form[-2])) * max_distance,
        ROUNDING,
    )
    yield Check(
        "alpha_a for a unit-length query, i.e. beta = 1 / sqrt(2)",
        float(alphas[-1, 0]),
        "=",
        float(closed_form[-1]),
        ROUNDING,
    )


def check_effect(alphas: Float[Tensor, "query 2"]) -> Iterator[Check]:
    """Both weights are near 1/2 for the last but one query, and not for the last, of unit length."""
    yield Check.worst(
        "smaller of alpha_a and alpha_b",
        alphas[-2].tolist(),
        ">=",
        MIN_SHARE,
        hint="The query is too short: the other keys keep a share of the output.",
    )
    yield Check.worst(
        "larger of alpha_a and alpha_b for a unit-length query, which is not enough",
        alphas[-1].tolist(),
        "<=",
        MIN_SHARE,
        hint="With so few keys, the unit-length query averages as well.",
    )


def grade(answer: Callable[..., Tensor]) -> Iterator[Check]:
    """Accept any query that gives both attention weights their closed form."""
    generator = torch.Generator().manual_seed(0)
    for count, dim, a, b, beta in ((3, 5, 0, 2, 2.0), (7, 11, 5, 1, 5.0), (13, 17, 12, 3, 9.0)):
        keys = orthonormal_keys(count, dim, generator)
        case = f"{count} orthonormal keys of dimension {dim}, a = {a}, b = {b}, beta = {beta:g}"
        given = answer(keys.clone(), a, b, beta)
        weights = dot_product_attention(given, keys, keys)[1]
        yield Check(
            f"alpha_a - alpha_b ({case})",
            float(weights[a] - weights[b]),
            "=",
            0,
            1e-6,
            hint="An average needs equal weights: q . k_a must equal q . k_b.",
        )
        yield Check(
            f"alpha_a ({case})",
            float(weights[a]),
            "=",
            attention_weight(beta, count),
            1e-6,
            hint=explain_query_scaling(given, query(keys, a, b, beta), keys)
            or "It should be e^beta / (2 e^beta + m - 2): q . k_a = q . k_b = beta, and q . k_i = 0 for "
            "every other key. A unit-length query gives only q . k_a = 1 / sqrt(2).",
        )


class Averaging(Lab):
    """q = beta (k_a + k_b) retrieves (v_a + v_b) / 2."""

    name = "averaging"
    claim = (
        "A query that is a large multiple of the sum of two keys averages their values; the unit-length "
        "query does not"
    )
    derivation = """
With orthonormal keys and q = beta (k_a + k_b), the scores of k_a and k_b are beta and every other score
is 0. So

    alpha_a = alpha_b = e^beta / (2 e^beta + m - 2)

which tends to 1/2 as beta grows, so the output a tends to (v_a + v_b) / 2. It is tempting to normalise the
query, q = (k_a + k_b) / |k_a + k_b|. But |k_a + k_b| = sqrt(2), so this is beta = 1 / sqrt(2) = 0.707, and
the m - 2 other keys keep most of the weight: with m = 10, alpha_a = 0.168. The scale is not optional. With
scaled scores q . k / sqrt(d), replace beta by beta / sqrt(d): the query must be sqrt(d) times as long.
"""
    parameters = KeyParameters
    absent: ClassVar[dict[str, Value]] = {"beta": 1}
    exercise = Exercise(
        starter='''
def query(keys, a, b, beta):
    """Return the query that averages values a and b.

    keys: a tensor [m, d] of orthonormal rows k_0 .. k_(m-1); a, b: indices of the two keys; beta: the scale,
    above 0. Return a tensor [d] that gives key a and key b an attention weight of e^beta / (2 e^beta + m - 2)
    each. Scores are unscaled dot products.
    """
    raise NotImplementedError
''',
        solution=query,
        grade=grade,
    )

    def measure(self, params: KeyParameters, generator: Generator) -> Findings:
        keys = orthonormal_keys(params.keys, params.width, generator)
        values = torch.randn(params.keys, 7, dtype=torch.float64, generator=generator)
        a, b = sample_two(params.keys, generator)
        mean_value = (values[a] + values[b]) / 2
        max_distance = float((values - mean_value).norm(dim=1).max())

        betas = [params.beta * step / 24 for step in range(25)]
        queries = [*(query(keys, a, b, beta) for beta in betas), unit_query(keys, a, b)]
        lookups = [dot_product_attention(q, keys, values, params.scaled) for q in queries]
        outputs, alphas = map(torch.stack, zip(*lookups, strict=True))
        alphas = alphas[:, [a, b]]
        errors = (outputs - mean_value).norm(dim=1).tolist()
        closed_form = torch.tensor(
            [attention_weight(params.score(beta), params.keys) for beta in (*betas, UNIT_BETA)],
            dtype=torch.float64,
        )
        labels = [f"beta = {beta:g}" for beta in betas] + ["unit length"]
        rows = list(zip(labels, *alphas.T.tolist(), closed_form.tolist(), errors, strict=True))
        return Findings(
            figures={
                "alpha": float(alphas[-2, 0]),
                "closed_form": float(closed_form[-2]),
                "error": errors[-2],
                "unit_alpha": float(alphas[-1, 0]),
                "unit_closed_form": float(closed_form[-1]),
                "unit_error": errors[-1],
                "betas": betas,
                "alphas_a": alphas[:-1, 0].tolist(),
                "alphas_b": alphas[:-1, 1].tolist(),
                "closed_forms": closed_form[:-1].tolist(),
                **self._by_count(params, generator),
            },
            law=list(check_law(alphas, closed_form, errors[-2], max_distance)),
            effect=list(check_effect(alphas)),
            table=ResultTable(
                ["query", "alpha_a", "alpha_b", "closed form", "|a - (v_a + v_b) / 2|"],
                [list(row) for row in (*rows[:-1:6], rows[-1])],
            ),
        )

    def _by_count(
        self, params: KeyParameters, generator: Generator
    ) -> dict[str, list[int] | list[float]]:
        """alpha_a against the number of keys, for the scaled query and for the unit-length query."""
        counts = [count for count in KEY_COUNTS if count <= params.width]
        key_sets = [orthonormal_keys(count, params.width, generator) for count in counts]
        queries = [(query(keys, 0, 1, params.beta), unit_query(keys, 0, 1)) for keys in key_sets]
        weights = [
            [float(dot_product_attention(q, keys, keys, params.scaled)[1][0]) for q in pair]
            for pair, keys in zip(queries, key_sets, strict=True)
        ]
        return {
            "key_counts": counts,
            "alphas_by_count": [scaled for scaled, _ in weights],
            "unit_alphas_by_count": [unit for _, unit in weights],
        }

    def draw(self, result: Result, figure: Figure, colours: Theme) -> None:
        data, params = result.figures, KeyParameters.model_validate(result.parameters)
        score = r"\beta / \sqrt{d}" if params.scaled else r"\beta"
        left, right = add_subplots(figure, colours, columns=2)
        closed_form = rf"$e^s / (2 e^s + m - 2)$, $s = {score}$"
        left.plot(data["betas"], data["closed_forms"], label=closed_form)
        left.plot(data["betas"], data["alphas_a"], "o", ms=5, label=r"$\alpha_a$, measured")
        left.plot(data["betas"], data["alphas_b"], "+", ms=9, label=r"$\alpha_b$, measured")
        left.plot([UNIT_BETA], [data["unit_alpha"]], "D", ms=7, label=r"$|q| = 1$, measured")
        left.annotate(
            f"{data['unit_alpha']:.3f}",
            (UNIT_BETA, data["unit_alpha"]),
            (8, -4),
            textcoords="offset points",
            color=colours.text,
            va="top",
        )
        left.set(
            xlabel=r"$\beta$ in $q = \beta\,(k_a + k_b)$",
            ylabel="attention weight on each key",
            ylim=(0, 0.53),
        )
        add_legend(left, colours, loc="lower right")
        counts, series = data["key_counts"], colours.series
        line = [counts[0] * (counts[-1] / counts[0]) ** (step / 99) for step in range(100)]
        for beta, name, style, colour, label in (
            (params.beta, "alphas_by_count", "o", series[0], rf"$\beta = {params.beta:g}$"),
            (
                UNIT_BETA,
                "unit_alphas_by_count",
                "D",
                series[3],
                r"$|q| = 1$, so $\beta = 1/\sqrt{2}$",
            ),
        ):
            weights = [attention_weight(params.score(beta), m) for m in line]
            right.plot(line, weights, color=colour)
            right.plot(counts, data[name], style, ms=6, color=colour, label=label)
        right.set_xscale("log", base=2)
        right.xaxis.set_major_formatter("{x:g}")
        right.set(xlabel=r"$m$, number of keys", ylabel=r"$\alpha_a$", ylim=(0, 0.53))
        add_legend(right, colours, loc="upper right", bbox_to_anchor=(1, 0.9))
