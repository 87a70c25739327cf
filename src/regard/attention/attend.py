"""One soft dictionary look-up: masking, weights and the weighted sum live here and nowhere else."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import dropout, scaled_dot_product_attention

from regard.attention.normalise import Normaliser, softmax


def attend(
    scores: Float[Tensor, "*batch query key"],
    values: Float[Tensor, "*batch key depth"],
    mask: Bool[Tensor, "*#batch #query key"] | None = None,
    normalise: Normaliser = softmax,
    dropped: float = 0.0,
) -> tuple[Float[Tensor, "*batch query depth"], Float[Tensor, "*batch query key"]]:
    """A = sum_i alpha_i v_i, with alpha = normalise(scores where the mask allows). (a, alpha)

    A share `dropped` of the weights is left out of the sum, by chance, and the others grow as much.
    """
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    # Half precision is for products: sums over keys, and sparsemax's thresholds, want more.
    exact = scores.float() if scores.dtype in (torch.bfloat16, torch.float16) else scores
    weights = normalise(exact).to(values.dtype)
    weights = dropout(weights, dropped) if dropped else weights
    return weights @ values, weights


def attend_fused(
    query: Float[Tensor, "*batch query depth"],
    keys: Float[Tensor, "*batch key depth"],
    values: Float[Tensor, "*batch key value_depth"],
    mask: Bool[Tensor, "*#batch #query key"] | None = None,
    bias: Float[Tensor, "*#batch #query key"] | None = None,
    dropped: float = 0.0,
) -> Float[Tensor, "*batch query value_depth"]:
    """The same for scaled-dot (and a bias) and softmax in PyTorch's fused kernel: no weights."""
    added = None if bias is None else bias.to(query.dtype)
    if mask is not None:
        # As numbers to add, log 1 = 0 and log 0 = minus infinity: with these every kernel gives zeros
        # to a query that may attend to nothing, with True and False not (cuDNN's does not).
        never = float("-inf")
        added = mask.to(query.dtype).log() if added is None else torch.where(mask, added, never)
    if added is not None and added.stride(-1) != 1:
        added = added.contiguous()  # else the quickest kernels decline
    return scaled_dot_product_attention(query, keys, values, added, dropped)
