"""Capture the attention weights of a Hugging Face model while its layers compute them.

Every layer computes its weights in one of two calls: PyTorch's fused attention, or a softmax. During a
capture, that call goes through the layer's `normalise` attribute, as in our own layers, and the result is
recorded. This does not depend on how the layer is written, and `intervene` works on it as on our own layers.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import dropout, scaled_dot_product_attention
from torch.overrides import TorchFunctionMode

from regard.attention.normalise import softmax
from regard.attention.token_positions import TokenPositions, bind_positions

Weights = Float[Tensor, "batch heads query key"]

FUSED = scaled_dot_product_attention
SOFTMAX = (nn.functional.softmax, torch.softmax, Tensor.softmax)


def find_attention_layers(model: nn.Module) -> list[nn.Module]:
    """Every innermost attention module, in order; each gets a `normalise` attribute, softmax."""
    layers = [module for module in model.modules() if type(module).__name__.endswith("Attention")]
    innermost = [
        layer for layer in layers if not any(m in layers for m in list(layer.modules())[1:])
    ]
    for layer in innermost:
        layer.normalise = softmax  # type: ignore[assignment]
    return innermost


@dataclass(frozen=True)
class Offsets:
    """The positions of the first query and of the first key of a layer: the others follow."""

    query: int = 0
    key: int = 0
    prefix_length: int | None = None
    """As in `TokenPositions`, the same for all rows."""

    def token_positions(self, scores: Float[Tensor, "batch heads query key"]) -> TokenPositions:
        queries, keys = (torch.arange(n, device=scores.device)[None] for n in scores.shape[-2:])
        prefix = None if self.prefix_length is None else queries.new_tensor([self.prefix_length])
        mask = (scores != float("-inf")).any(1, keepdim=True)
        return TokenPositions(queries + self.query, keys + self.key, mask, prefix)


class CaptureMode(TorchFunctionMode):
    """Intercepts every PyTorch call; inside a layer, replaces those that compute attention weights."""

    def __init__(self, layers: Sequence[nn.Module], offsets: Sequence[Offsets]) -> None:
        super().__init__()
        self.offsets = dict(zip(layers, offsets, strict=True))
        self.layer: Any = None
        self.weights: list[Weights] = []

    def __torch_function__(
        self, func: Callable, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if self.layer is not None and func is FUSED:
            return self.attend(*args, **(kwargs or {}))
        if self.layer is not None and func in SOFTMAX:
            return self.normalise(args[0])
        return func(*args, **(kwargs or {}))

    def enter_layer(self, layer: nn.Module, _: Any) -> None:
        self.layer = layer

    def exit_layer(self, layer: nn.Module, _: Any, __: Any) -> None:
        self.layer = None

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        """`scaled_dot_product_attention`, with the weights computed explicitly."""
        if enable_gqa:
            group = query.shape[1] // key.shape[1]
            key, value = (x.repeat_interleave(group, dim=1) for x in (key, value))
        scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
        scores = query @ key.transpose(-1, -2) * scale
        if is_causal:
            attn_mask = torch.ones_like(scores[0, 0], dtype=torch.bool).tril()
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            scores = scores.masked_fill(~attn_mask, float("-inf"))
        elif attn_mask is not None:
            scores = scores + attn_mask
        return dropout(self.normalise(scores), dropout_p) @ value

    def normalise(self, scores: Float[Tensor, "batch heads query key"]) -> Weights:
        # Hugging Face masks with a large negative number, our normalisers expect minus infinity.
        masked = scores <= torch.finfo(scores.dtype).min / 2
        scores = scores.masked_fill(masked, float("-inf"))
        token_positions = self.offsets[self.layer].token_positions(scores)
        weights = bind_positions(self.layer.normalise, token_positions)(scores)
        self.weights.append(weights)
        return weights


@contextmanager
def capture_weights(
    layers: Sequence[nn.Module], offsets: Sequence[Offsets]
) -> Iterator[list[Weights]]:
    """A list that collects the weights of these layers, in the order in which they are computed."""
    mode = CaptureMode(layers, offsets)
    hooks = [layer.register_forward_pre_hook(mode.enter_layer) for layer in layers]
    hooks += [layer.register_forward_hook(mode.exit_layer) for layer in layers]
    try:
        with mode:
            yield mode.weights
    finally:
        for hook in hooks:
            hook.remove()
