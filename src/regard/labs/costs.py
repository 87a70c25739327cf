"""Costs: how many products attention takes, counted by hand and by PyTorch."""

from collections.abc import Callable, Iterator
from typing import Any, Self

import torch
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter
from pydantic import Field, model_validator
from torch import Generator
from torch.utils.flop_counter import FlopCounterMode

from regard.attention import SCORES, MultiHead, causal_mask
from regard.diagrams.themes import Theme
from regard.labs.lab import Check, Exercise, Findings, Lab, Parameters, Result, ResultTable
from regard.labs.plotting import add_legend, add_subplots
from regard.models.mixers import Reading, SelfAttention


class CostsParameters(Parameters):
    tokens: int = Field(48, ge=1, le=512)
    """M, how many tokens look at each other, or are looked at."""
    queries: int = Field(20, ge=1, le=512)
    """N, how many tokens look at those M in cross-attention."""
    width: int = Field(16, ge=1, le=128)
    """d, how wide a token is, and each head: the head width is free, and here it is not d / h."""
    heads: int = Field(6, ge=2, le=16)
    """h, how many heads there are."""
    groups: int = Field(2, ge=1, le=16)
    """g, how many keys and values grouped-query heads share; it must divide h."""

    @model_validator(mode="after")
    def _shared_equally(self) -> Self:
        if self.heads % self.groups:
            raise ValueError(
                f"{self.heads} heads cannot share {self.groups} keys and values equally"
            )
        return self


# --- counted by hand ------------------------------------------------------------------------------


def self_attention(tokens: int, width: int, heads: int) -> int:
    """H (3 M d^2 + 2 M^2 d) + h M d^2"""
    m, d, h = tokens, width, heads
    return h * (3 * m * d**2 + 2 * m**2 * d) + h * m * d**2


def cross_attention(queries: int, tokens: int, width: int, heads: int) -> int:
    """H (N d^2 + 2 M d^2 + 2 M N d) + h N d^2"""
    n, m, d, h = queries, tokens, width, heads
    return h * (n * d**2 + 2 * m * d**2 + 2 * m * n * d) + h * n * d**2


def saved(tokens: int, width: int, heads: int, groups: int) -> int:
    """2 M d^2 (h - g)"""
    return 2 * tokens * width**2 * (heads - groups)


def cache(tokens: int, width: int, groups: int) -> int:
    """2 g M d numbers: a key and a value for each token and group"""
    return 2 * groups * tokens * width


# --- counted by PyTorch ---------------------------------------------------------------------------


def layer(width: int, heads: int, groups: int) -> MultiHead:
    """The library's heads, each as wide as a token."""
    return MultiHead(width, heads, width, SCORES["scaled-dot"](width, width), kv_heads=groups)


def flops(work: Callable[[], Any]) -> int:
    """What PyTorch counts: two for each product and its addition."""
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        work()
    return counter.get_total_flops()


def measured_self(
    tokens: int, width: int, heads: int, groups: int, causal: bool = False, explain: bool = True
) -> tuple[int, int]:
    """(flops, numbers that the cache then holds) of a text that is read at once"""
    mixer, at = SelfAttention(layer(width, heads, groups)), torch.arange(tokens)[None]
    past = mixer.begin(1)
    reading = Reading(at, at, causal_mask(at, at) if causal else None)
    counted = flops(lambda: mixer(torch.zeros(1, tokens, width), reading, past, explain))
    assert past.keys is not None
    assert past.values is not None
    return counted, past.keys.numel() + past.values.numel()


def measured_cross(queries: int, tokens: int, width: int, heads: int) -> int:
    """Flops of N tokens that look at M others."""
    attention = layer(width, heads, heads)
    x, source = torch.zeros(1, queries, width), torch.zeros(1, tokens, width)
    at, source_at = torch.arange(queries)[None], torch.arange(tokens)[None]

    def work() -> None:
        held = attention.keys_values(source, source_at)
        attention(x, *held, None, at, source_at, explain=True)

    return flops(work)


# --- the exercise ---------------------------------------------------------------------------------


def products(tokens: int, width: int, heads: int, groups: int) -> int:
    """(2 h + 2 g) M d^2 + 2 h M^2 d"""
    return (2 * heads + 2 * groups) * tokens * width**2 + 2 * heads * tokens**2 * width


def grade(answer: Callable[..., int]) -> Iterator[Check]:
    """PyTorch counts, the answer must agree: exactly."""
    for tokens, width, heads, groups in ((3, 2, 1, 1), (5, 7, 6, 6), (5, 7, 6, 1), (11, 3, 6, 2)):
        call = f"products(tokens={tokens}, width={width}, heads={heads}, groups={groups})"
        yield Check(
            call,
            answer(tokens, width, heads, groups),
            "=",
            measured_self(tokens, width, heads, groups)[0] // 2,
            hint="Count each map by rows x inputs x outputs: queries for h heads, keys and values for g "
            "groups, the output map from all h heads for each of M tokens; then, for each head, M x M scores "
            "of d products, and as many for the weighted sum. Sharing saves projections, not scores.",
        )


