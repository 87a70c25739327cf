"""Multi-head: a head for each of two keys averages them steadily, where one head for both swings."""

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import torch
from jaxtyping import Float
from matplotlib.figure import Figure
from pydantic import Field
from torch import Generator, Tensor

from regard.diagrams.themes import Theme
from regard.labs.copying import share
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

SHOWN = 400  # draws in the picture


class MultiHeadParameters(NoiseParameters):
    margin: float = Field(3.0, ge=0, le=10)
    """How far above ln(m - 1) a score must lie to be well above."""


def share_failing(noise: Noise, beta: float, threshold: float) -> float:
    """How often q1 . k_a or q2 . k_b is below the threshold; they are normal about beta, independent."""
    above = 1.0
    for variance in noise.score_variances(1):
        above *= math.erfc((threshold / beta - 1) / math.sqrt(2 * variance)) / 2
    return 1 - above


def steadier(variances: Sequence[float], law: HeadOutputs, draws: int) -> Iterator[Check]:
    """The variances of one head and of two against those of the law."""

    def room(x: Float[Tensor, " outcome"]) -> float:
        off = x - law.probabilities @ x
        return (
            bernstein_bound(float(law.probabilities @ off**2), float(off.abs().max()), draws)
            + ROUNDING
        )

    (one, two), (law_one, law_two) = variances, law.squared_deviations(law)
    ratio = float(law.probabilities @ law_two) / float(law.probabilities @ law_one)
    yield Check(
        "variance of the mean of two heads",
        two,
        "=",
        float(law.probabilities @ law_two),
        room(law_two),
    )
    # one (two / one - ratio) is a mean over draws, of what should be 0: it strays as means do.
    allowed = room(law_two - ratio * law_one) / one
    yield Check("variance of two heads over that of one", two / one, "=", ratio, allowed)


def grade(answer: Callable[..., Tensor]) -> Iterator[Check]:
    """Any two queries will do whose mean weight on either key is at least what ours give."""
    generator = torch.Generator().manual_seed(0)
    for count, width, a, b, beta, lengths in (
        (5, 7, 0, 3, 12.0, (1.0, 1.0)),
        (5, 7, 4, 1, 12.0, (1.5, 0.7)),
        (11, 13, 2, 10, 15.0, (0.6, 1.4)),
    ):
        means = orthonormal_keys(count, width, generator)
        given = f"m = {count}, d = {width}, a = {a}, b = {b}, beta = {beta:g}, " + " and ".join(
            f"k_{name} = {length:g} mu_{name}" for name, length in zip("ab", lengths, strict=True)
        )
        asked = answer(means.clone(), a, b, beta)
        keys = means.clone()
        keys[[a, b]] *= torch.tensor(lengths, dtype=torch.float64)[:, None]
        # With the unit vectors as values, what comes back is the weights.
        values = torch.eye(count, width, dtype=torch.float64)
        weights = average_heads(asked, keys[None], values)[0]
        for name, key, length in zip("ab", (a, b), lengths, strict=True):
            yield Check(
                f"mean weight of the two heads on key {name} ({given})",
                float(weights[key]),
                ">=",
                share(beta * length, count) / 2,
                1e-6,
                hint=f"One head must look at key {name} alone, with the score s = beta lambda_{name}: its "
                "weight there is e^s / (e^s + m - 1), half of that in the mean. A head that looks at both "
                "goes to the longer one.",
            )


