"""Transformer layers: norms, feed-forward networks, and blocks.

    pre-norm    x = x + sublayer(norm(x))       (Xiong et al., 2020)
    post-norm   x = norm(x + sublayer(x))       (Vaswani et al., 2017)

A sublayer is a token mixer (self-attention or a state space), cross-attention, or a feed-forward network.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.functional import gelu, silu

from regard.attention import MultiHeadBase
from regard.linear import Linear
from regard.models.dropout import Dropout
from regard.models.mixers import AttentionInputs, TokenMixer, Weights

Activations = Float[Tensor, "batch length d_model"]
Inner = Float[Tensor, "batch length d_ff"]
SourceHeads = Float[Tensor, "batch kv_heads source _"]
CrossWeights = Float[Tensor, "batch heads query source"] | None

RMS_EPS = 1e-6
# (x - mean) / deviation * g + b, and x / root mean square * g (Zhang and Sennrich, 2019)
NORMS: dict[str, Callable[[int], nn.Module]] = {
    "layer": nn.LayerNorm,
    "rms": partial(nn.RMSNorm, eps=RMS_EPS),
}


class FeedForward(nn.Module):
    """W_2 relu(W_1 x + b_1) + b_2, at each position separately (Vaswani et al., 2017)."""

    def __init__(self, d_model: int, d_ff: int, dropout: float) -> None:
        super().__init__()
        self.up = Linear(d_model, d_ff)
        self.down = Linear(d_ff, d_model)
        self.dropout = Dropout(dropout)

    def activation(self, x: Inner) -> Inner:
        return torch.relu(x)

    def forward(self, x: Activations) -> Activations:
        return self.down(self.dropout(self.activation(self.up(x))))


class Gelu(FeedForward):
    """W_2 gelu(W_1 x + b_1) + b_2 (Hendrycks and Gimpel, 2016; the GPTs)."""

    def activation(self, x: Inner) -> Inner:
        return gelu(x)


class SwiGlu(nn.Module):
    """W_2 (silu(W_g x) * W_1 x): a gated linear unit (Shazeer, 2020)."""

    def __init__(self, d_model: int, d_ff: int, dropout: float) -> None:
        super().__init__()
        self.gate = Linear(d_model, d_ff, bias=False)
        self.up = Linear(d_model, d_ff, bias=False)
        self.down = Linear(d_ff, d_model, bias=False)
        self.dropout = Dropout(dropout)

    def forward(self, x: Activations) -> Activations:
        return self.down(self.dropout(silu(self.gate(x)) * self.up(x)))


FEED_FORWARDS: dict[str, Callable[[int, int, float], nn.Module]] = {
    "relu": FeedForward,
    "gelu": Gelu,
    "swiglu": SwiGlu,
}


class Block(nn.Module):
    """A token mixer, then a feed-forward network, each with norm, dropout and residual connection."""

    def __init__(
        self,
        mixer: TokenMixer,
        feed_forward: nn.Module,
        norm: Callable[[], nn.Module],
        pre_norm: bool,
        dropout: float,
    ) -> None:
        super().__init__()
        self.mixer_norm, self.feed_forward_norm = norm(), norm()
        self.mixer, self.feed_forward = mixer, feed_forward
        self.pre_norm = pre_norm
        self.dropout = Dropout(dropout)

    def forward(
        self, x: Activations, inputs: AttentionInputs, cache: Any, need_weights: bool
    ) -> tuple[Activations, Weights]:
        x, weights = self._mix(x, inputs, cache, need_weights)
        return self._feed_forward(x), weights

    def _mix(
        self, x: Activations, inputs: AttentionInputs, cache: Any, need_weights: bool
    ) -> tuple[Activations, Weights]:
        normed = self._norm_input(x, self.mixer_norm)
        mixed, weights = self.mixer(normed, inputs, cache, need_weights)
        return self._add_residual(x, mixed, self.mixer_norm), weights

    def _feed_forward(self, x: Activations) -> Activations:
        output = self.feed_forward(self._norm_input(x, self.feed_forward_norm))
        return self._add_residual(x, output, self.feed_forward_norm)

    def _norm_input(self, x: Activations, norm: nn.Module) -> Activations:
        """The input of a sublayer."""
        return norm(x) if self.pre_norm else x

    def _add_residual(self, x: Activations, output: Activations, norm: nn.Module) -> Activations:
        """The residual connection around a sublayer."""
        x = x + self.dropout(output)
        return x if self.pre_norm else norm(x)


class CrossBlock(Block):
    """A block with cross-attention to the source between mixer and feed-forward network."""

    def __init__(
        self,
        mixer: TokenMixer,
        cross_attention: MultiHeadBase,
        feed_forward: nn.Module,
        norm: Callable[[], nn.Module],
        pre_norm: bool,
        dropout: float,
    ) -> None:
        super().__init__(mixer, feed_forward, norm, pre_norm, dropout)
        self.cross_attention, self.cross_norm = cross_attention, norm()

    def forward(  # type: ignore[override]
        self,
        x: Activations,
        inputs: AttentionInputs,
        cache: Any,
        source_keys_values: tuple[SourceHeads, Tensor],
        source_mask: Bool[Tensor, "batch source"],
        source_position_ids: Int[Tensor, "batch source"],
        need_weights: bool,
    ) -> tuple[Activations, Weights, CrossWeights]:
        x, self_weights = self._mix(x, inputs, cache, need_weights)
        query = self._norm_input(x, self.cross_norm)
        position_ids = inputs.position_ids, source_position_ids
        context, cross_weights = self.cross_attention(
            query, *source_keys_values, source_mask[:, None], *position_ids, need_weights
        )
        x = self._add_residual(x, context, self.cross_norm)
        return self._feed_forward(x), self_weights, cross_weights
