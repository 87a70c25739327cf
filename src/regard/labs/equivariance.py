"""Equivariance: attention without positions or masks ignores the order of its tokens."""

from collections.abc import Callable, Iterator
from typing import ClassVar

import torch
from jaxtyping import Int
from matplotlib.figure import Figure
from pydantic import Field
from torch import Generator, Tensor

from regard.attention import POSITIONS, Position, causal_mask
from regard.diagrams.themes import Theme
from regard.labs.lab import Check, Exercise, Findings, Lab, Parameters, Result, ResultTable, Value
from regard.labs.measurements.self_attention import HEADS, SelfAttention, Tokens, list_positions
from regard.labs.plotting import add_legend, add_subplots, draw_differences

ROUNDING = 1e-9  # of float64, over a few hundred additions
MIN_GAP = 0.01  # relative change of the output from which equivariance counts as broken
PLAIN, CAUSAL = "no position, no mask", "causal mask"

Permutation = Int[Tensor, " length"]


class EquivarianceParameters(Parameters):
    tokens: int = Field(11, ge=1, le=128)
    """n, number of tokens to permute; one token has only one order, and swapping two keeps their distance."""
    d_model: int = Field(32, ge=8, le=256, multiple_of=8)
    """d, model dimension; four heads of dimension d/4, which must be even for rotary."""
    permutations: int = Field(7, ge=1, le=20)
    """Number of permutations to test."""


class Layer:
    """x -> A(x): the library's multi-head attention with a position or a causal mask."""

    def __init__(self, d_model: int, position: Position, causal: bool = False) -> None:
        self.attention, self.causal = SelfAttention(d_model, position), causal

    def __call__(self, x: Tokens) -> Tokens:
        position_ids = torch.arange(len(x))
        mask = causal_mask(position_ids[None], position_ids[None]) if self.causal else None
        return self.attention(x, position_ids, mask)[0]


def make_layers(d_model: int) -> Iterator[tuple[str, Layer]]:
    """A layer without position or mask, one with a causal mask, and one for each option of each position."""
    sizes = d_model, HEADS, d_model // HEADS
    yield PLAIN, Layer(d_model, POSITIONS["none"](*sizes))
    yield CAUSAL, Layer(d_model, POSITIONS["none"](*sizes), causal=True)
    for name, position in list_positions(d_model):
        if name != "none":
            yield name, Layer(d_model, position)


def sample_permutations(length: int, count: int, generator: Generator) -> list[Permutation]:
    """First the even, then the odd indices, which changes most distances; the others are random."""
    # Reversal would keep ALiBi's distances, and a rotation by one most of them.
    indices = torch.arange(length)
    drawn = [torch.randperm(length, generator=generator) for _ in range(count - 1)]
    return [torch.cat([indices[::2], indices[1::2]]), *drawn]


def equivariance_gap(
    layer: Callable[[Tokens], Tokens], x: Tokens, permutation: Permutation
) -> float:
    """|A(PX) - P A(X)| / |A(X)|"""
    output = layer(x)
    return float((layer(x[permutation]) - output[permutation]).norm() / output.norm())


# --- the exercise ---------------------------------------------------------------------------------


def restore(outputs: Tokens, permutation: Permutation) -> Tokens:
    """P^T A(PX)"""
    return outputs[permutation.argsort()]


def grade(answer: Callable[..., Tensor]) -> Iterator[Check]:
    """The restored output must equal the output for the unpermuted input."""
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    layer = Layer(16, POSITIONS["none"](16, 4, 4))
    for indices in ([0, 1, 2], [1, 0, 2], [1, 2, 0], [3, 0, 4, 1, 2, 6, 5]):
        x = torch.randn(len(indices), 16, dtype=torch.float64, generator=generator)
        permutation = torch.tensor(indices)
        expected, permuted = layer(x), layer(x[permutation])
        restored = answer(permuted.clone(), permutation.clone())
        yield Check(
            f"largest difference from A(X) (permutation = {indices})",
            float((restored - expected).abs().max()),
            "<=",
            0,
            1e-6,
            hint="A(X[permutation]) is A(X)[permutation]: row i of `outputs` belongs to token "
            "permutation[i]. Applying `permutation` twice works only if it is its own inverse, as [1, 0, 2].",
        )


