"""What a model's attention sees, taken away for a moment: is what we see what matters?

    with silenced(layer, head=2): ...      # alpha = 0: the head adds nothing to the sum
    with uniform(layers): ...              # alpha_i = 1 / n over what may be seen
    with masked(layers, words): ...        # e_i = minus infinity at one word for each target token

Each changes how a layer's scores become weights, nothing else, and puts it back on the way out.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.attention.normalise import Normaliser, softmax
from regard.models.interface import AttentionLayer

Scores = Float[Tensor, "batch *heads query key"]
Weights = Float[Tensor, "batch *heads query key"]

NOTHING = -1  # in place of a word: mask none


@contextmanager
def normalised(layer: AttentionLayer, change: Callable[[Normaliser], Normaliser]) -> Iterator[None]:
    """The layer, with what `change` makes of its normaliser."""
    before = layer.normalise
    layer.normalise = change(before)
    try:
        yield
    finally:
        layer.normalise = before


@contextmanager
def _all(
    layers: Iterable[AttentionLayer], change: Callable[[Normaliser], Normaliser]
) -> Iterator[None]:
    with ExitStack() as stack:
        for layer in layers:
            stack.enter_context(normalised(layer, change))
        yield


@contextmanager
def silenced(layer: AttentionLayer, head: int) -> Iterator[None]:
    """Head `head` (from 0) gives every word a weight of 0. A layer of one head has no axis for it."""

    def change(normalise: Normaliser) -> Normaliser:
        def without(scores: Scores) -> Weights:
            weights = normalise(scores)
            heads = weights.unsqueeze(1) if weights.dim() == 3 else weights.flatten(1, -3)
            loud = torch.ones(heads.shape[1], dtype=torch.bool, device=weights.device)
            loud[head] = False
            return torch.where(loud[:, None, None], heads, 0.0).reshape(weights.shape)

        return without

    with normalised(layer, change):
        yield


@contextmanager
def uniform(layers: Iterable[AttentionLayer]) -> Iterator[None]:
    """Every head of these layers weighs alike whatever it may see: the score `mean` with softmax."""

    def level(scores: Scores) -> Weights:
        return softmax(torch.zeros_like(scores).masked_fill(scores == float("-inf"), float("-inf")))

    with _all(layers, lambda _: level):
        yield


@contextmanager
def masked(layers: Iterable[AttentionLayer], words: Int[Tensor, "batch target"]) -> Iterator[None]:
    """Target token t of these layers may not see key words[:, t] (`NOTHING`: it sees all).

    For one reading of this batch, by teacher forcing: at once, or a token at a time in order.
    """
    length = words.shape[1]

    def change(normalise: Normaliser) -> Normaliser:
        place = 0  # a decoder that goes word by word asks for one target token after another

        def without(scores: Scores) -> Weights:
            nonlocal place
            queries, keys = scores.shape[-2:]
            now = words[:, place : place + queries]
            assert now.shape == (len(scores), queries), "this is not the batch the words are for"
            place = (place + queries) % length
            hidden = now[..., None] == torch.arange(keys, device=now.device)
            heads = (1,) * (scores.dim() - 3)
            hidden = hidden.view(len(scores), *heads, queries, keys)
            return normalise(scores.masked_fill(hidden, float("-inf")))

        return without

    with _all(layers, change):
        yield
