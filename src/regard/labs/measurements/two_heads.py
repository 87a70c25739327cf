"""Two heads against one, over noisy keys: what was derived, what was measured, and whether two heads help."""

import math
from collections.abc import Iterator

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from regard.labs.lab import Check
from regard.labs.measurements.noise import Noise, NoiseParameters, Setup, bernstein_bound
from regard.labs.measurements.noisy_heads import HeadOutputs, closed_form_two_heads
from regard.labs.measurements.single_query import ROUNDING

MIN_SWING = 0.5  # of one head: its variance over that of a fair coin between v_a and v_b
MAX_VARIANCE_RATIO = 0.1  # of two heads to one, up to which two have low variance
FAR = 0.5  # distance from (v_a + v_b) / 2 over that of v_a, from which the output is far
MAX_FAR = 0.1  # fraction of draws with an output far from it, up to which two heads are reliable
WELL_ABOVE = 3.0  # a score that exceeds ln(m - 1) by this has a weight above 0.95


class MultiHeadParameters(NoiseParameters):
    beta: float = Field(40.0, ge=1, le=50)
    """Scale of the queries: the dot product of each with the mean of the key it targets."""
    margin: float = Field(3.0, ge=0, le=10)
    """c, margin above ln(m - 1) from which a score counts as large enough."""

    @property
    def threshold(self) -> float:
        """ln(m - 1) + c"""
        return math.log(self.keys - 1) + self.margin


def failure_probability(noise: Noise, params: MultiHeadParameters, power: int = 1) -> float:
    """P(beta lambda^power is below the threshold for k_a or for k_b), lambda normal with mean 1."""
    critical = (params.threshold / params.mean_score) ** (1 / power)
    above = 1.0
    for variance in noise.score_variances(1):
        signs = (
            (-1,) if power == 1 else (-1, 1)
        )  # lambda^2 is also large where lambda is below -critical
        above *= sum(math.erfc((critical + sign) / math.sqrt(2 * variance)) / 2 for sign in signs)
    return 1 - above


def max_distances(setup: Setup) -> Float[Tensor, "2"]:
    """W_j = max_i |v_i - v_j| for j = a and j = b"""
    _, values, a, b = setup
    return torch.stack([(values - values[j]).norm(dim=1).max() for j in (a, b)])


