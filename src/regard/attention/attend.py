"""One soft dictionary look-up: masking, weights and the weighted sum live here and nowhere else."""

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
    weights = normalise(scores)
    return weights @ values, weights


def attend_fused(
    query: Float[Tensor, "*batch query depth"],
    keys: Float[Tensor, "*batch key depth"],
    values: Float[Tensor, "*batch key value_depth"],
    mask: Bool[Tensor, "*#batch #query key"] | None = None,
) -> Float[Tensor, "*batch query value_depth"]:
    """The same for scaled-dot and softmax in PyTorch's fused kernel, which shows no weights."""
    context = scaled_dot_product_attention(query, keys, values, attn_mask=mask)
    if mask is not None:
        # Not every kernel agrees on what a query with nothing to attend to gets. Ours: zeros.
        context = context.masked_fill(~mask.any(-1, keepdim=True), 0.0)
    return context
