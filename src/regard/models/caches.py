"""What layers of Hugging Face's remember, as plain tensors in our records; a beam is so many rows."""

from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from jaxtyping import Int
from torch import Tensor

from regard.models.interface import DecoderState, Rows

Layers = tuple[tuple[Tensor, ...], ...]  # keys and values of each layer
C = TypeVar("C", bound="Cached")


@dataclass
class Cached(DecoderState):
    """What the layers remember, a row for each beginning."""

    layers: Layers
    beam: int
    """Beginnings of each sentence, side by side."""

    def select(self: C, rows: Rows) -> C:
        inside = torch.arange(self.beam, device=rows.device)
        return self._rows(rows[:, None] * self.beam + inside)

    def expand(self: C, beam: int) -> C:
        wider = self._map(lambda tensor: tensor.repeat_interleave(beam, dim=0))
        return replace(wider, beam=self.beam * beam)

    def reorder(self: C, beam_indices: Int[Tensor, "batch beam"]) -> C:
        first = torch.arange(len(beam_indices), device=beam_indices.device)[:, None] * self.beam
        return self._rows(first + beam_indices)

    def _rows(self: C, rows: Int[Tensor, "batch beam"]) -> C:
        return self._map(lambda tensor: tensor.index_select(0, rows.flatten()))


def opened(layers: Layers) -> Any:
    """A cache of theirs that holds these tensors. It grows by making new ones: these stay as they are."""
    from transformers import DynamicCache

    cache: Any = DynamicCache()
    for number, (keys, values) in enumerate(layers):
        cache.update(keys[:, :, :0], values[:, :, :0], number)
        cache.layers[number].keys, cache.layers[number].values = keys, values
    return cache


def closed(cache: Any) -> Layers:
    return tuple((layer.keys, layer.values) for layer in cache.layers)
