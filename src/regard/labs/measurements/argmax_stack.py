"""Stacks of attention layers whose heads attend to one position each: for the lab on receptive fields."""

from collections.abc import Sequence
from copy import copy

import torch
from jaxtyping import Bool, Float
from torch import Generator, Tensor

from regard.attention import NORMALISERS, SCORES, MultiHead
from regard.labs.measurements.rotations import rotation_matrix

ROUNDING = 1e-9  # a smaller change of an output is a rounding error
Tokens = Float[Tensor, "length dim"]
Selections = Float[Tensor, "heads length length"]  # one-hot attention weights
Dependencies = Bool[Tensor, "output input"]


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
