"""Receptive field: heads that look at one position each see exponentially many, layer upon layer."""

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
SHOWN = 2, 3  # heads and layers of the tree in the picture
Tokens = Float[Tensor, "length width"]
Selected = Float[Tensor, "heads length length"]
Reach = Bool[Tensor, "output input"]


class ReceptiveFieldParameters(Parameters):
    spare: int = Field(6, ge=1, le=64)
    """Positions beyond the (h + 1)^n that can be seen: those which must stay unseen."""


def bound(heads: int, layers: int) -> int:
    """(h + 1)^n"""
    return (heads + 1) ** layers


# --- a stack of argmax attention, with residuals ----------------------------------------------------


class Stack:
    """x <- x + heads(x), layer upon layer: the library's heads, which look at one position each."""

    def __init__(self, layers: Sequence[MultiHead]) -> None:
        self.layers = [layer.double().requires_grad_(False) for layer in layers]

    def __call__(self, x: Tokens) -> Tokens:
        for layer in self.layers:
            x = x + look(layer, x)[0]
        return x

    def selected(self, x: Tokens) -> list[Selected]:
        """What the heads of each layer select for x."""
        found = []
        for layer in self.layers:
            brought, weights = look(layer, x)
            found.append(weights)
            x = x + brought
        return found

    def held(self, x: Tokens) -> "Stack":
        """The same, with what its heads select for x held fixed, so that only values still count."""
        chosen = zip(self.layers, self.selected(x), strict=True)
        return Stack([fixed(layer, weights) for layer, weights in chosen])

    def reach(self, x: Tokens, outputs: int) -> Reach:
        """Which inputs the first outputs depend on: those whose gradient is not 0."""
        x = x.clone().requires_grad_()
        # Unequal weights, so that what two ways bring does not cancel.
        told = self(x) @ torch.linspace(1, 2, x.shape[-1], dtype=x.dtype)
        rows = [torch.autograd.grad(one, x, retain_graph=True)[0] for one in told[:outputs]]
        return torch.stack(rows).abs().amax(-1) > 0


def look(layer: MultiHead, x: Tokens) -> tuple[Tokens, Selected]:
    """(what all heads bring, what each selects)"""
    at = torch.arange(len(x))[None]
    found, weights = layer(x[None], *layer.keys_values(x[None], at), None, at, at, explain=True)
    assert weights is not None
    return found[0], weights[0]


def fixed(layer: MultiHead, weights: Selected) -> MultiHead:
    """The same layer after it has made up its mind: these weights, whatever the scores."""
    same = copy(layer)
    same.normalise = lambda scores: weights.expand_as(scores)
    return same


def ways(selected: list[Selected]) -> list[list[int]]:
    """All ways to output 0, from the last layer down: [layer, from, to, head], head 0 the residual."""
    found, reached = [], {0}
    for layer, weights in reversed(list(enumerate(selected))):
        steps = [
            [layer, chosen, place, head]
            for place in sorted(reached)
            for head, chosen in enumerate([place, *weights[:, place].argmax(-1).tolist()])
        ]
        found += steps
        reached = {chosen for _, chosen, _, _ in steps}
    return found


def heads_of(width: int, heads: int, depth: int) -> MultiHead:
    return MultiHead(width, heads, depth, SCORES["scaled-dot"](depth, depth), NORMALISERS["argmax"])


def random_stack(heads: int, layers: int) -> Stack:
    """Whatever weights chance gives."""
    return Stack([heads_of(8, heads, 5) for _ in range(layers)])


