"""A run that is killed at any moment and resumed equals an uninterrupted one, bit for bit."""

import importlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

import regard
from regard.config import Config
from regard.errors import RegardWarning, UserError
from regard.models import Model, build, weights
from regard.models.weights import read
from regard.text.batch import DeviceDataset, EncodedPairs
from regard.text.tokenizer import TokenizerPair
from regard.training import checkpoint, loop, run
from regard.training.interrupt import Interrupted
from regard.training.step import TrainStep
from regard.training.writer import Writer

REGARD = Path(sys.executable).parent / "regard"


class Killed(BaseException):
    """Not an Exception, so that no handler catches it and cleans up."""


def kill_at(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, call: int, after: bool) -> None:
    """Raise at the `call`-th call of owner.name, before or right after it runs."""
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
    "first step": (loop.TrainingLoop, "step", 1, True),
    "between validations": (loop.TrainingLoop, "step", 5, True),
    "start of a validation": (loop, "likelihoods", 2, False),
    "after the first log entry": (loop.TrainingLoop, "log", 2, True),
    "first model write": (os, "replace", 3, False),
    "after the first model write": (os, "replace", 3, True),
    "first checkpoint write": (os, "replace", 4, False),
    "after the first checkpoint": (os, "replace", 4, True),
    "a later checkpoint": (checkpoint, "save", 3, False),
    "the card": (run, "write_card", 1, False),
}


# Where the state of the model, the optimizer or the generator is saved; files are the same for all.
EVERY_FAMILY = ("between validations", "first checkpoint write", "a later checkpoint")


@pytest.fixture(scope="module")
def uninterrupted(
    tiny: Any, fit: Any, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Path]:
    """An uninterrupted run of each family."""
    folders: dict[str, Path] = {}

    def get_run(family: str) -> Path:
        if family not in folders:
            folders[family] = tmp_path_factory.mktemp(family) / "uninterrupted"
            fit(tiny(family), folders[family])
        return folders[family]

    return get_run


def test_dropout_and_seed_change_the_weights(
    tiny, fit, uninterrupted, tmp_path: Path, family: str
) -> None:
    """Otherwise the tests below would not notice a random state that is not restored."""
    config = tiny(family)
    no_dropout = config.model_copy(
        update={"model": config.model.model_copy(update={"dropout": 0.0})}
    )
    expected = read(uninterrupted(family) / "model.safetensors")[0]
    for name, other in {"no_dropout": no_dropout, "seed": tiny(family, seed=2)}.items():
        fit(other, tmp_path / name)
        others = read(tmp_path / name / "model.safetensors")[0]
        assert any(not torch.equal(expected[key], others[key]) for key in expected)


def test_same_seed_same_run(
    tiny, fit, uninterrupted, same_run, tmp_path: Path, family: str
) -> None:
    fit(tiny(family), tmp_path / "again")
    same_run(tmp_path / "again", uninterrupted(family))


@pytest.mark.parametrize(
    ("family", "moment"),
    [("recurrent", moment) for moment in MOMENTS]
    + list(product(("transformer", "decoder-only", "state-space"), EVERY_FAMILY)),
)
def test_killed_once(
    tiny, fit, uninterrupted, same_run, tmp_path: Path, family: str, moment: str, monkeypatch
) -> None:
    folder = tmp_path / "run"
    with monkeypatch.context() as patch:
        kill_at(patch, *MOMENTS[moment])
        with pytest.raises(Killed):
            fit(tiny(family), folder)
    torch.manual_seed(99)
    fit(tiny(family), folder, resume=True)
    same_run(folder, uninterrupted(family))


def test_killed_at_every_validation(
    tiny, fit, uninterrupted, same_run, tmp_path: Path, family: str, monkeypatch
) -> None:
    """The state is restored and saved many times: no error may accumulate."""
    for session in range(20):
        torch.manual_seed(session)
        with monkeypatch.context() as patch:
            kill_at(patch, checkpoint, "save", 1, True)
            try:
                fit(tiny(family), tmp_path / "run", resume=session > 0)
            except Killed:
                continue
        break
    assert session > 3
    same_run(tmp_path / "run", uninterrupted(family))


