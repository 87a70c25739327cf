"""Tests on a real NVIDIA GPU: `pytest tests/gpu`. Elsewhere they are skipped."""

import importlib.util
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from regard.config import Config

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of this folder; without a GPU, skip them."""
    skip = pytest.mark.skip(reason="needs an NVIDIA GPU")
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.gpu)
            if not torch.cuda.is_available():
                item.add_marker(skip)


@pytest.fixture(autouse=True)
def _full_float32() -> Iterator[None]:
    """No TF32, whose rounding the CPU does not share."""
    saved = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    set_tf32("highest", False)
    yield
    set_tf32(*saved)


def set_tf32(matmul_precision: str, cudnn: bool) -> None:
    with warnings.catch_warnings():  # some versions of PyTorch prefer other names for these two
        warnings.simplefilter("ignore")
        torch.set_float32_matmul_precision(matmul_precision)
        torch.backends.cudnn.allow_tf32 = cudnn


def load_module(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(f"gpu_{path.parent.name}_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def registry() -> Any:
    """tests/models/conftest.py: MODELS, every small model kind, and `make`."""
    return load_module(HERE.parent / "models" / "conftest.py")


@pytest.fixture(scope="session")
def kinds(registry: Any) -> dict[str, dict[str, Any]]:
    """The tables of every model kind that is trained from scratch."""
    return {k: v for k, v in registry.MODELS.items() if v["kind"] != "pretrained"}


STACK = {"d_model": 24, "d_ff": 40, "attention": {"heads": 2}, "decoder": {"layers": 2}}
FAMILIES: dict[str, dict[str, Any]] = {
    "recurrent": {"kind": "recurrent", "hidden_dim": 32, "embedding_dim": 16},
    "transformer": {"kind": "transformer", **STACK, "encoder": {"layers": 2}},
    "decoder-only": {"kind": "decoder-only", **STACK, "norm": "rms", "activation": "swiglu"},
    "state-space": {
        "kind": "decoder-only",
        "mixer": {"kind": "state-space", "state_dim": 3},
        "d_model": 24,
        "d_ff": 40,
        "decoder": {"layers": 2},
    },
}
TRAINING = {
    "epochs": 3.0,
    "batch_sentences": 16,
    "bucket_shapes": 2,
    "validate_every": 5,
    "learning_rate": 0.01,
    "warmup_steps": 4,
    "keep_last": True,  # for comparisons of everything that training changes
}


@pytest.fixture(params=list(FAMILIES))
def family(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="session")
def tiny() -> Callable[..., Config]:
    """tiny(family, dropout=..., **training): a config of a few steps on a small made corpus."""

    def make_config(family: str, dropout: float = 0.0, **training: Any) -> Config:
        data = {"name": "copy", "train": 101, "val": 11, "test": 5, "max_length": 13}
        model = FAMILIES[family] | {"dropout": dropout}
        table = {"data": data, "model": model, "training": TRAINING | training}
        return Config.model_validate(table)

    return make_config
