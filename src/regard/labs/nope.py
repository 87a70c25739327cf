"""NoPE: a causal mask alone can tell a token its position."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from jaxtyping import Float
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from pydantic import Field
from torch import Generator, Tensor

from regard.attention import POSITIONS, SCORES, MultiHead, causal_mask
from regard.diagrams.themes import Theme
from regard.labs.lab import Check, Exercise, Findings, Lab, Parameters, Result, ResultTable
from regard.labs.plotting import add_legend, add_subplots, draw_heatmap
from regard.labs.single_query import ROUNDING

LENGTHS = (1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 233)


class NopeParameters(Parameters):
    length: int = Field(12, ge=2, le=256)
    """T, how many tokens, of which the first is the begin token."""
    width: int = Field(8, ge=2, le=64)
    """d, how wide an embedding is; columns 1 and 2 matter."""
    trials: int = Field(10, ge=1, le=100)
    """How many random W_Q, and random other columns, are tried at each length."""


def keys_values(width: int) -> tuple[Float[Tensor, "width width"], Float[Tensor, "width width"]]:
    """W_K has ones in row 1, W_V a one at (2, 1); all else is 0."""
    w_k, w_v = torch.zeros(2, width, width, dtype=torch.float64)
    w_k[0] = 1
    w_v[1, 0] = 1
    return w_k, w_v


def embeddings(length: int, width: int, generator: Generator) -> Float[Tensor, "length width"]:
    """Columns 1 and 2 are (1, 1) for the begin token and (1, 0) for the others; the rest is random."""
    tokens = torch.randn(length, width, dtype=torch.float64, generator=generator)
    tokens[:, 0] = 1
    tokens[:, 1] = 0
    tokens[0, 1] = 1
    return tokens


class Attended(NamedTuple):
    """What a layer gives, and where it looks."""

    fused: Float[Tensor, "length width"]
    explained: Float[Tensor, "length width"]
    weights: Float[Tensor, "length length"]


@torch.no_grad()
def attended(
    tokens: Float[Tensor, "length width"],
    w_q: Float[Tensor, "width width"],
    w_k: Float[Tensor, "width width"],
    w_v: Float[Tensor, "width width"],
    *,
    causal: bool,
) -> Attended:
    """One head of the library's, without positions. Its maps are x W^T, ours x W: hence the turns."""
    length, width = tokens.shape
    score, position = SCORES["scaled-dot"](width, width), POSITIONS["none"](width, 1, width)
    layer = MultiHead(width, 1, width, score, position=position).double()
    layer.query.weight.copy_(w_q.mT)
    layer.key_value.weight.copy_(torch.cat([w_k.mT, w_v.mT]))
    layer.output.weight.copy_(torch.eye(width))
    at = torch.arange(length)[None]
    mask = causal_mask(at, at) if causal else None
    keys, values = layer.keys_values(tokens[None], at)
    fused, _ = layer(tokens[None], keys, values, mask, at, at)
    explained, weights = layer(tokens[None], keys, values, mask, at, at, explain=True)
    assert weights is not None
    return Attended(fused[0], explained[0], weights[0, 0])


def random_query(width: int, generator: Generator) -> Float[Tensor, "width width"]:
    """Some W_Q, its entries about 1, or up to about 1000."""
    normal = torch.randn(width, width, dtype=torch.float64, generator=generator)
    return normal * 1000 ** torch.rand((), dtype=torch.float64, generator=generator)


def law(length: int, width: int) -> Float[Tensor, "length width"]:
    """(1/t, 0, ..) for token t"""
    outputs = torch.zeros(length, width, dtype=torch.float64)
    outputs[:, 0] = 1 / torch.arange(1, length + 1, dtype=torch.float64)
    return outputs


def worst_of(length: int, width: int, trials: int, generator: Generator) -> Float[Tensor, "3"]:
    """How far the first number is off, explained and fused, and the others, for random W_Q and tokens."""
    worst = torch.zeros(3, dtype=torch.float64)
    for _ in range(trials):
        tokens, w_q = embeddings(length, width, generator), random_query(width, generator)
        found = attended(tokens, w_q, *keys_values(width), causal=True)
        off = (torch.stack([found.explained, found.fused]) - law(length, width)).abs()
        parts = [*off[:, :, 0].amax(1), off[:, :, 1:].max()]
        worst = torch.maximum(worst, torch.stack(parts))
    return worst


def grade(answer: Callable[..., tuple[Tensor, Tensor]]) -> Iterator[Check]:
    """Any W_K and W_V will do with which causal attention returns (1/t, 0, ..)."""
    generator = torch.Generator().manual_seed(0)
    for width, length in ((2, 3), (5, 7), (11, 13)):
        weights = answer(width)
        tokens, w_q = embeddings(length, width, generator), random_query(width, generator)
        output = attended(tokens, w_q, *weights, causal=True).explained
        off = (output - law(length, width)).abs()
        t = int(off[:, 0].argmax())
        yield Check(
            f"first number of token {t + 1}'s output (width {width}, {length} tokens, a random W_Q)",
            float(output[t, 0]),
            "=",
            1 / (t + 1),
            1e-6,
            hint="Token t should weigh the tokens up to t equally, whatever its query is: so all keys "
            "must be alike, and only column 1 is the same for all. A value's first number must be 1 for the "
            "begin token and 0 for the others, as column 2 is.",
        )
        yield Check(
            f"largest of the other numbers (width {width}, {length} tokens, a random W_Q)",
            float(off[:, 1:].max()),
            "=",
            0,
            1e-6,
            hint="Only column 1 of W_V may hold something, or other numbers come through.",
        )


