"""`regard train --devices N`: processes that die, restarts, and what a user is told."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from regard import devices
from regard.errors import UserError
from regard.models.weights import read
from regard.signals import Stopped
from regard.training import distributed, launch

SETTINGS = (
    *("model.dropout=0", "training.validate_every=2", "training.keep_last=true"),
    *("search.max_ratio=1", "search.max_extra=2"),  # examples are quick to draw
)
RENDEZVOUS = {"RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1", "WORLD_SIZE": "2"}


def test_a_killed_process_starts_again_from_its_checkpoint(regard, small, tmp_path: Path) -> None:
    """One message, no traceback, and the weights of one process that nothing happened to."""
    settings = [*small, *(word for text in SETTINGS for word in ("--set", text))]
    settings += ["--set", "training.batch_sentences=16", "--device", "cpu"]
    run = tmp_path / "run"
    options = [*settings, "--run", str(run), "--devices", "2", "--max-restarts", "1"]
    command = subprocess.Popen(
        [sys.executable, "-m", "regard", "train", "case", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    while not (run / "last" / "state.safetensors").is_file():
        assert command.poll() is None, command.communicate()
        time.sleep(0.02)
    children = Path(f"/proc/{command.pid}/task/{command.pid}/children").read_text().split()
    os.kill(int(children[-1]), signal.SIGKILL)
    out, err = command.communicate(timeout=300)
    assert command.returncode == 0, err
    assert err.startswith("regard: process ")
    assert err.count("\n") == 1
    assert "of 2 was killed by SIGKILL" in err
    assert "(restart 1 of 1)" in err
    assert "resuming at step" in out
    assert json.loads((run / "card.json").read_text())["processes"] == 2
    alone = regard("train", "case", *settings, "--run", tmp_path / "alone")
    assert alone.code == 0, alone.err
    tensors, others = (
        read(folder / "model.safetensors")[0] for folder in (run, tmp_path / "alone")
    )
    torch.testing.assert_close(tensors, others, rtol=1e-4, atol=1e-6)


def fail(rank: int, exitcode: int, time_of_death: int = 0) -> ProcessFailure:
    failure = ProcessFailure(rank, 123, exitcode, "")
    failure.timestamp = time_of_death
    return failure


@pytest.fixture
def attempts(monkeypatch) -> list[ProcessFailure | None]:
    """How each start of the processes ends; what `launch` would have done is counted by what is left."""
    outcomes: list[ProcessFailure | None] = []
    monkeypatch.setattr(launch, "run_once", lambda arguments, count: outcomes.pop(0))
    return outcomes


@pytest.mark.parametrize(
    ("failures", "restarts", "code", "told"),
    [
        ([None], 0, 0, []),
        ([fail(1, -9)], 0, 1, ["process 1 of 2 was killed by SIGKILL.*Add --resume"]),
        ([fail(0, 1), None], 3, 0, ["process 0 of 2 ended with exit code 1.*restart 1 of 3"]),
        ([fail(0, -11)] * 2, 1, 1, ["SIGSEGV.*restart 1 of 1", "SIGSEGV. Add --resume"]),
        ([fail(1, distributed.MISTAKE)], 3, 2, []),  # it would be made again
        ([fail(1, 130)], 3, 130, []),  # Ctrl-C
        ([fail(1, 143)], 3, 143, []),
    ],
)
def test_what_is_started_again_and_told(attempts, failures, restarts, code, told) -> None:
    attempts.extend(failures)
    sentences: list[str] = []
    assert launch.launch(["train", "case"], 2, restarts, sentences.append) == code
    assert attempts == []
    assert len(sentences) == len(told)
    for sentence, pattern in zip(sentences, told, strict=True):
        assert re.search(pattern, sentence), sentence


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_launcher_says_how_to_continue(regard, monkeypatch, small, number) -> None:
    """Not the process that writes: it is stopped, too, when another has died and all start again."""

    def stop(*_: object, **__: object) -> None:
        raise Stopped(number)

    words = ("train", "case", *small, "--run", "run", "--device", "cpu")
    # A signal to a process, or to the launcher.
    for ending in (lambda *_: fail(1, 128 + number), stop):
        monkeypatch.setattr(launch, "run_once", ending)
        result = regard(*words, "--devices", "2")
        assert result.code == 128 + number
        assert result.err.count("interrupted before the first checkpoint") == 1
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", distributed.RUN_ID)
    monkeypatch.setattr("regard.training.train", stop)
    result = regard(*words)
    assert (result.code, result.err) == (128 + number, "")


def test_a_restart_resumes(monkeypatch) -> None:
    given: list[list[str]] = []
    monkeypatch.setattr(
        launch, "run_once", lambda arguments, _: given.append(arguments) or fail(0, 1)
    )
    launch.launch(["train", "case"], 2, 2, lambda _: None)
    assert given == [["train", "case"], *[["train", "case", "--resume"]] * 2]


def test_the_process_that_died_first_is_named() -> None:
    """Not those that lost it; a mistake comes before both."""
    lost, killed = fail(0, distributed.LOST, 5), fail(1, -9, 7)
    assert launch.choose_failure([lost, killed]) is killed
    assert launch.choose_failure([fail(2, 1, 8), killed, lost]) is killed
    mistake = fail(3, distributed.MISTAKE, 9)
    assert launch.choose_failure([lost, killed, mistake]) is mistake


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--max-restarts", "2"], "--max-restarts is for several devices: add --devices N"),
        (["--devices", "2", "--device", "cuda"], "PyTorch finds no CUDA device here"),
        (["--devices", "2", "--set", "training.sharding=fdsp"], 'Did you mean "fsdp"'),
        (["--devices", "0"], "greater than or equal to 1"),
    ],
)
def test_mistakes(regard, tmp_path: Path, words: list[str], message: str) -> None:
    if torch.cuda.is_available() and "CUDA" in message:
        pytest.skip("there is a GPU")
    result = regard("train", "case", "--run", tmp_path / "run", *words)
    assert result.code == 2
    assert message in " ".join(result.err.split())
    assert not (tmp_path / "run").exists()


def test_a_mistake_is_told_once_on_a_machine(regard, monkeypatch) -> None:
    for name, value in RENDEZVOUS.items():
        monkeypatch.setenv(name, value)
    for local_rank, told in (("0", 1), ("1", 0)):
        monkeypatch.setenv("LOCAL_RANK", local_rank)
        result = regard("train", "caes", "--device", "cpu")
        assert result.code == 2
        assert result.err.count("there is no preset") == told


def test_more_devices_than_there_are(monkeypatch) -> None:
    monkeypatch.setattr(distributed, "resolve_device", lambda name: "cuda")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert distributed.resolve_local_device("auto", 1, 2) == "cuda:1"
    with pytest.raises(
        UserError, match=r"3 processes need 3 devices, .* 2 CUDA devices .* at most 2"
    ):
        distributed.resolve_local_device("auto", 0, 3)


def test_a_device_of_its_own_cannot_be_chosen(monkeypatch) -> None:
    monkeypatch.setattr(devices, "check_cuda", lambda *_: None)
    assert distributed.resolve_local_device("cpu", 5, 9) == "cpu"
    with pytest.raises(UserError, match=r"got the device cuda:1\. Leave out --device"):
        distributed.resolve_local_device("cuda:1", 0, 2)


def test_torchrun_and_devices_agree(monkeypatch) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    distributed.check_devices(1)
    distributed.check_devices(4)
    with pytest.raises(UserError, match="torchrun has started 4 processes on this machine"):
        distributed.check_devices(2)


def test_a_process_is_alone_unless_several_were_started(monkeypatch) -> None:
    assert not distributed.is_started()
    with distributed.join("cpu") as (world, device):
        assert (world, device) == (distributed.ALONE, "cpu")
    for name, value in RENDEZVOUS.items():
        monkeypatch.setenv(name, value)
    assert distributed.is_started()
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert not distributed.is_started()
    assert not distributed.is_restarted()
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert distributed.is_restarted()
