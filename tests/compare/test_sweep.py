"""Running a plan: what is there is reused, what failed is told, what was killed goes on."""

import json
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from regard import files
from regard.compare import plan, sweep
from regard.compare.sweep import execute, finished, last_line
from regard.errors import UserError


@pytest.fixture
def mine(done, settings, tmp_path):
    """A copy of the finished comparison."""
    shutil.copytree(done[0].folder.parent.parent, tmp_path / "runs")
    return plan(["case"], ["model.cell=gru,rnn"], settings, [2], tmp_path / "runs")


def swept(runs, split="test", beams=(1,), jobs=1) -> tuple[list[str], list[str]]:
    said: list[str] = []
    return sweep(runs, split, list(beams), "cpu", jobs, said.append), said


def test_what_is_finished_is_not_run_again(mine, in_this_process):
    assert all(finished(run, "test", [1]) for run in mine)
    failed, said = swept(mine)
    assert (failed, in_this_process) == ([], [])
    assert said == ["4 runs, 4 there already, 1 at a time"]


def test_what_is_missing_is_run_and_nothing_else(mine, in_this_process):
    shutil.rmtree(mine[2].folder)
    failed, said = swept(mine)
    assert (failed, in_this_process) == ([], [mine[2].folder])
    assert said[1:] == ["[1/1] cell rnn, seed 1: done"]
    assert finished(mine[2], "test", [1])


def test_another_split_or_beam_is_measured_without_training_again(mine, in_this_process):
    before = (mine[0].folder / "model.safetensors").stat().st_mtime_ns
    assert not finished(mine[0], "val", [1])
    assert not finished(mine[0], "test", [1, 2])
    assert swept(mine[:1], "val")[1][-1] == "[1/1] cell gru, seed 1: done"
    assert swept(mine[:1], "test", (1, 2))[0] == []
    assert finished(mine[0], "val", [1])
    assert finished(mine[0], "test", [2])
    assert (mine[0].folder / "model.safetensors").stat().st_mtime_ns == before


def test_a_run_that_stopped_before_its_evaluation_is_not_finished(mine, in_this_process):
    (mine[1].folder / "evaluation-test.json").unlink()
    assert not finished(mine[1], "test", [1])
    swept(mine)
    assert in_this_process == [mine[1].folder]


def test_what_an_earlier_version_measured_is_measured_again_but_not_trained(mine, in_this_process):
    file = mine[1].folder / "evaluation-test.json"
    found = json.loads(file.read_text())
    wanted = found.pop("cache_bytes_per_token")
    file.write_text(json.dumps(found))
    before = (mine[1].folder / "model.safetensors").stat().st_mtime_ns
    swept(mine)
    assert in_this_process == [mine[1].folder]
    assert json.loads(file.read_text())["cache_bytes_per_token"] == wanted
    assert (mine[1].folder / "model.safetensors").stat().st_mtime_ns == before


def test_other_words_about_the_same_settings_are_the_same_run(mine, in_this_process):
    told = [run.config.model_copy(update={"description": "better told"}) for run in mine]
    runs = [replace(run, config=config) for run, config in zip(mine, told, strict=True)]
    (runs[0].folder / "evaluation-test.json").unlink()
    assert swept(runs)[0] == []
    assert in_this_process == [runs[0].folder]


def test_a_folder_with_other_settings_is_refused_before_anything_runs(mine, in_this_process):
    file = mine[3].folder / "config.toml"
    file.write_text(file.read_text().replace("hidden_dim = 8", "hidden_dim = 9"))
    shutil.rmtree(mine[0].folder)
    with pytest.raises(
        UserError, match=r"other settings \(model.hidden_dim: 9 there, 8 here\).*--out"
    ):
        swept(mine)
    assert in_this_process == []


def test_one_that_fails_does_not_keep_the_others(settings, tmp_path, in_this_process):
    vary = ["training.learning_rate=1e30,1e-3"]
    runs = plan(["case"], vary, [*settings, "training.warmup_steps=0"], [1], tmp_path)
    failed, said = swept(runs)
    assert len(in_this_process) == 2
    assert len(failed) == 1
    assert failed[0].startswith("rate 1e30, seed 1: the ")
    assert "loss became" in failed[0]
    assert said[-1] == "[2/2] rate 1e-3, seed 1: done"
    assert not finished(runs[0], "test", [1])


def test_a_split_that_is_not_there_is_told_before_training(settings, tmp_path, in_this_process):
    runs = plan(["case"], [], settings, [1], tmp_path)
    failed, _ = swept(runs, "tset")
    assert 'Did you mean "test"' in failed[0]
    assert not runs[0].folder.exists()


def test_the_last_line_of_a_log(tmp_path):
    log = tmp_path / "a.log"
    log.write_bytes(b"one\nna\xefve two\n\n  \n")
    assert last_line(log) == "na\ufffdve two"
    log.write_text("\n")
    assert last_line(log) == "it said nothing"


def test_a_killed_run_goes_on_in_a_process_of_its_own(settings, tmp_path):
    long = [*settings, "training.epochs=60", "training.validate_every=20"]
    [run] = plan(["case"], [], long, [1], tmp_path)
    config = run.folder.with_suffix(".toml")
    files.write(config, run.config.to_toml())
    given = [config, run.folder, "cpu", "1", "test", "1"]
    words = [sys.executable, "-m", "regard.compare.job", *given]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until = time.monotonic() + 60
        while not (run.folder / "last" / "state.safetensors").is_file():
            assert time.monotonic() < until
            assert process.poll() is None
            time.sleep(0.02)
    finally:
        process.kill()
        process.wait()
    assert not finished(run, "test", [1])
    assert execute(run, "test", [1], "cpu", 2) == ""
    assert finished(run, "test", [1])
    log = run.folder.with_suffix(".log").read_text()
    assert int(log.split("resuming at step ")[1].split()[0]) >= 20
    events = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    steps = [event["step"] for event in events if event["event"] == "validation"]
    assert steps == list(range(20, 181, 20))  # none lost, none twice


def test_a_process_that_fails_says_why(settings, tmp_path):
    [run] = plan(["case"], [], settings, [1], tmp_path)
    problem = execute(run, "tset", [1], "cpu", 1)
    assert 'this data has no split "tset"' in problem
    assert str(Path(run.folder.with_suffix(".log"))) in problem