class Nope(Lab):
    """Causal attention counts: 1, 1/2, 1/3, .."""

    name = "nope"
    claim = "A causal mask alone lets attention tell each token its position"
    derivation = """
Rows are tokens, and weights act from the right: Q = X W_Q, K = X W_K, V = X W_V. Let columns 1 and 2 of the
embedding be (1, 1) for the begin token and (1, 0) for every other, with anything in the other columns.
W_K has ones in row 1 and is 0 elsewhere: every key is (1, .., 1). W_V has a one at (2, 1) alone: the begin
token's value is (1, 0, ..), the others' are 0. Now whatever W_Q is, token t gives the same score to every
token that it sees. It sees t of them, through the causal mask, so

    alpha = 1/t for each        a_t = (1/t) (1, 0, ..) + 0 + .. + 0 = (1/t, 0, ..)

from which a later layer can read t. Without the mask every one of T tokens gets (1/T, 0, ..), and none can
tell where it stands.
"""
    parameters = NopeParameters
    exercise = Exercise(
        starter='''
def keys_values(width):
    """W_K and W_V with which causal attention returns (1/t, 0, .., 0) for token t = 1, 2, ..

    Rows are tokens: K = X W_K, V = X W_V. In X, columns 1 and 2 are (1, 1) for the begin token, which stands
    first, and (1, 0) for every other token; the other columns hold anything, and so does W_Q.
    width: how many columns there are, 2 or more. Return two tensors [width, width].
    """
    raise NotImplementedError
''',
        solution=keys_values,
        grade=grade,
    )

    def measure(self, params: NopeParameters, generator: Generator) -> Findings:
        lengths = [*(n for n in LENGTHS if n < params.length), params.length]
        worst = torch.stack([worst_of(n, params.width, params.trials, generator) for n in lengths])
        tokens = embeddings(params.length, params.width, generator)
        weights = random_query(params.width, generator), *keys_values(params.width)
        masked = attended(tokens, *weights, causal=True)
        bare = attended(tokens, *weights, causal=False).explained[:, 0]
        closed = law(params.length, params.width)[:, 0]
        explained, fused, others = worst.amax(0).tolist()
        return Findings(
            figures={
                "outputs": masked.explained[:, 0].tolist(),
                "closed_form": closed.tolist(),
                "without_mask": bare.tolist(),
                "weights": masked.weights.tolist(),
                "lengths": lengths,
                "off_by_length": worst[:, :2].amax(1).tolist(),
                "others_by_length": worst[:, 2].tolist(),
            },
            checks=[
                Check(
                    f"largest difference of the first number from 1/t, up to {params.length} tokens, {way}",
                    off,
                    "<=",
                    0,
                    ROUNDING,
                )
                for way, off in (("with weights", explained), ("fused", fused))
            ]
            + [
                Check("largest of all other numbers", others, "<=", 0, ROUNDING),
                Check(
                    "without the mask: largest difference from 1/t, which is 1 - 1/T at the first",
                    float((bare - closed).abs().max()),
                    "=",
                    1 - 1 / params.length,
                    ROUNDING,
                ),
                Check(
                    "without the mask: difference between the largest and the smallest first number",
                    float(bare.max() - bare.min()),
                    "<=",
                    0,
                    ROUNDING,
                ),
            ],
            table=ResultTable(
                ["token", "first number", "1/t", "without the mask"],
                [
                    [t + 1, float(masked.explained[t, 0]), float(closed[t]), float(bare[t])]
                    for t in range(min(6, params.length))
                ],
            ),
        )

    def draw(self, result: Result, figure: Figure, colours: Theme) -> None:
        found = result.figures
        left, right = add_subplots(figure, colours, columns=2)
        at = range(1, len(found["outputs"]) + 1)
        left.plot(at, found["closed_form"], label="$1/t$")
        left.plot(at, found["outputs"], "o", ms=5, label="causal mask, measured")
        left.plot(at, found["without_mask"], "s", ms=4, label="no mask, measured")
        left.set(
            xlabel="$t$, the token's position", ylabel="first number of its output", ylim=(0, 1.05)
        )
        left.xaxis.set_major_locator(MaxNLocator(integer=True))
        add_legend(left, colours)
        draw_heatmap(right, found["weights"], colours)
        right.set(
            xlabel="position looked at",
            ylabel="$t$, the token's position",
            title=r"weights: $1/t$ on every token up to $t$",
        )
