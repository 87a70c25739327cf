"""Self-attention over long sequences: no tensor has query x key numbers, forwards or backwards.

    causal, nothing else        PyTorch's fused kernel, which skips what comes later
    a bias, a window, padding   FlexAttention on a GPU (`flex`)
    the others, and on a CPU    some queries at a time, computed once more in the backward pass

Time still grows with query x key, except with a window; memory grows with query + key.
"""

import importlib
import importlib.util
import math
from functools import cache, partial

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from regard.attention.attend import attend_fused
from regard.attention.bias_rules import BiasRule
from regard.attention.flex import attend_flex
from regard.attention.masks import MaskRule
from regard.attention.positions import Position

Queries = Float[Tensor, "batch heads query _"]
Keys = Float[Tensor, "batch _ key _"]

LONG = 2048
"""From so many keys on, models give attention a rule instead of a mask. Below it, a mask has less than 4 MiB,
and kernels need no compiler: sentences are computed as they always were."""

BLOCK_QUERIES = 512
FLEX_DEPTH = 16  # the smallest dimension of a head in FlexAttention
# With cuDNN's kernel, which `ATTENTION_BACKENDS` leaves out: planning a shape takes it a third of a second.
FUSED = [
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
]


def is_long(keys: int) -> bool:
    return keys >= LONG


def attend_long(
    query: Queries,
    keys: Keys,
    values: Keys,
    mask: MaskRule,
    position: Position,
    bias_query: Queries,
    dropout_p: float = 0.0,
) -> Queries:
    """`attend_fused` with the mask of the rule and the bias of the position, computed from `bias_query`."""
    groups = query.shape[1] // keys.shape[1]
    if groups > 1:  # copies: not every fused kernel shares a key head among query heads
        keys, values = (x.repeat_interleave(groups, dim=1) for x in (keys, values))
    biased = has_bias(position)
    can_fuse = not biased and is_fused(query, values, dropout_p)
    if can_fuse and mask.is_plain_causal:
        scale = position.score_scale / math.sqrt(query.shape[-1])
        options = {"dropout_p": dropout_p, "is_causal": True, "scale": scale}
        with sdpa_kernel(FUSED):
            return scaled_dot_product_attention(query, keys, values, **options)
    if can_fuse and mask.is_by_key:
        matrix = mask.matrix()
        matrix = None if matrix is None else matrix[:, None]
        return attend_fused(query, keys, values, matrix, None, dropout_p, position.score_scale)
    rule = bias_rule(position, bias_query) if biased else None
    has_rules = rule is not None or not biased
    if has_rules and not dropout_p and can_compile(query, values):
        scale = position.score_scale / math.sqrt(query.shape[-1])
        return attend_flex(query, keys, values, mask, rule, scale)
    return attend_by_block(query, keys, values, mask, position, bias_query, dropout_p)


def is_fused(query: Queries, values: Keys, dropout_p: float) -> bool:
    """Has PyTorch a fused kernel for these? On a CPU, not for dropout, nor for values of another depth."""
    return query.is_cuda or (not dropout_p and query.shape[-1] == values.shape[-1])


def has_bias(position: Position) -> bool:
    return defining_class(position, "bias") is not Position


def bias_rule(position: Position, query: Queries) -> BiasRule | None:
    """The rule of its bias; None where a class overrides `bias` alone, so that an inherited rule is wrong."""
    bias, rule = (defining_class(position, name) for name in ("bias", "bias_rule"))
    return position.bias_rule(query) if issubclass(rule, bias) else None


def defining_class(position: Position, name: str) -> type:
    return next(kind for kind in type(position).__mro__ if name in vars(kind))


def can_compile(query: Queries, values: Keys) -> bool:
    """Has FlexAttention a kernel for these? Few queries need none: their matrices are small."""
    depth = min(query.shape[-1], values.shape[-1])
    many = query.shape[2] > BLOCK_QUERIES
    return query.is_cuda and many and depth >= FLEX_DEPTH and has_flex()


@cache
def has_flex() -> bool:
    """FlexAttention that also returns log sum exp (PyTorch 2.9), and Triton, which compiles it.

    PyTorch brings Triton along on some systems only.
    """
    if torch.cuda.get_device_capability() < (8, 0) or importlib.util.find_spec("triton") is None:
        return False
    return hasattr(importlib.import_module("torch.nn.attention.flex_attention"), "AuxRequest")


def attend_by_block(
    query: Queries,
    keys: Keys,
    values: Keys,
    mask: MaskRule,
    position: Position,
    bias_query: Queries,
    dropout_p: float = 0.0,
) -> Queries:
    """The same for 512 queries at a time, with the masks and biases of those alone.

    In the backward pass each part is computed once more, so that nothing of its size is stored.
    """
    from torch.utils.checkpoint import checkpoint

    parts = []
    for start in range(0, query.shape[2], BLOCK_QUERIES):
        stop = min(start + BLOCK_QUERIES, query.shape[2])
        first, last = mask.needed_keys(start, stop)
        part = mask.rows(start, stop).columns(first, last)
        attend_to = partial(attend_part, mask=part, position=position, dropout_p=dropout_p)
        tensors = query[:, :, start:stop], keys[:, :, first:last], values[:, :, first:last]
        tensors = (*tensors, bias_query[:, :, start:stop])
        if torch.is_grad_enabled():
            drops = dropout_p > 0  # then the same numbers are drawn again
            again = partial(checkpoint, use_reentrant=False, preserve_rng_state=drops)
            parts.append(again(attend_to, *tensors))
        else:
            parts.append(attend_to(*tensors))
    return torch.cat(parts, dim=2)


def attend_part(
    query: Queries,
    keys: Keys,
    values: Keys,
    bias_query: Queries,
    mask: MaskRule,
    position: Position,
    dropout_p: float,
) -> Queries:
    """`attend_fused` with the matrices of the rules."""
    matrix = mask.matrix()
    matrix = None if matrix is None else matrix[:, None]
    bias = position.bias(bias_query, mask.query_position_ids, mask.key_position_ids)
    return attend_fused(query, keys, values, matrix, bias, dropout_p, position.score_scale)
