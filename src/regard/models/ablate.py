"""Ablations of attention, as context managers: does the model depend on the weights we see?

    with ablate_head(layer, head=2): ...      # alpha = 0: the head's context is zero
    with uniform_attention(layers): ...       # alpha_i = 1 / n over the n keys that are not masked
    with mask_keys(layers, keys): ...         # e_i = -inf at one key for each target token

Each changes only how a layer's scores become weights, and restores the layer on exit. The layout of the
scores is that of `AttentionLayer`: [batch heads query key], or [batch query key] in a single head.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.attention.normalise import Normaliser, softmax
from regard.errors import UserError
from regard.models.interface import AttentionLayer

Scores = Float[Tensor, "batch heads query key"] | Float[Tensor, "batch query key"]
Weights = Float[Tensor, "batch heads query key"] | Float[Tensor, "batch query key"]

NO_KEY = -1  # as a key index: mask none


@contextmanager
def patch_normaliser(
    layer: AttentionLayer, patch: Callable[[Normaliser], Normaliser]
) -> Iterator[None]:
    """Replace the layer's normaliser by `patch` of it."""
    original = layer.normalise
    layer.normalise = patch(original)
    try:
        yield
    finally:
        layer.normalise = original


@contextmanager
def patch_normalisers(
    layers: Iterable[AttentionLayer], patch: Callable[[Normaliser], Normaliser]
) -> Iterator[None]:
    with ExitStack() as stack:
        for layer in layers:
            stack.enter_context(patch_normaliser(layer, patch))
        yield


@contextmanager
def ablate_head(layer: AttentionLayer, head: int) -> Iterator[None]:
    """All weights of head `head` (from 0) become 0."""

    def patch(normalise: Normaliser) -> Normaliser:
        def normalise_without_head(scores: Scores) -> Weights:
            heads = scores.shape[1] if scores.dim() == 4 else 1
            if not 0 <= head < heads:
                raise UserError(f"there is no head {head}: this layer has {heads}, counted from 0")
            kept = torch.arange(heads, device=scores.device) != head
            return torch.where(kept[:, None, None], normalise(scores), 0.0)

        return normalise_without_head

    with patch_normaliser(layer, patch):
        yield


@contextmanager
def uniform_attention(layers: Iterable[AttentionLayer]) -> Iterator[None]:
    """Every head of these layers gives all unmasked keys the same weight: the score `mean` with softmax."""

    def normalise_uniformly(scores: Scores) -> Weights:
        return softmax(torch.zeros_like(scores).masked_fill(scores == float("-inf"), float("-inf")))

    with patch_normalisers(layers, lambda _: normalise_uniformly):
        yield


@contextmanager
def mask_keys(
    layers: Iterable[AttentionLayer], keys: Int[Tensor, "batch target"]
) -> Iterator[None]:
    """Target token t of these layers may not attend to key keys[:, t] (`NO_KEY`: it may attend to all).

    For teacher forcing on this batch: all target tokens in one pass, or a step at a time in order (but not
    in a decoder-only model with a window, whose steps evict source keys). The source must be encoded
    before, because a decoder-only model reads it with the same layers.
    """
    length = keys.shape[1]

    def patch(normalise: Normaliser) -> Normaliser:
        position = 0  # of the next target token: a recurrent decoder makes one step at a time

        def normalise_masked(scores: Scores) -> Weights:
            nonlocal position
            queries = scores.shape[-2]
            current = keys[:, position : position + queries]
            assert current.shape == (len(scores), queries), "the keys belong to another batch"
            position = (position + queries) % length
            masked = current[..., None] == torch.arange(scores.shape[-1], device=keys.device)
            masked = masked[:, None] if scores.dim() == 4 else masked
            return normalise(scores.masked_fill(masked, float("-inf")))

        return normalise_masked

    with patch_normalisers(layers, patch):
        yield
