"""A run killed at any moment and resumed ends as one that never was."""

import importlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from regard.errors import UserError
from regard.models import Model
from regard.models.weights import read, save
from regard.text.batch import DeviceDataset, EncodedPairs
from regard.training import checkpoint, loop, run
from regard.training.update import Update

REGARD = Path(sys.executable).parent / "regard"


class Killed(BaseException):
    """Not an Exception: nothing may catch it and tidy up."""


def kill_at(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, call: int, after: bool) -> None:
    """The `call`-th use of owner.name raises, before it does anything or right after."""
    original, calls = getattr(owner, name), iter(range(1, 10**9))

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        now = next(calls) == call
        if now and not after:
            raise Killed
        result = original(*args, **kwargs)
        if now:
            raise Killed
        return result

    monkeypatch.setattr(owner, name, wrapped)


MOMENTS = {
    "first write": (os, "replace", 1, False),
    "tokenizer": (os, "replace", 2, False),
    "first step": (loop.Loop, "step", 1, True),
    "between looks": (loop.Loop, "step", 5, True),
    "a look's start": (loop, "likelihoods", 2, False),
    "after the first log line": (loop.Loop, "log", 2, True),
    "first model write": (os, "replace", 3, False),
    "after the first model write": (os, "replace", 3, True),
    "first checkpoint write": (os, "replace", 4, False),
    "after the first checkpoint": (os, "replace", 4, True),
    "a later checkpoint": (checkpoint, "save", 3, False),
    "the card": (run, "write_card", 1, False),
}


