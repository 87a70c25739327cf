"""Multiply-accumulates and cache sizes of attention: by formula, by PyTorch, and their growth."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from regard.attention import SCORES, MultiHead, causal_mask
from regard.models.mixers import AttentionInputs, SelfAttention

# --- by formula -----------------------------------------------------------------------------------


def self_attention_macs(tokens: int, d_model: int, heads: int) -> int:
    """MACs of self-attention: h (3 M d^2 + 2 M^2 d) + h M d^2"""
    m, d, h = tokens, d_model, heads
    return h * (3 * m * d**2 + 2 * m**2 * d) + h * m * d**2


def cross_attention_macs(queries: int, tokens: int, d_model: int, heads: int) -> int:
    """MACs of cross-attention: h (N d^2 + 2 M d^2 + 2 M N d) + h N d^2"""
    n, m, d, h = queries, tokens, d_model, heads
    return h * (n * d**2 + 2 * m * d**2 + 2 * m * n * d) + h * n * d**2


def saved_macs(tokens: int, d_model: int, heads: int, groups: int) -> int:
    """2 M d^2 (h - g)"""
    return 2 * tokens * d_model**2 * (heads - groups)


def cache_elements(tokens: int, d_model: int, groups: int) -> int:
    """2 g M d: a key and a value for each token and group"""
    return 2 * groups * tokens * d_model


# --- by PyTorch -----------------------------------------------------------------------------------


def make_layer(d_model: int, heads: int, groups: int) -> MultiHead:
    """The library's multi-head attention, with head_dim = d_model."""
    return MultiHead(
        d_model, heads, d_model, SCORES["scaled-dot"](d_model, d_model), kv_heads=groups
    )


def count_flops(run: Callable[[], Any]) -> int:
    """Flops counted by PyTorch: two for each multiply-accumulate."""
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        run()
    return counter.get_total_flops()


def measure_self(
    tokens: int,
    d_model: int,
    heads: int,
    groups: int,
    causal: bool = False,
    need_weights: bool = True,
) -> tuple[int, int]:
    """(flops, elements in the KV cache) of self-attention over one sequence"""
    mixer, position_ids = (
        SelfAttention(make_layer(d_model, heads, groups)),
        torch.arange(tokens)[None],
    )
    cache = mixer.init_cache(1)
    mask = causal_mask(position_ids, position_ids) if causal else None
    inputs = AttentionInputs(position_ids, position_ids, mask)
    flops = count_flops(lambda: mixer(torch.zeros(1, tokens, d_model), inputs, cache, need_weights))
    assert cache.keys is not None
    assert cache.values is not None
    return flops, cache.keys.numel() + cache.values.numel()


def measure_cross(queries: int, tokens: int, d_model: int, heads: int) -> int:
    """Flops of cross-attention from N queries to M keys."""
    attention = make_layer(d_model, heads, heads)
    x, source = torch.zeros(1, queries, d_model), torch.zeros(1, tokens, d_model)
    query_position_ids, key_position_ids = torch.arange(queries)[None], torch.arange(tokens)[None]

    def run() -> None:
        keys_values = attention.keys_values(source, key_position_ids)
        attention(x, *keys_values, None, query_position_ids, key_position_ids, need_weights=True)

    return count_flops(run)


# --- growth ---------------------------------------------------------------------------------------

DOUBLED = {"2 M": "tokens", "2 d": "d_model", "2 h": "heads"}


@dataclass(frozen=True)
class Case:
    """A kind of attention at some sizes: its big-O, its flops by PyTorch, its MACs by formula."""

    order: str
    sizes: dict[str, int]
    counted: Callable[..., int]
    derived: Callable[..., int]

    def count(self, **changed: int) -> int:
        return self.counted(**self.sizes | changed)

    def formula(self, **changed: int) -> int:
        return self.derived(**self.sizes | changed)

    def measure_growth(self) -> dict[str, tuple[float, float]]:
        """(measured, by formula): the factor of the cost when M, d or h doubles."""
        doubled = {label: {size: 2 * self.sizes[size]} for label, size in DOUBLED.items()}
        return {
            label: (self.count(**sizes) / self.count(), self.formula(**sizes) / self.formula())
            for label, sizes in doubled.items()
        }


def make_cases(tokens: int, queries: int, d_model: int, heads: int, groups: int) -> dict[str, Case]:
    """Self-attention, causal or not, cross-attention, and shared keys and values."""
    sizes = {"tokens": tokens, "d_model": d_model, "heads": heads}

    def counted(groups: int | None, causal: bool = False) -> Callable[..., int]:
        """Flops with so many groups; None: as many as heads."""
        return lambda tokens, d_model, heads: measure_self(
            tokens, d_model, heads, groups or heads, causal
        )[0]

    def shared(groups: int) -> Callable[..., int]:
        return lambda tokens, d_model, heads: (
            self_attention_macs(tokens, d_model, heads) - saved_macs(tokens, d_model, heads, groups)
        )

    quadratic, g = "O(M d² + M² d)", groups
    cross = partial(measure_cross, queries), partial(cross_attention_macs, queries)
    return {
        "self": Case(quadratic, sizes, counted(None), self_attention_macs),
        "causal": Case(quadratic, sizes, counted(None, causal=True), self_attention_macs),
        "cross": Case("O((M + N) d² + M N d)", sizes, *cross),
        "multi-query": Case(quadratic, sizes, counted(1), shared(1)),
        f"grouped-query, g = {g}": Case(quadratic, sizes, counted(g), shared(g)),
    }
