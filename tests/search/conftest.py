"""Small models of every family, and sources of different lengths."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from regard.config import Config
from regard.models import Ensemble, Model, build

SMALL = {"kind": "recurrent", "embedding_dim": 7, "hidden_dim": 13}
TRANSFORMER = {
    "kind": "transformer",
    "d_model": 8,
    "encoder": {"layers": 1},
    "decoder": {"layers": 2},
}
DECODER_ONLY = {"kind": "decoder-only", "d_model": 8, "decoder": {"layers": 2}}
TABLES = {
    "gru": SMALL,
    "bottleneck": SMALL | {"cell": "lstm", "attention": "none"},
    "rnn-2": SMALL | {"cell": "rnn", "decoder": {"layers": 2}, "attention": {"score": "additive"}},
    "input-feeding": SMALL | {"cell": "lstm", "decoder": {"kind": "input-feeding", "layers": 2}},
    "tutorial": SMALL | {"decoder": "tutorial", "attention": {"score": "additive"}},
    "transformer": TRANSFORMER | {"d_model": 12, "attention": {"heads": 3}},
    "rotary": TRANSFORMER | {"position": "rotary"},
    "grouped-window": TRANSFORMER | {"attention": {"heads": 4, "kv_heads": 2, "window": 3}},
    "latent": TRANSFORMER
    | {
        "position": "rotary",
        "attention": {"kind": "latent", "heads": 2, "latent_dim": 5, "rope_dim": 2},
    },
    "decoder-only": DECODER_ONLY | {"attention": {"heads": 2}, "position": "rotary"},
    "state-space": DECODER_ONLY | {"mixer": {"kind": "state-space", "state_dim": 3}},
}
ENSEMBLES = {
    "ensemble": ("gru", "grouped-window", "decoder-only"),
    "ensemble-recurrent": ("bottleneck", "tutorial"),
}


@pytest.fixture(params=[*TABLES, *ENSEMBLES])
def name(request) -> str:
    return request.param


@pytest.fixture(autouse=True)
def _no_gradients():
    with torch.inference_mode():
        yield


@pytest.fixture
def build_model() -> Callable[[str, int], Model]:
    """A model of TABLES, with weights doubled: a new one would repeat one token."""

    def build_named(name: str, vocab: int) -> Model:
        if name in ENSEMBLES:
            return Ensemble([build_named(member, vocab) for member in ENSEMBLES[name]]).eval()
        torch.manual_seed(1)
        table = Config.model_validate({"model": TABLES[name]}).model
        model = build(table, vocab, vocab, joint=False).double().eval()
        for parameter in model.parameters():
            parameter *= 2
        return model

    return build_named


@pytest.fixture
def random_sources() -> Callable[[int, tuple[int, ...]], tuple[Tensor, Tensor]]:
    """(ids, mask) of sentences of these lengths."""

    def build_batch(vocab: int, lengths: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
        ids = torch.randint(3, vocab, mask.shape, generator=torch.Generator().manual_seed(2))
        return ids * mask, mask

    return build_batch
