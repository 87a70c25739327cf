"""Executing a plan: finished runs are reused, failures are reported, killed runs resume."""

import json
import os
import shutil
import signal
import time
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import tomli_w

from regard import files, presets
from regard.compare import job
from regard.compare.plan import plan
from regard.compare.processes import JobPool
from regard.compare.sweep import execute, is_finished, sweep
from regard.compare.view import last_line
from regard.errors import UserError
from tests.compare.conftest import LONG


@pytest.fixture
def runs(finished_runs, settings, tmp_path):
    """A copy of the finished comparison."""
    shutil.copytree(finished_runs[0].folder.parent.parent, tmp_path / "runs")
    return plan(["case"], ["model.cell=gru,rnn"], settings, [2], tmp_path / "runs")


def run_sweep(runs, split="test", beams=(1,), jobs=1) -> tuple[list[str], list[str]]:
    """(failures, messages)"""
    messages: list[str] = []
    return sweep(runs, split, list(beams), "cpu", JobPool(jobs), messages.append), messages


def test_finished_runs_are_not_executed_again(runs, executed):
    assert all(is_finished(run, "test", [1]) for run in runs)
    failed, messages = run_sweep(runs)
    assert (failed, executed) == ([], [])
    assert messages == ["4 runs, 4 already finished, 1 at a time"]


def test_only_missing_runs_are_executed(runs, executed):
    shutil.rmtree(runs[2].folder)
    failed, messages = run_sweep(runs)
    assert (failed, executed) == ([], [runs[2].folder])
    assert messages[1:] == ["[1/1] cell rnn, seed 1: done"]
    assert is_finished(runs[2], "test", [1])


def test_another_split_or_beam_is_evaluated_without_training_again(runs, executed):
    before = (runs[0].folder / "model.safetensors").stat().st_mtime_ns
    assert not is_finished(runs[0], "val", [1])
    assert not is_finished(runs[0], "test", [1, 2])
    assert run_sweep(runs[:1], "val")[1][-1] == "[1/1] cell gru, seed 1: done"
    assert run_sweep(runs[:1], "test", (1, 2))[0] == []
    assert is_finished(runs[0], "val", [1])
    assert is_finished(runs[0], "test", [2])
    assert (runs[0].folder / "model.safetensors").stat().st_mtime_ns == before


def test_a_run_without_evaluation_is_not_finished(runs, executed):
    (runs[1].folder / "evaluation-test.json").unlink()
    assert not is_finished(runs[1], "test", [1])
    run_sweep(runs)
    assert executed == [runs[1].folder]


def test_an_evaluation_of_an_earlier_version_is_repeated_without_training(runs, executed):
    file = runs[1].folder / "evaluation-test.json"
    evaluation = json.loads(file.read_text())
    expected = evaluation.pop("cache_bytes_per_token")
    file.write_text(json.dumps(evaluation))
    before = (runs[1].folder / "model.safetensors").stat().st_mtime_ns
    run_sweep(runs)
    assert executed == [runs[1].folder]
    assert json.loads(file.read_text())["cache_bytes_per_token"] == expected
    assert (runs[1].folder / "model.safetensors").stat().st_mtime_ns == before


def test_the_description_does_not_distinguish_runs(runs, executed):
    configs = [run.config.model_copy(update={"description": "new"}) for run in runs]
    renamed = [replace(run, config=config) for run, config in zip(runs, configs, strict=True)]
    (renamed[0].folder / "evaluation-test.json").unlink()
    assert run_sweep(renamed)[0] == []
    assert executed == [renamed[0].folder]


def test_a_folder_with_other_settings_is_an_error_before_anything_runs(runs, executed):
    file = runs[3].folder / "config.toml"
    file.write_text(file.read_text().replace("hidden_dim = 8", "hidden_dim = 9"))
    shutil.rmtree(runs[0].folder)
    with pytest.raises(
        UserError, match=r"other settings \(model.hidden_dim: saved 9, given 8\).*--out"
    ):
        run_sweep(runs)
    assert executed == []


def test_a_folder_written_before_a_setting_existed_holds_its_default(runs, executed):
    for run in runs:
        table = presets.read_file(run.folder / "config.toml")
        del (
            table["training"]["bucket_shapes"],
            table["search"],
            table["model"]["attention"]["score"],
        )
        (run.folder / "config.toml").write_text(tomli_w.dumps(table), "utf-8")
    assert run_sweep(runs) == ([], ["4 runs, 4 already finished, 1 at a time"])
    assert executed == []


def test_a_failed_run_does_not_stop_the_others(settings, tmp_path, executed):
    vary = ["training.learning_rate=1e30,1e-3"]
    runs = plan(["case"], vary, [*settings, "training.warmup_steps=0"], [1], tmp_path)
    failed, messages = run_sweep(runs)
    assert len(executed) == 2
    assert len(failed) == 1
    assert failed[0].startswith("learning_rate 1e30, seed 1: the ")
    assert "loss became" in failed[0]
    assert messages[-1] == "[2/2] learning_rate 1e-3, seed 1: done"
    assert not is_finished(runs[0], "test", [1])


def test_an_unknown_split_is_an_error_before_training(settings, tmp_path, executed):
    runs = plan(["case"], [], settings, [1], tmp_path)
    failed, _ = run_sweep(runs, "tset")
    assert 'Did you mean "test"' in failed[0]
    assert not runs[0].folder.exists()


def test_the_last_line_of_a_log(tmp_path):
    log = tmp_path / "a.log"
    log.write_bytes(b"one\nna\xefve two\n\n  \n")
    assert last_line(log) == "na\ufffdve two"
    log.write_text("\n")
    assert last_line(log) == "no output"


def test_a_killed_run_resumes_in_a_subprocess(settings, tmp_path):
    [run] = plan(["case"], [], [*settings, *LONG], [1], tmp_path)
    config = run.folder.with_suffix(".toml")
    files.write(config, run.config.to_toml())
    with warnings.catch_warnings():  # PyTorch has threads
        warnings.simplefilter("ignore")
        child = os.fork()
    if child == 0:
        try:
            job.run_job(config, run.folder, "cpu", 1, "test", [1])
        finally:
            os._exit(0)
    try:
        deadline = time.monotonic() + 60
        while not (run.folder / "last" / "state.safetensors").is_file():
            assert time.monotonic() < deadline
            time.sleep(0.02)
    finally:
        os.kill(child, signal.SIGKILL)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    assert not is_finished(run, "test", [1])
    with JobPool(1) as pool:
        assert execute(run, "test", [1], "cpu", 2, pool) == ""
    assert is_finished(run, "test", [1])
    log = run.folder.with_suffix(".log").read_text()
    assert int(log.split("resuming at step ")[1].split()[0]) >= 10
    events = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    steps = [event["step"] for event in events if event["event"] == "validation"]
    assert steps == list(range(10, 91, 10))  # none missing, none repeated


def test_a_failed_subprocess_reports_its_error(settings, tmp_path):
    [run] = plan(["case"], [], settings, [1], tmp_path)
    with JobPool(1) as pool:
        error = execute(run, "tset", [1], "cpu", 1, pool)
    assert 'this data has no split "tset"' in error
    assert str(Path(run.folder.with_suffix(".log"))) in error