def test_ema_is_resumed(tiny, fit, same_run, tmp_path: Path, monkeypatch, family) -> None:
    config = tiny(family, ema_decay=0.9)
    fit(config, tmp_path / "uninterrupted")
    with monkeypatch.context() as patch:
        kill_at(patch, loop.TrainingLoop, "step", 8, after=True)
        with pytest.raises(Killed):
            fit(config, tmp_path / "run")
    fit(config, tmp_path / "run", resume=True)
    same_run(tmp_path / "run", tmp_path / "uninterrupted")
    last = read(tmp_path / "run/last/state.safetensors")[0]
    best = read(tmp_path / "run/model.safetensors")[0]
    assert any(not torch.equal(last[f"model.{name}"], best[name]) for name in best)


# --- signals --------------------------------------------------------------------------------------


@pytest.fixture
def default_handlers() -> Iterator[None]:
    """Those of a program in the foreground, whatever started the tests."""
    former = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler  # restored
    signal.signal(signal.SIGINT, former)


def signal_at(patch: pytest.MonkeyPatch, step: int, *numbers: signal.Signals) -> None:
    """Receive these signals during the `step`-th step of a session."""
    original, calls = loop.TrainStep.__call__, iter(range(1, 10**9))

    def wrapped(*args: Any) -> None:
        for number in numbers if next(calls) == step else ():
            signal.raise_signal(number)
        original(*args)

    patch.setattr(loop.TrainStep, "__call__", wrapped)


@pytest.mark.usefixtures("default_handlers")
def test_interrupted_between_validations(
    tiny, fit, uninterrupted, same_run, tmp_path: Path, family: str, monkeypatch
) -> None:
    """Every second step: in the middle of an epoch, at its end, at a validation, at the last step."""
    for number in range(6):
        torch.manual_seed(number)
        with monkeypatch.context() as patch:
            signal_at(patch, 2, signal.SIGINT if number else signal.SIGTERM)
            with pytest.raises(Interrupted) as error:
                fit(tiny(family), tmp_path / "run", resume=number > 0)
        assert error.value.signal_number == (signal.SIGINT if number else signal.SIGTERM)
        assert read(tmp_path / "run" / checkpoint.FILE)[1]["step"] == 2 * number + 2
    fit(tiny(family), tmp_path / "run", resume=True)
    same_run(tmp_path / "run", uninterrupted(family))


@pytest.mark.usefixtures("default_handlers")
def test_second_signal_stops_at_once(tiny, fit, tmp_path: Path, monkeypatch) -> None:
    with monkeypatch.context() as patch:
        signal_at(patch, 1, signal.SIGINT, signal.SIGINT)
        with pytest.raises(KeyboardInterrupt) as error:
            fit(tiny(), tmp_path / "run")
    assert not isinstance(error.value, Interrupted)
    assert not (tmp_path / "run").exists()  # the same command can use it
    with monkeypatch.context() as patch:
        signal_at(patch, 5, signal.SIGINT, signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            fit(tiny(), tmp_path / "run")
    assert read(tmp_path / "run" / checkpoint.FILE)[1]["step"] == 3


@pytest.mark.usefixtures("default_handlers")
def test_weights_that_are_not_finite_are_not_saved(tiny, fit, tmp_path: Path, monkeypatch) -> None:
    original = loop.TrainingLoop.step

    def step_then_break(self: loop.TrainingLoop) -> None:
        original(self)
        if self.progress.step == 5:
            with torch.no_grad():
                next(self.train_step.model.parameters()).fill_(float("inf"))
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(loop.TrainingLoop, "step", step_then_break)
    with pytest.raises(UserError, match="weights became infinite or nan at step 5"):
        fit(tiny(), tmp_path / "run")
    assert read(tmp_path / "run" / checkpoint.FILE)[1]["step"] == 3


@pytest.mark.usefixtures("default_handlers")
def test_signals_that_are_ignored_stay_ignored(tiny, fit, tmp_path: Path, monkeypatch) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal_at(monkeypatch, 2, signal.SIGINT)
    fit(tiny(), tmp_path / "run")
    assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    signal.signal(signal.SIGINT, signal.default_int_handler)


def test_other_threads_leave_signals_alone(tiny, fit, same_run, uninterrupted, tmp_path) -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(fit, tiny(), tmp_path / "run").result()
    same_run(tmp_path / "run", uninterrupted("recurrent"))


# --- the same conditions --------------------------------------------------------------------------


def test_resume_uses_the_threads_of_the_start(tiny, fit, metrics, tmp_path, monkeypatch) -> None:
    """Another number of threads adds in another order, and so rounds differently."""
    threads, seen = [3], []  # not real ones, which would wait for each other on a busy machine
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads[-1])
    monkeypatch.setattr(torch, "set_num_threads", threads.append)
    with monkeypatch.context() as patch:
        kill_at(patch, checkpoint, "save", 1, True)
        with pytest.raises(Killed):
            fit(tiny(), tmp_path / "run")
    assert set(threads) == {3}
    threads.append(2)
    original = loop.TrainingLoop.step
    monkeypatch.setattr(
        loop.TrainingLoop, "step", lambda self: (seen.append(threads[-1]), original(self))
    )
    output = fit(tiny(), tmp_path / "run", resume=True)
    assert "using 3 CPU threads, as when this run started (now 2)" in output
    assert set(seen) == {3}
    assert threads[-1] == 2
    assert metrics(tmp_path / "run")[0]["threads"] == 3
    assert json.loads((tmp_path / "run" / "card.json").read_text())["threads"] == 3


