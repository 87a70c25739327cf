"""Noisy keys: one head that asks for two keys at once swings between them when they scatter."""

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

BINS = torch.linspace(0, 1, 12, dtype=torch.float64)  # odd in number: one about 1/2
ONE_SIDED = 0.9


def deviation(
    query: Float[Tensor, " width"],
    covariance_a: Float[Tensor, "width width"],
    covariance_b: Float[Tensor, "width width"],
) -> float:
    """The standard deviation of q . (k_a - k_b): sqrt(q^T (C_a + C_b) q)"""
    return math.sqrt(query @ (covariance_a + covariance_b) @ query)


def swing(tau: float, draws: int) -> tuple[float, float]:
    """The mean of s = (sigmoid(z) - 1/2)^2 for z normal(0, tau), and how far so many draws may stray."""
    grid = torch.linspace(-MAX_DEVIATIONS, MAX_DEVIATIONS, 4001, dtype=torch.float64)
    likely = (-(grid**2) / 2).softmax(0)
    s = (torch.sigmoid(tau * grid) - 0.5) ** 2
    mean = likely @ s
    return float(mean), bernstein_bound(float(likely @ (s - mean) ** 2), float(s.max()), draws)


def one_sided(tau: float) -> float:
    """How often sigmoid(z) lies outside [0.1, 0.9]."""
    return math.erfc(math.log(ONE_SIDED / (1 - ONE_SIDED)) / tau / math.sqrt(2))


def grade(answer: Callable[..., float]) -> Iterator[Check]:
    """The deviation is a law of any query and any two covariances."""
    generator = torch.Generator().manual_seed(0)
    mu_a, mu_b = orthonormal_keys(2, 5, generator)
    round_, half = 0.01 * torch.eye(5, dtype=torch.float64), torch.outer(mu_a, mu_a) / 2
    free = torch.randn(2, 5, 5, dtype=torch.float64, generator=generator)
    for given, asked, covariances in (
        ("both covariances 0.01 I, q = 3 (mu_a + mu_b)", 3 * (mu_a + mu_b), (round_, round_)),
        (
            "0.01 I + mu_a mu_a^T / 2 for key a, 0.01 I for key b, q = 3 (mu_a + mu_b)",
            3 * (mu_a + mu_b),
            (round_ + half, round_),
        ),
        (
            "two covariances without any symmetry, q = mu_b - 2 mu_a",
            mu_b - 2 * mu_a,
            free @ free.mT,
        ),
    ):
        yield Check(
            f"deviation of q . (k_a - k_b) ({given})",
            float(answer(asked.clone(), *(c.clone() for c in covariances))),
            "=",
            deviation(asked, *covariances),
            1e-6,
            hint="q . k has the variance q^T C q, variances of independent numbers add, and the "
            "deviation is the root of the variance.",
        )


