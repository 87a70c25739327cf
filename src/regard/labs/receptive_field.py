"""Receptive field: with one position per head, the receptive field grows exponentially with depth."""

from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass, fields
from itertools import product
from typing import Any, ClassVar

import torch
from matplotlib.figure import Figure
from pydantic import Field
from torch import Generator

from regard.diagrams.themes import Theme
from regard.errors import UserError
from regard.labs.cases import check_cases
from regard.labs.lab import Check, Exercise, Findings, Lab, Parameters, Result, ResultTable, Value
from regard.labs.measurements.argmax_stack import (
    offset_stack,
    random_stack,
    sample_tokens,
    trace_paths,
)
from regard.labs.plotting import add_legend, add_subplots

HEADS, DEPTHS = (1, 2, 4), (1, 2, 3)
PLOTTED = 2, 3  # heads and layers of the tree in the plot


class ReceptiveFieldParameters(Parameters):
    extra_positions: int = Field(6, ge=1, le=64)
    """Number of positions beyond (h + 1)^n, which must stay outside the receptive field."""
    dilated: bool = True
    """Layer l attends at multiples of (h + 1)^l; if false, every layer attends at the same distances."""


def bound(heads: int, layers: int) -> int:
    """(h + 1)^n"""
    return (heads + 1) ** layers


def derive_size(heads: int, layers: int, dilated: bool) -> int:
    """(h + 1)^n; if every layer attends at the distances 1 .. h, the positions up to n h only: n h + 1"""
    return bound(heads, layers) if dilated else heads * layers + 1


@dataclass(frozen=True)
class Case:
    """Size of the largest receptive field of an output, for h heads and n layers."""

    heads: int
    layers: int
    bound: int
    derived: int
    constructed: int
    random: int
    gradient: int
    positions: int

    @property
    def name(self) -> str:
        return f"h = {self.heads}, n = {self.layers}"

    @property
    def law(self) -> list[Check]:
        """No heads reach more than the bound, and the constructed ones what their offsets add up to."""
        hint = "An output depends on more than the residual and one position per head, or on less."
        name = f"largest receptive field, {self.name}"
        return [
            Check(f"{name}, random heads", self.random, "<=", self.bound, hint=hint),
            Check(f"{name}, constructed heads", self.constructed, "=", self.derived, hint=hint),
        ]


def measure_case(
    heads: int, layers: int, params: ReceptiveFieldParameters, generator: Generator
) -> Case:
    """Receptive fields of heads constructed to reach the bound, and of random heads."""
    limit = bound(heads, layers)
    length = limit + params.extra_positions
    tokens = sample_tokens(length, generator)
    stack = offset_stack(choose_offsets(heads, layers, params.dilated), length)
    constructed = stack.freeze(tokens).dependencies(tokens)
    x = torch.randn(length, 8, dtype=torch.float64, generator=generator)
    stack = random_stack(heads, layers)
    random, dense = stack.freeze(x).dependencies(x), stack.gradient_support(x)
    sizes = (int(mask.sum(-1).max()) for mask in (constructed, random, dense))
    derived = derive_size(heads, layers, params.dilated)
    return Case(heads, layers, limit, derived, *sizes, positions=length)


def choose_offsets(heads: int, layers: int, dilated: bool) -> list[list[int]]:
    """Those that reach the bound, or those of the first layer in every layer."""
    rows = offsets(heads, layers)
    return rows if dilated else [rows[0]] * layers


# --- the exercise ---------------------------------------------------------------------------------


def offsets(heads: int, layers: int) -> list[list[int]]:
    """Head i of layer l attends i (h + 1)^l positions ahead: the digits of a number in base h + 1."""
    return [[i * (heads + 1) ** layer for i in range(1, heads + 1)] for layer in range(layers)]


def grade(answer: Callable[..., Any]) -> Iterator[Check]:
    """Accept any offsets with which the receptive field has (h + 1)^n positions."""
    generator = torch.Generator().manual_seed(0)
    for heads, layers in ((1, 1), (1, 3), (2, 2), (3, 2)):
        given = [[int(step) for step in row] for row in answer(heads, layers)]
        # Long enough for every sum of offsets, so that none wraps around.
        length = 2 * sum(max(map(abs, row)) for row in given) + 2
        if length > 300:
            raise UserError(f"offsets({heads}, {layers}) returned {given}: use smaller offsets")
        x = sample_tokens(length, generator)
        size = int(offset_stack(given, length).freeze(x).dependencies(x)[0].sum())
        sums: dict[int, list[tuple[int, ...]]] = {}
        for steps in product(*([0, *row] for row in given)):
            sums.setdefault(sum(steps), []).append(steps)
        equal = next((paths for paths in sums.values() if len(paths) > 1), None)
        clash = f" Two paths lead to one position: {equal[0]} and {equal[1]}." if equal else ""
        yield Check(
            f"receptive field of output 0 (heads = {heads}, layers = {layers}, offsets {given})",
            size,
            "=",
            bound(heads, layers),
            hint="An output depends on p + s_1 + .. + s_n, where each s_l is 0 (the residual) or one of the "
            f"offsets of layer l: all {bound(heads, layers)} sums must differ.{clash}",
        )


