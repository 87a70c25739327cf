"""Interventions on attention: chosen rows of weights are changed where a layer computes them.

    with intervene(model, [Mask(keys=(3,))]): ...   # as `regard.interventions` describes them
    with mask_keys(model, keys): ...                # e_i = -inf at a source key for each target token
    with uniform_attention(layers): ...             # alpha_i = 1 / n over the n keys that are not masked

Each changes only how a layer's scores become weights, and restores the layer on exit. A layer says which
tokens its queries and keys are (`TokenPositions`), so it does not matter whether a target is read at once or
step by step, by one hypothesis or by several, with a window or without.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.attention.normalise import Normaliser, softmax
from regard.attention.token_positions import (
    AnyNormaliser,
    PositionedNormaliser,
    TokenPositions,
    bind_positions,
)
from regard.interventions import (
    MECHANISMS,
    Ablate,
    AttentionIntervention,
    Mask,
    Mechanism,
    SetWeights,
)
from regard.models.interface import AttentionLayer, Model
from regard.text.vocabulary import EOS

Scores = Float[Tensor, "batch heads query key"]
Weights = Float[Tensor, "batch heads query key"]
Change = Callable[[Scores, Normaliser, TokenPositions], Weights]

NO_KEY = -1  # as a key index: mask none
NEG_INF = float("-inf")


@dataclass(frozen=True)
class Patch(PositionedNormaliser):
    """A normaliser, changed."""

    normalise: AnyNormaliser
    change: Change

    def at(self, positions: TokenPositions) -> Normaliser:
        normalise = bind_positions(self.normalise, positions)

        def patched(scores: Tensor) -> Tensor:
            if scores.dim() == 3:  # a single head may leave the axis of heads out
                return self.change(scores[:, None], normalise, positions)[:, 0]
            return self.change(scores, normalise, positions)

        return patched


@contextmanager
def patch_normalisers(
    layers: Iterable[AttentionLayer], patch: Callable[[AnyNormaliser], AnyNormaliser]
) -> Iterator[None]:
    """Replace the normaliser of each layer by `patch` of it."""
    originals = [(layer, layer.normalise) for layer in layers]
    try:
        for layer, original in originals:
            layer.normalise = patch(original)
        yield
    finally:
        for layer, original in originals:
            layer.normalise = original


@contextmanager
def intervene(model: Model, interventions: Iterable[object]) -> Iterator[None]:
    """Apply the interventions on attention weights; the others, such as `Force`, concern the search."""
    on_attention = [one for one in interventions if isinstance(one, AttentionIntervention)]
    with ExitStack() as stack:
        for name, layers in (model.attention_layers() if on_attention else {}).items():
            # In a decoder-only model, one layer is part of all mechanisms.
            mechanisms = MECHANISMS if model.is_decoder_only else (name,)
            of_mechanism = [one for one in on_attention if one.mechanism in mechanisms]
            for number, layer in enumerate(layers):
                chosen = [one for one in of_mechanism if one.layer in (None, number)]
                if chosen:
                    change = partial(change_weights, chosen, model.is_decoder_only)
                    stack.enter_context(patch_normalisers([layer], partial(Patch, change=change)))
        yield


@contextmanager
def uniform_attention(layers: Iterable[AttentionLayer]) -> Iterator[None]:
    """Every head of these layers gives all unmasked keys the same weight: the score `mean` with softmax."""

    def normalise_uniformly(scores: Tensor) -> Tensor:
        return softmax(torch.zeros_like(scores).masked_fill(scores == NEG_INF, NEG_INF))

    with patch_normalisers(layers, lambda _: normalise_uniformly):
        yield


@contextmanager
def mask_keys(model: Model, keys: Int[Tensor, "batch target"]) -> Iterator[None]:
    """Target token t may not attend to source token keys[:, t] (`NO_KEY`: it may attend to all).

    A `Mask` in all layers, which differs between the rows of a batch.
    """

    def change(scores: Scores, normalise: Normaliser, positions: TokenPositions) -> Weights:
        part = select_mechanism(positions, "cross", model.is_decoder_only)
        if part is None:
            return normalise(scores)
        assert len(scores) == len(keys), "the keys belong to another batch"
        current = keys.take_along_dim(part.queries.expand(len(keys), -1), dim=1)
        masked = (current[..., None] == part.keys[:, None]) & part.is_key[:, None]
        return normalise(scores.masked_fill(masked[:, None], NEG_INF))

    with patch_normalisers(source_attention(model), partial(Patch, change=change)):
        yield


def source_attention(model: Model) -> list[AttentionLayer]:
    """The layers through which target tokens attend to the source: cross-attention, or all of a decoder-only
    model's.
    """
    return model.attention_layers().get("decoder" if model.is_decoder_only else "cross", [])


# --- rows and columns -----------------------------------------------------------------------------


@dataclass(frozen=True)
class MechanismPositions:
    """The queries and keys of a tensor of scores that belong to a mechanism."""

    queries: Int[Tensor, "#batch query"]
    """The step of each query or, in the encoder, the index of its token."""
    keys: Int[Tensor, "#batch key"]
    """The index of each key among the source or target tokens."""
    is_key: Bool[Tensor, "#batch key"]
    """Which keys belong to the mechanism."""

    def select_rows(
        self, one: AttentionIntervention, heads: int
    ) -> Bool[Tensor, "#batch #heads #query 1"]:
        """The rows of an intervention."""
        rows = torch.ones((1, 1, 1, 1), dtype=torch.bool, device=self.queries.device)
        if one.step is not None:
            rows = rows & (self.queries == one.step)[:, None, :, None]
        if one.head is not None:
            rows = rows & (torch.arange(heads, device=rows.device) == one.head)[:, None, None]
        return rows

    def select_keys(self, indices: Sequence[int]) -> Bool[Tensor, "#batch 1 1 key"]:
        """The columns of these keys."""
        selected = torch.isin(self.keys, self.keys.new_tensor(indices)) & self.is_key
        return selected[:, None, None]

    def spread_weights(self, weights: dict[int, float]) -> Float[Tensor, "#batch 1 1 key"]:
        """A row with these weights, and 0 elsewhere."""
        row = torch.zeros(self.keys.shape, dtype=torch.float64, device=self.keys.device)
        for key, weight in weights.items():
            row = row.masked_fill((self.keys == key) & self.is_key, weight)
        return row[:, None, None]


def select_mechanism(
    positions: TokenPositions, mechanism: Mechanism, is_decoder_only: bool
) -> MechanismPositions | None:
    """The positions that belong to a mechanism; None: none of these queries does.

    A decoder-only model reads its source with the same layers as its target, and a target token attends to
    source and target at once.
    """
    queries, keys, lengths = positions.queries, positions.keys, positions.prefix_lengths
    every = torch.ones_like(keys, dtype=torch.bool)
    if not is_decoder_only:
        return MechanismPositions(queries, keys, every)
    if (mechanism == "encoder") != (lengths is None):
        return None
    if lengths is None:
        return MechanismPositions(queries, keys, every)
    steps, is_source = queries - lengths[:, None], keys < lengths[:, None]
    if mechanism == "cross":
        return MechanismPositions(steps, keys, is_source)
    return MechanismPositions(steps, keys - lengths[:, None], ~is_source)


def change_weights(
    interventions: Sequence[AttentionIntervention],
    is_decoder_only: bool,
    scores: Scores,
    normalise: Normaliser,
    positions: TokenPositions,
) -> Weights:
    """Masks before normalisation; then the other interventions, in their order."""
    heads = scores.shape[1]
    mechanisms: set[Mechanism] = {one.mechanism for one in interventions}
    parts = {name: select_mechanism(positions, name, is_decoder_only) for name in mechanisms}
    chosen = [(one, parts[one.mechanism]) for one in interventions]
    for one, part in chosen:
        if isinstance(one, Mask) and part is not None:
            rows, columns = part.select_rows(one, heads), part.select_keys(one.keys)
            scores = scores.masked_fill(rows & columns, NEG_INF)
    weights = normalise(scores)
    for one, part in chosen:
        if isinstance(one, Ablate | SetWeights) and part is not None:
            selected = part.select_rows(one, heads) & part.is_key[:, None, None]
            new = part.spread_weights(one.weights if isinstance(one, SetWeights) else {})
            if positions.mask is not None:
                new = new * positions.mask
            weights = torch.where(selected, new.to(weights.dtype), weights)
    return weights


# --- what a model has -----------------------------------------------------------------------------


@torch.inference_mode()
def count_heads(model: Model) -> dict[Mechanism, tuple[int, int]]:
    """(layers, heads) of each mechanism that the model has."""
    token = torch.full((1, 1), EOS, device=next(model.parameters()).device)
    weights = model.attention_weights(token, torch.ones_like(token, dtype=torch.bool), token)
    counts: dict[Mechanism, tuple[int, int]] = {}
    for name in MECHANISMS:
        if name in weights:
            counts[name] = weights[name].shape[1], weights[name].shape[2]
    return counts
