"""Costs: multiply-accumulates of attention, by formula and by PyTorch's flop counter."""

from collections.abc import Callable, Iterator
from typing import ClassVar, Self

from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter
from pydantic import Field, model_validator
from torch import Generator

from regard.diagrams.themes import Theme
from regard.labs.lab import Check, Exercise, Findings, Lab, Parameters, Result, ResultTable, Value
from regard.labs.measurements.attention_costs import (
    DOUBLED,
    cache_elements,
    make_cases,
    measure_self,
    saved_macs,
    self_attention_macs,
)
from regard.labs.plotting import add_legend, add_subplots

SAVED = (
    0.5  # of the key and value projections: g divides h, so that sharing saves half of them or more
)
SMALLER = 2  # for the same reason, a cache of half the size, or less


class CostsParameters(Parameters):
    tokens: int = Field(48, ge=1, le=512)
    """M, number of tokens in self-attention, or of keys in cross-attention."""
    queries: int = Field(20, ge=1, le=512)
    """N, number of queries in cross-attention."""
    d_model: int = Field(16, ge=1, le=128)
    """d, model dimension, and dimension of each head: head_dim is free, and here it is d, not d / h."""
    heads: int = Field(6, ge=2, le=16)
    """h, number of heads."""
    groups: int = Field(2, ge=1, le=16)
    """g, number of key/value heads in grouped-query attention; must divide h."""

    @model_validator(mode="after")
    def _check_groups(self) -> Self:
        if self.heads % self.groups:
            raise ValueError(
                f"{self.heads} heads cannot be divided into {self.groups} key/value groups"
            )
        return self


# --- the exercise ---------------------------------------------------------------------------------


def macs(tokens: int, d_model: int, heads: int, groups: int) -> int:
    """MACs of self-attention with shared keys and values: (2 h + 2 g) M d^2 + 2 h M^2 d"""
    return (2 * heads + 2 * groups) * tokens * d_model**2 + 2 * heads * tokens**2 * d_model


def grade(answer: Callable[..., int]) -> Iterator[Check]:
    """The answer must equal PyTorch's count exactly."""
    for tokens, d_model, heads, groups in ((3, 2, 1, 1), (5, 7, 6, 6), (5, 7, 6, 1), (11, 3, 6, 2)):
        call = f"macs(tokens={tokens}, d_model={d_model}, heads={heads}, groups={groups})"
        yield Check(
            call,
            answer(tokens, d_model, heads, groups),
            "=",
            measure_self(tokens, d_model, heads, groups)[0] // 2,
            hint="Each projection costs rows x inputs x outputs: queries for h heads, keys and values for "
            "g groups, the output projection from all h heads for each of M tokens; then, for each head, "
            "M x M scores of d MACs, and the same for the weighted sum. Sharing saves projections only.",
        )