class TwoHeads(Lab):
    """q1 = beta mu_a and q2 = beta mu_b: (a_1 + a_2) / 2 stays near (v_a + v_b) / 2."""

    name = "multi-head"
    claim = "Two heads, one for each key, average steadily where one head swings"
    derivation = """
Noisy keys again: k_i = lambda_i mu_i, lambda_i normal with mean 1 and standard deviation sigma. Let one head
ask q1 = beta mu_a, the other q2 = beta mu_b, and take (a_1 + a_2) / 2. In the first head k_a has the score
beta lambda_a and every other key 0, whatever lambda_b is; so

    alpha_a = e^(beta lambda_a) / (e^(beta lambda_a) + m - 1)

which is near 1 as long as beta lambda_a is well above ln(m - 1); then a_1 is near v_a. In the same way a_2 is
near v_b: the two never compete. If both scores are above ln(m - 1) + c, then

    |(a_1 + a_2) / 2 - (v_a + v_b) / 2| <= (W_a + W_b) / 2 / (1 + e^c)        W_j = max_i |v_i - v_j|

The condition fails when lambda_a or lambda_b is below t = (ln(m - 1) + c) / beta, and so in a share
1 - (1 - Phi((t - 1) / sigma))^2 of the draws. Gaussian keys: with their own deviations in place of sigma.
"""
    parameters = MultiHeadParameters
    exercise = Exercise(
        starter='''
def queries(means, a, b, beta):
    """Two queries, one a head, such that the mean of the heads' outputs is near (v_a + v_b) / 2.

    means: a tensor [m, d] of orthonormal rows; a, b: which two; beta: how strongly, well above ln(m - 1).
    The keys are these means, each stretched or shrunk by a factor that is not known. Scores are plain dot
    products. Return a tensor [2, d].
    """
    raise NotImplementedError
''',
        solution=queries,
        grade=grade,
    )

    def measure(self, params: MultiHeadParameters, generator: Generator) -> Findings:
        scene = Setup.sample(params.keys, generator)
        _, values, a, b = scene
        threshold = math.log(params.keys - 1) + params.margin
        found = [measure_outputs(noise, params, scene, generator) for noise in params.noises]
        law, scaled = closed_form_outputs(params, scene), found[0]

        names = [noise.name for noise in params.noises]
        failing = [float((each.scores < threshold).any(1).double().mean()) for each in found]
        failing_laws = [share_failing(noise, params.beta, threshold) for noise in params.noises]
        strays = [
            each.squared_deviations(about)
            for each, about in zip(found, [law, *found[1:]], strict=True)
        ]
        variances = [[float(stray.mean()) for stray in pair] for pair in strays]
        ratios = [two / one for one, two in variances]
        misses = scaled.distances((values[a] + values[b]) / 2)
        holding = (scaled.scores >= threshold).all(1)
        width = sum(float((values - values[j]).norm(dim=1).max()) for j in (a, b)) / 2
        off = scaled.two_heads - closed_form_two_heads(scaled.scores, values, a, b)
        of_variance, of_ratio = steadier(variances[0], law, params.draws)
        return Findings(
            figures={
                "noises": names,
                "variance_ratio": of_ratio.measured,
                "variance_ratio_law": of_ratio.expected,
                "failing": failing,
                "failing_laws": failing_laws,
                "variances": variances,
                "variance_ratios": ratios,
                "least_scores": scaled.scores.amin(dim=1)[:SHOWN].tolist(),
                "misses": [miss[:SHOWN].tolist() for miss in misses],
                "width": width,
                "threshold": threshold,
                "bins": BINS.tolist(),
                "shares": scaled.histograms(values[b], values[a]),
                "share_laws": law.histograms(values[b], values[a]),
            },
            checks=[
                Check(
                    "largest distance of (a_1 + a_2) / 2 from its closed form, draw by draw",
                    float(off.norm(dim=1).max()),
                    "<=",
                    0,
                    ROUNDING,
                ),
                Check(
                    f"largest |a_1 + a_2 - v_a - v_b| / 2 where both scores are above {threshold:.3g}",
                    max(misses[1][holding].tolist(), default=0),
                    "<=",
                    width / (1 + math.exp(params.margin)),
                    ROUNDING,
                ),
                of_variance,
                of_ratio,
                *(
                    Check(
                        f"share of draws in which a score is below {threshold:.3g} ({name})",
                        share,
                        "=",
                        law_share,
                        bernstein_bound(law_share * (1 - law_share), 1, params.draws),
                    )
                    for name, share, law_share in zip(names, failing, failing_laws, strict=True)
                ),
            ],
            table=ResultTable(
                ["noise", "one head's variance", "two heads'", "ratio", "condition fails", "law"],
                [
                    [name, *pair, ratio, share, law_share]
                    for name, pair, ratio, share, law_share in zip(
                        names, variances, ratios, failing, failing_laws, strict=True
                    )
                ],
            ),
        )

    def draw(self, result: Result, figure: Figure, colours: Theme) -> None:
        found, labels = result.figures, ("one head for both", "a head for each")
        left, right = add_subplots(figure, colours, columns=2)
        middles = [(low + high) / 2 for low, high in pairwise(found["bins"])]
        for label, colour, shares, laws in zip(
            labels, colours.series[:2], found["shares"], found["share_laws"], strict=True
        ):
            left.stairs(shares, found["bins"], fill=True, alpha=0.5, color=colour, label=label)
            left.plot(middles, laws, "o", ms=3.5, color=colour)
        left.plot([], [], "o", ms=3.5, color=colours.dimmed, label="closed form")
        left.set(xlabel="output, along the line from $v_b$ to $v_a$", ylabel="share of draws")
        left.set_xticks([0, 0.5, 1], ["$v_b$", "halfway", "$v_a$"])
        add_legend(left, colours)
        for label, colour, misses in zip(labels, colours.series[:2], found["misses"], strict=True):
            right.plot(found["least_scores"], misses, ".", ms=5, color=colour, label=label)
        low, high = min(found["least_scores"]), max(found["least_scores"])
        scores = [low + (high - low) * step / 99 for step in range(100)]
        centre = found["threshold"] - float(result.parameters["margin"])
        bounds = [found["width"] / (1 + math.exp(score - centre)) for score in scores]
        right.plot(scores, bounds, color=colours.series[2], label="bound for two heads")
        right.axvline(centre, color=colours.dimmed, linestyle="--", label=r"$\ln(m - 1)$")
        right.set(
            xlabel=r"smaller of $\beta\lambda_a$ and $\beta\lambda_b$",
            ylabel=r"$|$output$\,- (v_a + v_b)/2\,|$",
            ylim=(0, None),
        )
        add_legend(right, colours)
