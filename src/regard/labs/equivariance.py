"""Equivariance: attention alone does not know in which order its tokens stand."""

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
from regard.models.build import make

ROUNDING = 1e-9  # of float64, over a few hundred additions
BROKEN = 0.01  # what an order must change to count, as a share of the output
PLAIN, CAUSAL = "no position, no mask", "causal mask"

Tokens = Float[Tensor, "length width"]
Order = Int[Tensor, " length"]


class EquivarianceParameters(Parameters):
    tokens: int = Field(11, ge=3, le=128)
    """n, how many tokens are shuffled; of two, one is as far from the other as the other from it."""
    width: int = Field(32, ge=8, le=256, multiple_of=8)
    """d, how wide a token is; four heads of d/4, in pairs that rotary can turn."""
    orders: int = Field(7, ge=1, le=20)
    """How many orders are tried."""


class Layer:
    """x -> A(x): the library's heads, with a position or a causal mask, tokens numbered as they come."""

    def __init__(self, width: int, position: Position, causal: bool = False) -> None:
        depth = width // 4
        score = SCORES["scaled-dot"](depth, depth)
        self.heads = MultiHead(width, 4, depth, score, position=position).double()
        self.position, self.causal = position, causal

    @torch.no_grad()
    def __call__(self, x: Tokens) -> Tokens:
        at = torch.arange(len(x))[None]
        mask = causal_mask(at, at) if self.causal else None
        placed = self.position.embed(x[None], at)
        return self.heads(placed, *self.heads.keys_values(placed, at), mask, at, at)[0][0]


def layers(width: int) -> Iterator[tuple[str, Layer]]:
    """The plain one, the masked one, and one for each kind of position with each of its options."""
    sizes = width, 4, width // 4
    yield PLAIN, Layer(width, POSITIONS["none"](*sizes))
    yield CAUSAL, Layer(width, POSITIONS["none"](*sizes), causal=True)
    for choice in list_variants(config.Position):
        kind = choice.value["kind"]
        if kind not in POSITIONS or kind == "none":  # interleaved is rotary, in some layers
            continue
        table = config.Transformer(position=choice.value).position
        with suppress(UserError):  # a user's own kind may have no default for something
            position = make("position", table, *sizes)
            yield choice.name.removeprefix("kind=").replace(" ", ", "), Layer(width, position)


def orders(length: int, count: int, generator: Generator) -> list[Order]:
    """Every second token first, which changes all distances, then by chance."""
    # Some orders would show little: backwards, alibi's distances stay; one on, most of them do.
    places = torch.arange(length)
    drawn = [torch.randperm(length, generator=generator) for _ in range(count - 1)]
    return [torch.cat([places[::2], places[1::2]]), *drawn]


def gap(layer: Callable[[Tokens], Tokens], x: Tokens, order: Order) -> float:
    """|A(PX) - P A(X)| / |A(X)|"""
    straight = layer(x)
    return float((layer(x[order]) - straight[order]).norm() / straight.norm())


# --- the exercise ---------------------------------------------------------------------------------


def restore(outputs: Tokens, order: Order) -> Tokens:
    """P^T A(PX)"""
    return outputs[order.argsort()]


def grade(answer: Callable[..., Tensor]) -> Iterator[Check]:
    """What was read shuffled must come back as if read straight."""
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    layer = Layer(16, POSITIONS["none"](16, 4, 4))
    for told in ([0, 1, 2], [1, 0, 2], [1, 2, 0], [3, 0, 4, 1, 2, 6, 5]):
        x = torch.randn(len(told), 16, dtype=torch.float64, generator=generator)
        order = torch.tensor(told)
        straight, shuffled = layer(x), layer(x[order])
        found = answer(shuffled.clone(), order.clone())
        yield Check(
            f"largest difference from A(X) (order = {told})",
            float((found - straight).abs().max()),
            "<=",
            0,
            1e-6,
            hint="A(X[order]) is A(X)[order]: row i of what you get belongs to token order[i]. Using "
            "`order` once more undoes only orders that are their own inverse, such as [1, 0, 2].",
        )


