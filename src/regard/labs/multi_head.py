"""Multi-head: two heads, one per key, average noisy keys with low variance; one head does not."""

import math
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import ClassVar

import torch
from matplotlib.figure import Figure
from torch import Generator, Tensor

from regard.diagrams.themes import Theme
from regard.labs.lab import Check, Exercise, Findings, Lab, Result, ResultTable, Value
from regard.labs.measurements.noise import Setup
from regard.labs.measurements.noisy_heads import (
    BINS,
    closed_form_outputs,
    measure_outputs,
    queries,
)
from regard.labs.measurements.single_query import explain_query_scaling, orthonormal_keys
from regard.labs.measurements.two_heads import (
    Comparison,
    MultiHeadParameters,
    check_failures,
    failure_probability,
    max_distances,
)
from regard.labs.plotting import add_legend, add_subplots

PLOTTED_DRAWS = 400
COLUMNS = "noise", "variance, one head", "two heads", "ratio", "failure rate", "closed form"


def grade(answer: Callable[..., Tensor]) -> Iterator[Check]:
    """Accept the two queries in either order, and anything orthogonal to the keys in addition."""
    generator = torch.Generator().manual_seed(0)
    for count, dim, a, b, beta in (
        (5, 7, 0, 3, 12.0),
        (5, 7, 4, 1, 12.0),
        (11, 13, 2, 10, 15.0),
    ):
        means = orthonormal_keys(count, dim, generator)
        case = f"m = {count}, d = {dim}, a = {a}, b = {b}, beta = {beta:g}"
        given, expected = answer(means.clone(), a, b, beta), queries(means, a, b, beta)
        if given[0] @ means[a] < given[1] @ means[a]:
            given = given.flip(0)
        differences = (given - expected) @ means.T
        scaling = explain_query_scaling(given, expected, means)
        for name, head_differences in zip("ab", differences, strict=True):
            yield Check.worst(
                f"largest difference of the scores from beta for mu_{name} and 0 elsewhere ({case})",
                head_differences.tolist(),
                "=",
                0,
                1e-6,
                hint=scaling
                or f"One head must attend to key {name} only: q . mu_{name} = beta, and q . mu_i = 0 for "
                "every other key. A head that attends to both keys selects the longer one.",
            )


