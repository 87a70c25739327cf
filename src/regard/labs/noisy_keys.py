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
COLUMNS = (
    "noise",
    "tau",
    "deviation of the ratio",
    "closed form",
    "fraction over 90 %",
    "its closed form",
)


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


def check_closed_forms(
    setup: Setup,
    scores: Float[Tensor, "draw 2"],
    outputs: Float[Tensor, "draw dim"],
    ratios: Float[Tensor, " draw"],
) -> Iterator[Check]:
    """The ratio and the output against their closed forms, for keys that are multiples of their means."""
    _, values, a, b = setup
    yield Check(
        "largest difference of alpha_a / (alpha_a + alpha_b) from "
        "sigmoid(beta (lambda_a - lambda_b))",
        float((ratios - torch.sigmoid(scores[:, 0] - scores[:, 1])).abs().max()),
        "<=",
        0,
        ROUNDING,
    )
    yield Check(
        "largest distance of a from alpha_a v_a + alpha_b v_b + equal weights on the others",
        float((outputs - closed_form_output(scores, values, [a, b])).norm(dim=1).max()),
        "<=",
        0,
        ROUNDING,
    )


def check_swing(noise: str, ratios: Float[Tensor, " draw"], tau: float) -> Check:
    """The mean of (ratio - 1/2)^2 against its expectation."""
    name = f"mean squared deviation of that ratio from 1/2 ({noise})"
    return Check(name, float(((ratios - 0.5) ** 2).mean()), "=", *swing(tau, len(ratios)))


def check_one_sided(noise: str, ratios: Float[Tensor, " draw"], tau: float) -> Check:
    """The fraction of ratios outside [0.1, 0.9] against its probability."""
    fraction = float(((ratios - 0.5).abs() > ONE_SIDED - 0.5).double().mean())
    expected = one_sided(tau)
    return Check(
        f"fraction of draws in which one of the two gets over {ONE_SIDED:.0%} ({noise})",
        fraction,
        "=",
        expected,
        bernstein_bound(expected * (1 - expected), 1, len(ratios)),
    )


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
        setup = Setup.sample(params.keys, generator)
        means, values, a, b = setup
        q = query(means, a, b, params.beta)
        sampled = [noise.sample_keys(means, a, params.draws, generator) for noise in params.noises]
        lookups = [dot_product_attention(q, keys, values) for keys in sampled]
        ratios = [alpha[:, a] / (alpha[:, a] + alpha[:, b]) for _, alpha in lookups]
        scores = params.beta * (sampled[0] * means).sum(-1)[:, [a, b]]  # beta lambda

        names = [noise.name for noise in params.noises]
        taus = [params.beta * math.sqrt(sum(noise.score_variances(2))) for noise in params.noises]
        swings = list(map(check_swing, names, ratios, taus))
        sides = list(map(check_one_sided, names, ratios, taus))
        columns = {
            "noises": names,
            "taus": taus,
            "deviations": [math.sqrt(check.measured) for check in swings],
            "expected_deviations": [math.sqrt(check.expected) for check in swings],
            "one_sided": [check.measured for check in sides],
            "expected_one_sided": [check.expected for check in sides],
        }
        return Findings(
            figures={
                **columns,
                "bins": BINS.tolist(),
                "histograms": [_histogram(ratio) for ratio in ratios],
                "expected_histograms": [
                    torch.special.ndtr(BINS.logit() / tau).diff().tolist() for tau in taus
                ],
            },
            effect=[],
            law=[
                *check_closed_forms(setup, scores, lookups[0][0], ratios[0]),
                *swings,
                *sides,
            ],
            table=ResultTable(COLUMNS, [list(row) for row in zip(*columns.values(), strict=True)]),
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
