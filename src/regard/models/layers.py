"""What Transformers are built of: norms, feed-forward networks, and the blocks that join them.

    before   x = x + part(norm(x))       (Xiong et al., 2020)
    after    x = norm(x + part(x))       (Vaswani et al., 2017)

A part mixes tokens, looks at the source, or is the feed-forward network.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.functional import gelu, silu

from regard.attention import ManyHeads
from regard.linear import Linear
from regard.models.dropout import Dropout
from regard.models.mixers import Mixer, Reading, Weights

Sequence = Float[Tensor, "batch length width"]
SourceHeads = Float[Tensor, "batch kept source _"]
CrossWeights = Float[Tensor, "batch heads query source"] | None

# (x - mean) / deviation * g + b, and x / root mean square * g (Zhang and Sennrich, 2019)
NORMS: dict[str, Callable[[int], nn.Module]] = {
    "layer": nn.LayerNorm,
    "rms": partial(nn.RMSNorm, eps=1e-6),
}


class FeedForward(nn.Module):
    """W_2 relu(W_1 x + b_1) + b_2, at each position alone (Vaswani et al., 2017)."""

    def __init__(self, width: int, inner: int, dropout: float) -> None:
        super().__init__()
        self.grow = Linear(width, inner)
        self.shrink = Linear(inner, width)
        self.dropout = Dropout(dropout)

    def bend(self, x: Sequence) -> Sequence:
        return torch.relu(x)

    def forward(self, x: Sequence) -> Sequence:
        return self.shrink(self.dropout(self.bend(self.grow(x))))


class Gelu(FeedForward):
    """W_2 gelu(W_1 x + b_1) + b_2 (Hendrycks and Gimpel, 2016; the GPTs)."""

    def bend(self, x: Sequence) -> Sequence:
        return gelu(x)


class SwiGlu(nn.Module):
    """W_2 (silu(W_g x) * W_1 x): a third map says how much of each goes through (Shazeer, 2020)."""

    def __init__(self, width: int, inner: int, dropout: float) -> None:
        super().__init__()
        self.gate = Linear(width, inner, bias=False)
        self.grow = Linear(width, inner, bias=False)
        self.shrink = Linear(inner, width, bias=False)
        self.dropout = Dropout(dropout)

    def forward(self, x: Sequence) -> Sequence:
        return self.shrink(self.dropout(silu(self.gate(x)) * self.grow(x)))


FEEDS: dict[str, Callable[[int, int, float], nn.Module]] = {
    "relu": FeedForward,
    "gelu": Gelu,
    "swiglu": SwiGlu,
}


class Block(nn.Module):
    """Each token with the others, then each alone: a mixer, then feed-forward."""

    def __init__(
        self,
        own: Mixer,
        feed: nn.Module,
        norm: Callable[[], nn.Module],
        before: bool,
        dropout: float,
    ) -> None:
        super().__init__()
        self.own_norm, self.feed_norm = norm(), norm()
        self.own, self.feed = own, feed
        self.before = before
        self.dropout = Dropout(dropout)

    def forward(
        self, x: Sequence, reading: Reading, past: Any, explain: bool
    ) -> tuple[Sequence, Weights]:
        x, weights = self._mixed(x, reading, past, explain)
        return self._fed(x), weights

    def _mixed(
        self, x: Sequence, reading: Reading, past: Any, explain: bool
    ) -> tuple[Sequence, Weights]:
        seen, weights = self.own(self._enter(x, self.own_norm), reading, past, explain)
        return self._leave(x, seen, self.own_norm), weights

    def _fed(self, x: Sequence) -> Sequence:
        return self._leave(x, self.feed(self._enter(x, self.feed_norm)), self.feed_norm)

    def _enter(self, x: Sequence, norm: nn.Module) -> Sequence:
        """What a part reads."""
        return norm(x) if self.before else x

    def _leave(self, x: Sequence, found: Sequence, norm: nn.Module) -> Sequence:
        """What a part found, added to what was there."""
        x = x + self.dropout(found)
        return x if self.before else norm(x)


class CrossBlock(Block):
    """The same, with a look at the source in between."""

    def __init__(
        self,
        own: Mixer,
        cross: ManyHeads,
        feed: nn.Module,
        norm: Callable[[], nn.Module],
        before: bool,
        dropout: float,
    ) -> None:
        super().__init__(own, feed, norm, before, dropout)
        self.cross, self.cross_norm = cross, norm()

    def forward(  # type: ignore[override]
        self,
        x: Sequence,
        reading: Reading,
        past: Any,
        source: tuple[SourceHeads, Tensor],
        mask: Bool[Tensor, "batch source"],
        source_at: Int[Tensor, "batch source"],
        explain: bool,
    ) -> tuple[Sequence, Weights, CrossWeights]:
        x, own_weights = self._mixed(x, reading, past, explain)
        places = reading.at, source_at
        query = self._enter(x, self.cross_norm)
        seen, cross_weights = self.cross(query, *source, mask[:, None], *places, explain)
        x = self._leave(x, seen, self.cross_norm)
        return self._fed(x), own_weights, cross_weights