@pytest.fixture(scope="module")
def whole(tiny: Any, fit: Any, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The run of a family that nobody killed."""
    made: dict[str, Path] = {}

    def get(family: str) -> Path:
        if family not in made:
            made[family] = tmp_path_factory.mktemp(family) / "whole"
            fit(tiny(family), made[family])
        return made[family]

    return get


def test_dropout_and_seed_matter(tiny, fit, whole, tmp_path: Path, family: str) -> None:
    """Otherwise the laws below would not see a forgotten random state."""
    config = tiny(family)
    dry = config.model_copy(update={"model": config.model.model_copy(update={"dropout": 0.0})})
    weights = read(whole(family) / "model.safetensors")[0]
    for name, other in {"dry": dry, "seed": tiny(family, seed=2)}.items():
        fit(other, tmp_path / name)
        others = read(tmp_path / name / "model.safetensors")[0]
        assert any(not torch.equal(weights[key], others[key]) for key in weights)


def test_same_seed_same_run(tiny, fit, whole, same_run, tmp_path: Path, family: str) -> None:
    fit(tiny(family), tmp_path / "again")
    same_run(tmp_path / "again", whole(family))


@pytest.mark.parametrize("moment", MOMENTS)
def test_killed_once(
    tiny, fit, whole, same_run, tmp_path: Path, family: str, moment: str, monkeypatch
) -> None:
    folder = tmp_path / "run"
    with monkeypatch.context() as patch:
        kill_at(patch, *MOMENTS[moment])
        with pytest.raises(Killed):
            fit(tiny(family), folder)
    torch.manual_seed(99)
    fit(tiny(family), folder, resume=True)
    same_run(folder, whole(family))


def test_killed_at_every_look(
    tiny, fit, whole, same_run, tmp_path: Path, family: str, monkeypatch
) -> None:
    """Restored state is saved again and restored again: nothing may wear off or pile up."""
    for sitting in range(20):
        torch.manual_seed(sitting)
        with monkeypatch.context() as patch:
            kill_at(patch, checkpoint, "save", 1, True)
            try:
                fit(tiny(family), tmp_path / "run", resume=sitting > 0)
            except Killed:
                continue
        break
    assert sitting > 3
    same_run(tmp_path / "run", whole(family))


def test_the_running_mean_goes_on(tiny, fit, same_run, tmp_path: Path, monkeypatch, family) -> None:
    config = tiny(family, ema_decay=0.9)
    fit(config, tmp_path / "whole")
    with monkeypatch.context() as patch:
        kill_at(patch, loop.Loop, "step", 8, after=True)
        with pytest.raises(Killed):
            fit(config, tmp_path / "run")
    fit(config, tmp_path / "run", resume=True)
    same_run(tmp_path / "run", tmp_path / "whole")
    last = read(tmp_path / "run/last/state.safetensors")[0]
    best = read(tmp_path / "run/model.safetensors")[0]
    assert any(not torch.equal(last[f"model.{name}"], best[name]) for name in best)


def test_log_is_cut_back_to_the_checkpoint(tiny, fit, metrics, tmp_path: Path, monkeypatch) -> None:
    folder = tmp_path / "run"
    with monkeypatch.context() as patch:
        kill_at(patch, checkpoint, "save", 2, False)
        with pytest.raises(Killed):
            fit(tiny(), folder)
    assert [event.get("step") for event in metrics(folder)] == [None, 3, 6]
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"event": "half a li')
    with monkeypatch.context() as patch:
        kill_at(patch, loop.Loop, "run", 1, False)
        with pytest.raises(Killed):
            fit(tiny(), folder, resume=True)
    assert [event.get("step") for event in metrics(folder)] == [None, 3]


def test_lost_log_does_not_stop_a_resume(tiny, fit, metrics, tmp_path: Path, monkeypatch) -> None:
    kill_at(monkeypatch, checkpoint, "save", 2, True)
    with pytest.raises(Killed):
        fit(tiny(), tmp_path / "run")
    (tmp_path / "run" / "metrics.jsonl").unlink()
    fit(tiny(), tmp_path / "run", resume=True)
    assert [event["step"] for event in metrics(tmp_path / "run")] == [9, 12]


def test_finished_run_stays_as_it_is(tiny, fit, whole, family: str) -> None:
    folder = whole(family)
    before = {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    fit(tiny(family), folder, resume=True)
    assert {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()} == before


def test_a_card_says_where_a_run_was_trained_not_where_it_was_resumed(
    tiny, fit, whole, monkeypatch, tmp_path: Path
) -> None:
    shutil.copytree(whole("recurrent"), tmp_path / "run")
    file = tmp_path / "run" / "card.json"
    before = file.read_text("utf-8")
    file.unlink()
    card = importlib.import_module("regard.training.card")
    monkeypatch.setattr(card, "device_name", lambda device: "an abacus")
    fit(tiny("recurrent"), tmp_path / "run", resume=True)
    assert file.read_text("utf-8") == before


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"learning_rate": 0.03}, "training.learning_rate: 0.02 there, 0.03 here"),
        ({"seed": 2}, "seed: 1 there, 2 here"),
        (
            {"epochs": 3.0, "grad_clip": 2.0},
            "training.epochs: 2.0 there, 3.0 here, training.grad_clip",
        ),
        ({"family": "transformer"}, "model.kind: recurrent there, transformer here"),
    ],
)
def test_other_settings_are_refused(tiny, fit, whole, changes: dict, named: str) -> None:
    folder = whole("recurrent")
    before = {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    with pytest.raises(UserError, match=named):
        fit(tiny(**changes), folder, resume=True)
    assert {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()} == before


def test_a_folder_in_use_is_refused(tiny, fit, tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("dear")
    for resume in (False, True):
        with pytest.raises(UserError, match="is no run folder"):
            fit(tiny(), tmp_path, resume)
    assert [path.name for path in tmp_path.iterdir()] == ["letter.txt"]


def test_data_that_cannot_be_made_leaves_no_folder(tiny, fit, tmp_path: Path) -> None:
    """So that the same command with the mistake mended is not refused."""
    with pytest.raises(UserError, match="cannot generate split"):
        fit(tiny(data={"min_length": 1}), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_foreign_checkpoint_is_refused(tiny, fit, tmp_path: Path, monkeypatch) -> None:
    kill_at(monkeypatch, checkpoint, "save", 1, True)
    with pytest.raises(Killed):
        fit(tiny(), tmp_path / "run")
    path = tmp_path / "run" / checkpoint.FILE
    tensors, record = read(path)
    for mended in (tensors, record | {"mood": 1}), ({}, record):
        save(path, *mended)
        with pytest.raises(UserError, match=r"state\.safetensors (is not a checkpoint|does not)"):
            fit(tiny(), tmp_path / "run", resume=True)
    save(path, {k: v for k, v in tensors.items() if k != "random.cpu"}, record)
    with pytest.raises(UserError, match="is not a checkpoint of this version"):
        fit(tiny(), tmp_path / "run", resume=True)


class Nested(Model):
    """A parameter whose name ends like another's."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(3, 2)
        self.encoder = torch.nn.ModuleDict({"embedding": torch.nn.Embedding(3, 2)})


Nested.__abstractmethods__ = frozenset()


def test_optimizer_state_comes_back_to_its_own_parameter(tiny, tmp_path: Path) -> None:
    def fresh() -> Update:
        data = DeviceDataset(EncodedPairs([[2]], [[]]), "cpu")
        return Update(Nested(), tiny().training, data, torch.float32, False, print)

    update = fresh()
    for scale, parameter in enumerate(update.model.parameters(), start=1):
        parameter.grad = torch.full_like(parameter, scale)
    update.optimizer.step()
    checkpoint.save(tmp_path, checkpoint.Progress(step=1), update)
    again = fresh()
    checkpoint.restore(tmp_path, again)
    for one, two in zip(update.model.parameters(), again.model.parameters(), strict=True):
        before, after = update.optimizer.state[one], again.optimizer.state[two]
        assert before.keys() == after.keys()
        for key, value in before.items():
            assert torch.equal(value, after[key]), key


# --- the real thing: processes and SIGKILL --------------------------------------------------------

CHILD = """
import importlib, os, signal, sys
sys.argv, (module, name, call) = ["regard", *sys.argv[4:]], sys.argv[1:4]
from regard import cli
import regard.training
owner = importlib.import_module(module)
original, calls = getattr(owner, name), iter(range(1, 10**9))
def wrapped(*args, **kwargs):
    if next(calls) == int(call):
        os.kill(os.getpid(), signal.SIGKILL)
    return original(*args, **kwargs)
setattr(owner, name, wrapped)
cli.main()
"""
# Each sitting goes on from the one before. A kill inside os.replace leaves a temporary file behind.
SITTINGS = [
    ("os", "replace", 1),
    ("regard.training.update", "objective", 2),
    ("regard.training.loop", "likelihoods", 2),
    ("os", "replace", 2),
    ("regard.training.run", "draw_examples", 1),
]


def test_sigkill(tiny, fit, whole, same_run, tmp_path: Path, family: str) -> None:
    config = tmp_path / "tiny.toml"
    config.write_text(tiny(family).to_toml())
    folder = tmp_path / "run"
    command = ["train", str(config), "--run", str(folder), "--device", "cpu", "--resume"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    for sitting in SITTINGS if family == "recurrent" else SITTINGS[1:3]:
        child = [sys.executable, "-c", CHILD, *map(str, sitting), *command]
        done = subprocess.run(child, capture_output=True, text=True, env=environment)
        assert done.returncode == -signal.SIGKILL, done.stderr
        if sitting == ("os", "replace", 2):
            assert list(folder.rglob(".regard-*"))
    fit(tiny(family), folder, resume=True)
    same_run(folder, whole(family))


def test_sigkill_of_the_command(tiny, fit, same_run, tmp_path: Path) -> None:
    """From outside, whenever it falls, and on to the end with the same command."""
    long = tiny(epochs=40.0, validate_every=7)
    (tmp_path / "long.toml").write_text(long.to_toml())
    folder = tmp_path / "run"
    command = [str(REGARD), "train", str(tmp_path / "long.toml"), "--run", str(folder)]
    running = subprocess.Popen([*command, "--resume"], stdout=subprocess.DEVNULL)
    while running.poll() is None and not (folder / checkpoint.FILE).exists():
        time.sleep(0.002)
    running.kill()
    assert running.wait() == -signal.SIGKILL
    fit(long, folder, resume=True)
    fit(long, tmp_path / "whole")
    same_run(folder, tmp_path / "whole")


def test_a_checkpoint_from_before_weights_were_judged_by_anything_else(tiny, fit, tmp_path) -> None:
    fit(tiny(), tmp_path / "run")
    path = tmp_path / "run" / checkpoint.FILE
    tensors, record = read(path)
    loss = record.pop("best_loss")
    assert record.pop("score") == -loss
    save(path, tensors, record | {"best": loss})
    assert "val " not in fit(tiny(), tmp_path / "run", True)  # it is finished, and stays as it is
    card = json.loads((tmp_path / "run" / "card.json").read_text())
    assert card["figures"]["val_loss"] == loss