class TwoHeads(Lab):
    """q1 = beta mu_a and q2 = beta mu_b: (a_1 + a_2) / 2 stays near (v_a + v_b) / 2."""

    name = "multi-head"
    claim = (
        "Two heads, one per key, average two noisy keys with low variance where one head does not"
    )
    derivation = """
Noisy keys again: k_i = lambda_i mu_i, lambda_i normal with mean 1 and standard deviation sigma. Let the two
heads have the queries q1 = beta mu_a and q2 = beta mu_b, and take (a_1 + a_2) / 2. In the first head k_a has
the score beta lambda_a and every other key 0, whatever lambda_b is; so

    alpha_a = e^(beta lambda_a) / (e^(beta lambda_a) + m - 1)

which is near 1 as long as beta lambda_a is well above ln(m - 1); then a_1 is near v_a. In the same way a_2 is
near v_b: the two keys never compete in one softmax. If both scores are above ln(m - 1) + c, then

    |(a_1 + a_2) / 2 - (v_a + v_b) / 2| <= (W_a + W_b) / 2 / (1 + e^c)        W_j = max_i |v_i - v_j|

The condition fails when lambda_a or lambda_b is below t = (ln(m - 1) + c) / beta, that is with probability
1 - (1 - Phi((t - 1) / sigma))^2. For Gaussian keys, replace sigma by the standard deviations of their scores.
With C_a = eps I + (1/2) mu_a mu_a^T the score of k_a is negative in Phi(-sqrt(2)) = 7.9 % of the draws: there
two heads fail at any beta.

If the queries are made from the noisy keys, q1 = beta k_a and q2 = beta k_b, replace lambda by lambda^2: the
score of a short key is lower still. With scaled scores q . k / sqrt(d), replace beta by beta / sqrt(d).
"""
    parameters = MultiHeadParameters
    absent: ClassVar[dict[str, Value]] = {"sigma": 1, "beta": 50}
    exercise = Exercise(
        starter='''
def queries(means, a, b, beta):
    """Return two queries, one per head, such that the mean of the heads' outputs is near (v_a + v_b) / 2.

    means: a tensor [m, d] of orthonormal rows; a, b: indices of the two keys; beta: the scale, well above
    ln(m - 1). Each key is its mean times an unknown positive factor. Scores are unscaled dot products.
    Return a tensor [2, d]; a query's largest score, over the means, is beta, and every other is 0.
    """
    raise NotImplementedError
''',
        solution=queries,
        grade=grade,
    )

    def measure(self, params: MultiHeadParameters, generator: Generator) -> Findings:
        setup = Setup.sample(params.keys, generator)
        means, values, a, b = setup
        sampled = [noise.sample_keys(means, a, params.draws, generator) for noise in params.noises]
        outcomes = [
            *(measure_outputs(keys, params, setup) for keys in sampled),
            measure_outputs(sampled[0], params, setup, from_keys=True),
        ]
        # The variance of the Gaussian keys is shown, and has no closed form here: each is its own reference.
        theories = [
            closed_form_outputs(params, setup),
            *outcomes[1:3],
            closed_form_outputs(params, setup, power=2),
        ]
        comparisons = [
            Comparison(*case, setup, params)
            for case in zip(params.case_names, outcomes, theories, strict=True)
        ]
        probabilities = [
            *(failure_probability(noise, params) for noise in params.noises),
            failure_probability(params.noises[0], params, power=2),
        ]
        failures = [
            check_failures(name, outcome.scores, probability, params)
            for name, outcome, probability in zip(
                params.case_names, outcomes, probabilities, strict=True
            )
        ]
        rows = [
            [case.name, *case.variances, case.ratio, failure.measured, failure.expected]
            for case, failure in zip(comparisons, failures, strict=True)
        ]
        scaled, from_keys = comparisons[0], comparisons[3]
        return Findings(
            figures={
                "noises": list(params.case_names),
                "variance_ratio": scaled.ratio,
                "expected_variance_ratio": scaled.expected_ratio,
                "failure_rates": [failure.measured for failure in failures],
                "failure_probabilities": probabilities,
                "far": [case.far for case in comparisons],
                "variances": [case.variances for case in comparisons],
                "variance_ratios": [case.ratio for case in comparisons],
                "min_scores": scaled.outputs.scores.amin(dim=1)[:PLOTTED_DRAWS].tolist(),
                "errors": [error[:PLOTTED_DRAWS].tolist() for error in scaled.errors],
                "max_distance": float(max_distances(setup).mean()),
                "threshold": params.threshold,
                "bins": BINS.tolist(),
                "histograms": scaled.outputs.histograms(values[b], values[a]),
                "expected_histograms": scaled.theory.histograms(values[b], values[a]),
            },
            law=[
                *(check for case in (scaled, from_keys) for check in case.check_closed_form()),
                *(check for case in (scaled, from_keys) for check in case.check_variances()),
                *failures,
                *(check for case in (scaled, from_keys) for check in case.check_margin()),
            ],
            # Under tiny noise in every direction one head suffices: two have nothing to improve.
            effect=[check for case in (scaled, *comparisons[2:]) for check in case.check_effect()],
            table=ResultTable(COLUMNS, rows),
        )

    def draw(self, result: Result, figure: Figure, colours: Theme) -> None:
        data, labels = result.figures, ("one head for both keys", "one head per key")
        left, right = add_subplots(figure, colours, columns=2)
        centres = [(low + high) / 2 for low, high in pairwise(data["bins"])]
        for label, colour, histogram, expected_histogram in zip(
            labels,
            colours.series[:2],
            data["histograms"],
            data["expected_histograms"],
            strict=True,
        ):
            left.stairs(histogram, data["bins"], fill=True, alpha=0.5, color=colour, label=label)
            left.plot(centres, expected_histogram, "o", ms=3.5, color=colour)
        left.plot([], [], "o", ms=3.5, color=colours.dimmed, label="closed form")
        left.set(xlabel="output, along the line from $v_b$ to $v_a$", ylabel="fraction of draws")
        left.set_xticks([0, 0.5, 1], ["$v_b$", "midpoint", "$v_a$"])
        add_legend(left, colours, loc="upper right", bbox_to_anchor=(1.06, 1))
        for label, colour, errors in zip(labels, colours.series[:2], data["errors"], strict=True):
            right.plot(data["min_scores"], errors, ".", ms=5, color=colour, label=label)
        low, high = min(0, *data["min_scores"]), max(data["min_scores"])
        scores = [low + (high - low) * step / 99 for step in range(100)]
        critical = data["threshold"] - float(result.parameters["margin"])
        bounds = [data["max_distance"] / (1 + math.exp(score - critical)) for score in scores]
        right.plot(scores, bounds, color=colours.series[2], label="bound for two heads")
        right.axvline(critical, color=colours.dimmed, linestyle="--", label=r"$\ln(m - 1)$")
        right.set(
            xlabel=r"smaller of the scores, $\beta\lambda_a$ and $\beta\lambda_b$"
            + r" (over $\sqrt{d}$)" * bool(result.parameters["scaled"]),
            ylabel=r"$|$output$\,- (v_a + v_b)/2\,|$",
            ylim=(0, None),
        )
        add_legend(right, colours, loc="upper right")
