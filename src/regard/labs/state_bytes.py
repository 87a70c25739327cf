"""Models for `inference-memory`, the bytes that their decoder states keep, and the same bytes by formula."""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Generator, Tensor

from regard.config import Config
from regard.models import Model, build
from regard.models.interface import DecoderState, Record
from regard.models.kv_cache import KVCache
from regard.models.transformer_base import TransformerState

VOCAB = 11
FLOAT = 4  # bytes of a float32
KQ_DIM, STATE_DIM, EXPAND, CONV_KERNEL, ROPE_DIM = 8, 8, 2, 4, 4


@dataclass(frozen=True)
class Sizes:
    """L layers, h heads of dimension d_h, g key/value heads, a latent vector of c, a window of w."""

    layers: int
    heads: int
    groups: int
    head_dim: int
    latent_dim: int
    window: int
    source: int

    @property
    def d_model(self) -> int:
        return self.heads * self.head_dim


@dataclass(frozen=True)
class Family:
    """A model, its big-O, and the numbers that its state keeps: once, and for each token in its cache."""

    table: dict[str, Any]
    order: str
    fixed: int
    per_token: int
    cached_source: int = 0
    window: int | None = None

    def bytes_after(self, generated: int) -> int:
        """4 (fixed + per_token (S + n)), with at most w tokens in the cache of a sliding window"""
        tokens = self.cached_source + generated
        cached = tokens if self.window is None else min(tokens, self.window)
        return FLOAT * (self.fixed + self.per_token * cached)


def make_families(sizes: Sizes) -> dict[str, Family]:
    """The library's models, all with d_model = h d_h; each formula is derived from the architecture alone."""
    layers, source, d = sizes.layers, sizes.source, sizes.d_model

    def recurrent(cell: str, numbers: int, attention: Any, kept_source: int, order: str) -> Family:
        table = {
            "kind": "recurrent",
            "cell": cell,
            "embedding_dim": d,
            "hidden_dim": d,
            "attention": attention,
            "encoder": {"bidirectional": False},
            "decoder": {"layers": layers},
        }
        return Family(table, order, numbers * layers * d + kept_source, 0)

    def decoder_only(attention: dict[str, Any], per_layer: int, order: str, **more: Any) -> Family:
        table = {
            "kind": "decoder-only",
            "d_model": d,
            "d_ff": d,
            "decoder": {"layers": layers},
            "attention": {"heads": sizes.heads, "head_dim": sizes.head_dim, **attention},
            "position": "rotary",
            **more,
        }
        return Family(table, order, 0, layers * per_layer, source, attention.get("window"))

    inner = EXPAND * d
    mixer = {"kind": "state-space", "state_dim": STATE_DIM, "expand": EXPAND}
    state_space = {
        "kind": "decoder-only",
        "d_model": d,
        "d_ff": d,
        "decoder": {"layers": layers},
        "mixer": {**mixer, "conv_kernel": CONV_KERNEL},
        "position": "none",
    }
    single_head = {"kind": "single-head", "kq_dim": KQ_DIM}
    all_heads = 2 * sizes.heads * sizes.head_dim
    return {
        # The library keeps the encoder states even where no attention reads them: source x d.
        "gru": recurrent("gru", 1, "none", source * d, "O(L d + S d)"),
        "lstm": recurrent("lstm", 2, "none", source * d, "O(L d + S d)"),
        "gru + attention": recurrent(
            "gru", 1, single_head, d + source * (KQ_DIM + d), "O(L d + S d)"
        ),
        "state space": Family(
            state_space, "O(L d)", layers * inner * (STATE_DIM + CONV_KERNEL - 1), 0
        ),
        "window": decoder_only({"window": sizes.window}, all_heads, "O(L h d_h w)"),
        "multi-head": decoder_only({}, all_heads, "O(L h d_h (S + n))"),
        "grouped-query": decoder_only(
            {"kv_heads": sizes.groups}, 2 * sizes.groups * sizes.head_dim, "O(L g d_h (S + n))"
        ),
        "multi-query": decoder_only({"kv_heads": 1}, 2 * sizes.head_dim, "O(L d_h (S + n))"),
        "latent": decoder_only(
            {"kind": "latent", "latent_dim": sizes.latent_dim, "rope_dim": ROPE_DIM},
            sizes.latent_dim + ROPE_DIM,
            "O(L (c + r) (S + n))",
        ),
        # Keys and values of the source for cross-attention, of the target for self-attention.
        "encoder-decoder": decoder_only({}, all_heads, "O(L h d_h (S + n))", kind="transformer"),
    }


def build_model(family: Family) -> Model:
    config = Config.model_validate({"model": family.table})
    return build(config.model, VOCAB, VOCAB, joint=True).eval()


# --- measured -------------------------------------------------------------------------------------


def tensors_of(value: object, used: bool) -> Iterator[Tensor]:
    """All tensors inside a state; of a KV cache the `used` part of its buffers, or all of them."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, KVCache) and used and value.keys is not None:
        assert value.values is not None
        yield from (part[:, :, : value.length] for part in (value.keys, value.values))
    elif isinstance(value, Record):
        for field in fields(value):
            yield from tensors_of(getattr(value, field.name), used)
    elif isinstance(value, tuple):
        for item in value:
            yield from tensors_of(item, used)


def state_bytes(state: DecoderState, used: bool = True) -> int:
    """Bytes of the floating-point tensors in a state; one that occurs twice counts once."""
    tensors = (x for x in tensors_of(state, used) if x.is_floating_point())
    return sum({(x.data_ptr(), x.shape): x.nbytes for x in tensors if x.numel()}.values())


def evict(state: DecoderState, keep: int) -> None:
    """Forget all but the last `keep` tokens of a cache: for one sentence and one hypothesis."""
    assert isinstance(state, TransformerState)
    for cache in state.caches:
        assert isinstance(cache, KVCache)
        assert cache.keys is not None
        assert cache.values is not None
        kept = slice(max(0, cache.length - keep), cache.length)
        cache.keys, cache.values = (x[:, :, kept].clone() for x in (cache.keys, cache.values))
        cache.length = cache.keys.shape[2]
    state.key_position_ids = state.key_position_ids[:, -keep:]
    if state.cache_mask is not None:
        state.cache_mask = state.cache_mask[..., -keep:]


@dataclass(frozen=True)
class Generation:
    """Bytes used and allocated before the first and after every generated token, and all logits."""

    used: list[int]
    allocated: list[int]
    by_library: list[int]
    logits: Tensor


@torch.inference_mode()
def generate(
    model: Model, source: int, tokens: int, generator: Generator, keep: int | None = None
) -> Generation:
    """Read a random source, then random tokens one by one; `keep`: never hold more than the last so many."""
    ids = torch.randint(4, VOCAB, (1, source), generator=generator)
    state = model.init_state(model.encode(ids, torch.ones_like(ids, dtype=torch.bool)))
    used, allocated, by_library, all_logits = [], [], [], []
    for step in range(tokens + 1):
        if keep is not None:
            evict(state, keep - (1 if step else 0))  # the next token makes it `keep` again
        if step:
            token = torch.randint(4, VOCAB, (1,), generator=generator)
            logits, state = model.step(token, state)
            all_logits.append(logits)
        used.append(state_bytes(state))
        allocated.append(state_bytes(state, used=False))
        by_library.append(state.cache_bytes())
    return Generation(used, allocated, by_library, torch.cat(all_logits))