class Costs(Lab):
    """Multiply-accumulates by formula equal PyTorch's count."""

    name = "costs"
    claim = (
        "Self-attention takes h(3Md² + 2M²d) + hMd² MACs; sharing keys and values saves 2Md²(h - g)"
    )
    derivation = """
One MAC is a multiply-accumulate: a multiplication and an addition. M tokens of dimension d, h heads, each
with d x d projections (head_dim is free; it need not be d / h), and an output projection, h d x d, from all
heads:

    self      h (3 M d^2 + 2 M^2 d) + h M d^2              Q, K, V; scores, weighted sums; output
    causal    the same: masked scores are computed, all M^2 of them, and then discarded
    cross     h (N d^2 + 2 M d^2 + 2 M N d) + h N d^2      N queries attend to M keys

The output projection acts on every token, h M d^2 in all. (The sheet's worked solution drops this M.) With
one key and value for all heads (multi-query), h - 1 of h pairs of projections go: exactly 2 M d^2 (h - 1)
MACs; with g groups 2 M d^2 (h - g). Scores and weighted sums stay. The KV cache holds g keys and values for
each token instead of h: 2 g M d elements.

In big-O, with h fixed: O(M d^2 + M^2 d) for self-attention, O((M + N) d^2 + M N d) for cross-attention.
Sharing changes the constant of M d^2, not the order: the longer the sequence, the less it saves in MACs,
whereas the cache shrinks by h / g at any length. We double each of M, d and h, and compare the growth with
the formula: by 2 to 4 for M and d in self-attention (2 where the linear term dominates, 4 where the quadratic
one does), by 2 for h, or less where the groups stay as many.

PyTorch counts 2 flops for each MAC. We run the path that returns attention weights, because PyTorch counts 0
for the fused CPU kernel.
"""
    parameters = CostsParameters
    absent: ClassVar[dict[str, Value]] = {"groups": 6}  # as many as heads: nothing is shared
    exercise = Exercise(
        starter='''
def macs(tokens, d_model, heads, groups):
    """Return the number of multiply-accumulates (MACs) of self-attention.

    The input has `tokens` tokens of dimension `d_model`; each of `heads` heads has dimension `d_model` too.
    The heads share keys and values in `groups` groups: groups = heads is multi-head attention, groups = 1 is
    multi-query attention. An output projection maps all heads to `d_model`. Return an int.
    """
    raise NotImplementedError
''',
        solution=macs,
        grade=grade,
        background="""
A linear layer with a inputs and b outputs costs a b MACs for each token. A score is the dot product of a
query and a key, d MACs, for each head and each pair of tokens; the weighted sum of values costs as many.
Every head has its own queries; keys and values are computed once for each group.
""",
    )

    def measure(self, params: CostsParameters, generator: Generator) -> Findings:
        m, d, h, g = params.tokens, params.d_model, params.heads, params.groups
        cases = make_cases(**params.model_dump())
        counts = {name: (case.count(), case.formula()) for name, case in cases.items()}
        growth = {name: case.measure_growth() for name, case in cases.items()}
        caches = {groups: measure_self(m, d, h, groups)[1] for groups in (h, 1, g)}
        lengths = sorted({max(1, round(m * sixths / 6)) for sixths in range(1, 7)})
        series = {
            groups: [measure_self(length, d, h, groups) for length in lengths]
            for groups in sorted({h, g, 1}, reverse=True)
        }
        return Findings(
            figures={
                "cases": list(counts),
                "orders": [case.order for case in cases.values()],
                "flops": [flops for flops, _ in counts.values()],
                "macs": [by_formula for _, by_formula in counts.values()],
                "growth": [[list(pair) for pair in each.values()] for each in growth.values()],
                "saved_multi_query": (counts["self"][0] - counts["multi-query"][0]) // 2,
                "saved_grouped": (counts["self"][0] - counts[f"grouped-query, g = {g}"][0]) // 2,
                "cache": [caches[groups] for groups in (h, 1, g)],
                "without_the_sheets_m": self_attention_macs(m, d, h) - h * m * d**2 + h * d**2,
                "flops_fused": measure_self(m, d, h, h, need_weights=False)[0],
                "lengths": lengths,
                "groups": list(series),
                "flops_by_length": [[flops for flops, _ in line] for line in series.values()],
                "cache_by_length": [[size for _, size in line] for line in series.values()],
            },
            law=judge_law(params, counts, growth, caches),
            effect=judge_effect(params, counts, caches),
            table=ResultTable(
                ["attention", "big-O", "MACs by formula", "flops by PyTorch", "ratio", *DOUBLED],
                [
                    [name, cases[name].order, by_formula, flops, flops / by_formula]
                    + [f"x {grown:.4g}" for grown, _ in growth[name].values()]
                    for name, (flops, by_formula) in counts.items()
                ],
            ),
            notes=[
                f"{name} saves {1 - counts[name][0] / counts['self'][0]:.1%} of all MACs; the longer the "
                "sequence, the less, because scores and weighted sums stay."
                for name in ("multi-query", f"grouped-query, g = {g}")
            ],
        )

    def draw(self, result: Result, figure: Figure, colours: Theme) -> None:
        data, params = result.figures, CostsParameters.model_validate(result.parameters)
        left, right = add_subplots(figure, colours, columns=2)
        lengths, d, h = data["lengths"], params.d_model, params.heads
        grid = [lengths[-1] * step / 100 for step in range(101)]
        for i, groups in enumerate(data["groups"]):
            colour = colours.series[i]
            names = {h: f"multi-head, h = {h}", 1: "multi-query"}
            name = names.get(groups, f"grouped-query, g = {groups}")
            left.plot(grid, [macs(x, d, h, groups) for x in grid], color=colour, label=name)
            counted = [flops / 2 for flops in data["flops_by_length"][i]]
            left.plot(lengths, counted, "o", ms=5, color=colour)
            elements = [cache_elements(x, d, groups) for x in grid]
            right.plot(grid, elements, color=colour, label=name)
            right.plot(lengths, data["cache_by_length"][i], "o", ms=5, color=colour)
        left.plot([], [], "o", color=colours.dimmed, label="counted by PyTorch")
        right.plot([], [], "o", color=colours.dimmed, label="in the library's KV cache")
        left.set(xlabel="M (tokens)", ylabel="MACs", ylim=(0, None))
        right.set(xlabel="M (tokens)", ylabel="elements in the KV cache", ylim=(0, None))
        for panel in (left, right):
            panel.yaxis.set_major_formatter(EngFormatter())
            add_legend(panel, colours)


