"""Warnings after a run that was too short, or overfitted."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from regard.training.advice import advise, find_drop


def make_loop(
    folder: Path,
    losses: dict[int, float],
    epochs: float = 8.0,
    done: float = 1.0,
    r_drop: float = 0.0,
) -> Any:
    """What `advise` reads of a training loop that has ended."""
    events = [
        {"event": "validation", "step": step, "loss": losses[step], "seconds": 1.0}
        for step in losses
    ]
    lines = [json.dumps(event) + "\n" for event in ({"event": "start"}, *events)]
    (folder / "metrics.jsonl").write_text("".join(lines))
    progress = SimpleNamespace(step=max(losses))
    settings = SimpleNamespace(r_drop=r_drop)
    figures = {"epochs_done": epochs, "fraction_done": done}
    return SimpleNamespace(progress=progress, settings=settings, folder=folder, **figures)


FALLING = {500: 4.0, 1000: 3.0, 1500: 2.5, 2000: 2.4}


def test_few_steps(tmp_path):
    (warning,) = advise(make_loop(tmp_path, {170: 4.0}, epochs=5), from_scratch=True)
    assert "only 170 steps" in warning
    assert "set training.epochs=30 (it had 5)" in warning
    assert advise(make_loop(tmp_path, {170: 4.0}), from_scratch=False) == []


def test_still_falling(tmp_path):
    (warning,) = advise(make_loop(tmp_path, FALLING), from_scratch=True)
    assert "still falling, from 2.500 to 2.400" in warning
    assert "training.epochs=16 (it had 8)" in warning


def test_early_stopping_needs_no_advice(tmp_path):
    assert advise(make_loop(tmp_path, FALLING, done=0.7), from_scratch=True) == []


RISING = {500: 4.0, 1000: 3.0, 1500: 2.5, 2000: 2.6}


def test_overfitting(tmp_path):
    (warning,) = advise(make_loop(tmp_path, RISING), from_scratch=True)
    assert "lowest at step 1,500, and rose from 2.500 to 2.600" in warning
    assert "training.r_drop=2.5" in warning
    assert advise(make_loop(tmp_path, RISING), from_scratch=False) == []
    assert advise(make_loop(tmp_path, RISING, r_drop=1.0), from_scratch=True) == []
    assert advise(make_loop(tmp_path, {1000: 2.5, 2000: 2.54}), from_scratch=True) == []
    assert advise(make_loop(tmp_path, {1000: 0.0004, 2000: 0.0094}), from_scratch=True) == []


@pytest.mark.parametrize(
    "losses",
    [
        {1000: 3.0},
        {1000: 3.0, 2000: 3.1},
        {1000: 3.0, 2000: 2.97},  # by 1 %
        {1000: 3.0, 1500: 2.4, 2000: 2.5},
        {1900: 3.0, 2000: 2.4},  # nothing is known from before the last part
        {1000: 0.0094, 2000: 0.0004},  # a synthetic task that is learned
    ],
)
def test_a_loss_that_no_longer_falls(losses):
    assert find_drop(losses) is None
