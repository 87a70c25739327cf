"""Noisy keys: one head with a query for two keys swings between their values when the keys are noisy."""

import math
from collections.abc import Callable, Iterator
from itertools import pairwise

import torch
from jaxtyping import Float
from matplotlib.figure import Figure
from torch import Generator, Tensor

from regard.diagrams.themes import Theme
from regard.labs.averaging import query
from regard.labs.lab import Check, Exercise, Findings, Lab, Result, ResultTable
from regard.labs.noise import MAX_DEVIATIONS, NoiseParameters, Setup, bernstein_bound
from regard.labs.plotting import add_legend, add_subplots
from regard.labs.single_query import (
    ROUNDING,
    closed_form_output,
    dot_product_attention,
    orthonormal_keys,
)

BINS = torch.linspace(0, 1, 12, dtype=torch.float64)  # an odd number of bins: one is centred at 1/2
ONE_SIDED = 0.9  # weight ratio from which one key dominates


def deviation(
    query: Float[Tensor, " dim"],
    covariance_a: Float[Tensor, "dim dim"],
    covariance_b: Float[Tensor, "dim dim"],
) -> float:
    """Standard deviation of q . (k_a - k_b): sqrt(q^T (C_a + C_b) q)"""
    return math.sqrt(query @ (covariance_a + covariance_b) @ query)


def swing(tau: float, draws: int) -> tuple[float, float]:
    """(E[s], tolerance of its sample mean) for s = (sigmoid(z) - 1/2)^2, z normal(0, tau)"""
    grid = torch.linspace(-MAX_DEVIATIONS, MAX_DEVIATIONS, 4001, dtype=torch.float64)
    probabilities = (-(grid**2) / 2).softmax(0)
    s = (torch.sigmoid(tau * grid) - 0.5) ** 2
    mean = probabilities @ s
    return float(mean), bernstein_bound(
        float(probabilities @ (s - mean) ** 2), float(s.max()), draws
    )


def one_sided(tau: float) -> float:
    """P(sigmoid(z) is outside [0.1, 0.9]) for z normal(0, tau)"""
    return math.erfc(math.log(ONE_SIDED / (1 - ONE_SIDED)) / tau / math.sqrt(2))


def grade(answer: Callable[..., float]) -> Iterator[Check]:
    """The formula must hold for any query and any two covariances."""
    generator = torch.Generator().manual_seed(0)
    mu_a, mu_b = orthonormal_keys(2, 5, generator)
    isotropic, rank_one = 0.01 * torch.eye(5, dtype=torch.float64), torch.outer(mu_a, mu_a) / 2
    arbitrary = torch.randn(2, 5, 5, dtype=torch.float64, generator=generator)
    for case, q, covariances in (
        ("both covariances 0.01 I, q = 3 (mu_a + mu_b)", 3 * (mu_a + mu_b), (isotropic, isotropic)),
        (
            "0.01 I + mu_a mu_a^T / 2 for key a, 0.01 I for key b, q = 3 (mu_a + mu_b)",
            3 * (mu_a + mu_b),
            (isotropic + rank_one, isotropic),
        ),
        (
            "two random covariances, q = mu_b - 2 mu_a",
            mu_b - 2 * mu_a,
            arbitrary @ arbitrary.mT,
        ),
    ):
        yield Check(
            f"standard deviation of q . (k_a - k_b) ({case})",
            float(answer(q.clone(), *(c.clone() for c in covariances))),
            "=",
            deviation(q, *covariances),
            1e-6,
            hint="q . k has the variance q^T C q, variances of independent variables add, and the "
            "standard deviation is the square root of the variance.",
        )