# --- the verdict ----------------------------------------------------------------------------------

Counts = dict[str, tuple[int, int]]  # (flops by PyTorch, MACs by formula)
Growth = dict[str, dict[str, tuple[float, float]]]  # (measured, by formula)


def judge_law(
    params: CostsParameters, counts: Counts, growth: Growth, caches: dict[int, int]
) -> list[Check]:
    """Every count by formula, and its growth when a size doubles."""
    m, d, h, g = params.tokens, params.d_model, params.heads, params.groups
    full, shared = counts["self"][0], counts["multi-query"][0]
    grouped = counts[f"grouped-query, g = {g}"][0]
    return [
        *(
            Check(f"flops, {name}: twice the MACs", flops, "=", 2 * by_formula)
            for name, (flops, by_formula) in counts.items()
        ),
        *(
            Check.worst(
                f"growth, {case}: minus that of the formula",
                (grown - by_formula for grown, by_formula in pairs.values()),
                "=",
                0,
                1e-12,
            )
            for case, pairs in growth.items()
        ),
        Check("MACs saved by multi-query", (full - shared) // 2, "=", saved_macs(m, d, h, 1)),
        Check(f"MACs saved by g = {g}", (full - grouped) // 2, "=", saved_macs(m, d, h, g)),
        Check("KV cache elements, multi-head", caches[h], "=", cache_elements(m, d, h)),
        Check("KV cache elements, multi-query", caches[1], "=", cache_elements(m, d, 1)),
        Check(f"KV cache elements, g = {g}", caches[g], "=", cache_elements(m, d, g)),
    ]


def judge_effect(params: CostsParameters, counts: Counts, caches: dict[int, int]) -> list[Check]:
    """What sharing saves: projections of keys and values, 2 h M d^2 MACs without it, and their cache."""
    h, g, full = params.heads, params.groups, counts["self"][0]
    projections = saved_macs(params.tokens, params.d_model, h, 0)
    cases = {"multi-query": 1, f"grouped-query, g = {g}": g}
    return [
        *(
            Check(
                f"MACs saved, as a share of the key and value projections, {name}",
                (full - counts[name][0]) / 2 / projections,
                ">=",
                SAVED,
                hint="Nothing is shared.",
            )
            for name in cases
        ),
        *(
            Check(
                f"KV cache, multi-head / {name}",
                caches[h] / caches[groups],
                ">=",
                SMALLER,
                hint="Nothing is shared.",
            )
            for name, groups in cases.items()
        ),
    ]
