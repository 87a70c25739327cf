"""Tiny runs: every model family, with dropout, for a few steps on a few sentences."""

import functools
import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from regard.config import Config
from regard.models.weights import read
from regard.terminal import Console
from regard.text import corpus
from regard.training import run, train

MODELS: dict[str, dict[str, Any]] = {
    "recurrent": {"kind": "recurrent", "hidden_dim": 7, "embedding_dim": 5, "dropout": 0.3},
    "transformer": {
        "kind": "transformer",
        "d_model": 6,
        "d_ff": 11,
        "dropout": 0.3,
        "attention": {"heads": 2},
        "encoder": {"layers": 1},
        "decoder": {"layers": 1},
    },
    "decoder-only": {
        "kind": "decoder-only",
        "d_model": 6,
        "d_ff": 11,
        "activation": "swiglu",
        "norm": "rms",
        "dropout": 0.3,
        "attention": {"heads": 2},
        "decoder": {"layers": 1},
    },
    "state-space": {
        "kind": "decoder-only",
        "mixer": {"kind": "state-space", "state_dim": 3},
        "d_model": 6,
        "d_ff": 11,
        "dropout": 0.3,
        "decoder": {"layers": 1},
    },
}
TRAINING = {
    "epochs": 2.0,
    "batch_sentences": 8,
    "validate_every": 3,
    "learning_rate": 0.02,
    "warmup_steps": 4,
    "keep_last": True,  # for comparisons of everything that training changes
}
DATA = {"name": "copy", "train": 43, "val": 11, "test": 5, "max_length": 13}


load, load_once = corpus.load, functools.cache(corpus.load)


def load_cached(data: Any, *arguments: Any, **options: Any) -> corpus.Corpus:
    """Made data is always the same; files may change."""
    return (load_once if data.kind == "synthetic" else load)(data, *arguments, **options)


@pytest.fixture(autouse=True, scope="module")
def fast_runs() -> Iterator[None]:
    """Cache the data and draw no examples: both take most of a tiny run's time and have other tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(corpus, "load", load_cached)
        patch.setattr(run, "draw_examples", lambda *_: None)
        yield


@pytest.fixture(params=list(MODELS))
def family(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="session")
def tiny() -> Callable[..., Config]:
    """tiny(family, learning_rate=..., data={...}): a config; plain keywords are [training] settings."""

    def make_config(
        family: str = "recurrent",
        data: dict[str, Any] | None = None,
        tokenizer: dict[str, Any] | None = None,
        seed: int = 1,
        init: str | None = None,
        **training: Any,
    ) -> Config:
        table = {
            "seed": seed,
            "init": init,
            "data": DATA | (data or {}),
            "tokenizer": tokenizer or {},
            "model": MODELS[family],
            "training": TRAINING | training,
        }
        return Config.model_validate(table)

    return make_config


@pytest.fixture(scope="session")
def fit() -> Callable[..., str]:
    """fit(config, folder, resume=False): train; return the console output."""

    def fit_run(config: Config | None, folder: Path, resume: bool = False) -> str:
        output = io.StringIO()
        train(config, folder, "cpu", resume, Console(file=output, width=200))
        return output.getvalue()

    return fit_run


@pytest.fixture(scope="session")
def metrics() -> Callable[[Path], list[dict[str, Any]]]:
    """The events of a run, without times and speeds."""

    def read_events(folder: Path) -> list[dict[str, Any]]:
        lines = (folder / "metrics.jsonl").read_text().splitlines()
        timings = ("seconds", "tokens_per_second")
        return [{k: v for k, v in json.loads(x).items() if k not in timings} for x in lines]

    return read_events


@pytest.fixture(scope="session")
def same_run(metrics: Callable[[Path], list[dict[str, Any]]]) -> Callable[[Path, Path], None]:
    """Assert that two run folders hold the same training run, bit for bit."""

    def compare(one: Path, two: Path) -> None:
        for name in ("model.safetensors", "last/state.safetensors"):
            (a, record_a), (b, record_b) = read(one / name), read(two / name)
            assert a.keys() == b.keys()
            for key in a:
                assert a[key].numpy().tobytes() == b[key].numpy().tobytes(), (name, key)
            for key in ("seconds", "metrics_bytes"):  # times differ, also in their number of digits
                record_a.pop(key, None), record_b.pop(key, None)
            assert record_a == record_b
        assert metrics(one) == metrics(two)
        assert (one / "tokenizer.json").read_bytes() == (two / "tokenizer.json").read_bytes()
        assert (one / "config.toml").read_bytes() == (two / "config.toml").read_bytes()
        assert list_files(one) == list_files(two)

    def list_files(folder: Path) -> set[str]:
        return {str(p.relative_to(folder)) for p in folder.rglob("*")}

    return compare