class NoisyKeys(Lab):
    """q = beta (mu_a + mu_b) among keys that scatter: sometimes v_a, sometimes v_b."""

    name = "noisy-keys"
    claim = (
        "One head that asks for two keys at once swings between their values as soon as the keys' "
        "lengths vary"
    )
    derivation = """
Let the means mu_i be orthonormal, and q = beta (mu_a + mu_b), which averages v_a and v_b when k_i = mu_i.
If instead k_i = lambda_i mu_i, with lambda_i normal with mean 1 and standard deviation sigma, then
q . k_a = beta lambda_a, and

    alpha_a / (alpha_a + alpha_b) = sigmoid(beta (lambda_a - lambda_b))

whose argument z is normal with mean 0 and standard deviation tau = beta sigma sqrt(2). A large beta, which
averaging needs, makes tau large, and the output swings between v_a and v_b. In the same way for Gaussian keys
with the covariances C_a and C_b, where tau^2 = q^T (C_a + C_b) q:

    C_i = eps I for every key                      tau = 2 beta sqrt(eps)         tiny: one head suffices
    C_a = eps I + (1/2) mu_a mu_a^T for key a      tau = beta sqrt(1/2 + 4 eps)   it does not
"""
    parameters = NoiseParameters
    exercise = Exercise(
        starter='''
def deviation(query, covariance_a, covariance_b):
    """How much z = q . (k_a - k_b) varies: alpha_a / (alpha_a + alpha_b) is sigmoid(z).

    query: a tensor [d]; covariance_a, covariance_b: tensors [d, d], of two independent keys.
    Return the standard deviation of z, a number.
    """
    raise NotImplementedError
''',
        solution=deviation,
        grade=grade,
    )

    def measure(self, params: NoiseParameters, generator: Generator) -> Findings:
        means, values, a, b = Setup.sample(params.keys, generator)
        asked = query(means, a, b, params.beta)
        drawn = [noise.sample_keys(means, a, params.draws, generator) for noise in params.noises]
        found = [dot_product_attention(asked, keys, values) for keys in drawn]
        ratios = [alpha[:, a] / (alpha[:, a] + alpha[:, b]) for _, alpha in found]

        scores = params.beta * (drawn[0] * means).sum(-1)[:, [a, b]]  # beta lambda
        off_ratio = ratios[0] - torch.sigmoid(scores[:, 0] - scores[:, 1])
        off_output = found[0][0] - closed_form_output(scores, values, [a, b])

        names = [noise.name for noise in params.noises]
        taus = [params.beta * math.sqrt(sum(noise.score_variances(2))) for noise in params.noises]
        squares = [float(((ratio - 0.5) ** 2).mean()) for ratio in ratios]
        sides = [float(((ratio - 0.5).abs() > ONE_SIDED - 0.5).double().mean()) for ratio in ratios]
        laws, rooms = zip(*(swing(tau, params.draws) for tau in taus), strict=True)
        side_laws = [one_sided(tau) for tau in taus]
        spreads, spread_laws = ([math.sqrt(x) for x in means] for means in (squares, laws))
        return Findings(
            figures={
                "noises": names,
                "taus": taus,
                "spreads": spreads,
                "spread_laws": spread_laws,
                "one_sided": sides,
                "one_sided_laws": side_laws,
                "bins": BINS.tolist(),
                "shares": [_shares(ratio) for ratio in ratios],
                "share_laws": [
                    torch.special.ndtr(BINS.logit() / tau).diff().tolist() for tau in taus
                ],
            },
            checks=[
                Check(
                    "largest difference of alpha_a / (alpha_a + alpha_b) from "
                    "sigmoid(beta (lambda_a - lambda_b))",
                    float(off_ratio.abs().max()),
                    "<=",
                    0,
                    ROUNDING,
                ),
                Check(
                    "largest distance of a from alpha_a v_a + alpha_b v_b + the others' equal share",
                    float(off_output.norm(dim=1).max()),
                    "<=",
                    0,
                    ROUNDING,
                ),
                *(
                    Check(
                        f"mean square distance of that ratio from 1/2 ({name})",
                        square,
                        "=",
                        law,
                        room,
                    )
                    for name, square, law, room in zip(names, squares, laws, rooms, strict=True)
                ),
                *(
                    Check(
                        f"share of draws in which one of the two gets over {ONE_SIDED:.0%} ({name})",
                        side,
                        "=",
                        law,
                        bernstein_bound(law * (1 - law), 1, params.draws),
                    )
                    for name, side, law in zip(names, sides, side_laws, strict=True)
                ),
            ],
            table=ResultTable(
                ["noise", "tau", "deviation of the ratio", "law", "over 90 %", "law of that"],
                [
                    list(row)
                    for row in zip(names, taus, spreads, spread_laws, sides, side_laws, strict=True)
                ],
            ),
        )

    def draw(self, result: Result, figure: Figure, colours: Theme) -> None:
        found, bins = result.figures, result.figures["bins"]
        middles = [(low + high) / 2 for low, high in pairwise(bins)]
        keys = (
            r"$k_i = \lambda_i \mu_i$",
            r"$C_i = \epsilon I$",
            r"$C_a = \epsilon I + \frac{1}{2} \mu_a \mu_a^T$",
        )
        panels = add_subplots(figure, colours, columns=3)
        for panel, name, drawn, tau, shares, laws in zip(
            panels,
            found["noises"],
            keys,
            found["taus"],
            found["shares"],
            found["share_laws"],
            strict=True,
        ):
            panel.bar(middles, shares, width=0.07, alpha=0.7, label="measured")
            panel.plot(
                *(middles, laws, "o"),
                color=colours.series[1],
                label=r"sigmoid of normal$(0, \tau)$",
            )
            panel.set_title(f"{name}: {drawn}\n" + rf"$\tau$ = {tau:.3g}", fontsize=10)
            panel.set(xlabel=r"$\alpha_a / (\alpha_a + \alpha_b)$", ylim=(0, 1.05))
            panel.set_xticks([0, 0.5, 1], ["0\nall $v_b$", "½", "1\nall $v_a$"])
        panels[0].set_ylabel("share of draws")
        add_legend(panels[0], colours, loc="upper center")


def _shares(ratio: Float[Tensor, " draw"]) -> list[float]:
    return (torch.histogram(ratio, BINS).hist / len(ratio)).tolist()