class NoisyKeys(Lab):
    """q = beta (mu_a + mu_b) with noisy keys returns sometimes v_a, sometimes v_b."""

    name = "noisy-keys"
    claim = (
        "One head with a query for two keys swings between their values as soon as the lengths of the "
        "keys vary"
    )
    derivation = """
Let the means mu_i be orthonormal, and q = beta (mu_a + mu_b), which averages v_a and v_b when k_i = mu_i.
If instead k_i = lambda_i mu_i, with lambda_i normal with mean 1 and standard deviation sigma, then
q . k_a = beta lambda_a, and

    alpha_a / (alpha_a + alpha_b) = sigmoid(beta (lambda_a - lambda_b))

whose argument z is normal with mean 0 and standard deviation tau = beta sigma sqrt(2). A large beta, which
averaging needs, makes tau large, and the output swings between v_a and v_b. The same holds for Gaussian keys
with covariances C_a and C_b, where tau^2 = q^T (C_a + C_b) q:

    C_i = eps I for every key                      tau = 2 beta sqrt(eps)         tiny: one head suffices
    C_a = eps I + (1/2) mu_a mu_a^T for key a      tau = beta sqrt(1/2 + 4 eps)   large: it does not
"""
    parameters = NoiseParameters
    exercise = Exercise(
        starter='''
def deviation(query, covariance_a, covariance_b):
    """Return the standard deviation of z = q . (k_a - k_b): alpha_a / (alpha_a + alpha_b) is sigmoid(z).

    query: a tensor [d]; covariance_a, covariance_b: tensors [d, d], of two independent keys.
    Return a float.
    """
    raise NotImplementedError
''',
        solution=deviation,
        grade=grade,
    )

    def measure(self, params: NoiseParameters, generator: Generator) -> Findings:
        means, values, a, b = Setup.sample(params.keys, generator)
        q = query(means, a, b, params.beta)
        sampled = [noise.sample_keys(means, a, params.draws, generator) for noise in params.noises]
        lookups = [dot_product_attention(q, keys, values) for keys in sampled]
        ratios = [alpha[:, a] / (alpha[:, a] + alpha[:, b]) for _, alpha in lookups]

        scores = params.beta * (sampled[0] * means).sum(-1)[:, [a, b]]  # beta lambda
        ratio_difference = ratios[0] - torch.sigmoid(scores[:, 0] - scores[:, 1])
        output_difference = lookups[0][0] - closed_form_output(scores, values, [a, b])

        names = [noise.name for noise in params.noises]
        taus = [params.beta * math.sqrt(sum(noise.score_variances(2))) for noise in params.noises]
        squares = [float(((ratio - 0.5) ** 2).mean()) for ratio in ratios]
        sides = [float(((ratio - 0.5).abs() > ONE_SIDED - 0.5).double().mean()) for ratio in ratios]
        expected_squares, tolerances = zip(*(swing(tau, params.draws) for tau in taus), strict=True)
        expected_sides = [one_sided(tau) for tau in taus]
        deviations, expected_deviations = (
            [math.sqrt(x) for x in means] for means in (squares, expected_squares)
        )
        return Findings(
            figures={
                "noises": names,
                "taus": taus,
                "deviations": deviations,
                "expected_deviations": expected_deviations,
                "one_sided": sides,
                "expected_one_sided": expected_sides,
                "bins": BINS.tolist(),
                "histograms": [_histogram(ratio) for ratio in ratios],
                "expected_histograms": [
                    torch.special.ndtr(BINS.logit() / tau).diff().tolist() for tau in taus
                ],
            },
            checks=[
                Check(
                    "largest difference of alpha_a / (alpha_a + alpha_b) from "
                    "sigmoid(beta (lambda_a - lambda_b))",
                    float(ratio_difference.abs().max()),
                    "<=",
                    0,
                    ROUNDING,
                ),
                Check(
                    "largest distance of a from alpha_a v_a + alpha_b v_b + equal weights on the others",
                    float(output_difference.norm(dim=1).max()),
                    "<=",
                    0,
                    ROUNDING,
                ),
                *(
                    Check(
                        f"mean squared deviation of that ratio from 1/2 ({name})",
                        square,
                        "=",
                        expected,
                        tolerance,
                    )
                    for name, square, expected, tolerance in zip(
                        names, squares, expected_squares, tolerances, strict=True
                    )
                ),
                *(
                    Check(
                        f"fraction of draws in which one of the two gets over {ONE_SIDED:.0%} ({name})",
                        side,
                        "=",
                        expected,
                        bernstein_bound(expected * (1 - expected), 1, params.draws),
                    )
                    for name, side, expected in zip(names, sides, expected_sides, strict=True)
                ),
            ],
            table=ResultTable(
                [
                    "noise",
                    "tau",
                    "deviation of the ratio",
                    "closed form",
                    "fraction over 90 %",
                    "its closed form",
                ],
                [
                    list(row)
                    for row in zip(
                        names,
                        taus,
                        deviations,
                        expected_deviations,
                        sides,
                        expected_sides,
                        strict=True,
                    )
                ],
            ),
        )

    def draw(self, result: Result, figure: Figure, colours: Theme) -> None:
        data = result.figures
        centres = [(low + high) / 2 for low, high in pairwise(data["bins"])]
        formulas = (
            r"$k_i = \lambda_i \mu_i$",
            r"$C_i = \epsilon I$",
            r"$C_a = \epsilon I + \frac{1}{2} \mu_a \mu_a^T$",
        )
        panels = add_subplots(figure, colours, columns=3)
        for panel, name, formula, tau, histogram, expected in zip(
            panels,
            data["noises"],
            formulas,
            data["taus"],
            data["histograms"],
            data["expected_histograms"],
            strict=True,
        ):
            panel.bar(centres, histogram, width=0.07, alpha=0.7, label="measured")
            panel.plot(
                *(centres, expected, "o"),
                color=colours.series[1],
                label=r"sigmoid of normal$(0, \tau)$",
            )
            panel.set_title(f"{name}: {formula}\n" + rf"$\tau$ = {tau:.3g}", fontsize=10)
            panel.set(xlabel=r"$\alpha_a / (\alpha_a + \alpha_b)$", ylim=(0, 1.05))
            panel.set_xticks([0, 0.5, 1], ["0\nall $v_b$", "½", "1\nall $v_a$"])
        panels[0].set_ylabel("fraction of draws")
        add_legend(panels[0], colours, loc="upper center")


def _histogram(ratio: Float[Tensor, " draw"]) -> list[float]:
    return (torch.histogram(ratio, BINS).hist / len(ratio)).tolist()
