"""Multi-head: two heads, one per key, average noisy keys with low variance; one head does not."""

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import torch
from jaxtyping import Float
from matplotlib.figure import Figure
from pydantic import Field
from torch import Generator, Tensor

from regard.diagrams.themes import Theme
from regard.labs.copying import attention_weight
from regard.labs.lab import Check, Exercise, Findings, Lab, Result, ResultTable
from regard.labs.noise import Noise, NoiseParameters, Setup, bernstein_bound
from regard.labs.noisy_heads import (
    BINS,
    HeadOutputs,
    average_heads,
    closed_form_outputs,
    closed_form_two_heads,
    measure_outputs,
    queries,
)
from regard.labs.plotting import add_legend, add_subplots
from regard.labs.single_query import ROUNDING, orthonormal_keys

PLOTTED_DRAWS = 400
COLUMNS = "noise", "variance, one head", "two heads", "ratio", "failure rate", "closed form"


class MultiHeadParameters(NoiseParameters):
    margin: float = Field(3.0, ge=0, le=10)
    """c, margin above ln(m - 1) from which a score counts as large enough."""

    @property
    def threshold(self) -> float:
        """ln(m - 1) + c"""
        return math.log(self.keys - 1) + self.margin


def failure_probability(noise: Noise, beta: float, threshold: float) -> float:
    """P(q1 . k_a or q2 . k_b is below the threshold); both are independent normals with mean beta."""
    above = 1.0
    for variance in noise.score_variances(1):
        above *= math.erfc((threshold / beta - 1) / math.sqrt(2 * variance)) / 2
    return 1 - above


def check_variances(variances: Sequence[float], theory: HeadOutputs, draws: int) -> Iterator[Check]:
    """The measured variances of one head and of two against the closed form."""

    def tolerance(x: Float[Tensor, " outcome"]) -> float:
        centred = x - theory.probabilities @ x
        variance, bound = float(theory.probabilities @ centred**2), float(centred.abs().max())
        return bernstein_bound(variance, bound, draws) + ROUNDING

    (one, two), (theory_one, theory_two) = variances, theory.squared_deviations(theory)
    expected_two = float(theory.probabilities @ theory_two)
    ratio = expected_two / float(theory.probabilities @ theory_one)
    yield Check("variance of the mean of two heads", two, "=", expected_two, tolerance(theory_two))
    # one (two / one - ratio) is a sample mean with expectation 0, so the same bound applies.
    allowed = tolerance(theory_two - ratio * theory_one) / one
    yield Check("variance of two heads over that of one", two / one, "=", ratio, allowed)


def check_two_heads(
    outputs: HeadOutputs,
    errors: Float[Tensor, " draw"],
    max_distance: float,
    setup: Setup,
    params: MultiHeadParameters,
) -> Iterator[Check]:
    """(a_1 + a_2) / 2 against its closed form, and its error against the bound."""
    _, values, a, b = setup
    differences = outputs.two_heads - closed_form_two_heads(outputs.scores, values, a, b)
    condition_holds = (outputs.scores >= params.threshold).all(1)
    yield Check(
        "largest distance of (a_1 + a_2) / 2 from its closed form, over all draws",
        float(differences.norm(dim=1).max()),
        "<=",
        0,
        ROUNDING,
    )
    yield Check(
        f"largest |a_1 + a_2 - v_a - v_b| / 2 where both scores are above {params.threshold:.3g}",
        max(errors[condition_holds].tolist(), default=0),
        "<=",
        max_distance / (1 + math.exp(params.margin)),
        ROUNDING,
    )


def check_failures(
    noise: Noise, scores: Float[Tensor, "draw 2"], params: MultiHeadParameters
) -> Check:
    """The fraction of draws with a score below the threshold against its probability."""
    probability = failure_probability(noise, params.beta, params.threshold)
    return Check(
        f"fraction of draws with a score below {params.threshold:.3g} ({noise.name})",
        float((scores < params.threshold).any(1).double().mean()),
        "=",
        probability,
        bernstein_bound(probability * (1 - probability), 1, params.draws),
    )