class Comparison:
    """One head against two, for one kind of noise and of query: `outputs` measured, `theory` derived."""

    def __init__(
        self,
        name: str,
        outputs: HeadOutputs,
        theory: HeadOutputs,
        setup: Setup,
        params: MultiHeadParameters,
    ) -> None:
        self.name, self.outputs, self.theory = name, outputs, theory
        self.setup, self.params = setup, params
        _, values, a, b = setup
        self.errors = outputs.distances((values[a] + values[b]) / 2)
        self.variances = [float(x.mean()) for x in outputs.squared_deviations(theory)]
        self.ratio = self.variances[1] / self.variances[0]
        expected = [float(theory.probabilities @ x) for x in theory.squared_deviations(theory)]
        self.expected_variance, self.expected_ratio = expected[1], expected[1] / expected[0]

    def check_closed_form(self) -> Iterator[Check]:
        """(a_1 + a_2) / 2 against its closed form, and its error against the bound, in every draw."""
        _, values, a, b = self.setup
        scores = self.outputs.scores
        differences = self.outputs.two_heads - closed_form_two_heads(scores, values, a, b)
        yield Check.worst(
            f"largest distance of (a_1 + a_2) / 2 from its closed form ({self.name})",
            differences.norm(dim=1).tolist(),
            "<=",
            0,
            ROUNDING,
        )
        misplaced = torch.sigmoid(
            math.log(self.params.keys - 1) - scores
        )  # 1 - alpha_a, 1 - alpha_b
        bounds = misplaced @ max_distances(self.setup) / 2
        yield Check.worst(
            "largest excess of |a_1 + a_2 - v_a - v_b| / 2 over its bound, "
            f"((1 - alpha_a) W_a + (1 - alpha_b) W_b) / 2 ({self.name})",
            (self.errors[1] - bounds).tolist(),
            "<=",
            0,
            ROUNDING,
        )

    def check_variances(self) -> Iterator[Check]:
        """The measured variances of two heads, and over that of one, against the closed form."""
        theory_one, theory_two = self.theory.squared_deviations(self.theory)
        probabilities = self.theory.probabilities

        def tolerance(x: Float[Tensor, " outcome"]) -> float:
            centred = x - probabilities @ x
            variance, bound = float(probabilities @ centred**2), float(centred.abs().max())
            return bernstein_bound(variance, bound, self.params.draws) + ROUNDING

        yield Check(
            f"variance of the mean of two heads ({self.name})",
            self.variances[1],
            "=",
            self.expected_variance,
            tolerance(theory_two),
        )
        # variances[0] (ratio - expected_ratio) is a sample mean with expectation 0: the same bound applies.
        yield Check(
            f"variance of two heads over that of one ({self.name})",
            self.ratio,
            "=",
            self.expected_ratio,
            tolerance(theory_two - self.expected_ratio * theory_one) / self.variances[0],
        )

    def check_margin(self) -> Iterator[Check]:
        """The error against its bound where both scores are above the threshold, if they ever are."""
        errors = self.errors_above(self.params.margin)
        if len(errors):
            yield Check.worst(
                "largest |a_1 + a_2 - v_a - v_b| / 2 where both scores are above "
                f"{self.params.threshold:.3g} ({self.name})",
                errors.tolist(),
                "<=",
                float(max_distances(self.setup).mean()) / (1 + math.exp(self.params.margin)),
                ROUNDING,
            )

    def check_effect(self) -> Iterator[Check]:
        """One head swings; two have a low variance, and are rarely far from the midpoint.

        None of this depends on the margin.
        """
        yield Check(
            f"variance of one head over that of a fair coin between v_a and v_b ({self.name})",
            self.variances[0] / self.half_distance**2,
            ">=",
            MIN_SWING,
            hint="One head does not swing: there is little for two heads to improve.",
        )
        yield Check(
            f"variance of two heads over that of one ({self.name})",
            self.ratio,
            "<=",
            MAX_VARIANCE_RATIO,
            hint="Two heads reduce the variance too little.",
        )
        yield Check(
            f"fraction of draws with two heads far from (v_a + v_b) / 2 ({self.name})",
            self.far,
            "<=",
            MAX_FAR,
            hint="Two heads fail in these draws: a score is too close to ln(m - 1), or below it.",
        )
        yield Check.worst(
            "largest |a_1 + a_2 - v_a - v_b| / |v_a - v_b| where both scores are well above ln(m - 1) "
            f"({self.name})",
            (self.errors_above(WELL_ABOVE) / self.half_distance).tolist(),
            "<=",
            FAR,
            hint="Scores well above ln(m - 1) do not keep two heads near (v_a + v_b) / 2.",
        )

    @property
    def half_distance(self) -> float:
        """|v_a - v_b| / 2, the distance of v_a and of v_b from their midpoint."""
        _, values, a, b = self.setup
        return float((values[a] - values[b]).norm()) / 2

    @property
    def far(self) -> float:
        """The fraction of draws in which the output of two heads is far from the midpoint."""
        errors = self.errors[1]
        beyond = (errors > FAR * self.half_distance) + 0 * errors  # NaN stays NaN
        return float(beyond.mean())

    def errors_above(self, margin: float) -> Float[Tensor, " selected"]:
        """The errors of two heads in the draws with both scores above ln(m - 1) + margin."""
        threshold = math.log(self.params.keys - 1) + margin
        return self.errors[1][(self.outputs.scores >= threshold).all(1)]


def check_failures(
    name: str,
    scores: Float[Tensor, "draw 2"],
    probability: float,
    params: MultiHeadParameters,
) -> Check:
    """The fraction of draws with a score below the threshold against its probability."""
    below = (scores < params.threshold).any(1) + 0 * scores.sum(1)  # NaN stays NaN
    return Check(
        f"fraction of draws with a score below {params.threshold:.3g} ({name})",
        float(below.mean()),
        "=",
        probability,
        bernstein_bound(probability * (1 - probability), 1, params.draws),
    )
