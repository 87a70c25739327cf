"""Attention by PyTorch's FlexAttention: a mask and a bias are rules, compiled into the kernel.

Blocks of 128 queries and 128 keys that the mask excludes are skipped. No tensor has query x key numbers,
forwards or backwards.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import pad

from regard.attention.bias_rules import BiasRule, ClippedBias
from regard.attention.masks import MaskRule
from regard.torch_private import allow_recompilations

Queries = Float[Tensor, "batch heads query _"]
Keys = Float[Tensor, "batch _ key _"]
BLOCK = 128
FAR = 2**30  # beyond any position
MAX_KERNELS = 256
BAND_NUMBERS = 2**22
"""The gradient of a learned bias takes so many queries at a time that a matrix has so many numbers."""


@cache
def flex_kernel() -> Callable[..., Any]:
    """PyTorch's `flex_attention`, compiled once for each shape and kind of rule, forwards and backwards."""
    from torch.nn.attention.flex_attention import flex_attention

    # PyTorch's default is 8 shapes and rules; from the ninth on, it would compute the matrix.
    allow_recompilations(MAX_KERNELS)
    return torch.compile(flex_attention, dynamic=False, fullgraph=True)


def attend_flex(
    query: Queries,
    keys: Keys,
    values: Keys,
    mask: MaskRule,
    bias: BiasRule | None,
    scale: float,
) -> Queries:
    """`attend_fused` with the mask and the bias of these rules. `scale` is all that multiplies q . k."""
    options: dict[str, Any] = {"block_mask": block_mask(mask), "scale": scale}
    if bias is not None:
        options["score_mod"] = score_rule(mask, bias)
    context, lse = run_kernel(query, keys, values, **options)
    if isinstance(bias, ClippedBias) and bias.table.requires_grad and torch.is_grad_enabled():
        tensors = [x.detach() for x in (query, keys, values, lse)]
        return TableGradient.apply(context, bias.table, *tensors, mask, scale)
    return context


def run_kernel(query: Queries, keys: Keys, values: Keys, **options: Any) -> tuple[Queries, Tensor]:
    """(context, lse): lse is log sum exp of the scores of each query, from which its weights follow."""
    from torch.nn.attention.flex_attention import AuxRequest

    context, extra = flex_kernel()(query, keys, values, return_aux=AuxRequest(lse=True), **options)
    return context, extra.lse


