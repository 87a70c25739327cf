"""Runs with gradient accumulation: what a step is, the end of an epoch, exact resume."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from regard.models.weights import read
from regard.training import checkpoint, step


def read_progress(folder: Path) -> dict[str, Any]:
    return read(folder / checkpoint.FILE)[1]


@pytest.mark.parametrize(("count", "sizes"), [(1, [1] * 6), (2, [2] * 3), (4, [4, 2]), (7, [6])])
def test_steps_are_optimizer_steps(
    tiny, fit, metrics, tmp_path: Path, monkeypatch, count: int, sizes: list[int]
) -> None:
    """43 sentences in batches of 8 are 6 batches; the last step of an epoch has what is left."""
    taken: list[int] = []
    original = step.TrainStep.__call__

    def record(self, batches, *args: Any) -> None:
        taken.append(len(batches))
        original(self, batches, *args)

    monkeypatch.setattr(step.TrainStep, "__call__", record)
    config = tiny(accumulation_steps=count, epochs=2.0, validate_every=2, warmup_steps=0)
    fit(config, tmp_path / "run")
    assert taken == 2 * sizes
    steps = len(taken)
    events = [event for event in metrics(tmp_path / "run") if event["event"] == "validation"]
    assert [event["step"] for event in events] == [*range(2, steps, 2), steps]
    last = sum(taken[:-1]) / 12  # linear decay over the fraction of batches that is done
    assert events[-1]["learning_rate"] == pytest.approx(0.02 * (1 - last))
    progress = read_progress(tmp_path / "run")
    assert (progress["step"], progress["epoch"], progress["batch"]) == (steps, 2, 0)


def test_tokens_of_all_batches_are_counted(tiny, fit, tmp_path: Path) -> None:
    for count in (1, 4):
        fit(tiny(accumulation_steps=count, epochs=1.0), tmp_path / str(count))
    one, four = (read_progress(tmp_path / name)["tokens"] for name in ("1", "4"))
    assert one == four > 0


def test_fraction_of_an_epoch(tiny, fit, tmp_path: Path) -> None:
    fit(tiny(accumulation_steps=2, epochs=0.5), tmp_path / "run")
    progress = read_progress(tmp_path / "run")
    assert (progress["step"], progress["batch"]) == (math.ceil(3 / 2), 4)


def test_resume_is_exact(tiny, fit, same_run, tmp_path: Path, monkeypatch, family: str) -> None:
    """Killed between two validations, in the middle of an epoch."""
    config = tiny(family, accumulation_steps=2, epochs=3.0, validate_every=2, ema_decay=0.9)
    fit(config, tmp_path / "uninterrupted")
    original, calls = step.TrainStep._accumulate, iter(range(1, 10**6))

    class Killed(BaseException):
        pass

    def kill(self, *args: Any, **kwargs: Any) -> None:
        if next(calls) == 10:  # the second batch of step 5
            raise Killed
        original(self, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(step.TrainStep, "_accumulate", kill)
        with pytest.raises(Killed):
            fit(config, tmp_path / "run")
    torch.manual_seed(99)
    assert "resuming at step 4" in fit(config, tmp_path / "run", resume=True)
    same_run(tmp_path / "run", tmp_path / "uninterrupted")


def test_other_number_of_batches_is_another_run(tiny, fit, tmp_path: Path) -> None:
    fit(tiny(), tmp_path / "run")
    with pytest.raises(ValueError, match=r"training\.accumulation_steps: saved 1, given 2"):
        fit(tiny(accumulation_steps=2), tmp_path / "run", resume=True)
