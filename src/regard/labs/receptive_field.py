"""Receptive field: with one position per head, the receptive field grows exponentially with depth."""

from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import astuple, dataclass, fields
from itertools import product
from typing import Any

import torch
from jaxtyping import Bool, Float
from matplotlib.figure import Figure
from pydantic import Field
from torch import Generator, Tensor

from regard.attention import NORMALISERS, SCORES, MultiHead
from regard.diagrams.themes import Theme
from regard.errors import UserError
from regard.labs.lab import Check, Exercise, Findings, Lab, Parameters, Result, ResultTable
from regard.labs.plotting import add_legend, add_subplots
from regard.labs.rotations import rotation_matrix

HEADS, DEPTHS = (1, 2, 4), (1, 2, 3)
PLOTTED = 2, 3  # heads and layers of the tree in the plot
ROUNDING = 1e-9  # a smaller change of an output is a rounding error
Tokens = Float[Tensor, "length dim"]
Selections = Float[Tensor, "heads length length"]  # one-hot attention weights
Dependencies = Bool[Tensor, "output input"]


class ReceptiveFieldParameters(Parameters):
    extra_positions: int = Field(6, ge=1, le=64)
    """Number of positions beyond (h + 1)^n, which must stay outside the receptive field."""


def bound(heads: int, layers: int) -> int:
    """(h + 1)^n"""
    return (heads + 1) ** layers


# --- a stack of argmax attention layers with residual connections -----------------------------------


class ArgmaxStack:
    """x <- x + heads(x) in every layer: the library's heads with argmax, each attending to one position."""

    def __init__(self, layers: Sequence[MultiHead]) -> None:
        self.layers = [layer.double().requires_grad_(False) for layer in layers]

    def __call__(self, x: Tokens) -> Tokens:
        for layer in self.layers:
            x = x + run_layer(layer, x)[0]
        return x

    def selections(self, x: Tokens) -> list[Selections]:
        """The positions that the heads of each layer select for x."""
        selections = []
        for layer in self.layers:
            output, weights = run_layer(layer, x)
            selections.append(weights)
            x = x + output
        return selections

    def freeze(self, x: Tokens) -> "ArgmaxStack":
        """The same stack with the selections for x held fixed, so that inputs act through the values only."""
        pairs = zip(self.layers, self.selections(x), strict=True)
        return ArgmaxStack([freeze_weights(layer, weights) for layer, weights in pairs])

    def dependencies(self, x: Tokens) -> Dependencies:
        """True where an output changes when one input is changed."""
        original, columns = self(x), []
        for position in range(len(x)):
            changed = x.clone()
            changed[position] += unequal_numbers(x)
            columns.append((self(changed) - original).abs().amax(-1) > ROUNDING)
        return torch.stack(columns, dim=-1)

    def gradient_support(self, x: Tokens) -> Bool[Tensor, " input"]:
        """True where the gradient of output 0 with respect to an input is not 0."""
        x = x.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(self(x)[0] @ unequal_numbers(x), x)
        return gradient.abs().amax(-1) > 0


def unequal_numbers(x: Tokens) -> Float[Tensor, " dim"]:
    """One for each dimension; unequal, so that the contributions of two paths do not cancel."""
    return torch.linspace(1, 2, x.shape[-1], dtype=x.dtype)


def run_layer(layer: MultiHead, x: Tokens) -> tuple[Tokens, Selections]:
    """(output, attention weights)"""
    ids = torch.arange(len(x))[None]
    output, weights = layer(
        x[None], *layer.keys_values(x[None], ids), None, ids, ids, need_weights=True
    )
    assert weights is not None
    return output[0], weights[0]


def freeze_weights(layer: MultiHead, weights: Selections) -> MultiHead:
    """The same layer with fixed attention weights, whatever the scores."""
    frozen = copy(layer)
    frozen.normalise = lambda scores: weights.expand_as(scores)
    return frozen


def trace_paths(selections: list[Selections]) -> list[list[int]]:
    """All paths to output 0, from the last layer down: [layer, from, to, head], head 0 being the residual."""
    paths, reached = [], {0}
    for layer, weights in reversed(list(enumerate(selections))):
        edges = [
            [layer, source, target, head]
            for target in sorted(reached)
            for head, source in enumerate([target, *weights[:, target].argmax(-1).tolist()])
        ]
        paths += edges
        reached = {source for _, source, _, _ in edges}
    return paths


