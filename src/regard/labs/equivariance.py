"""Equivariance: attention without positions or masks ignores the order of its tokens."""

from collections.abc import Callable, Iterator
from contextlib import suppress

import torch
from jaxtyping import Float, Int
from matplotlib.figure import Figure
from pydantic import Field
from torch import Generator, Tensor

from regard import config
from regard.attention import POSITIONS, SCORES, MultiHead, Position, causal_mask
from regard.diagrams.themes import Theme
from regard.errors import UserError
from regard.labs.config_variants import list_variants
from regard.labs.lab import Check, Exercise, Findings, Lab, Parameters, Result, ResultTable
from regard.labs.plotting import add_legend, add_subplots
from regard.models.build import build_kind

ROUNDING = 1e-9  # of float64, over a few hundred additions
MIN_GAP = 0.01  # relative change of the output from which equivariance counts as broken
PLAIN, CAUSAL = "no position, no mask", "causal mask"

Tokens = Float[Tensor, "length dim"]
Permutation = Int[Tensor, " length"]


class EquivarianceParameters(Parameters):
    tokens: int = Field(11, ge=3, le=128)
    """n, number of tokens to permute; at least 3, because swapping 2 tokens keeps their distance."""
    d_model: int = Field(32, ge=8, le=256, multiple_of=8)
    """d, model dimension; four heads of dimension d/4, which must be even for rotary."""
    permutations: int = Field(7, ge=1, le=20)
    """Number of permutations to test."""


class Layer:
    """x -> A(x): the library's multi-head attention with a position or a causal mask."""

    def __init__(self, d_model: int, position: Position, causal: bool = False) -> None:
        head_dim = d_model // 4
        score = SCORES["scaled-dot"](head_dim, head_dim)
        self.heads = MultiHead(d_model, 4, head_dim, score, position=position).double()
        self.position, self.causal = position, causal

    @torch.no_grad()
    def __call__(self, x: Tokens) -> Tokens:
        position_ids = torch.arange(len(x))[None]
        mask = causal_mask(position_ids, position_ids) if self.causal else None
        embedded = self.position.embed(x[None], position_ids)
        keys_values = self.heads.keys_values(embedded, position_ids)
        return self.heads(embedded, *keys_values, mask, position_ids, position_ids)[0][0]


def make_layers(d_model: int) -> Iterator[tuple[str, Layer]]:
    """A layer without position or mask, one with a causal mask, and one for each option of each position."""
    sizes = d_model, 4, d_model // 4
    yield PLAIN, Layer(d_model, POSITIONS["none"](*sizes))
    yield CAUSAL, Layer(d_model, POSITIONS["none"](*sizes), causal=True)
    for variant in list_variants(config.Position):
        kind = variant.value["kind"]
        if kind not in POSITIONS or kind == "none":  # interleaved is rotary, in some layers
            continue
        table = config.Transformer(position=variant.value).position
        with suppress(UserError):  # a registered kind may lack defaults
            position = build_kind("position", table, *sizes)
            yield variant.name.removeprefix("kind=").replace(" ", ", "), Layer(d_model, position)


def sample_permutations(length: int, count: int, generator: Generator) -> list[Permutation]:
    """First the even, then the odd indices, which changes all distances; the others are random."""
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
|A(PX) - P A(X)| / |A(X)|, the maximum over several P: 0 up to rounding, or at least 0.01 where it is broken.
"""
    parameters = EquivarianceParameters
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
        largest = {name: max(values) for name, values in gaps.items()}
        first = permutations[0]
        expected = [layers[name](x)[first].flatten().tolist() for name in (PLAIN, CAUSAL)]
        permuted = [layers[name](x[first]).flatten().tolist() for name in (PLAIN, CAUSAL)]
        return Findings(
            figures={
                "cases": list(largest),
                "gaps": list(largest.values()),
                "gaps_by_permutation": list(gaps.values()),
                "plotted": [PLAIN, CAUSAL],
                "expected": expected,
                "permuted": permuted,
            },
            effect=[],
            law=[self._check(name, gap) for name, gap in largest.items()],
            table=ResultTable(
                ["layer", "|A(PX) - P A(X)| / |A(X)|", "A(PX) = P A(X)"],
                [[name, gap, gap <= ROUNDING] for name, gap in largest.items()],
            ),
        )

    @staticmethod
    def _check(name: str, gap: float) -> Check:
        if name == PLAIN:
            why = "Something in the heads depends on the position of a token."
            return Check(f"gap with {name}", gap, "<=", 0, ROUNDING, hint=why)
        why = "It should make the output depend on the order of the tokens, and does not."
        return Check(f"gap with {name}", gap, ">=", MIN_GAP, hint=why)

    def draw(self, result: Result, figure: Figure, colours: Theme) -> None:
        data = result.figures
        left, right = add_subplots(figure, colours, columns=2)
        rows = range(len(data["cases"]))
        bar_colours = [colours.series[0 if gap <= ROUNDING else 1] for gap in data["gaps"]]
        left.barh(rows, [max(gap, 1e-17) for gap in data["gaps"]], color=bar_colours, left=1e-18)
        left.axvline(MIN_GAP, color=colours.dimmed, ls="--", lw=1, label="broken from here on")
        add_legend(left, colours, loc="upper center", bbox_to_anchor=(0.5, 0.96))
        left.set_yticks(rows, data["cases"])
        left.invert_yaxis()
        left.set(xscale="log", xlim=(1e-18, 10), xlabel=r"$|A(PX) - P\,A(X)|\;/\;|A(X)|$")
        series = zip(data["plotted"], data["expected"], data["permuted"], strict=True)
        for i, (name, expected, permuted) in enumerate(series):
            right.plot(expected, permuted, ".", ms=4, label=name, zorder=3 - i)
        limit = max(abs(x) for values in data["expected"] for x in values)
        line = [-limit, limit]
        right.plot(line, line, color=colours.dimmed, lw=1, label=r"$A(PX) = P\,A(X)$", zorder=1)
        right.set(xlabel=r"$P\,A(X)$, all elements", ylabel=r"$A(PX)$", aspect="equal")
        add_legend(right, colours, loc="upper left")
