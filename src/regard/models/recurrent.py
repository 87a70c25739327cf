"""Recurrent encoder-decoder with attention.

    h_t = [fwd(z)_t ; bwd(z)_t]      d_0 = ReLU(W [h_fwd_T ; h_bwd_1] + b)      (the homework's form)
    h_t = fwd(z)_t                   d_0 = h_T                                  (one direction, no bridge)

The decoder is one of the forms in `recurrent_decoder`. Its features f_i (context and state) give the
logits W_o f_i + b_o or, with a hidden layer, W_o ReLU(W_1 f_i + b_1) + b_o.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from regard.attention import Position
from regard.linear import Linear
from regard.models.cells import Cell, CellKind
from regard.models.dropout import Dropout
from regard.models.interface import (
    AttentionLayer,
    AttentionWeights,
    Logits,
    Memory,
    Model,
    Source,
    SourceMask,
    Target,
    Tokens,
)
from regard.models.recurrent_decoder import Decoder, RecurrentState

Activations = Float[Tensor, "batch length dim"]


def reverse(x: Float[Tensor, "batch length *rest"], mask: Bool[Tensor, "batch length"]) -> Tensor:
    """Reverse the real tokens of each row; the padding stays at the end."""
    index = torch.arange(mask.shape[1], device=mask.device)
    reversed_index = mask.sum(1, keepdim=True) - 1 - index
    source = torch.where(reversed_index >= 0, reversed_index, index)
    return x.gather(1, source[..., None].expand_as(x))


def last_state(x: Activations, mask: Bool[Tensor, "batch length"]) -> Float[Tensor, "batch dim"]:
    """The state at the last real token of each row."""
    index = (mask.sum(1) - 1)[:, None, None].expand(-1, 1, x.shape[-1])
    return x.gather(1, index)[:, 0]


class Encoder(nn.Module):
    """h_t = [fwd(z)_t ; bwd(z)_t] and, for each layer, the last state [h_fwd_T ; h_bwd_1].

    Both directions read the padding last, so it does not affect the states of real tokens.
    """

    def __init__(
        self,
        embedding: nn.Embedding,
        cell: CellKind,
        hidden_dim: int,
        layers: int,
        bidirectional: bool,
        position: Position,
        dropout: float,
    ) -> None:
        super().__init__()
        self.embedding = embedding
        self.position = position
        self.dropout = Dropout(dropout)
        directions = 2 if bidirectional else 1
        self.output_dim = hidden_dim * directions
        input_dims = [embedding.embedding_dim] + [self.output_dim] * (layers - 1)
        backward_dims = input_dims if bidirectional else []
        self.forwards = nn.ModuleList([Cell(cell, dim, hidden_dim) for dim in input_dims])
        self.backwards = nn.ModuleList([Cell(cell, dim, hidden_dim) for dim in backward_dims])

    def forward(
        self, source: Source, mask: SourceMask
    ) -> tuple[Activations, Float[Tensor, "batch layers dim"]]:
        """(a state for each token, the last state of each layer)"""
        position_ids = torch.arange(source.shape[1], device=source.device).expand_as(source)
        x = self.position.embed(self.embedding(source), position_ids)
        last_states = []
        for layer, forwards in enumerate(self.forwards):
            x = self.dropout(x)
            output = forwards(x)[0]
            last = last_state(output, mask)
            if self.backwards:
                backward = self.backwards[layer](reverse(x, mask))[0]
                last = torch.cat([last, last_state(backward, mask)], dim=-1)
                output = torch.cat([output, reverse(backward, mask)], dim=-1)
            last_states.append(last)
            x = output
        return x, torch.stack(last_states, dim=1)


@dataclass
class RecurrentMemory(Memory):
    """The encoder states, and the initial decoder state d_0 of each layer."""

    initial: Float[Tensor, "batch layers state"]


class Recurrent(Model[RecurrentMemory, RecurrentState]):
    """Encoder, bridge (encoder state to decoder state), decoder, hidden layer, output projection.

    Without a bridge, each decoder layer starts from the last state of the same encoder layer. With
    `read_padding`, padding counts as tokens in training, as it does in code without masks: the encoder
    reads it, its last state is that of the last padding, and attention attends to it. Outside training it
    is always masked.
    """

    def __init__(
        self,
        encoder: Encoder,
        embedding: nn.Embedding,
        decoder: Decoder,
        vocab: int,
        dropout: float,
        bridge: bool = True,
        output_hidden_dim: int | None = None,
        read_padding: bool = False,
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.embedding = embedding
        self.decoder = decoder
        initial_dim = decoder.layers * decoder.state_dim
        self.bridge = Linear(encoder.output_dim, initial_dim) if bridge else None
        self.output_hidden = (
            Linear(decoder.output_dim, output_hidden_dim) if output_hidden_dim else None
        )
        self.output = Linear(output_hidden_dim or decoder.output_dim, vocab)
        self.dropout = Dropout(dropout)
        self.read_padding = read_padding

    def max_target_length(self, source_length: int) -> int | None:
        max_length = self.encoder.position.max_length
        return 0 if max_length is not None and source_length > max_length else None

    def _encode(
        self, source: Source, mask: SourceMask, need_weights: bool
    ) -> tuple[RecurrentMemory, list[Tensor]]:
        if self.read_padding and self.training:
            mask = torch.ones_like(mask)
        states, initial = self.encoder(source, mask)
        if self.bridge is not None:
            bridged = torch.relu(self.bridge(initial[:, -1]))
            initial = bridged.unflatten(1, (self.decoder.layers, -1))
        return RecurrentMemory(states, mask, initial), []  # no self-attention

    def init_state(self, memory: RecurrentMemory) -> RecurrentState:
        return self.decoder.init_state(memory.initial, memory.states, memory.mask)

    def step(self, tokens: Tokens, state: RecurrentState) -> tuple[Logits, RecurrentState]:
        features, _, state = self.decoder(self.embedding(tokens[:, None]), state)
        return self.project(self.output_features(features[:, 0])), state

    def features(
        self, memory: RecurrentMemory, target: Target
    ) -> Float[Tensor, "batch target features"]:
        return self.output_features(
            self.decoder(self.embedding(target), self.init_state(memory))[0]
        )

    def output_features(
        self, features: Float[Tensor, "*rows dim"]
    ) -> Float[Tensor, "*rows features"]:
        """The input of the output projection: dropout(f) or, with a hidden layer, dropout(ReLU(W_1 f + b_1)).

        Dropout before the ReLU would be the same: it multiplies by 0 or by a positive number.
        """
        if self.output_hidden is not None:
            features = torch.relu(self.output_hidden(features))
        return self.dropout(features)

    @property
    def output_projection(self) -> tuple[Float[Tensor, "vocab features"], Float[Tensor, " vocab"]]:
        return self.output.weight, self.output.bias

    def vocab_parameters(self) -> dict[str, list[Tensor]]:
        target = [self.embedding.weight, self.output.weight, self.output.bias]
        return {"source": [self.encoder.embedding.weight], "target": target}

    def _attention_weights(
        self, source: Source, mask: SourceMask, target: Target
    ) -> dict[str, AttentionWeights]:
        state = self.init_state(self._encode(source, mask, need_weights=True)[0])
        weights = self.decoder(self.embedding(target), state)[1]
        return {} if weights is None else {"cross": weights[:, None, None]}

    def attention_layers(self) -> dict[str, list[AttentionLayer]]:
        attention = self.decoder.attention
        return {} if attention is None else {"cross": [attention]}
