"""Ensembles: P(w | ...) ∝ exp(mean over members of log P_m(w | ...)).

The geometric mean of the members' distributions: each has a veto, as in a product of experts (Hinton, 2002).
The mean of log-probabilities is not normalised itself; search and scoring take its softmax, as of any logits.

The members may be of different architectures. They share nothing but the tokens they read: memory and decoder
state are tuples of the members' own.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NoReturn

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.errors import UserError, join_names
from regard.models.interface import (
    AttentionLayer,
    AttentionWeights,
    DecoderState,
    Logits,
    Memory,
    Model,
    Rows,
    Source,
    SourceMask,
    Target,
    Tokens,
)


@dataclass
class EnsembleMemory(Memory):
    """The members' memories; `states` are those of all members, side by side."""

    members: tuple[Memory, ...]


@dataclass
class EnsembleState(DecoderState):
    """The members' decoder states, which keep the same hypotheses."""

    members: tuple[DecoderState, ...]

    def expand(self, beam: int) -> "EnsembleState":
        return EnsembleState(tuple(member.expand(beam) for member in self.members))

    def reorder(self, beam_indices: Int[Tensor, "batch beam"]) -> "EnsembleState":
        return EnsembleState(tuple(member.reorder(beam_indices) for member in self.members))

    def reserve(self, tokens: int) -> "EnsembleState":
        return EnsembleState(tuple(member.reserve(tokens) for member in self.members))

    def select(self, rows: Rows) -> "EnsembleState":
        """By each member: the tensors of some states have a row for each hypothesis, not each sentence."""
        return EnsembleState(tuple(member.select(rows) for member in self.members))


class Ensemble(Model[EnsembleMemory, EnsembleState]):
    """Several models with the same vocabularies as one; its features are those of all, side by side."""

    def __init__(self, models: Sequence[Model]) -> None:
        super().__init__()
        self.models: list[Model] = nn.ModuleList(models)  # type: ignore[assignment]
        self.sizes = [model.output_projection[0].shape[-1] for model in models]
        self.is_decoder_only = all(model.is_decoder_only for model in models)
        self.supports_cuda_graphs = all(model.supports_cuda_graphs for model in models)

    @property
    def members(self) -> list[Model]:
        return list(self.models)

    def max_target_length(self, source_length: int) -> int | None:
        limits = [model.max_target_length(source_length) for model in self.models]
        return min((limit for limit in limits if limit is not None), default=None)

    def _encode(
        self, source: Source, mask: SourceMask, need_weights: bool
    ) -> tuple[EnsembleMemory, list[Tensor | None]]:
        encoded = [model._encode(source, mask, need_weights) for model in self.models]
        memories = tuple(memory for memory, _ in encoded)
        states = torch.cat([memory.states for memory in memories], dim=-1)
        weights = list(chain.from_iterable(weights for _, weights in encoded))
        return EnsembleMemory(states, mask, memories), weights

    def init_state(self, memory: EnsembleMemory) -> EnsembleState:
        pairs = zip(self.models, memory.members, strict=True)
        return EnsembleState(tuple(model.init_state(member) for model, member in pairs))

    def step(self, tokens: Tokens, state: EnsembleState) -> tuple[Logits, EnsembleState]:
        pairs = zip(self.models, state.members, strict=True)
        logits, members = zip(*(model.step(tokens, member) for model, member in pairs), strict=True)
        return average_log_probs(logits), EnsembleState(members)

    def features(
        self, memory: EnsembleMemory, target: Target
    ) -> Float[Tensor, "batch target features"]:
        pairs = zip(self.models, memory.members, strict=True)
        return torch.cat([model.features(member, target) for model, member in pairs], dim=-1)

    def project(self, features: Float[Tensor, "*rows features"]) -> Float[Tensor, "*rows vocab"]:
        parts = zip(self.models, features.split(self.sizes, dim=-1), strict=True)
        return average_log_probs(model.project(part) for model, part in parts)

    @property
    def output_projection(self) -> NoReturn:
        raise UserError(
            "an ensemble has no single output projection, and cannot be trained: train its members"
        )

    def _attention_weights(
        self, source: Source, mask: SourceMask, target: Target
    ) -> dict[str, AttentionWeights]:
        weights = [model._attention_weights(source, mask, target) for model in self.models]
        return join_layers(weights, dim=1)

    def attention_layers(self) -> dict[str, list[AttentionLayer]]:
        """The members' layers one after another, in the order of their weights."""
        if any(model.is_decoder_only != self.is_decoder_only for model in self.models):
            raise UserError(
                "this ensemble has decoder-only and encoder-decoder members, whose layers differ in what "
                "they attend to: interventions and ablations need members of one kind, or a single run"
            )
        found: dict[str, list[AttentionLayer]] = {}
        for model in self.models:
            for mechanism, layers in model.attention_layers().items():
                found.setdefault(mechanism, []).extend(layers)
        return found


def average_log_probs(
    members: Iterable[Float[Tensor, "*rows vocab"]],
) -> Float[Tensor, "*rows vocab"]:
    """The mean of log softmax(logits) over the members, at least in float32."""
    log_probs = [
        logits.log_softmax(-1, dtype=torch.promote_types(logits.dtype, torch.float32))
        for logits in members
    ]
    return torch.stack(log_probs).mean(0)


def join_layers(members: Sequence[Mapping[str, Tensor]], dim: int) -> dict[str, Tensor]:
    """Attention weights by mechanism, the members' layers one after another along `dim`; heads come next.

    A member that lacks a mechanism has no layers of it.
    """
    if len(members) == 1:
        return dict(members[0])
    joined: dict[str, Tensor] = {}
    for mechanism in dict.fromkeys(chain.from_iterable(members)):
        parts = [weights[mechanism] for weights in members if mechanism in weights]
        heads = dict.fromkeys(str(part.shape[dim + 1]) for part in parts)
        if len(heads) > 1:
            raise UserError(
                f"the members of this ensemble have different numbers of heads in {mechanism} attention "
                f"({join_names(heads)}), so their weights are no single tensor: take those of each member "
                "from Translation.members, or name a single run"
            )
        joined[mechanism] = torch.cat(parts, dim)
    return joined