def test_log_is_truncated_to_the_checkpoint(
    tiny, fit, metrics, tmp_path: Path, monkeypatch
) -> None:
    folder = tmp_path / "run"
    with monkeypatch.context() as patch:
        kill_at(patch, checkpoint, "save", 2, False)
        with pytest.raises(Killed):
            fit(tiny(), folder)
    assert [event.get("step") for event in metrics(folder)] == [None, 3, 6]
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"event": "incompl')
    with monkeypatch.context() as patch:
        kill_at(patch, loop.TrainingLoop, "run", 1, False)
        with pytest.raises(Killed):
            fit(tiny(), folder, resume=True)
    assert [event.get("step") for event in metrics(folder)] == [None, 3]


def test_resume_without_the_log(tiny, fit, metrics, tmp_path: Path, monkeypatch) -> None:
    kill_at(monkeypatch, checkpoint, "save", 2, True)
    with pytest.raises(Killed):
        fit(tiny(), tmp_path / "run")
    (tmp_path / "run" / "metrics.jsonl").unlink()
    with pytest.warns(RegardWarning, match=r"metrics\.jsonl has lost events"):
        fit(tiny(), tmp_path / "run", resume=True)
    assert [event["step"] for event in metrics(tmp_path / "run")] == [9, 12]


DAMAGE = {
    "the vocabulary": (
        "tokenizer.json",
        r"tokenizer\.json is damaged: it has changed since the wei",
    ),
    "the log": ("metrics.jsonl", r"metrics\.jsonl is damaged: line 1: "),
    "the state": (str(checkpoint.FILE), r"state\.safetensors is damaged"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_resume_with_a_damaged_file(tiny, fit, tmp_path: Path, monkeypatch, name: str) -> None:
    kill_at(monkeypatch, checkpoint, "save", 2, True)
    with pytest.raises(Killed):
        fit(tiny(), tmp_path / "run")
    file, message = DAMAGE[name]
    path = tmp_path / "run" / file
    content = bytearray(path.read_bytes())
    content[20] ^= 0x80
    path.write_bytes(content)
    with pytest.raises(UserError, match=message):
        fit(tiny(), tmp_path / "run", resume=True)


def test_resume_beyond_the_end_of_an_epoch(tiny, fit, tmp_path: Path, monkeypatch) -> None:
    """It would never end: the number of batches done is only compared with that of an epoch."""
    kill_at(monkeypatch, checkpoint, "save", 2, True)
    with pytest.raises(Killed):
        fit(tiny(), tmp_path / "run")
    path = tmp_path / "run" / checkpoint.FILE
    tensors, record = read(path)
    weights.save(path, tensors, record | {"batch": 10**6})
    with pytest.raises(UserError, match=r"does not match this run: 1,000,000 batches of an epoch"):
        fit(tiny(), tmp_path / "run", resume=True)


def test_resume_with_changed_settings_is_a_warning(tiny, fit, tmp_path: Path, monkeypatch) -> None:
    """`train --resume RUN` reads its settings from the folder."""
    kill_at(monkeypatch, checkpoint, "save", 2, True)
    with pytest.raises(Killed):
        fit(tiny(), tmp_path / "run")
    path = tmp_path / "run" / "config.toml"
    path.write_text(path.read_text().replace("epochs = 2.0", "epochs = 2.5"))
    with pytest.warns(
        RegardWarning, match=r"config\.toml has changed since the weights were saved"
    ):
        fit(tiny(epochs=2.5), tmp_path / "run", resume=True)
    regard.load(tmp_path / "run")  # the weights saved since belong to the new settings


def test_resume_with_a_truncated_log(tiny, fit, metrics, tmp_path: Path, monkeypatch) -> None:
    kill_at(monkeypatch, checkpoint, "save", 2, True)
    with pytest.raises(Killed):
        fit(tiny(), tmp_path / "run")
    path = tmp_path / "run" / "metrics.jsonl"
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.warns(RegardWarning, match=r"metrics\.jsonl has lost events"):
        fit(tiny(), tmp_path / "run", resume=True)
    assert [event.get("step") for event in metrics(tmp_path / "run")] == [None, 3, 9, 12]


def test_resuming_a_finished_run_changes_nothing(tiny, fit, uninterrupted, family: str) -> None:
    folder = uninterrupted(family)
    before = {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    fit(tiny(family), folder, resume=True)
    assert {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()} == before


# --- finished runs --------------------------------------------------------------------------------


def test_the_checkpoint_is_dropped_once_a_run_is_finished(
    tiny, fit, uninterrupted, tmp_path: Path
) -> None:
    config, folder = tiny(keep_last=False), tmp_path / "run"
    fit(config, folder)
    kept = uninterrupted("recurrent")
    names = {path.name for path in kept.iterdir()}
    assert {path.name for path in folder.iterdir()} == names - {"last"}
    records = [read(run / "model.safetensors")[1] for run in (folder, kept)]
    assert len({(record["step"], record["loss"]) for record in records}) == 1
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert (
        fit(config, folder, resume=True) == f"{folder} is finished: there is nothing to continue\n"
    )
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    message = r"is finished, with other settings \(training\.epochs: .* new run from its weights"
    with pytest.raises(UserError, match=message):
        fit(tiny(keep_last=False, epochs=4.0), folder, resume=True)


FINISHING = {
    "before the card": (run, "write_card", 1, False),
    "after the card": (run, "write_card", 1, True),
    "before the examples": (run, "draw_examples", 1, False),
    "before the drop": (checkpoint, "drop", 1, False),
    "after the drop": (checkpoint, "drop", 1, True),
}


@pytest.mark.parametrize("moment", FINISHING)
def test_killed_while_finishing(tiny, fit, tmp_path: Path, moment: str, monkeypatch) -> None:
    """The checkpoint goes only when everything else is there."""
    config, folder = tiny(keep_last=False, epochs=0.5), tmp_path / "run"
    with monkeypatch.context() as patch:
        kill_at(patch, *FINISHING[moment])
        with pytest.raises(Killed):
            fit(config, folder)
    is_complete = (folder / "card.json").is_file() and (folder / "model.safetensors").is_file()
    assert (folder / checkpoint.FILE).is_file() or is_complete
    fit(config, folder, resume=True)
    names = {path.name for path in folder.iterdir()}
    assert {"model.safetensors", "card.json"} <= names
    assert "last" not in names


def test_an_interrupt_at_the_end_keeps_the_finished_run(
    tiny, fit, tmp_path: Path, monkeypatch
) -> None:
    """Without a checkpoint, the folder looked like that of a run that had not begun."""

    def drop_then_interrupt(folder: Path) -> None:
        original(folder)
        raise KeyboardInterrupt

    original = checkpoint.drop
    monkeypatch.setattr(checkpoint, "drop", drop_then_interrupt)
    with pytest.raises(KeyboardInterrupt):
        fit(tiny(keep_last=False, epochs=0.5), tmp_path / "run")
    assert (tmp_path / "run" / "card.json").is_file()


def test_resume_with_the_config_of_the_folder(
    uninterrupted, same_run, tiny, fit, tmp_path, monkeypatch
) -> None:
    with monkeypatch.context() as patch:
        kill_at(patch, checkpoint, "save", 2, True)
        with pytest.raises(Killed):
            fit(tiny(), tmp_path / "run")
    fit(None, tmp_path / "run", resume=True)
    same_run(tmp_path / "run", uninterrupted("recurrent"))
    with pytest.raises(UserError, match="there is no run folder"):
        fit(None, tmp_path / "none", resume=True)


def test_card_has_the_device_of_the_training_not_of_the_resume(
    tiny, fit, uninterrupted, monkeypatch, tmp_path: Path
) -> None:
    shutil.copytree(uninterrupted("recurrent"), tmp_path / "run")
    file = tmp_path / "run" / "card.json"
    before = file.read_text("utf-8")
    file.unlink()
    card = importlib.import_module("regard.training.card")
    monkeypatch.setattr(card, "device_name", lambda device: "another device")
    fit(tiny("recurrent"), tmp_path / "run", resume=True)
    assert file.read_text("utf-8") == before


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"learning_rate": 0.03}, "training.learning_rate: saved 0.02, given 0.03"),
        ({"seed": 2}, "seed: saved 1, given 2"),
        (
            {"epochs": 3.0, "grad_clip": 2.0},
            "training.epochs: saved 2.0, given 3.0, training.grad_clip",
        ),
        ({"family": "transformer"}, "model.kind: saved recurrent, given transformer"),
    ],
)
def test_other_settings_are_rejected(tiny, fit, uninterrupted, changes: dict, message: str) -> None:
    folder = uninterrupted("recurrent")
    before = {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    with pytest.raises(UserError, match=message):
        fit(tiny(**changes), folder, resume=True)
    assert {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()} == before


def test_folder_with_other_files_is_rejected(tiny, fit, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("text")
    for resume in (False, True):
        with pytest.raises(UserError, match="it is not a run folder"):
            fit(tiny(), tmp_path, resume)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_failed_data_generation_leaves_no_folder(tiny, fit, tmp_path: Path) -> None:
    """So that the corrected command can use the same folder."""
    with pytest.raises(UserError, match="cannot generate split"):
        fit(tiny(data={"min_length": 1}), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_folder_in_use_is_rejected(tiny, fit, tmp_path: Path, monkeypatch) -> None:
    """Two sessions in one folder: the later one replaced the best weights of the earlier one."""
    folder = tmp_path / "run"
    seen: list[str] = []

    def train_again(self: loop.TrainingLoop) -> None:
        with ThreadPoolExecutor(1) as pool:
            for resume in (False, True):
                error = pool.submit(fit, tiny(), folder, resume).exception()
                assert isinstance(error, UserError)
                seen.append(str(error))
        original(self)

    original = loop.TrainingLoop.step
    monkeypatch.setattr(loop.TrainingLoop, "step", train_again)
    fit(tiny(epochs=0.1), folder)
    assert len(seen) == 2
    assert all(f"{folder} is in use by another process (PID {os.getpid()})" in x for x in seen)
    assert not (folder / ".lock").exists()


def test_invalid_checkpoint_is_rejected(tiny, fit, tmp_path: Path, monkeypatch) -> None:
    """Every tensor is checked before any is loaded: a wrong one crashed the process or gave NaN."""
    kill_at(monkeypatch, checkpoint, "save", 1, True)
    with pytest.raises(Killed):
        fit(tiny(ema_decay=0.9), tmp_path / "run")
    tensors, record = read(tmp_path / "run" / checkpoint.FILE)
    prefixes = {name.split(".")[0] for name in tensors}
    assert prefixes == {"model", "ema", "optimizer", "loss_sum", "rng"}
    train_step = make_step(tiny(ema_decay=0.9), tmp_path / "run")
    before = {k: tensor.clone() for k, tensor in checkpoint.collect_tensors(train_step).items()}

    def check(name: str, message: str, changed: dict, changed_record: dict = record) -> None:
        monkeypatch.setattr(weights, "read", lambda _: (dict(changed), dict(changed_record)))
        with pytest.raises(UserError, match=rf"state\.safetensors .*{re.escape(message)}"):
            checkpoint.restore(tmp_path, train_step)
        for key, tensor in checkpoint.collect_tensors(train_step).items():
            assert torch.equal(tensor, before[key]), (name, key)

    for name, tensor in tensors.items():
        kind = str(tensor.dtype).removeprefix("torch.")
        should_be = f"and should be {kind} {list(tensor.shape)}"
        rest = {key: value for key, value in tensors.items() if key != name}
        check(name, f'"{name}" is absent, {should_be}', rest)
        check(
            name, f'"{name}" is {kind} [1, 1], {should_be}', rest | {name: tensor.new_zeros(1, 1)}
        )
        check(name, f'"{name}" is int16 ', rest | {name: tensor.short()})
    check(
        "extra", '"extra" is float32 [1], and should be absent', tensors | {"extra": torch.ones(1)}
    )
    for name in ("model.extra", "optimizer.extra", "optimizer.step.extra"):
        check(name, f'"{name}" is', tensors | {name: torch.ones(1)})
    zeros = tensors | {"rng.cpu": torch.zeros_like(tensors["rng.cpu"])}
    check("rng.cpu", "is not a checkpoint of this version", zeros)
    check("record", "is not a checkpoint of this version", tensors, record | {"unknown": 1})
    del record["loss_steps"]
    check("record", "is not a checkpoint of this version", tensors, record)


def make_step(config: Config, folder: Path) -> TrainStep:
    """A `TrainStep` for the model of a run, at its start."""
    tokenizers = TokenizerPair.load(folder / "tokenizer.json")
    sizes = (tokenizers.source.vocab_size, tokenizers.target.vocab_size)
    model = build(config.model, *sizes, tokenizers.joint, folder)
    data = DeviceDataset(EncodedPairs([[2]], [[]]), "cpu")
    return TrainStep(model, config.training, data, torch.float32, False, print)


class Nested(Model):
    """A model with a parameter whose name is the end of another's."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(3, 2)
        self.encoder = torch.nn.ModuleDict({"embedding": torch.nn.Embedding(3, 2)})


Nested.__abstractmethods__ = frozenset()


def test_optimizer_state_is_restored_to_its_parameter(tiny, tmp_path: Path) -> None:
    def make_step() -> TrainStep:
        data = DeviceDataset(EncodedPairs([[2]], [[]]), "cpu")
        return TrainStep(Nested(), tiny().training, data, torch.float32, False, print)

    saved = make_step()
    for scale, parameter in enumerate(saved.model.parameters(), start=1):
        parameter.grad = torch.full_like(parameter, scale)
    saved.optimizer.step()
    checkpoint.save(tmp_path, checkpoint.Progress(step=1), saved, Writer(saved.device))
    restored = make_step()
    checkpoint.restore(tmp_path, restored)
    for one, two in zip(saved.model.parameters(), restored.model.parameters(), strict=True):
        before, after = saved.optimizer.state[one], restored.optimizer.state[two]
        assert before.keys() == after.keys()
        for key, value in before.items():
            assert torch.equal(value, after[key]), key


# --- processes and SIGKILL ------------------------------------------------------------------------


def fit_until_killed(fit: Any, config: Any, folder: Path, module: str, name: str, call: int) -> int:
    """Train in a forked process that kills itself at the `call`-th call; return its wait status."""
    with warnings.catch_warnings():  # newer Python warns of threads, which the child does not need
        warnings.simplefilter("ignore")
        child = os.fork()
    if child == 0:
        try:
            owner = importlib.import_module(module)
            original, calls = getattr(owner, name), iter(range(1, 10**9))

            def wrapped(*args: Any, **kwargs: Any) -> Any:
                if next(calls) == call:
                    os.kill(os.getpid(), signal.SIGKILL)
                return original(*args, **kwargs)

            setattr(owner, name, wrapped)
            fit(config, folder, resume=True)
        finally:
            os._exit(1)  # not reached where the call comes
    return os.waitpid(child, 0)[1]


# Each session resumes the one before. A kill inside os.replace leaves a temporary file behind.
SESSIONS = [
    ("os", "replace", 1),
    ("regard.training.step", "objective", 2),
    ("regard.training.loop", "likelihoods", 2),
    ("os", "replace", 2),
    ("regard.training.run", "draw_examples", 1),
]


def test_sigkill(tiny, fit, uninterrupted, same_run, tmp_path: Path, family: str) -> None:
    folder = tmp_path / "run"
    for session in SESSIONS:
        status = fit_until_killed(fit, tiny(family), folder, *session)
        assert os.WTERMSIG(status) == signal.SIGKILL
        if session == ("os", "replace", 2):
            assert list(folder.rglob(".regard-*"))
    fit(tiny(family), folder, resume=True)
    same_run(folder, uninterrupted(family))


def test_sigkill_of_the_command(tiny, fit, same_run, tmp_path: Path) -> None:
    """From outside, at an arbitrary moment; then resumed to the end."""
    long = tiny(epochs=20.0, validate_every=7)
    (tmp_path / "long.toml").write_text(long.to_toml())
    folder = tmp_path / "run"
    command = [str(REGARD), "train", str(tmp_path / "long.toml"), "--run", str(folder)]
    running = subprocess.Popen([*command, "--resume"], stdout=subprocess.DEVNULL)
    while running.poll() is None and not (folder / checkpoint.FILE).exists():
        time.sleep(0.002)
    running.kill()
    assert running.wait() == -signal.SIGKILL
    fit(long, folder, resume=True)
    fit(long, tmp_path / "uninterrupted")
    same_run(folder, tmp_path / "uninterrupted")
