"""Hugging Face's KV caches as plain tensors in our decoder states; each hypothesis of a beam is a row."""

from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from jaxtyping import Int
from torch import Tensor

from regard.models.interface import DecoderState, Rows

LayerCaches = tuple[tuple[Tensor, ...], ...]  # keys and values of each layer
C = TypeVar("C", bound="CachedState")


@dataclass
class CachedState(DecoderState):
    """The caches of all layers, a row for each hypothesis."""

    caches: LayerCaches
    beam: int
    """Hypotheses of each sentence, in adjacent rows."""

    def select(self: C, rows: Rows) -> C:
        within_beam = torch.arange(self.beam, device=rows.device)
        return self._select_rows(rows[:, None] * self.beam + within_beam)

    def expand(self: C, beam: int) -> C:
        expanded = self._map(lambda tensor: tensor.repeat_interleave(beam, dim=0))
        return replace(expanded, beam=self.beam * beam)

    def reorder(self: C, beam_indices: Int[Tensor, "batch beam"]) -> C:
        first = torch.arange(len(beam_indices), device=beam_indices.device)[:, None] * self.beam
        return self._select_rows(first + beam_indices)

    def _select_rows(self: C, rows: Int[Tensor, "batch beam"]) -> C:
        return self._map(lambda tensor: tensor.index_select(0, rows.flatten()))


def to_hf_cache(caches: LayerCaches) -> Any:
    """A `DynamicCache` with these tensors. It grows by concatenation and leaves the tensors unchanged."""
    from transformers import DynamicCache

    cache: Any = DynamicCache()
    for number, (keys, values) in enumerate(caches):
        cache.update(keys[:, :, :0], values[:, :, :0], number)
        cache.layers[number].keys, cache.layers[number].values = keys, values
    return cache


def from_hf_cache(cache: Any) -> LayerCaches:
    return tuple((layer.keys, layer.values) for layer in cache.layers)