def make_layer(d_model: int, heads: int, head_dim: int) -> MultiHead:
    score = SCORES["scaled-dot"](head_dim, head_dim)
    return MultiHead(d_model, heads, head_dim, score, NORMALISERS["argmax"])


def random_stack(heads: int, layers: int) -> ArgmaxStack:
    """A stack with randomly initialised weights."""
    return ArgmaxStack([make_layer(8, heads, 5) for _ in range(layers)])


def offset_stack(offsets: Sequence[Sequence[int]], length: int) -> ArgmaxStack:
    """A stack whose head i of layer l, at position p, attends to p + offsets[l][i] modulo the length.

    A token is (cos, sin, content), where (cos, sin) encodes its position as an angle. Queries are rotated by
    the offset, so that the key at that angle has the highest score. Values and outputs hold the content only,
    so the position encodings stay unchanged.
    """
    layers = []
    for row in offsets:
        layer = make_layer(3, len(row), 3)
        rotations = [rotation_matrix(torch.tensor([2 * torch.pi * step / length])) for step in row]
        with torch.no_grad():
            for linear in (layer.query, layer.key_value, layer.output):
                linear.weight.zero_()
            for i, rotation in enumerate(rotations):
                layer.query.weight[3 * i : 3 * i + 2, :2] = rotation
                layer.key_value.weight[3 * i : 3 * i + 2, :2] = torch.eye(2)
                layer.key_value.weight[3 * (len(row) + i) + 2, 2] = 1.0
                layer.output.weight[2, 3 * i + 2] = 1.0
        layers.append(layer)
    return ArgmaxStack(layers)


def sample_tokens(length: int, generator: Generator) -> Float[Tensor, "length 3"]:
    """Tokens for such a stack: positions as angles, random contents."""
    angle = 2 * torch.pi * torch.arange(length, dtype=torch.float64) / length
    content = torch.rand(length, dtype=torch.float64, generator=generator)
    return torch.stack([angle.cos(), angle.sin(), content], dim=-1)


@dataclass(frozen=True)
class Case:
    """Size of the largest receptive field of an output, for h heads and n layers."""

    heads: int
    layers: int
    bound: int
    constructed: int
    random: int
    gradient: int
    positions: int

    @property
    def checks(self) -> list[Check]:
        case = f"h = {self.heads}, n = {self.layers}"
        hint = "An output depends on more than the residual and one position per head, or on less."
        name = f"largest receptive field, {case}"
        return [
            Check(f"{name}, random heads", self.random, "<=", self.bound, hint=hint),
            Check(f"{name}, constructed heads", self.constructed, "=", self.bound, hint=hint),
        ]


def measure_case(heads: int, layers: int, extra_positions: int, generator: Generator) -> Case:
    """Receptive fields of heads constructed to reach the bound, and of random heads."""
    limit = bound(heads, layers)
    length = limit + extra_positions
    tokens = sample_tokens(length, generator)
    stack = offset_stack(offsets(heads, layers), length)
    constructed = stack.freeze(tokens).dependencies(tokens)
    x = torch.randn(length, 8, dtype=torch.float64, generator=generator)
    stack = random_stack(heads, layers)
    random, dense = stack.freeze(x).dependencies(x), stack.gradient_support(x)
    sizes = (int(mask.sum(-1).max()) for mask in (constructed, random, dense))
    return Case(heads, layers, limit, *sizes, positions=length)


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
one such representation.

We hold every selection fixed, change one input at a time, and count for each output the inputs that change
it, through the values. (The gradient would mislead: the straight-through gradient is that of softmax, and
reaches every position.)
"""
    parameters = ReceptiveFieldParameters
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
        extra = params.extra_positions
        cases = [measure_case(h, n, extra, generator) for h in HEADS for n in DEPTHS]
        tokens = sample_tokens(bound(*PLOTTED) + extra, generator)
        selections = offset_stack(offsets(*PLOTTED), len(tokens)).selections(tokens)
        columns = ["h", "n", "(h + 1)^n", "constructed", "random", "by gradient", "positions"]
        return Findings(
            figures={
                "paths": trace_paths(selections),
                **{f.name: [getattr(case, f.name) for case in cases] for f in fields(Case)},
            },
            effect=[],
            law=[check for case in cases for check in case.checks],
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
