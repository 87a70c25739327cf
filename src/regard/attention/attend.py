"""Attention as a soft dictionary look-up: masking, weights and the weighted sum are computed only here."""

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import dropout, scaled_dot_product_attention

from regard.attention.normalise import Normaliser, softmax

FEW_QUERIES = 16


def attend(
    scores: Float[Tensor, "*batch query key"],
    values: Float[Tensor, "*batch key depth"],
    mask: Bool[Tensor, "*#batch #query key"] | None = None,
    normalise: Normaliser = softmax,
    dropout_p: float = 0.0,
) -> tuple[Float[Tensor, "*batch query depth"], Float[Tensor, "*batch query key"]]:
    """(a, alpha): a = sum_i alpha_i v_i, alpha = normalise(masked scores).

    `dropout_p` is the dropout probability of the weights.

    >>> query, keys, values = torch.randn(3, 8), torch.randn(5, 8), torch.randn(5, 2)
    >>> context, weights = attend(query @ keys.T, values)
    >>> context.shape, weights.shape
    (torch.Size([3, 2]), torch.Size([3, 5]))
    """
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    # Sums over keys and sparsemax's thresholds need float32 at least.
    half_precision = scores.dtype in (torch.bfloat16, torch.float16)
    weights = normalise(scores.float() if half_precision else scores).to(values.dtype)
    weights = dropout(weights, dropout_p) if dropout_p else weights
    return weights @ values, weights


def attend_fused(
    query: Float[Tensor, "*batch query depth"],
    keys: Float[Tensor, "*batch key depth"],
    values: Float[Tensor, "*batch key value_depth"],
    mask: Bool[Tensor, "*#batch #query key"] | None = None,
    bias: Float[Tensor, "*#batch #query key"] | None = None,
    dropout_p: float = 0.0,
    scale: float = 1.0,
) -> Float[Tensor, "*batch query value_depth"]:
    """`attend` for scale * scaled-dot scores + bias and softmax, in PyTorch's fused kernel: no weights."""
    bias = None if bias is None else bias.to(query.dtype)
    scale = scale / math.sqrt(query.shape[-1])
    is_decoding = not (torch.is_grad_enabled() and query.requires_grad) and not dropout_p
    if query.is_cuda and is_decoding and query.shape[-2] <= FEW_QUERIES:
        return attend_few(query * scale, keys, values, mask, bias)
    if mask is not None:
        # An additive mask (log 1 = 0, log 0 = minus infinity): with it every kernel returns zeros for a
        # query with all keys masked; with a boolean mask cuDNN's does not.
        bias = (
            mask.to(query.dtype).log() if bias is None else torch.where(mask, bias, float("-inf"))
        )
    if bias is not None and bias.stride(-1) != 1:
        bias = bias.contiguous()  # the fastest kernels require it
    return scaled_dot_product_attention(query, keys, values, bias, dropout_p, scale=scale)


def attend_few(
    query: Float[Tensor, "*batch query depth"],
    keys: Float[Tensor, "*batch key depth"],
    values: Float[Tensor, "*batch key value_depth"],
    mask: Bool[Tensor, "*#batch #query key"] | None = None,
    bias: Float[Tensor, "*#batch #query key"] | None = None,
) -> Float[Tensor, "*batch query value_depth"]:
    """The same for few queries, which are scaled already, in the fewest kernels.

    On a GPU the fused kernel computes tiles of 64 queries: for one query, 16 keys and 256 sentences it takes
    four times as long as this.
    """
    scores = query @ keys.transpose(-1, -2)
    scores = scores if bias is None else scores + bias
    if mask is None:
        return scores.softmax(-1) @ values
    # A finite number instead of minus infinity: a query with all keys masked gets zeros, not NaN.
    masked = ~mask
    weights = scores.masked_fill_(masked, torch.finfo(scores.dtype).min).softmax(-1)
    return weights.masked_fill_(masked, 0.0) @ values