class Equivariance(Lab):
    """A(PX) = P A(X), and what breaks it."""

    name = "equivariance"
    claim = "Self-attention is permutation-equivariant, until a causal mask or a position encodes the order"
    derivation = """
Self-attention is A(X) = softmax(X W_Q (X W_K)^T) X W_V, rows being tokens. Let P permute rows. Then

    A(PX) = softmax(P Q K^T P^T) P V = P softmax(Q K^T) P^T P V = P A(X)

because softmax acts on each row separately, whatever the order of its entries, and P^T P = 1. Multiple heads
and an output projection preserve this. Anything that depends on the position breaks it, because it does not
move with the tokens: a causal mask (the first token attends only to itself, whichever token that is), p_t
added to the embedding (PX + E is not P(X + E)), a bias by distance, queries and keys rotated by t. We measure
|A(PX) - P A(X)| / |A(X)| for several P: 0 up to rounding for all, or at least 0.01 for one if it is broken.
"""
    parameters = EquivarianceParameters
    absent: ClassVar[dict[str, Value]] = {"tokens": 1}
    exercise = Exercise(
        starter='''
def restore(outputs, permutation):
    """Return the output of self-attention for X, given its output for permuted X.

    There are no positions and no mask. outputs: a tensor [n, d], the output for X[permutation]: row i of that
    input was token permutation[i]. permutation: an integer tensor [n], a permutation of 0 .. n-1.
    Return a tensor [n, d]: the output for X.
    """
    raise NotImplementedError
''',
        solution=restore,
        grade=grade,
        background="""
Row i of X[permutation] is row permutation[i] of X. Without positions and masks, the output of self-attention
for a token depends on that token and on the set of the others, not on where any of them is.
""",
    )

    def measure(self, params: EquivarianceParameters, generator: Generator) -> Findings:
        x = torch.randn(params.tokens, params.d_model, dtype=torch.float64, generator=generator)
        permutations = sample_permutations(params.tokens, params.permutations, generator)
        layers = dict(make_layers(params.d_model))
        gaps = {
            name: [equivariance_gap(layer, x, permutation) for permutation in permutations]
            for name, layer in layers.items()
        }
        first = permutations[0]
        expected = [layers[name](x)[first].flatten().tolist() for name in (PLAIN, CAUSAL)]
        permuted = [layers[name](x[first]).flatten().tolist() for name in (PLAIN, CAUSAL)]
        largest = {name: float(torch.tensor(values).max()) for name, values in gaps.items()}
        return Findings(
            figures={
                "cases": list(gaps),
                "gaps": list(largest.values()),
                "gaps_by_permutation": list(gaps.values()),
                "plotted": [PLAIN, CAUSAL],
                "expected": expected,
                "permuted": permuted,
            },
            law=[
                Check.worst(
                    f"gap with {PLAIN}",
                    gaps[PLAIN],
                    "<=",
                    0,
                    ROUNDING,
                    hint="Something in the heads depends on the position of a token.",
                )
            ],
            effect=[
                Check(
                    f"gap with {name}",
                    gap,
                    ">=",
                    MIN_GAP,
                    hint="It should make the output depend on the order of the tokens, and does not.",
                )
                for name, gap in largest.items()
                if name != PLAIN
            ],
            table=ResultTable(
                ["layer", "|A(PX) - P A(X)| / |A(X)|", "A(PX) = P A(X)"],
                [[name, gap, gap <= ROUNDING] for name, gap in largest.items()],
            ),
        )

    def draw(self, result: Result, figure: Figure, colours: Theme) -> None:
        data = result.figures
        left, right = add_subplots(figure, colours, columns=2)
        gaps = dict(zip(data["cases"], data["gaps_by_permutation"], strict=True))
        draw_differences(left, gaps, colours, ROUNDING, MIN_GAP)
        left.set(xlabel=r"$|A(PX) - P\,A(X)|\;/\;|A(X)|$, one dot for each $P$")
        series = zip(data["plotted"], data["expected"], data["permuted"], strict=True)
        for i, (name, expected, permuted) in enumerate(series):
            right.plot(expected, permuted, ".", ms=4, label=name, zorder=3 - i)
        limit = max(abs(x) for values in data["expected"] for x in values)
        line = [-limit, limit]
        right.plot(line, line, color=colours.dimmed, lw=1, label=r"$A(PX) = P\,A(X)$", zorder=1)
        right.set(xlabel=r"$P\,A(X)$, all elements", ylabel=r"$A(PX)$", aspect="equal")
        add_legend(right, colours, loc="upper left")