def looking_at(offsets: Sequence[Sequence[int]], length: int) -> Stack:
    """A stack whose head i of layer l, at position p, looks at p + offsets[l][i], round the end.

    A token is (cos, sin, content), its place on a circle; a query is turned on by the offset, so the key
    that lies in its direction wins. Heads read and write the content alone: places stay what they are.
    """
    layers = []
    for row in offsets:
        layer = heads_of(3, len(row), 3)
        turns = [rotation_matrix(torch.tensor([2 * torch.pi * step / length])) for step in row]
        with torch.no_grad():
            for part in (layer.query, layer.key_value, layer.output):
                part.weight.zero_()
            for i, turn in enumerate(turns):
                layer.query.weight[3 * i : 3 * i + 2, :2] = turn
                layer.key_value.weight[3 * i : 3 * i + 2, :2] = torch.eye(2)
                layer.key_value.weight[3 * (len(row) + i) + 2, 2] = 1.0
                layer.output.weight[2, 3 * i + 2] = 1.0
        layers.append(layer)
    return Stack(layers)


def circle(length: int, generator: Generator) -> Float[Tensor, "length 3"]:
    """Tokens for such a stack: places on a circle, contents by chance."""
    angle = 2 * torch.pi * torch.arange(length, dtype=torch.float64) / length
    content = torch.rand(length, dtype=torch.float64, generator=generator)
    return torch.stack([angle.cos(), angle.sin(), content], dim=-1)


@dataclass(frozen=True)
class Case:
    """How many positions reach an output of h heads and n layers, at most."""

    heads: int
    layers: int
    bound: int
    built: int
    random: int
    gradient: int
    positions: int

    @property
    def checks(self) -> list[Check]:
        case = f"h = {self.heads}, n = {self.layers}"
        why = "More reaches an output than the residual and one position for each head, or less."
        seen = f"positions seen at most, {case}"
        return [
            Check(f"{seen}, random heads", self.random, "<=", self.bound, hint=why),
            Check(f"{seen}, built heads", self.built, "=", self.bound, hint=why),
        ]


def measured(heads: int, layers: int, spare: int, generator: Generator) -> Case:
    """One case: heads that look where they should, and heads that look where chance has it."""
    most = bound(heads, layers)
    length = most + spare
    places = circle(length, generator)
    built = looking_at(offsets(heads, layers), length).held(places).reach(places, length)
    x = torch.randn(length, 8, dtype=torch.float64, generator=generator)
    stack = random_stack(heads, layers)
    drawn, dense = stack.held(x).reach(x, length), stack.reach(x, outputs=1)
    counts = (int(found.sum(-1).max()) for found in (built, drawn, dense))
    return Case(heads, layers, most, *counts, positions=length)


# --- the exercise ---------------------------------------------------------------------------------


def offsets(heads: int, layers: int) -> list[list[int]]:
    """Head i of layer l looks i (h + 1)^l on: the digits of a number in base h + 1."""
    return [[i * (heads + 1) ** layer for i in range(1, heads + 1)] for layer in range(layers)]


def grade(answer: Callable[..., Any]) -> Iterator[Check]:
    """Any offsets will do that let an output see (h + 1)^n positions."""
    generator = torch.Generator().manual_seed(0)
    for heads, layers in ((1, 1), (1, 3), (2, 2), (3, 2)):
        given = [[int(step) for step in row] for row in answer(heads, layers)]
        length = (
            2 * sum(max(map(abs, row)) for row in given) + 2
        )  # room for every sum: no way round
        if length > 600:
            raise UserError(f"offsets({heads}, {layers}) gave {given}: smaller ones do")
        x = circle(length, generator)
        seen = int(looking_at(given, length).held(x).reach(x, outputs=1).sum())
        sums: dict[int, list[tuple[int, ...]]] = {}
        for steps in product(*([0, *row] for row in given)):
            sums.setdefault(sum(steps), []).append(steps)
        twice = next((found for found in sums.values() if len(found) > 1), None)
        clash = f" Two ways lead to one place: steps {twice[0]} and {twice[1]}." if twice else ""
        yield Check(
            f"positions that output 0 sees (heads = {heads}, layers = {layers}, offsets {given})",
            seen,
            "=",
            bound(heads, layers),
            hint="An output sees p + s_1 + .. + s_n, where each s_l is 0 (the residual) or one of "
            f"layer l's offsets: all {bound(heads, layers)} sums must differ.{clash}",
        )


