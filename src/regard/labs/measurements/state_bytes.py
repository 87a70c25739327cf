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
        """4 (fixed + per_token (S + n)), with at most w - 1 tokens in the cache of a sliding window"""
        tokens = self.cached_source + generated
        cached = tokens if self.window is None else min(tokens, self.window - 1)
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


def tensors_of(value: object) -> Iterator[Tensor]:
    """All floating-point tensors inside a state; of a KV cache the part of its buffers that is in use."""
    if isinstance(value, Tensor) and value.is_floating_point():
        yield value
    elif isinstance(value, KVCache) and value.keys is not None:
        assert value.values is not None
        yield from (part[:, :, : value.length] for part in (value.keys, value.values))
    elif isinstance(value, Record):
        for field in fields(value):
            yield from tensors_of(getattr(value, field.name))
    elif isinstance(value, tuple):
        for item in value:
            yield from tensors_of(item)


def state_bytes(state: DecoderState) -> int:
    """Bytes in use; a tensor that occurs twice counts once."""
    tensors = tensors_of(state)
    return sum({(x.data_ptr(), x.shape): x.nbytes for x in tensors if x.numel()}.values())


def allocated_bytes(state: DecoderState) -> int:
    """Bytes of the storage behind these tensors."""
    storages = (x.untyped_storage() for x in tensors_of(state))
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


@dataclass(frozen=True)
class Generation:
    """Bytes used and allocated before the first and after every generated token, and all logits."""

    used: list[int]
    allocated: list[int]
    by_library: list[int]
    logits: Tensor
    logits_at_once: Tensor
    """Of one forward pass over all tokens, which keeps nothing between steps."""


@torch.inference_mode()
def generate(model: Model, source: int, tokens: int, generator: Generator) -> Generation:
    """Read a random source, then random tokens one by one."""
    ids = torch.randint(4, VOCAB, (1, source), generator=generator)
    target = torch.randint(4, VOCAB, (1, tokens), generator=generator)
    mask = torch.ones_like(ids, dtype=torch.bool)
    state, logits = model.init_state(model.encode(ids, mask)), []
    measured = [(state_bytes(state), allocated_bytes(state), state.cache_bytes())]
    for token in target.T:
        step_logits, state = model.step(token, state)
        logits.append(step_logits)
        measured.append((state_bytes(state), allocated_bytes(state), state.cache_bytes()))
    used, allocated, by_library = (list(sizes) for sizes in zip(*measured, strict=True))
    at_once = model(ids, mask, target)[0]
    return Generation(used, allocated, by_library, torch.cat(logits), at_once)