def grade(answer: Callable[..., Tensor]) -> Iterator[Check]:
    """Accept any two queries whose mean weight on each key is at least that of ours."""
    generator = torch.Generator().manual_seed(0)
    for count, dim, a, b, beta, lengths in (
        (5, 7, 0, 3, 12.0, (1.0, 1.0)),
        (5, 7, 4, 1, 12.0, (1.5, 0.7)),
        (11, 13, 2, 10, 15.0, (0.6, 1.4)),
    ):
        means = orthonormal_keys(count, dim, generator)
        case = f"m = {count}, d = {dim}, a = {a}, b = {b}, beta = {beta:g}, " + " and ".join(
            f"k_{name} = {length:g} mu_{name}" for name, length in zip("ab", lengths, strict=True)
        )
        head_queries = answer(means.clone(), a, b, beta)
        keys = means.clone()
        keys[[a, b]] *= torch.tensor(lengths, dtype=torch.float64)[:, None]
        # With the unit vectors as values, the output is the attention weights.
        values = torch.eye(count, dim, dtype=torch.float64)
        weights = average_heads(head_queries, keys[None], values)[0]
        for name, key, length in zip("ab", (a, b), lengths, strict=True):
            yield Check(
                f"mean attention weight of the two heads on key {name} ({case})",
                float(weights[key]),
                ">=",
                attention_weight(beta * length, count) / 2,
                1e-6,
                hint=f"One head must attend to key {name} only, with the score s = beta lambda_{name}: "
                "its weight there is e^s / (e^s + m - 1), half of that in the mean. A head that attends to "
                "both keys selects the longer one.",
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
"""
    parameters = MultiHeadParameters
    exercise = Exercise(
        starter='''
def queries(means, a, b, beta):
    """Return two queries, one per head, such that the mean of the heads' outputs is near (v_a + v_b) / 2.

    means: a tensor [m, d] of orthonormal rows; a, b: indices of the two keys; beta: the scale, well above
    ln(m - 1). Each key is its mean times an unknown positive factor. Scores are unscaled dot products.
    Return a tensor [2, d].
    """
    raise NotImplementedError
''',
        solution=queries,
        grade=grade,
    )

    def measure(self, params: MultiHeadParameters, generator: Generator) -> Findings:
        setup = Setup.sample(params.keys, generator)
        _, values, a, b = setup
        outcomes = [measure_outputs(noise, params, setup, generator) for noise in params.noises]
        theory, scaled = closed_form_outputs(params, setup), outcomes[0]
        variances = [
            [float(square.mean()) for square in outcome.squared_deviations(reference)]
            for outcome, reference in zip(outcomes, [theory, *outcomes[1:]], strict=True)
        ]
        errors = scaled.distances((values[a] + values[b]) / 2)
        max_distance = sum(float((values - values[j]).norm(dim=1).max()) for j in (a, b)) / 2

        bounds = check_two_heads(scaled, errors[1], max_distance, setup, params)
        variance_check, ratio_check = check_variances(variances[0], theory, params.draws)
        failures = [
            check_failures(noise, outcome.scores, params)
            for noise, outcome in zip(params.noises, outcomes, strict=True)
        ]
        rows = [
            [noise.name, one, two, two / one, failure.measured, failure.expected]
            for noise, (one, two), failure in zip(params.noises, variances, failures, strict=True)
        ]
        return Findings(
            figures={
                "noises": [noise.name for noise in params.noises],
                "variance_ratio": ratio_check.measured,
                "expected_variance_ratio": ratio_check.expected,
                "failure_rates": [failure.measured for failure in failures],
                "failure_probabilities": [failure.expected for failure in failures],
                "variances": variances,
                "variance_ratios": [two / one for one, two in variances],
                "min_scores": scaled.scores.amin(dim=1)[:PLOTTED_DRAWS].tolist(),
                "errors": [error[:PLOTTED_DRAWS].tolist() for error in errors],
                "max_distance": max_distance,
                "threshold": params.threshold,
                "bins": BINS.tolist(),
                "histograms": scaled.histograms(values[b], values[a]),
                "expected_histograms": theory.histograms(values[b], values[a]),
            },
            effect=[],
            law=[*bounds, variance_check, ratio_check, *failures],
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
        add_legend(left, colours)
        for label, colour, errors in zip(labels, colours.series[:2], data["errors"], strict=True):
            right.plot(data["min_scores"], errors, ".", ms=5, color=colour, label=label)
        low, high = min(data["min_scores"]), max(data["min_scores"])
        scores = [low + (high - low) * step / 99 for step in range(100)]
        critical = data["threshold"] - float(result.parameters["margin"])
        bounds = [data["max_distance"] / (1 + math.exp(score - critical)) for score in scores]
        right.plot(scores, bounds, color=colours.series[2], label="bound for two heads")
        right.axvline(critical, color=colours.dimmed, linestyle="--", label=r"$\ln(m - 1)$")
        right.set(
            xlabel=r"smaller of $\beta\lambda_a$ and $\beta\lambda_b$",
            ylabel=r"$|$output$\,- (v_a + v_b)/2\,|$",
            ylim=(0, None),
        )
        add_legend(right, colours)
