"""Noisy keys: one head with a query for two keys swings between their values when the keys are noisy."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import torch
from jaxtyping import Float
from matplotlib.figure import Figure
from torch import Generator, Tensor

from regard.diagrams.themes import Theme
from regard.labs.averaging import query
from regard.labs.lab import Check, Exercise, Findings, Lab, Result, ResultTable, Value
from regard.labs.measurements.noise import NoiseParameters, Setup, bernstein_bound
from regard.labs.measurements.score_difference import ONE_SIDED, ScoreDifference
from regard.labs.measurements.single_query import (
    ROUNDING,
    closed_form_output,
    dot_product_attention,
    explain_scaling,
    orthonormal_keys,
)
from regard.labs.plotting import add_legend, add_subplots

BINS = torch.linspace(0, 1, 12, dtype=torch.float64)  # an odd number of bins: one is centred at 1/2
MOST = 0.5  # fraction of draws from which the output counts as swinging
FEW = 0.1  # fraction of draws up to which one head suffices
COLUMNS = (
    "noise",
    "tau",
    "deviation of the ratio",
    "closed form",
    "fraction over 90 %",
    "its closed form",
)
PANEL_TITLES = (
    "every key scaled\n" r"$k_i = \lambda_i \mu_i$",
    "every key Gaussian\n" r"$C_i = \epsilon I$",
    "key a stretched\n" r"$C_a = \epsilon I + \frac{1}{2} \mu_a \mu_a^T$",
    "every key scaled\n" r"$q = \beta\,(k_a + k_b)$",
)


def deviation(
    query: Float[Tensor, " dim"],
    covariance_a: Float[Tensor, "dim dim"],
    covariance_b: Float[Tensor, "dim dim"],
) -> float:
    """Standard deviation of q . (k_a - k_b): sqrt(q^T (C_a + C_b) q)"""
    return math.sqrt(query @ (covariance_a + covariance_b) @ query)


@dataclass(frozen=True)
class Case:
    """One kind of noise and of query: how the head splits its weight, measured and expected."""

    name: str
    weights: Float[Tensor, "draw 2"]  # alpha_a and alpha_b
    z: ScoreDifference

    @property
    def ratios(self) -> Float[Tensor, " draw"]:
        """alpha_a / (alpha_a + alpha_b) = sigmoid(z)"""
        return self.weights[:, 0] / self.weights.sum(1)

    @property
    def swing(self) -> Check:
        """The mean of (ratio - 1/2)^2 against its expectation."""
        name = f"mean squared deviation of that ratio from 1/2 ({self.name})"
        measured = float(((self.ratios - 0.5) ** 2).mean())
        return Check(name, measured, "=", *self.z.swing(len(self.ratios)))

    @property
    def one_sided(self) -> Check:
        """The fraction of ratios outside [0.1, 0.9] against its probability."""
        expected = self.z.one_sided()
        tolerance = bernstein_bound(expected * (1 - expected), 1, len(self.ratios))
        return Check(self._one_sided_name, self._one_sided, "=", expected, tolerance)

    @property
    def swings(self) -> Check:
        """Is the output near v_a or near v_b in most draws?"""
        why = "The scores differ too little, or other keys have much of the weight."
        name = f"fraction of draws in which alpha_a or alpha_b is over {ONE_SIDED} ({self.name})"
        return Check(name, self.selection, ">=", MOST, hint=why)

    @property
    def stays(self) -> Check:
        """Is the ratio outside [0.1, 0.9] in few draws?"""
        why = "This noise is not tiny: one head does not suffice."
        return Check(self._one_sided_name, self._one_sided, "<=", FEW, hint=why)

    @property
    def selection(self) -> float:
        """The fraction of draws in which alpha_a or alpha_b itself is over 90 %."""
        return fraction(self.weights.amax(1), ONE_SIDED)

    @property
    def _one_sided_name(self) -> str:
        return f"fraction of draws in which one of the two gets over {ONE_SIDED:.0%} ({self.name})"

    @property
    def _one_sided(self) -> float:
        return fraction((self.ratios - 0.5).abs(), ONE_SIDED - 0.5)


def fraction(values: Float[Tensor, " draw"], threshold: float) -> float:
    """The fraction of values above the threshold; NaN if there is one, although NaN > x is false."""
    return float(((values > threshold) + 0 * values).mean())


def check_closed_forms(
    formula: str,
    setup: Setup,
    scores: Float[Tensor, "draw 2"],
    outputs: Float[Tensor, "draw dim"],
    ratios: Float[Tensor, " draw"],
) -> Iterator[Check]:
    """The ratio and the output against their closed forms, for keys that are multiples of their means."""
    _, values, a, b = setup
    yield Check.worst(
        f"largest difference of alpha_a / (alpha_a + alpha_b) from sigmoid({formula})",
        (ratios - torch.sigmoid(scores[:, 0] - scores[:, 1])).tolist(),
        "=",
        0,
        ROUNDING,
    )
    yield Check.worst(
        f"largest distance of a from its closed form, given {formula}",
        (outputs - closed_form_output(scores, values, [a, b])).norm(dim=1).tolist(),
        "<=",
        0,
        ROUNDING,
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
        given, expected = (
            float(function(q.clone(), *(c.clone() for c in covariances)))
            for function in (answer, deviation)
        )
        yield Check(
            f"standard deviation of q . (k_a - k_b) ({case})",
            given,
            "=",
            expected,
            1e-6,
            hint=explain_scaling(given, expected, len(q))
            or "q . k has the variance q^T C q, variances of independent variables add, and the "
            "standard deviation is the square root of the variance.",
        )


class NoisyKeys(Lab):
    """q = beta (mu_a + mu_b) with noisy keys returns sometimes v_a, sometimes v_b."""

    name = "noisy-keys"
    claim = (
        "One head with a query for two keys swings between their values when the lengths of the keys "
        "vary"
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

Another reading of the homework takes the noisy keys for the query too, q = beta (k_a + k_b). Then
q . k_a = beta lambda_a^2, and the ratio is

    alpha_a / (alpha_a + alpha_b) = sigmoid(beta (lambda_a^2 - lambda_b^2))

Its argument is beta (lambda_a - lambda_b) (lambda_a + lambda_b), about twice the one above: this head swings
even more. Its standard deviation is tau = beta sigma sqrt(8 + 4 sigma^2). With scaled scores q . k / sqrt(d)
replace beta by beta / sqrt(d) everywhere.
"""
    parameters = NoiseParameters
    absent: ClassVar[dict[str, Value]] = {"sigma": 0.01, "beta": 1}
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
        sampled = [noise.sample_keys(means, a, params.draws, generator) for noise in params.noises]
        scaled_keys = sampled[0]
        noisy_query = params.beta * (scaled_keys[:, a] + scaled_keys[:, b])
        lookups = [
            dot_product_attention(q, keys, values, params.scaled)
            for q, keys in (
                *((query(means, a, b, params.beta), keys) for keys in sampled),
                (noisy_query, scaled_keys),
            )
        ]
        cases = [
            Case(name, alpha[:, [a, b]], z)
            for name, (_, alpha), z in zip(
                params.case_names, lookups, score_differences(params), strict=True
            )
        ]
        lambdas = (scaled_keys * means).sum(-1)[:, [a, b]]
        score = "beta / sqrt(d)" if params.scaled else "beta"
        closed_forms = [
            check_closed_forms(
                f"{score} (lambda_a{power} - lambda_b{power})",
                setup,
                params.mean_score * lengths,
                lookups[i][0],
                cases[i].ratios,
            )
            for i, power, lengths in ((0, "", lambdas), (3, "^2", lambdas**2))
        ]
        swings, sides = [case.swing for case in cases], [case.one_sided for case in cases]
        columns = {
            "noises": list(params.case_names),
            "taus": [case.z.tau for case in cases],
            "deviations": [math.sqrt(check.measured) for check in swings],
            "expected_deviations": [math.sqrt(check.expected) for check in swings],
            "one_sided": [check.measured for check in sides],
            "expected_one_sided": [check.expected for check in sides],
        }
        return Findings(
            figures={
                **columns,
                "selections": [case.selection for case in cases],
                "bins": BINS.tolist(),
                "histograms": [_histogram(case.ratios) for case in cases],
                "expected_histograms": [case.z.histogram(BINS) for case in cases],
            },
            law=[*(check for checks in closed_forms for check in checks), *swings, *sides],
            effect=[*(cases[i].swings for i in (0, 2, 3)), cases[1].stays],
            table=ResultTable(COLUMNS, [list(row) for row in zip(*columns.values(), strict=True)]),
        )

    def draw(self, result: Result, figure: Figure, colours: Theme) -> None:
        data = result.figures
        centres = [(low + high) / 2 for low, high in pairwise(data["bins"])]
        panels = add_subplots(figure, colours, columns=4)
        for i, (panel, title) in enumerate(zip(panels, PANEL_TITLES, strict=True)):
            panel.bar(centres, data["histograms"][i], width=0.07, alpha=0.7, label="measured")
            panel.plot(
                *(centres, data["expected_histograms"][i], "o"),
                ms=4,
                color=colours.series[1],
                label="closed form",
            )
            panel.set_title(title + "\n" + rf"$\tau$ = {data['taus'][i]:.3g}", fontsize=10)
            panel.set(xlabel=r"$\alpha_a / (\alpha_a + \alpha_b)$", ylim=(0, 1.05))
            panel.set_xticks([0, 0.5, 1], ["0\nall $v_b$", "½", "1\nall $v_a$"])
        panels[0].set_ylabel("fraction of draws")
        add_legend(panels[0], colours, loc="upper center")


def score_differences(params: NoiseParameters) -> list[ScoreDifference]:
    """The distribution of z for each noise, and for a query made from the noisy keys."""
    stds = [math.sqrt(sum(noise.score_variances(2))) for noise in params.noises]
    return [
        *(ScoreDifference.normal(params.mean_score * std) for std in stds),
        ScoreDifference.of_squares(params.mean_score, params.sigma),
    ]


def _histogram(ratio: Float[Tensor, " draw"]) -> list[float]:
    return (torch.histogram(ratio, BINS).hist / len(ratio)).tolist()
