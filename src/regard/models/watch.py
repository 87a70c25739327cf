"""Where a model that others wrote looks: its attention layers, overheard while they compute.

Each makes its weights in one of two calls, PyTorch's fused attention or a softmax. While watched, that call
goes through the layer's own normaliser, as in our layers, and what comes out is kept. Nobody need
know how the layer is built, and a layer can be meddled with like ours: see `ablate`.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import dropout, scaled_dot_product_attention
from torch.overrides import TorchFunctionMode

from regard.attention.normalise import softmax

Weights = Float[Tensor, "batch heads query key"]

FUSED = scaled_dot_product_attention
SOFTMAX = (nn.functional.softmax, torch.softmax, Tensor.softmax)


def attention_layers(model: nn.Module) -> list[nn.Module]:
    """Every module that attends and holds no other that does, in order; each with a softmax."""
    found = [part for part in model.modules() if type(part).__name__.endswith("Attention")]
    inner = [part for part in found if not any(p in found for p in list(part.modules())[1:])]
    for layer in inner:
        layer.normalise = softmax  # type: ignore[assignment]
    return inner


class Watch(TorchFunctionMode):
    """Every call on tensors passes here; those that make weights, inside a layer, are done anew."""

    def __init__(self) -> None:
        super().__init__()
        self.layer: Any = None
        self.found: list[Weights] = []

    def __torch_function__(
        self, func: Callable, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if self.layer is not None and func is FUSED:
            return self.attend(*args, **(kwargs or {}))
        if self.layer is not None and func in SOFTMAX:
            return self.weigh(args[0])
        return func(*args, **(kwargs or {}))

    def enter(self, layer: nn.Module, _: Any) -> None:
        self.layer = layer

    def leave(self, layer: nn.Module, _: Any, __: Any) -> None:
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
        """What the fused attention computes, by way of the weights."""
        if enable_gqa:
            share = query.shape[1] // key.shape[1]
            key, value = (x.repeat_interleave(share, dim=1) for x in (key, value))
        scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
        scores = query @ key.transpose(-1, -2) * scale
        if is_causal:
            attn_mask = torch.ones_like(scores[0, 0], dtype=torch.bool).tril()
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            scores = scores.masked_fill(~attn_mask, float("-inf"))
        elif attn_mask is not None:
            scores = scores + attn_mask
        return dropout(self.weigh(scores), dropout_p) @ value

    def weigh(self, scores: Float[Tensor, "batch heads query key"]) -> Weights:
        # Elsewhere a masked score is a very low one.
        hidden = scores <= torch.finfo(scores.dtype).min / 2
        weights = self.layer.normalise(scores.masked_fill(hidden, float("-inf")))
        self.found.append(weights)
        return weights


@contextmanager
def watched(layers: Sequence[nn.Module]) -> Iterator[list[Weights]]:
    """The weights that these layers make from here on, in the order in which they make them."""
    watch = Watch()
    hooks = [layer.register_forward_pre_hook(watch.enter) for layer in layers]
    hooks += [layer.register_forward_hook(watch.leave) for layer in layers]
    try:
        with watch:
            yield watch.found
    finally:
        for hook in hooks:
            hook.remove()