class ReceptiveField(Lab):
    """n layers of h argmax heads depend on at most (h + 1)^n positions, and can reach that bound."""

    name = "receptive-field"
    claim = "n layers of h heads that attend to one position each reach up to (h + 1)^n positions, no more"
    derivation = """
With argmax, head i at position p copies one value: x_p <- x_p + sum_i W_i x_(s_i(p)). So x_p now depends on p
itself, through the residual, and on h selected positions. If S_n is the largest number of positions that an
output can depend on after n layers,

    S_0 = 1,   S_n <= (h + 1) S_(n-1),   hence S_n <= (h + 1)^n

The bound is reached: let head i of layer l = 0 .. n - 1 attend i (h + 1)^l positions ahead. An output then
depends on p + the sum of i_l (h + 1)^l with digits i_l = 0 .. h, and every number below (h + 1)^n has exactly
one such representation. (If every layer attended 1 .. h positions ahead, as the first does, an output would
depend on no more than the n h + 1 positions up to p + n h: growth would be linear.)

We hold every selection fixed, change one input at a time, and count for each output the inputs that change
it, through the values. (The gradient would mislead: the straight-through gradient is that of softmax, and
reaches every position.)
"""
    parameters = ReceptiveFieldParameters
    absent: ClassVar[dict[str, Value]] = {"dilated": False}
    exercise = Exercise(
        starter='''
def offsets(heads, layers):
    """Return the offset at which each head attends, such that the receptive field is as large as possible.

    Head i of layer l, at position p, attends to position p + offsets[l][i]; the residual keeps p itself.
    Return a list of `layers` lists of `heads` integers, with which an output depends on
    (heads + 1) ** layers different positions.
    """
    raise NotImplementedError
''',
        solution=offsets,
        grade=grade,
        background="""
A head that attends to one position copies its value, and the residual keeps the input: after one layer,
position p depends on p and on the h positions that its heads attended to. The next layer attends to positions
for which the same holds.
""",
    )

    def measure(self, params: ReceptiveFieldParameters, generator: Generator) -> Findings:
        cases = [measure_case(h, n, params, generator) for h in HEADS for n in DEPTHS]
        tokens = sample_tokens(bound(*PLOTTED) + params.extra_positions, generator)
        plotted = choose_offsets(*PLOTTED, params.dilated)
        selections = offset_stack(plotted, len(tokens)).selections(tokens)
        columns = [
            "h",
            "n",
            "(h + 1)^n",
            "derived",
            "constructed",
            "random",
            "by gradient",
            "positions",
        ]
        return Findings(
            figures={
                "paths": trace_paths(selections),
                **{f.name: [getattr(case, f.name) for case in cases] for f in fields(Case)},
            },
            law=[check for case in cases for check in case.law],
            effect=[
                check_cases(
                    "smallest part of (h + 1)^n that constructed heads reach",
                    {case.name: case.constructed / case.bound for case in cases},
                    ">=",
                    1,
                    hint="With {}, the bound is not reached: two paths lead to one position.",
                )
            ],
            table=ResultTable(columns, [list(astuple(case)) for case in cases]),
        )

    def draw(self, result: Result, figure: Figure, colours: Theme) -> None:
        data = result.figures
        left, right = add_subplots(figure, colours, columns=2)
        for i, heads in enumerate(HEADS):
            rows = [k for k, h in enumerate(data["heads"]) if h == heads]
            x = [data["layers"][k] for k in rows]
            colour = colours.series[i]
            bounds = [data["bound"][k] for k in rows]
            left.plot(x, bounds, color=colour, label=rf"${heads + 1}^n$")
            left.plot(x, [data["constructed"][k] for k in rows], "o", ms=7, color=colour)
            left.plot(x, [data["random"][k] for k in rows], "x", ms=6, color=colour)
        left.plot([], [], "o", color=colours.dimmed, label="constructed heads")
        left.plot([], [], "x", color=colours.dimmed, label="random heads")
        left.set(
            yscale="log", xticks=DEPTHS, xlabel="layers n", ylabel="receptive field (positions)"
        )
        add_legend(left, colours)
        for layer, source, target, head in data["paths"]:
            colour = colours.series[head] if head else colours.dimmed
            right.plot([source, target], [layer, layer + 1], color=colour, lw=0.9, zorder=1)
            right.plot([source, target], [layer, layer + 1], "o", ms=3.5, color=colours.text)
        right.grid(False)
        inputs = {source for layer, source, _, _ in data["paths"] if layer == 0}
        heads, layers = PLOTTED
        title = f"{heads} heads, {layers} layers: paths from {len(inputs)} positions to output 0"
        right.set_title(title, size=10)
        right.set(yticks=range(layers + 1), xlabel="position (token)", ylabel="layer")
