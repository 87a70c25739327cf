"""Polynomial: self-attention is quadratic in its input inside the softmax and linear outside."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar

import torch
from jaxtyping import Float
from matplotlib.figure import Figure
from pydantic import Field
from torch import Generator, Tensor

from regard.diagrams.themes import Theme
from regard.labs.lab import Check, Exercise, Findings, Lab, Parameters, Result, ResultTable, Value
from regard.labs.measurements.layer_parts import FeedForwardTest, SelfAttention
from regard.labs.measurements.single_query import ROUNDING
from regard.labs.plotting import add_legend, add_subplots
from regard.models.layers import FEED_FORWARDS

HEADS = 4
SCALES = [2 ** (step / 4) for step in range(-8, 9)]  # 1/4 to 4
SHARP = 0.5  # entropy at cX over that at X, up to which the weights count as sharpened
NONLINEAR = 0.1  # |A(cX) - c A(X)| / |c A(X)|, from which the whole layer counts as not linear
OWN_CHANGE = 0.1  # of a token's output, relative to it, when that token is replaced


class PolynomialParameters(Parameters):
    scale: float = Field(4.0, ge=0.1, le=10)
    """c, the factor of the input; at 1 nothing changes."""
    tokens: int = Field(11, ge=3, le=64)
    """n, number of tokens."""
    d_model: int = Field(32, ge=8, le=256, multiple_of=HEADS)
    """Model dimension: four heads share it."""


def relative(difference: Tensor, reference: Tensor) -> float:
    """The largest |difference| over the largest |reference|"""
    return float(difference.abs().max() / reference.abs().max())


def entropy(weights: Float[Tensor, "heads query key"]) -> float:
    """- sum_j alpha_j ln alpha_j, the mean over heads and queries"""
    return float(torch.special.entr(weights).sum(-1).mean())


def fit_degree(scales: Sequence[float], sizes: Sequence[float]) -> float:
    """The exponent p of sizes = constant * scales^p, by least squares."""
    x, y = (torch.tensor(values, dtype=torch.float64).log() for values in (scales, sizes))
    x, y = x - x.mean(), y - y.mean()
    return float(x @ y / (x @ x))


# --- the law --------------------------------------------------------------------------------------


def check_inside(
    attention: SelfAttention, x: Tensor, direction: Tensor, scales: Sequence[float]
) -> Iterator[Check]:
    """The scores are a homogeneous quadratic polynomial of the input, and the one derived."""
    scores = attention.scores(x)
    yield Check.worst(
        "largest difference of e(cX) from c^2 e(X), relative",
        (relative(attention.scores(c * x) / c**2 - scores, scores) for c in scales),
        "<=",
        0,
        ROUNDING,
    )
    line = [attention.scores(x + t * direction) for t in range(4)]
    third = line[3] - 3 * line[2] + 3 * line[1] - line[0]
    yield Check(
        "third difference of e along X + tD, relative", relative(third, line[3]), "<=", 0, ROUNDING
    )
    second = line[2] - 2 * line[1] + line[0]
    expected = 2 * attention.quadratic_form(direction)
    yield Check(
        "second difference of e along X + tD from 2 D W_Q (D W_K)^T / sqrt(d), relative",
        relative(second - expected, expected),
        "<=",
        0,
        ROUNDING,
    )


def check_outside(
    attention: SelfAttention, x: Tensor, y: Tensor, scales: Sequence[float]
) -> Iterator[Check]:
    """With the weights of X, the output is linear in the values; and so A(cX) follows from e(X) and V(X)."""
    output = attention.output(x, values_of=x)
    both = attention.output(x, values_of=x + 2 * y)
    parts = output + 2 * attention.output(x, values_of=y)
    yield Check(
        "difference of the output for the values of X + 2Y from that for X plus 2 times that for Y, relative",
        relative(both - parts, parts),
        "<=",
        0,
        ROUNDING,
        hint="The weights are held fixed: the output should be a weighted sum of the values.",
    )
    scores, values = attention.scores(x), attention.values(x)
    yield Check.worst(
        "largest difference of A(cX) from softmax(c^2 e(X)) c V(X) W_O, relative",
        (
            relative(attention.output(c * x) - attention.project(predicted), output)
            for c in scales
            for predicted in [scaled_output(scores, values, c)]
        ),
        "<=",
        0,
        ROUNDING,
    )


def check_degrees(sizes: Sequence[float], fixed_sizes: Sequence[float]) -> Iterator[Check]:
    """The exponents of c, fitted to what was measured."""
    for name, values, degree in (
        ("degree of e(cX) in c", sizes, 2),
        ("degree of the output in c, with the weights held fixed", fixed_sizes, 1),
    ):
        yield Check(name, fit_degree(SCALES, values), "=", degree, ROUNDING)


# --- the exercise ---------------------------------------------------------------------------------


def scaled_output(
    scores: Float[Tensor, "*heads query key"], values: Float[Tensor, "*heads key dim"], scale: float
) -> Float[Tensor, "*heads query dim"]:
    """A(cX) = softmax(c^2 e(X)) c V(X)"""
    return (scale**2 * scores).softmax(-1) @ (scale * values)


def grade(answer: Callable[..., Tensor]) -> Iterator[Check]:
    """Compare with the library's layer for the scaled input."""
    generator = torch.Generator().manual_seed(0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        attention = SelfAttention(d_model=5, heads=1)
    for tokens, scale in ((3, 1.0), (5, 2.0), (7, 0.5), (3, -1.5), (5, 40.0)):
        x = torch.randn(tokens, 5, dtype=torch.float64, generator=generator)
        given = answer(attention.scores(x)[0], attention.values(x)[0], scale)
        yield Check(
            f"largest difference from A(cX) ({tokens} tokens, c = {scale:g})",
            float((attention.project(given[None]) - attention.output(scale * x)).abs().max()),
            "<=",
            0,
            1e-6,
            hint="A score is the product of two projections of X, a value is one projection: by which power "
            "of c does each grow? (If c is large, e^x overflows: torch.softmax subtracts the maximum first.)",
        )


class Polynomial(Lab):
    """e(cX) = c^2 e(X), and the output is linear in the values."""

    name = "polynomial"
    claim = (
        "Attention is quadratic inside the softmax and linear outside, so a larger input sharpens it; "
        "feed-forward is equivariant"
    )
    derivation = """
Rows are tokens. Self-attention is A(X) = softmax(e(X)) V(X) W_O with

    e(X) = X W_Q (X W_K)^T / sqrt(d)        V(X) = X W_V

Inside the softmax stands a quadratic form: e(cX) = c^2 e(X), along a line X + tD the scores are a parabola in
t with the second difference 2 D W_Q (D W_K)^T / sqrt(d), and their third difference is 0. Outside, with the
weights held fixed, the output is linear in the values, and so in X. Together

    A(cX) = softmax(c^2 e(X)) c V(X) W_O

so a larger input does not only scale the output: it sharpens the weights, as a temperature of 1 / c^2 would,
and their entropy falls. The feed-forward network is applied to each row by itself, so FF(PX) = P FF(X) for
every permutation P of tokens, and the output of token t depends on token t only.
"""
    parameters = PolynomialParameters
    absent: ClassVar[dict[str, Value]] = {"scale": 1}
    exercise = Exercise(
        starter='''
def scaled_output(scores, values, scale):
    """Return the output of self-attention for the input c X, given its scores and values for X.

    scores: a tensor [n, n], X W_Q (X W_K)^T / sqrt(d); values: a tensor [n, d], X W_V; scale: c, a number.
    Return a tensor [n, d]: softmax(scores) @ values, if all tokens had been multiplied by c.
    """
    raise NotImplementedError
''',
        solution=scaled_output,
        grade=grade,
        background="""
For tokens in the rows of X, self-attention has the scores X W_Q (X W_K)^T / sqrt(d) and the values X W_V. Its
output is softmax(scores) @ values. The weights W_Q, W_K and W_V do not depend on X.
""",
    )

    def measure(self, params: PolynomialParameters, generator: Generator) -> Findings:
        x, y, direction = torch.randn(
            3, params.tokens, params.d_model, dtype=torch.float64, generator=generator
        )
        attention = SelfAttention(params.d_model, HEADS)
        feed_forwards = [
            FeedForwardTest(name, params.d_model, x, generator) for name in FEED_FORWARDS
        ]
        scores = attention.scores(x)
        sizes = [float(attention.scores(c * x).norm()) for c in SCALES]
        fixed_sizes = [float(attention.output(x, values_of=c * x).norm()) for c in SCALES]
        output_sizes = [float(attention.output(c * x).norm()) for c in SCALES]
        entropies = [entropy(attention.weights(c * x)) for c in SCALES]
        columns = SCALES, sizes, fixed_sizes, output_sizes, entropies
        return Findings(
            figures={
                "scales": SCALES,
                "score_sizes": sizes,
                "fixed_output_sizes": fixed_sizes,
                "output_sizes": output_sizes,
                "entropies": entropies,
                "expected_entropies": [entropy((c**2 * scores).softmax(-1)) for c in SCALES],
                "uniform_entropy": math.log(params.tokens),
                "feed_forwards": [test.name for test in feed_forwards],
                "equivariance_gaps": [test.gap for test in feed_forwards],
            },
            law=[
                *check_inside(attention, x, direction, [*SCALES, params.scale]),
                *check_outside(attention, x, y, [*SCALES, params.scale]),
                *check_degrees(sizes, fixed_sizes),
                *self._check_feed_forward(feed_forwards),
            ],
            effect=list(self._check_effect(attention, x, params.scale, feed_forwards)),
            table=ResultTable(
                ["c", "|e(cX)|", "|output|, weights fixed", "|A(cX)|", "entropy of the weights"],
                [list(row) for row in zip(*(column[::4] for column in columns), strict=True)],
            ),
        )

    @staticmethod
    def _check_feed_forward(tests: Sequence[FeedForwardTest]) -> Iterator[Check]:
        names = ", ".join(test.name for test in tests)
        yield Check.worst(
            f"largest |FF(PX) - P FF(X)| / |FF(X)| ({names})",
            [test.gap for test in tests],
            "<=",
            0,
            ROUNDING,
        )
        yield Check.worst(
            f"largest change of another token's output when one token is replaced ({names})",
            [test.others_change for test in tests],
            "<=",
            0,
            ROUNDING,
            hint="The feed-forward network mixes tokens.",
        )

    @staticmethod
    def _check_effect(
        attention: SelfAttention, x: Tensor, c: float, tests: Sequence[FeedForwardTest]
    ) -> Iterator[Check]:
        yield Check(
            f"entropy of the weights for cX over that for X (c = {c:g})",
            entropy(attention.weights(c * x)) / entropy(attention.weights(x)),
            "<=",
            SHARP,
            hint="The input is not large enough to sharpen the weights.",
        )
        linear = c * attention.output(x)
        yield Check(
            f"|A(cX) - c A(X)| / |c A(X)|: 0 if the layer were linear (c = {c:g})",
            float((attention.output(c * x) - linear).norm() / linear.norm()),
            ">=",
            NONLINEAR,
            hint="Only the size of the output changes, as in a linear layer.",
        )
        yield Check.worst(
            "smallest change of a token's own feed-forward output when the token is replaced",
            [test.own_change for test in tests],
            ">=",
            OWN_CHANGE,
            hint="The feed-forward network ignores its input.",
        )

    def draw(self, result: Result, figure: Figure, colours: Theme) -> None:
        data, scales = result.figures, result.figures["scales"]
        left, right = add_subplots(figure, colours, columns=2)
        middle = len(scales) // 2  # c = 1
        for name, label, degree, style in (
            ("score_sizes", "scores, inside the softmax", 2, "o"),
            ("fixed_output_sizes", "output, weights held fixed", 1, "s"),
        ):
            sizes = data[name]
            (line,) = left.plot(scales, [c**degree for c in scales], lw=1.5)
            left.plot(
                *(scales, [size / sizes[middle] for size in sizes], style),
                ms=5,
                color=line.get_color(),
                label=f"{label}: $c^{degree}$" if degree > 1 else f"{label}: $c$",
            )
        left.set(
            xlabel="$c$, factor of the input",
            ylabel="size, relative to $c = 1$",
            xscale="log",
            yscale="log",
        )
        right.plot(scales, data["expected_entropies"], label=r"softmax of $c^2 e(X)$")
        right.plot(scales, data["entropies"], "o", ms=5, label="attention weights for $cX$")
        right.axhline(
            data["uniform_entropy"], color=colours.dimmed, ls="--", lw=1, label=r"uniform: $\ln n$"
        )
        right.set(
            xlabel="$c$, factor of the input",
            ylabel="mean entropy of the weights, nats",
            xscale="log",
            ylim=(0, None),
        )
        for panel in (left, right):
            panel.set_xticks([0.25, 0.5, 1, 2, 4], ["¼", "½", "1", "2", "4"])
            panel.minorticks_off()
            add_legend(panel, colours, loc="best")
