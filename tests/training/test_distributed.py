"""One model on several processes: what it computes, writes and resumes is what one process does."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from regard.config import Config
from regard.models.weights import read
from regard.training import checkpoint
from tests.training.conftest import MODELS
from tests.training.pool import Outcome, Pool

TOLERANCE = {"rtol": 1e-4, "atol": 2e-6}
VARIATIONS: dict[str, dict[str, Any]] = {
    "label smoothing, EMA": {"label_smoothing": 0.1, "ema_decay": 0.9, "grad_clip": 0.5},
    "accumulation": {"accumulation_steps": 2, "average_checkpoints": 2},
    "a row for one process": {"batch_sentences": 1, "epochs": 0.3},
    "random batches": {"batching": "random"},
}


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    pool = Pool(2)
    yield pool
    pool.close()


@pytest.fixture
def plain(tiny) -> Callable[..., Config]:
    """plain(family, **training): a config without dropout."""

    def make(family: str = "transformer", **settings: Any) -> Config:
        config = tiny(family, **settings)
        return Config.model_validate(
            config.model_dump() | {"model": MODELS[family] | {"dropout": 0.0}}
        )

    return make


def read_states(folder: Path) -> dict[str, torch.Tensor]:
    """Weights, EMA and optimizer state at the end; random generators differ in their number."""
    tensors, _ = read(folder / checkpoint.FILE)
    return {name: tensor for name, tensor in tensors.items() if not name.startswith("rng.")}


def assert_same_training(one: Path, other: Path, metrics) -> None:
    """Weights, optimizer states and logged figures are equal to rounding."""
    a, b = read_states(one), read_states(other)
    assert a.keys() == b.keys()
    for name in a:
        torch.testing.assert_close(a[name], b[name], **TOLERANCE, msg=lambda m, n=name: f"{n}: {m}")
    torch.testing.assert_close(
        read(one / "model.safetensors")[0], read(other / "model.safetensors")[0], **TOLERANCE
    )
    events, others = metrics(one)[1:], metrics(other)[1:]
    assert [event["step"] for event in events] == [event["step"] for event in others]
    for event, its in zip(events, others, strict=True):
        assert event["loss"] == pytest.approx(its["loss"], rel=1e-5)


def finish(outcomes: list[Outcome]) -> Outcome:
    """The outcome of process 0, once none has failed."""
    assert [outcome.error for outcome in outcomes] == [""] * len(outcomes)
    return outcomes[0]


@pytest.mark.parametrize("sharding", ["none", "fsdp"])
def test_two_processes_train_like_one(
    plain, fit, metrics, pool, tmp_path: Path, family: str, sharding: str
) -> None:
    config = plain(family, sharding=sharding)
    fit(config, tmp_path / "one")
    main, other = pool.train(config, tmp_path / "two")
    finish([main, other])
    assert "on 2 x cpu" in main.output
    assert other.output == ""
    assert_same_training(tmp_path / "one", tmp_path / "two", metrics)
    assert main.written
    assert other.written == []
    card = metrics(tmp_path / "two")[0]
    assert card["processes"] == 2


@pytest.mark.parametrize("sharding", ["none", "fsdp"])
@pytest.mark.parametrize("name", VARIATIONS)
def test_every_setting_holds(
    plain, fit, metrics, pool, tmp_path: Path, name: str, sharding: str
) -> None:
    config = plain(sharding=sharding, **VARIATIONS[name])
    fit(config, tmp_path / "one")
    finish(pool.train(config, tmp_path / "two"))
    assert_same_training(tmp_path / "one", tmp_path / "two", metrics)


@pytest.mark.parametrize("sharding", ["none", "fsdp"])
def test_resume_is_exact(tiny, pool, same_run, tmp_path: Path, sharding: str) -> None:
    """With dropout, whose random numbers differ between the processes."""
    config = tiny("transformer", sharding=sharding, r_drop=0.5, ema_decay=0.9)
    finish(pool.train(config, tmp_path / "uninterrupted"))
    killed = pool.train(config, tmp_path / "run", kill_at=8)
    assert [outcome.error for outcome in killed] == ["KilledError: "] * 2
    assert "resuming at step 6" in finish(pool.train(config, tmp_path / "run", resume=True)).output
    same_run(tmp_path / "run", tmp_path / "uninterrupted")


@pytest.mark.parametrize("sharding", ["none", "fsdp"])
def test_resume_on_another_number_of_processes(
    plain, fit, metrics, pool, tmp_path: Path, monkeypatch, sharding: str
) -> None:
    config = plain(sharding=sharding)
    fit(config, tmp_path / "one")
    pool.train(config, tmp_path / "down", kill_at=8)
    assert "resuming at step 6" in fit(config, tmp_path / "down", resume=True)
    assert_same_training(tmp_path / "one", tmp_path / "down", metrics)