class Costs(Lab):
    """Products counted by hand are those that PyTorch counts."""

    name = "costs"
    claim = "Self-attention takes h(3Md² + 2M²d) + hMd² products; sharing keys and values saves 2Md²(h - g)"
    derivation = """
One product is a multiplication and its addition. M tokens of width d, h heads, each with maps d x d (the
head width is free; it need not be d / h), and a map from all heads, h d x d, behind them:

    self      h (3 M d^2 + 2 M^2 d) + h M d^2              queries, keys, values; scores, sums; output
    causal    the same: masked scores are computed, all M^2 of them, and then thrown away
    cross     h (N d^2 + 2 M d^2 + 2 M N d) + h N d^2      N tokens look at M others

The output map acts on every token, h M d^2 in all. (The sheet's worked solution drops this M.) With one
key and value for all heads (multi-query) h - 1 of h pairs of maps go: exactly 2 M d^2 (h - 1) products;
with g groups 2 M d^2 (h - g). Scores and sums stay. The cache holds g keys and values for each token
instead of h: 2 g M d numbers.

PyTorch counts 2 for each product. We run the explained path, because PyTorch counts nothing for the
fused kernel of a CPU.
"""
    parameters = CostsParameters
    exercise = Exercise(
        starter='''
def products(tokens, width, heads, groups):
    """How many products (a multiplication and its addition) self-attention takes.

    `tokens` tokens of `width` numbers look at each other with `heads` heads, each as wide as a token. Heads
    share keys and values in `groups` groups: as many groups as heads is multi-head attention, one group is
    multi-query. Behind the heads is one linear map, from all of them to `width`. Return a whole number.
    """
    raise NotImplementedError
''',
        solution=products,
        grade=grade,
        background="""
A linear map from a numbers to b numbers takes a b products for each token that it is applied to. A score is
one dot product of a query and a key, d products, for each head and each pair of tokens; the weighted sum of
values takes as many. Every head has queries of its own; keys and values are made once for each group.
""",
    )

    def measure(self, params: CostsParameters, generator: Generator) -> Findings:
        m, n, d, h, g = params.tokens, params.queries, params.width, params.heads, params.groups
        own = self_attention(m, d, h)
        (whole, held), (one, one_held), (some, some_held) = (
            measured_self(m, d, h, groups) for groups in (h, 1, g)
        )
        counts = {
            "self": (whole, own),
            "causal": (measured_self(m, d, h, h, causal=True)[0], own),
            "cross": (measured_cross(n, m, d, h), cross_attention(n, m, d, h)),
            "multi-query": (one, own - saved(m, d, h, 1)),
            f"grouped-query, g = {g}": (some, own - saved(m, d, h, g)),
        }
        exact = [
            *(
                Check(f"flops, {name}: twice the products", found, "=", 2 * by_hand)
                for name, (found, by_hand) in counts.items()
            ),
            Check("products saved by multi-query", (whole - one) // 2, "=", saved(m, d, h, 1)),
            Check(f"products saved by g = {g}", (whole - some) // 2, "=", saved(m, d, h, g)),
            Check("numbers in the cache, multi-head", held, "=", cache(m, d, h)),
            Check("numbers in the cache, multi-query", one_held, "=", cache(m, d, 1)),
            Check(f"numbers in the cache, g = {g}", some_held, "=", cache(m, d, g)),
        ]
        lengths = sorted({max(1, round(m * share / 6)) for share in range(1, 7)})
        series = {
            groups: [measured_self(length, d, h, groups) for length in lengths]
            for groups in sorted({h, g, 1}, reverse=True)
        }
        return Findings(
            figures={
                "cases": list(counts),
                "flops": [found for found, _ in counts.values()],
                "products": [by_hand for _, by_hand in counts.values()],
                "saved_multi_query": (whole - one) // 2,
                "saved_grouped": (whole - some) // 2,
                "cache": [held, one_held, some_held],
                "without_the_sheets_m": own - h * m * d**2 + h * d**2,
                "flops_fused": measured_self(m, d, h, h, explain=False)[0],
                "lengths": lengths,
                "groups": list(series),
                "flops_by_length": [[count for count, _ in line] for line in series.values()],
                "cache_by_length": [[size for _, size in line] for line in series.values()],
            },
            checks=exact,
            table=ResultTable(
                ["attention", "products by hand", "flops by PyTorch", "ratio"],
                [
                    [name, by_hand, found, found / by_hand]
                    for name, (found, by_hand) in counts.items()
                ],
            ),
        )

    def draw(self, result: Result, figure: Figure, colours: Theme) -> None:
        found, params = result.figures, CostsParameters.model_validate(result.parameters)
        left, right = add_subplots(figure, colours, columns=2)
        lengths = found["lengths"]
        d, h = params.width, params.heads
        finer = [lengths[-1] * step / 100 for step in range(101)]
        for i, groups in enumerate(found["groups"]):
            tint = colours.series[i]
            names = {h: f"multi-head, h = {h}", 1: "multi-query"}
            name = names.get(groups, f"grouped-query, g = {groups}")
            closed = [products(x, d, h, groups) for x in finer]
            left.plot(finer, closed, color=tint, label=name)
            counted = [count / 2 for count in found["flops_by_length"][i]]
            left.plot(lengths, counted, "o", ms=5, color=tint)
            right.plot(finer, [cache(x, d, groups) for x in finer], color=tint, label=name)
            right.plot(lengths, found["cache_by_length"][i], "o", ms=5, color=tint)
        left.plot([], [], "o", color=colours.dimmed, label="counted by PyTorch")
        right.plot([], [], "o", color=colours.dimmed, label="held by the library's cache")
        left.set(xlabel="M (tokens)", ylabel="products", ylim=(0, None))
        right.set(xlabel="M (tokens)", ylabel="numbers in the cache", ylim=(0, None))
        for panel in (left, right):
            panel.yaxis.set_major_formatter(EngFormatter())
            add_legend(panel, colours)
