"""Rotations of pairs, and what it means to depend on a distance alone: for sinusoids and rotary."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

ROUNDING = 1e-9  # of float64, over a few hundred additions
FLOAT32_ROUNDING = 1e-5  # of float32, in which the library makes its frequencies

Omega = Float[Tensor, " pairs"]
Square = Float[Tensor, "length length"]
ByDistance = Float[Tensor, " distances"]


def frequencies(width: int, base: float) -> Omega:
    """omega_i = base^(-2i / width), i = 0 .. width/2 - 1"""
    pairs = torch.arange(width // 2, dtype=torch.float64)
    return torch.as_tensor(base, dtype=torch.float64) ** (-2 * pairs / width)


def rotation_matrix(angles: Omega) -> Float[Tensor, "width width"]:
    """The matrix that turns pair i by its angle: blocks [[cos, -sin], [sin, cos]] on the diagonal."""
    cosines, sines = angles.cos(), angles.sin()
    turns = torch.stack([cosines, -sines, sines, cosines], dim=-1).unflatten(-1, (2, 2))
    return torch.block_diag(*turns)


def angle_difference(one: Omega, other: Omega) -> Omega:
    """The difference of two angles, in -pi .. pi."""
    return (one - other + math.pi).remainder(2 * math.pi) - math.pi


def relative_distances(length: int) -> Float[Tensor, " distances"]:
    """Every t - s, from the furthest back to the furthest on."""
    return torch.arange(1 - length, length, dtype=torch.float64)


def min_max_by_distance(products: Square) -> tuple[ByDistance, ByDistance]:
    """(least, most) of row s, column t, for each t - s: equal if distance is all that counts."""
    length = len(products)
    found = [products.diagonal(away) for away in range(1 - length, length)]
    return torch.stack([x.min() for x in found]), torch.stack([x.max() for x in found])
