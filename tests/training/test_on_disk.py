"""Training on text that is on disk: resumes exactly within an epoch, and learns what memory teaches."""

from pathlib import Path
from typing import Any

import pytest

from regard.config import Config
from regard.errors import UserError
from regard.text import shard_writer, shards
from regard.training import loop
from tests.training.conftest import MODELS, TRAINING

WORDS = ["cab", "bead", "face", "badge", "decade", "a"]
PAIRS = [(f"{WORDS[n % 6]}{WORDS[n * 5 % 6]}", WORDS[n % 6]) for n in range(97)]


@pytest.fixture(autouse=True)
def small_shards(tmp_path, monkeypatch):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(shards, "PAIRS", 7)
    monkeypatch.setattr(shard_writer, "count_cores", lambda: 1)
    for split, rows in {"train": PAIRS, "val": PAIRS[:9]}.items():
        lines = [f"{source}\t{target}\n" for source, target in rows]
        (tmp_path / f"{split}.tsv").write_text("".join(lines))


def settings(folder: Path, data: dict[str, Any] | None = None, **training: Any) -> Config:
    files = {split: str(folder / f"{split}.tsv") for split in ("train", "val")}
    storage = {"kind": "files", "storage": "disk", "shuffle_buffer": 21, **files}
    table = {
        "data": storage | (data or {}),
        "tokenizer": "characters",
        "model": MODELS["recurrent"],
    }
    return Config.model_validate(table | {"training": TRAINING | training})


class Killed(BaseException):
    pass


@pytest.mark.parametrize(("step", "accumulation"), [(4, 1), (8, 2), (13, 1)])
def test_a_killed_run_resumes_exactly_within_an_epoch(
    step, accumulation, fit, same_run, tmp_path, monkeypatch
):
    config = settings(tmp_path, accumulation_steps=accumulation, epochs=1.9 * accumulation)
    output = fit(config, tmp_path / "whole")
    assert "97 training pairs" in output
    original = loop.TrainingLoop.step

    def kill(self):
        if self.progress.step == step:
            raise Killed
        original(self)

    with monkeypatch.context() as patch:
        patch.setattr(loop.TrainingLoop, "step", kill)
        with pytest.raises(Killed):
            fit(config, tmp_path / "killed")
    assert "resuming at step" in fit(config, tmp_path / "killed", resume=True)
    same_run(tmp_path / "whole", tmp_path / "killed")


def test_one_window_teaches_what_memory_teaches(fit, metrics, tmp_path):
    """Batches of a window of all pairs: the same epochs, but in another order."""
    on_disk = settings(tmp_path, {"shuffle_buffer": 1000}, epochs=9.0, validate_every=60)
    memory = settings(
        tmp_path, {"shuffle_buffer": 2**18, "storage": "memory"}, epochs=9.0, validate_every=60
    )
    losses = []
    for name, config in {"disk": on_disk, "memory": memory}.items():
        fit(config, tmp_path / name)
        events = metrics(tmp_path / name)
        losses.append(events[-1]["loss"])
        assert events[0]["data"] == metrics(tmp_path / "disk")[0]["data"]
    assert (tmp_path / "disk/tokenizer.json").read_bytes() == (
        tmp_path / "memory/tokenizer.json"
    ).read_bytes()
    assert losses[0] == pytest.approx(losses[1], rel=0.25)


def test_a_run_is_not_resumed_with_other_data(fit, tmp_path):
    fit(settings(tmp_path), tmp_path / "run")
    (tmp_path / "train.tsv").write_text("abc\tcab\n" * 50)
    with pytest.raises(UserError, match=r"the data has changed since .* \(splits train\)"):
        fit(settings(tmp_path), tmp_path / "run", resume=True)


def test_pairs_that_are_all_too_long_are_an_error(fit, tmp_path):
    config = settings(tmp_path)
    tokenizer = config.tokenizer.model_copy(update={"max_tokens": 1})
    (tmp_path / "val.tsv").write_text("a\tb\n")
    with pytest.raises(UserError, match="every pair of the train split is longer than 1 tokens"):
        fit(config.model_copy(update={"tokenizer": tokenizer}), tmp_path / "run")


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"data": {"repeat": 2}}, r"data\.repeat needs all pairs in memory"),
        ({"data": {"storage": "memory"}}, r'data\.shuffle_buffer is for data\.storage = "disk"'),
        (
            {"tokenizer": {"kind": "bpe", "dropout": 0.1}},
            r"tokenizer\.dropout segments all words anew in each epoch, .* tokenised once",
        ),
    ],
)
def test_what_needs_memory_is_refused(table, message, tmp_path):
    config = settings(tmp_path).model_dump(exclude_unset=True)
    config["data"] |= table.get("data", {})
    with pytest.raises(ValueError, match=message):
        Config.model_validate(config | {"tokenizer": table.get("tokenizer", "characters")})
