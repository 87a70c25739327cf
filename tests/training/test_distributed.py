"""One model on several processes: what it computes, writes and resumes is what one process does."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed

from regard.config import Config
from regard.errors import UserError
from regard.models.weights import read
from regard.text.batch import BatchSpec
from regard.training import checkpoint, folder, sharding
from regard.training.distributed import LostProcessError, World, report_lost_process
from tests.training.conftest import MODELS
from tests.training.pool import Outcome, Pool

TOLERANCE = {"rtol": 1e-4, "atol": 2e-6}
VARIATIONS: dict[str, dict[str, Any]] = {
    "label smoothing, EMA": {"label_smoothing": 0.1, "ema_decay": 0.9, "grad_clip": 0.5},
    "one row for two processes": {"batch_sentences": 1, "epochs": 0.2},
    "accumulation": {"accumulation_steps": 2, "average_checkpoints": 2},
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
        config = tiny(family, **{"epochs": 1.0} | settings)
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


@pytest.mark.parametrize(
    ("name", "sharding"),
    [*((name, "none") for name in VARIATIONS), *((name, "fsdp") for name in list(VARIATIONS)[:2])],
)
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
    config = tiny("transformer", sharding=sharding, r_drop=0.5, ema_decay=0.9, epochs=1.5)
    finish(pool.train(config, tmp_path / "uninterrupted"))
    killed = pool.train(config, tmp_path / "run", kill_at=8)
    assert [outcome.error for outcome in killed] == ["KilledError: "] * 2
    assert "resuming at step 6" in finish(pool.train(config, tmp_path / "run", resume=True)).output
    same_run(tmp_path / "run", tmp_path / "uninterrupted")


@pytest.mark.parametrize("sharding", ["none", "fsdp"])
def test_resume_on_another_number_of_processes(
    plain, fit, metrics, pool, tmp_path: Path, monkeypatch, sharding: str
) -> None:
    config = plain(sharding=sharding, epochs=1.5)
    fit(config, tmp_path / "one")
    pool.train(config, tmp_path / "down", kill_at=8)
    assert "resuming at step 6" in fit(config, tmp_path / "down", resume=True)
    assert_same_training(tmp_path / "one", tmp_path / "down", metrics)


def test_bpe_dropout_is_that_of_one_process(tiny, fit, metrics, pool, tmp_path: Path) -> None:
    tokenizer = {"kind": "bpe", "vocab_size": 300, "dropout": 0.2}
    config = tiny("transformer", tokenizer=tokenizer)
    config = config.model_copy(
        update={"model": config.model.model_copy(update={"dropout": 0.0}, deep=True)}
    )
    fit(config, tmp_path / "one")
    finish(pool.train(config, tmp_path / "two"))
    assert_same_training(tmp_path / "one", tmp_path / "two", metrics)


def test_text_on_disk_is_tokenised_once_for_all_processes(
    plain, fit, metrics, pool, tmp_path: Path
) -> None:
    lines = [f"{'abc' * (n % 4 + 1)}{n}\t{n}{n % 7}\n" for n in range(61)]
    for split in ("train", "val"):
        (tmp_path / f"{split}.tsv").write_text("".join(lines), "utf-8")
    files = {split: str(tmp_path / f"{split}.tsv") for split in ("train", "val")}
    data = {"kind": "files", "storage": "disk", **files}
    config = plain(epochs=2.0)
    config = Config.model_validate(config.model_dump() | {"data": data})
    main = finish(pool.train(config, tmp_path / "two"))
    assert "tokenised 61 pairs" in main.output
    assert "tokenised 61 pairs" not in fit(config, tmp_path / "one")  # it finds the shards
    assert_same_training(tmp_path / "one", tmp_path / "two", metrics)


def test_a_mistake_is_told_by_one_process(tiny, pool, tmp_path: Path) -> None:
    config = tiny(learning_rate=1e29, grad_clip=1e12, schedule="constant", warmup_steps=0)
    outcomes = pool.train(config, tmp_path / "run")
    for outcome in outcomes:
        assert outcome.error.startswith("UserError: the training loss became nan")
    assert [outcome.tells for outcome in outcomes].count(True) == 1


def test_an_error_of_the_first_process_is_raised_in_all() -> None:
    class Follower(World):
        def broadcast(self, value: Any = None) -> Any:
            return None, "the validation loss became inf"

    def fail() -> None:
        raise UserError("of one's own")

    with pytest.raises(UserError, match="of one's own"):
        World().compute_on_main(fail)
    with pytest.raises(UserError, match="the validation loss became inf"):
        Follower(1, 2).compute_on_main(fail)  # which only process 0 calls


def test_a_mistake_before_training_ends_only_the_first_process(tiny, tmp_path: Path) -> None:
    """The others wait for it, and are ended by what started them."""
    (tmp_path / "file.txt").write_text("mine")
    pool = Pool(2)
    pool.start(tiny(), tmp_path)
    main = pool.outcome(0)
    assert "already exists" in main.error
    pool.processes[0].kill()
    assert "LostProcessError: another process of this training has ended" in pool.outcome(1).error
    assert [path.name for path in tmp_path.iterdir()] == ["file.txt"]
    pool.close()


def test_a_killed_process_ends_the_others(tiny, tmp_path: Path) -> None:
    pool = Pool(2)
    pool.start(tiny(epochs=1000.0, sharding="fsdp"), tmp_path / "run")
    while not (tmp_path / "run" / checkpoint.FILE).is_file():
        time.sleep(0.02)
    pool.processes[1].kill()
    assert "LostProcessError: another process of this training has ended" in pool.outcome(0).error
    pool.close()


def test_a_finished_run_is_not_trained_again(tiny, fit, pool, tmp_path: Path) -> None:
    fit(tiny(), tmp_path / "run")
    main, other = pool.train(tiny(), tmp_path / "run", resume=True)
    assert "is finished: there is nothing to continue" in main.output
    assert (main.error, other.error) == ("", "")


# --- one process at a time ------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_every_row_is_of_one_process(size: int) -> None:
    batch = BatchSpec([5, 3, 11, 2, 7, 13, 17], 4, 6)
    parts = [World(rank, size).share_rows(batch, dummy=99) for rank in range(size)]
    rows = [row for part in parts for row in part.rows]
    assert sorted(row for row in rows if row != 99) == sorted(batch.rows)
    assert len({len(part.rows) for part in parts}) == 1
    assert {(part.source_length, part.target_length) for part in parts} == {(4, 6)}


def test_each_process_and_step_has_its_own_random_numbers() -> None:
    def draw(rank: int, seed: int, step: int) -> float:
        torch.manual_seed(0)
        World(rank, 4).seed_step(seed, step)
        return float(torch.rand(()))

    alone = draw(0, 1, 1)
    assert alone == draw(0, 2, 3)  # process 0 goes on as if it were alone
    draws = [draw(*each) for each in ((1, 1, 1), (2, 1, 1), (1, 2, 1), (1, 1, 2))]
    assert len({alone, *draws}) == 5
    assert draw(2, 1, 1) == draws[1]


def test_what_is_a_lost_process() -> None:
    for error in (distributed.DistNetworkError("closed"), RuntimeError("[gloo/tcp.cc:1] reset")):
        lost = pytest.raises(LostProcessError, match="has ended, or cannot be reached")
        with lost, report_lost_process():
            raise error
    with pytest.raises(RuntimeError, match="it is a bug"), report_lost_process():
        raise RuntimeError("it is a bug")


def test_float16_cannot_be_sharded(tiny) -> None:
    model: Any = torch.nn.Linear(2, 3)
    with pytest.raises(UserError, match=r'training.precision = "bfloat16" or "float32"'):
        sharding.shard(model, tiny().training, torch.float16, torch.device("cpu"))


def test_the_folder_and_the_data_are_those_of_the_first_process(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="the run folder is on a disk that all of them see"):
        folder.check_shared_folder(tmp_path)
    (tmp_path / "config.toml").write_text("")
    folder.check_shared_folder(tmp_path)
    main = {"train": "a", "val": "b"}
    folder.check_data_of_main(dict(main), main, tmp_path)
    with pytest.raises(UserError, match=r"not those of the first process \(splits val\): copy"):
        folder.check_data_of_main({"train": "a", "val": "c"}, main, tmp_path)
