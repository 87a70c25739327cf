"""Which keys a query may look at. One polarity everywhere: True = may be attended to."""

import torch
from jaxtyping import Bool, Int
from torch import Tensor


def padding_mask(lengths: Int[Tensor, " batch"], size: int) -> Bool[Tensor, "batch {size}"]:
    """True for the first `lengths[b]` places of row b: the real words, not the padding."""
    return torch.arange(size, device=lengths.device) < lengths[:, None]


def causal_mask(
    query_at: Int[Tensor, "*batch query"], key_at: Int[Tensor, "*batch key"]
) -> Bool[Tensor, "*batch query key"]:
    """True where the key stands at or before the query: the past does not see the future."""
    return key_at[..., None, :] <= query_at[..., :, None]


def window_mask(
    query_at: Int[Tensor, "*batch query"], key_at: Int[Tensor, "*batch key"], window: int
) -> Bool[Tensor, "*batch query key"]:
    """True where the key stands less than `window` places from the query, on either side."""
    return (key_at[..., None, :] - query_at[..., :, None]).abs() < window