def score_rule(mask: MaskRule, bias: BiasRule) -> Callable[..., Tensor]:
    """The bias as FlexAttention wants it: (score, batch, head, query index, key index) -> score."""
    (query_ids, key_ids), add = small_ids(mask), bias.adder()

    def score_mod(score: Tensor, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return add(score, batch, head, query, key_ids[batch, key] - query_ids[batch, query])

    return score_mod


def mask_rule(mask: MaskRule) -> Callable[..., Tensor]:
    """The mask as FlexAttention wants it: (batch, head, query index, key index) -> may it be attended to?"""
    query_ids, key_ids = small_ids(mask)
    visible, latest, window = mask.visible, mask.latest, mask.window

    def mask_mod(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        distance = key_ids[batch, key] - query_ids[batch, query]
        allowed = distance > -FAR if visible is None else visible[batch, key]
        if latest is not None:
            allowed = allowed & (distance <= latest)
        if window is not None:
            allowed = allowed & (distance.abs() < window)
        return allowed

    return mask_mod


def small_ids(mask: MaskRule) -> tuple[Tensor, Tensor]:
    """The positions of queries and keys as the kernel reads them fastest."""
    return mask.query_position_ids.to(torch.int32), mask.key_position_ids.to(torch.int32)


# --- blocks ---------------------------------------------------------------------------------------


def block_mask(mask: MaskRule) -> Any:
    """FlexAttention's `BlockMask`, made once for all layers.

    PyTorch's own constructor asks the rule for every query and key: a matrix. Here the lowest and the
    highest position of each block tell whether the rule excludes all of it, or nothing.
    """
    if "blocks" not in mask.cache:
        from torch.nn.attention.flex_attention import BlockMask

        some, all_allowed = classify_blocks(mask)
        lengths = mask.query_position_ids.shape[1], mask.key_position_ids.shape[1]
        mask.cache["blocks"] = BlockMask.from_kv_blocks(
            *ordered(some & ~all_allowed),
            *ordered(all_allowed),
            BLOCK_SIZE=BLOCK,
            mask_mod=mask_rule(mask),
            seq_lengths=lengths,
        )
    return mask.cache["blocks"]


Blocks = Bool[Tensor, "batch query_blocks key_blocks"]


def classify_blocks(mask: MaskRule) -> tuple[Blocks, Blocks]:
    """(may any query attend to any key of the block? may all to all?)

    The first may be True for a block without such a pair; the rule is then applied in the kernel.
    """
    some_queries, all_queries, *query_range = summarize(mask.query_position_ids, None)
    some_keys, all_keys, *key_range = summarize(mask.key_position_ids, mask.visible)
    first_query, last_query = (ids[:, :, None] for ids in query_range)
    first_key, last_key = (ids[:, None, :] for ids in key_range)
    some = some_queries[:, :, None] & some_keys[:, None, :]
    every = all_queries[:, :, None] & all_keys[:, None, :]
    if mask.latest is not None:
        some = some & (first_key - last_query <= mask.latest)
        every = every & (last_key - first_query <= mask.latest)
    if mask.window is not None:
        some = some & (first_key - last_query < mask.window)
        some = some & (first_query - last_key < mask.window)
        every = every & (last_key - first_query < mask.window)
        every = every & (last_query - first_key < mask.window)
    return some, every


def summarize(
    position_ids: Int[Tensor, "batch length"], visible: Bool[Tensor, "batch length"] | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """For each block [batch blocks]: is any token visible, are all, their lowest and highest position."""
    if visible is None:
        visible = torch.ones_like(position_ids, dtype=torch.bool)
    missing = -position_ids.shape[1] % BLOCK
    ids = pad(position_ids, (0, missing)).unflatten(1, (-1, BLOCK))
    seen = pad(visible, (0, missing)).unflatten(1, (-1, BLOCK))
    lowest = ids.masked_fill(~seen, FAR).amin(-1)
    highest = ids.masked_fill(~seen, -FAR).amax(-1)
    return seen.any(-1), seen.all(-1), lowest, highest


def ordered(blocks: Blocks) -> tuple[Int[Tensor, "batch 1 rows"], Int[Tensor, "batch 1 rows _"]]:
    """(how many blocks of each row are True, their indices first)"""
    indices = blocks.to(torch.int8).argsort(dim=-1, descending=True, stable=True)
    return blocks.sum(-1)[:, None].to(torch.int32), indices[:, None].to(torch.int32)


# --- the gradient of a learned bias ---------------------------------------------------------------


class TableGradient(torch.autograd.Function):
    """The context unchanged; backwards, the gradient of the table of a `ClippedBias`.

    FlexAttention would add it up with one atomic addition for each query and key, most of them to the same
    few numbers: those for all distances beyond m. Here dL/ds = p (dL/da . v - dL/da . a), p = exp(s - lse),
    is computed for the distances below m only: a band along the diagonal, as small matrices. As dL/ds adds
    up to 0 for each query, the other distances follow from the sum.
    """

    @staticmethod
    def forward(
        ctx: Any,
        context: Tensor,
        table: Tensor,
        query: Tensor,
        keys: Tensor,
        values: Tensor,
        lse: Tensor,
        mask: MaskRule,
        scale: float,
    ) -> Tensor:
        ctx.save_for_backward(context, table, query, keys, values, lse)
        ctx.mask, ctx.scale = mask, scale
        return context.view_as(context)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        [gradient] = gradients
        context, table, *tensors = ctx.saved_tensors
        options = {"gradient": gradient, "mask": ctx.mask, "scale": ctx.scale}
        table_gradient = distance_gradients(context, table, *tensors, **options)
        return gradient, table_gradient, None, None, None, None, None, None


def distance_gradients(
    context: Tensor,
    table: Tensor,
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    lse: Tensor,
    gradient: Tensor,
    mask: MaskRule,
    scale: float,
) -> Float[Tensor, "#batch heads #query distances"]:
    """The gradient of the table, in float32 until the end."""
    limit, dtype = table.shape[-1] // 2, torch.promote_types(query.dtype, torch.float32)
    gradient, wide_table = gradient.to(dtype), table.to(dtype)
    mean = (gradient * context).sum(-1)  # of dL/da . v, over the keys
    result, total = torch.zeros_like(wide_table), torch.zeros_like(mean)
    reach = limit - 1 if mask.window is None else min(limit, mask.window) - 1
    latest = reach if mask.latest is None else min(reach, mask.latest)
    for rows, band in bands(mask, reach, latest, query.shape[1]):
        near_keys, near_values = (band.take(x).to(dtype) for x in (keys, values))
        row_table = wide_table if wide_table.shape[2] == 1 else wide_table[:, :, rows]
        row_result = result if result.shape[2] == 1 else result[:, :, rows]
        columns = (band.distances + limit).clamp(0, 2 * limit)[:, None]
        scores = scale * band.multiply(query[:, :, rows].to(dtype), near_keys)
        scores = scores + row_table.take_along_dim(columns, 3) - lse[:, :, rows, None]
        is_near = (band.distances >= -reach) & (band.distances <= latest)
        weights = scores.masked_fill(~is_near[:, None], -torch.inf).exp()
        change = band.multiply(gradient[:, :, rows], near_values) - mean[:, :, rows, None]
        part = weights * change
        total[:, :, rows] = part.sum(-1)
        by_distance = part.new_zeros(*part.shape[:3], 2 * limit + 1)
        by_distance.scatter_add_(3, columns.expand_as(part), part)
        row_result += by_distance.sum_to_size(row_result.shape)
    before = -total
    if mask.latest is None:
        # There are distances from m on, too: those up to -m, by a pass over their keys alone.
        earlier = replace(mask, latest=-limit, is_self=False, cache={})
        options = {"block_mask": block_mask(earlier), "scale": scale}
        part, part_lse = run_kernel(query, keys, values, **options)
        weights = (part_lse + wide_table[..., 0] - lse).exp().masked_fill(part_lse.isinf(), 0)
        before = weights * ((gradient * part).sum(-1) - mean)
        result[..., -1] = (-total - before).sum_to_size(result.shape[:-1])
    result[..., 0] = before.sum_to_size(result.shape[:-1])
    return result.to(table.dtype)


@dataclass(frozen=True)
class Band:
    """The keys near some queries: `width` consecutive ones for each block of queries."""

    indices: Int[Tensor, "batch blocks width"]
    distances: Int[Tensor, "batch query width"]
    """Key position - query position; 2^30 or more where there is no visible key."""

    def take(self, x: Keys) -> Float[Tensor, "batch heads blocks width depth"]:
        """Keys or values of each block."""
        near = x.take_along_dim(self.indices.flatten(1)[:, None, :, None], 2)
        return near.unflatten(2, self.indices.shape[1:])

    def multiply(
        self, x: Queries, near: Float[Tensor, "batch heads blocks width depth"]
    ) -> Float[Tensor, "batch heads query width"]:
        """Each query times the keys near its block."""
        return (x.unflatten(2, (near.shape[2], -1)) @ near.mT).flatten(2, 3)


def bands(mask: MaskRule, reach: int, latest: int, heads: int) -> Iterator[tuple[slice, Band]]:
    """Queries, some blocks at a time, with all keys at the distances -reach .. latest of any of them.

    That these are so few keys follows from the positions of a `MaskRule`.
    """
    query_ids, key_ids = mask.query_position_ids, mask.key_position_ids
    (batch, queries), keys = query_ids.shape, key_ids.shape[1]
    if latest < -reach:
        return
    if mask.visible is not None:
        key_ids = key_ids.masked_fill(~mask.visible, FAR)
    key_ids, order = key_ids.sort(dim=1)
    width = min(keys, BLOCK + reach + latest)
    size = BLOCK * max(1, BAND_NUMBERS // (batch * heads * BLOCK * width))
    whole = queries - queries % BLOCK
    starts = [*range(0, whole, size), *([whole] if whole < queries else [])]
    for start, stop in pairwise([*starts, queries]):
        blocks = query_ids[:, start:stop].unflatten(1, (-1, min(BLOCK, stop - start)))
        first = torch.searchsorted(key_ids, blocks.amin(-1) - reach)
        slots = first[..., None] + torch.arange(width, device=first.device)
        indices, ids = (x.gather(1, slots.clamp(max=keys - 1).flatten(1)) for x in (order, key_ids))
        ids = ids.view_as(slots).masked_fill(slots >= keys, FAR)
        distances = (ids[:, :, None] - blocks[..., None]).flatten(1, 2)
        yield slice(start, stop), Band(indices.view_as(slots), distances)
