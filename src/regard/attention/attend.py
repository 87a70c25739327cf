"""One soft dictionary look-up: masking, weights and the weighted sum live here and nowhere else."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from regard.attention.normalise import Normaliser, softmax


def attend(
    scores: Float[Tensor, "*batch query key"],
    values: Float[Tensor, "*batch key depth"],
    mask: Bool[Tensor, "*#batch #query key"] | None = None,
    normalise: Normaliser = softmax,
) -> tuple[Float[Tensor, "*batch query depth"], Float[Tensor, "*batch query key"]]:
    """A = sum_i alpha_i v_i, with alpha = normalise(scores where the mask allows). (a, alpha)"""
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    # Half precision is for products: sums over keys, and sparsemax's thresholds, want more.
    exact = scores.float() if scores.dtype in (torch.bfloat16, torch.float16) else scores
    weights = normalise(exact).to(values.dtype)
    return weights @ values, weights


def attend_fused(
    query: Float[Tensor, "*batch query depth"],
    keys: Float[Tensor, "*batch key depth"],
    values: Float[Tensor, "*batch key value_depth"],
    mask: Bool[Tensor, "*#batch #query key"] | None = None,
) -> Float[Tensor, "*batch query value_depth"]:
    """The same for scaled-dot and softmax in PyTorch's fused kernel, which shows no weights."""
    if mask is None:
        return scaled_dot_product_attention(query, keys, values)
    # As numbers to add, log 1 = 0 and log 0 = minus infinity: with these every kernel gives zeros to a
    # query that may attend to nothing, with True and False not (cuDNN's does not).
    bias = mask.to(query.dtype).log()
    return scaled_dot_product_attention(query, keys, values, attn_mask=bias)
