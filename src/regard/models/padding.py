"""Padding anywhere: move it behind the real tokens, and back.

The real tokens keep their order. Nothing here synchronises with the host.
"""

import torch
from jaxtyping import Bool, Int
from torch import Tensor

Mask = Bool[Tensor, "batch length"]


def compaction_index(mask: Mask) -> Int[Tensor, "batch length"]:
    """New index of each token if the real ones move to the front, in order, and padding to the end."""
    padding = mask.sum(1, keepdim=True) + (~mask).cumsum(1)
    return torch.where(mask, mask.cumsum(1), padding) - 1


def scatter(x: Tensor, dim: int, index: Int[Tensor, "..."]) -> Tensor:
    """Element i along `dim` moves to index[i]."""
    return torch.zeros_like(x).scatter(dim, index.expand_as(x), x)


def gather(x: Tensor, dim: int, index: Int[Tensor, "..."]) -> Tensor:
    """The inverse of `scatter`: element index[i] along `dim` moves to i."""
    return x.gather(dim, index.expand_as(x))
