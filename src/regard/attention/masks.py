"""Attention masks. One polarity everywhere: True = may be attended to."""

import torch
from jaxtyping import Bool, Int
from torch import Tensor


def padding_mask(lengths: Int[Tensor, " batch"], size: int) -> Bool[Tensor, "batch {size}"]:
    """True for the first `lengths[b]` positions of row b: real tokens, not padding."""
    return torch.arange(size, device=lengths.device) < lengths[:, None]


def causal_mask(
    query_position_ids: Int[Tensor, "*batch query"], key_position_ids: Int[Tensor, "*batch key"]
) -> Bool[Tensor, "*batch query key"]:
    """True where the key is at or before the query: no query attends to a later position."""
    return key_position_ids[..., None, :] <= query_position_ids[..., :, None]


def window_mask(
    query_position_ids: Int[Tensor, "*batch query"],
    key_position_ids: Int[Tensor, "*batch key"],
    window: int,
) -> Bool[Tensor, "*batch query key"]:
    """True where |query position - key position| < window."""
    return (key_position_ids[..., None, :] - query_position_ids[..., :, None]).abs() < window