class Equivariance(Lab):
    """A(PX) = P A(X), and what breaks it."""

    name = "equivariance"
    claim = "Attention of shuffled tokens is shuffled attention, until a mask or position tells the order"
    derivation = """
Self-attention is A(X) = softmax(X W_Q (X W_K)^T) X W_V, rows being tokens. Let P shuffle rows. Then

    A(PX) = softmax(P Q K^T P^T) P V = P softmax(Q K^T) P^T P V = P A(X)

because softmax acts on each row alone, whatever the order of its entries, and P^T P = 1. Heads side by
side and a linear map behind them keep it. Whatever knows a place breaks it, for it does not move with
the tokens: a causal mask (token 1 sees only itself, whichever token that is), p_t added to the embedding
(PX + E is not P(X + E)), a bias by distance, keys turned by t. We measure |A(PX) - P A(X)| / |A(X)|, at
its largest over several P: 0 to rounding, or at least 0.01 where it should be broken.
"""
    parameters = EquivarianceParameters
    exercise = Exercise(
        starter='''
def restore(outputs, order):
    """What self-attention, without positions and masks, says about X, from what it said about X shuffled.

    outputs: a tensor [n, d], the attention's output for X[order]: row i of what it read was token order[i].
    order: a tensor [n] of whole numbers, a permutation of 0 .. n-1.
    Return a tensor [n, d]: its output for X.
    """
    raise NotImplementedError
''',
        solution=restore,
        grade=grade,
        background="""
Row i of X[order] is row order[i] of X. Without positions and masks, what self-attention says about a token
depends on that token and on which others there are, not on where any of them stands.
""",
    )

    def measure(self, params: EquivarianceParameters, generator: Generator) -> Findings:
        x = torch.randn(params.tokens, params.width, dtype=torch.float64, generator=generator)
        tried = orders(params.tokens, params.orders, generator)
        made = dict(layers(params.width))
        gaps = {name: [gap(layer, x, order) for order in tried] for name, layer in made.items()}
        worst = {name: max(found) for name, found in gaps.items()}
        moved = tried[0]
        straight = [made[name](x)[moved].flatten().tolist() for name in (PLAIN, CAUSAL)]
        shuffled = [made[name](x[moved]).flatten().tolist() for name in (PLAIN, CAUSAL)]
        return Findings(
            figures={
                "cases": list(worst),
                "gaps": list(worst.values()),
                "gap_of_each_order": list(gaps.values()),
                "shown": [PLAIN, CAUSAL],
                "straight": straight,
                "shuffled": shuffled,
            },
            checks=[self._check(name, found) for name, found in worst.items()],
            table=ResultTable(
                ["what is there", "|A(PX) - P A(X)| / |A(X)|", "A(PX) = P A(X)"],
                [[name, found, found <= ROUNDING] for name, found in worst.items()],
            ),
        )

    @staticmethod
    def _check(name: str, found: float) -> Check:
        if name == PLAIN:
            why = "Something in the heads knows where a token stands."
            return Check(f"gap with {name}", found, "<=", 0, ROUNDING, hint=why)
        why = "It should tell the order of the tokens, and does not."
        return Check(f"gap with {name}", found, ">=", BROKEN, hint=why)

    def draw(self, result: Result, figure: Figure, colours: Theme) -> None:
        found = result.figures
        left, right = add_subplots(figure, colours, columns=2)
        places = range(len(found["cases"]))
        kept = [g <= ROUNDING for g in found["gaps"]]
        tints = [colours.series[0] if held else colours.series[1] for held in kept]
        left.barh(places, [max(g, 1e-17) for g in found["gaps"]], color=tints, left=1e-18)
        left.axvline(BROKEN, color=colours.dimmed, ls="--", lw=1, label="broken, beyond this")
        add_legend(left, colours, loc="upper center", bbox_to_anchor=(0.5, 0.96))
        left.set_yticks(places, found["cases"])
        left.invert_yaxis()
        left.set(xscale="log", xlim=(1e-18, 10), xlabel=r"$|A(PX) - P\,A(X)|\;/\;|A(X)|$")
        series = zip(found["shown"], found["straight"], found["shuffled"], strict=True)
        for order, (name, straight, shuffled) in enumerate(series):
            right.plot(straight, shuffled, ".", ms=4, label=name, zorder=3 - order)
        reach = max(abs(x) for series in found["straight"] for x in series)
        line = [-reach, reach]
        right.plot(line, line, color=colours.dimmed, lw=1, label=r"$A(PX) = P\,A(X)$", zorder=1)
        right.set(xlabel=r"$P\,A(X)$, all numbers of it", ylabel=r"$A(PX)$", aspect="equal")
        add_legend(right, colours, loc="upper left")
