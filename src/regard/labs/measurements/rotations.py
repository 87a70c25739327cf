"""Rotations of coordinate pairs, and values grouped by relative distance: for sinusoids and rotary."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

ROUNDING = 1e-9  # float64 rounding error over a few hundred additions
FLOAT32_ROUNDING = 1e-5  # float32 rounding error: the library computes its frequencies in float32

Omega = Float[Tensor, " pairs"]
Square = Float[Tensor, "length length"]
ByDistance = Float[Tensor, " distances"]


def frequencies(width: int, base: float) -> Omega:
    """omega_i = base^(-2i / width), i = 0 .. width/2 - 1"""
    pairs = torch.arange(width // 2, dtype=torch.float64)
    return torch.as_tensor(base, dtype=torch.float64) ** (-2 * pairs / width)


def rotation_matrix(angles: Omega) -> Float[Tensor, "width width"]:
    """The matrix that rotates pair i by angle i: blocks [[cos, -sin], [sin, cos]] on the diagonal."""
    cosines, sines = angles.cos(), angles.sin()
    blocks = torch.stack([cosines, -sines, sines, cosines], dim=-1).unflatten(-1, (2, 2))
    return torch.block_diag(*blocks)


def angle_difference(a: Omega, b: Omega) -> Omega:
    """The difference of two angles, wrapped to -pi .. pi."""
    return (a - b + math.pi).remainder(2 * math.pi) - math.pi


def relative_distances(length: int) -> Float[Tensor, " distances"]:
    """Every distance t - s between two positions, from 1 - length to length - 1."""
    return torch.arange(1 - length, length, dtype=torch.float64)


def min_max_by_distance(products: Square) -> tuple[ByDistance, ByDistance]:
    """(min, max) over the entries in row s, column t with the same t - s: equal if only distance matters."""
    length = len(products)
    diagonals = [products.diagonal(offset) for offset in range(1 - length, length)]
    return torch.stack([x.min() for x in diagonals]), torch.stack([x.max() for x in diagonals])


def spread_by_distance(products: Square) -> ByDistance:
    """Largest minus smallest entry at each distance: 0 if only distance matters."""
    smallest, largest = min_max_by_distance(products)
    return largest - smallest