class ReceptiveField(Lab):
    """n layers of h argmax heads see at most (h + 1)^n positions, and can see as many."""

    name = "receptive-field"
    claim = (
        "n layers of h heads that look at one position each see up to (h + 1)^n positions, no more"
    )
    derivation = """
With argmax, head i at position p copies one value: x_p <- x_p + sum_i W_i x_(s_i(p)). What x_p now holds
came from p itself, by the residual, and from h selected positions, so if S_n is the most positions that
can reach an output after n layers,

    S_0 = 1,   S_n <= (h + 1) S_(n-1),   hence S_n <= (h + 1)^n

It is reached: let head i of layer l = 0 .. n - 1 look i (h + 1)^l places on. An output then sees p + the
sum of i_l (h + 1)^l with digits i_l = 0 .. h, and every number below (h + 1)^n is written so just once.

We change one input at a time, with every selection held fixed, and count the inputs that reach an output.
(The gradient would mislead: straight-through, it is softmax's, and reaches every position.)
"""
    parameters = ReceptiveFieldParameters
    exercise = Exercise(
        starter='''
def offsets(heads, layers):
    """Where each head of each layer should look, so that an output sees as much as it can.

    Head i of layer l, at position p, looks at position p + offsets[l][i]; the residual keeps p itself.
    Return a list of `layers` lists of `heads` whole numbers, with which an output sees
    (heads + 1) ** layers different positions.
    """
    raise NotImplementedError
''',
        solution=offsets,
        grade=grade,
        background="""
A head that looks at one position copies its value, and the residual keeps what was there: after one layer,
position p holds something of p and of the h positions that its heads looked at. The layer above looks at
positions that have done the same.
""",
    )

    def measure(self, params: ReceptiveFieldParameters, generator: Generator) -> Findings:
        cases = [measured(h, n, params.spare, generator) for h in HEADS for n in DEPTHS]
        places = circle(bound(*SHOWN) + params.spare, generator)
        shown = looking_at(offsets(*SHOWN), len(places)).selected(places)
        columns = ["h", "n", "(h + 1)^n", "seen, built", "seen, random", "by gradient", "of"]
        return Findings(
            figures={
                "ways": ways(shown),
                **{f.name: [getattr(case, f.name) for case in cases] for f in fields(Case)},
            },
            checks=[check for case in cases for check in case.checks],
            table=ResultTable(columns, [list(astuple(case)) for case in cases]),
        )

    def draw(self, result: Result, figure: Figure, colours: Theme) -> None:
        found = result.figures
        left, right = add_subplots(figure, colours, columns=2)
        for i, heads in enumerate(HEADS):
            own = [k for k, h in enumerate(found["heads"]) if h == heads]
            x = [found["layers"][k] for k in own]
            tint = colours.series[i]
            left.plot(x, [found["bound"][k] for k in own], color=tint, label=rf"${heads + 1}^n$")
            left.plot(x, [found["built"][k] for k in own], "o", ms=7, color=tint)
            left.plot(x, [found["random"][k] for k in own], "x", ms=6, color=tint)
        left.plot([], [], "o", color=colours.dimmed, label="seen, built heads")
        left.plot([], [], "x", color=colours.dimmed, label="seen, random heads")
        left.set(yscale="log", xticks=DEPTHS, xlabel="layers n", ylabel="positions seen")
        add_legend(left, colours)
        for layer, source, place, head in found["ways"]:
            tint = colours.series[head] if head else colours.dimmed
            right.plot([source, place], [layer, layer + 1], color=tint, lw=0.9, zorder=1)
            right.plot([source, place], [layer, layer + 1], "o", ms=3.5, color=colours.text)
        right.grid(False)
        inputs = {source for layer, source, _, _ in found["ways"] if layer == 0}
        heads, layers = SHOWN
        told = f"{heads} heads, {layers} layers: ways from {len(inputs)} positions to output 0"
        right.set_title(told, size=10)
        right.set(yticks=range(layers + 1), xlabel="position (token)", ylabel="layer")
