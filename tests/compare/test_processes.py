"""Stopping a comparison: its jobs stop, queued ones do not start, and none outlives it."""

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from regard import files
from regard.compare import processes, stopping
from regard.compare import sweep as sweeping
from regard.compare.plan import Run, plan
from regard.compare.processes import JobPool
from regard.compare.sweep import sweep
from regard.compare.view import last_line
from regard.signals import Stopped

# A job without training: it writes its session to FOLDER.started and, at SIGTERM, FOLDER.saved.
FAKE_JOB = f"""
import os, pathlib, runpy, signal, sys, time
folder = pathlib.Path(sys.argv[2])

def save(*_):
    folder.with_suffix(".saved").touch()
    sys.exit(1)

signal.signal(signal.SIGTERM, save)
runpy.run_path({stopping.__file__!r})["stop_at_end_of_input"]()
folder.with_suffix(".started").write_text(str(os.getsid(0)))
time.sleep(60)
"""
DEAF_JOB = FAKE_JOB.replace("sys.exit(1)", "return")


def wait_for(condition: Callable[[], object], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture
def runs(settings, tmp_path):
    return plan(["case"], ["model.cell=gru,rnn"], settings, [2], tmp_path)


@pytest.fixture
def children(monkeypatch) -> list[subprocess.Popen]:
    """All processes that the comparison starts."""
    started: list[subprocess.Popen] = []
    original = subprocess.Popen

    def start(*arguments: object, **options: object) -> subprocess.Popen:
        started.append(original(*arguments, **options))
        return started[-1]

    monkeypatch.setattr(processes.subprocess, "Popen", start)
    return started


def sweep_and_signal(runs, *signals: int, job: str = FAKE_JOB, jobs: int = 2) -> Stopped:
    """Sweep with fake jobs; once `jobs` have started, send the signals to this process, one by one."""

    def found(suffix: str) -> int:
        return sum(run.folder.with_suffix(suffix).exists() for run in runs)

    def send() -> None:
        for number, suffix in zip(signals, (".started", ".saved"), strict=False):
            wait_for(lambda suffix=suffix: found(suffix) == jobs)
            os.kill(os.getpid(), number)

    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    sender = threading.Thread(target=send)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(processes, "JOB", (sys.executable, "-c", job))
        sender.start()
        with pytest.raises(Stopped) as stopped:
            sweep(runs, "test", [1], "cpu", JobPool(jobs), lambda line: None)
    sender.join()
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
    assert found(".started") == found(".saved") == jobs
    assert found(".toml") == found(".log") == jobs  # the files of the other runs are untouched
    assert found(".lock") == 0
    return stopped.value


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_the_running_jobs_and_starts_no_other(runs, children, number):
    assert sweep_and_signal(runs, number).signal_number == number
    assert [child.returncode for child in children] == [1, 1]  # of four runs
    started = [run.folder.with_suffix(".started") for run in runs[:2]]
    sessions = {int(file.read_text()) for file in started}
    # Each in a session of its own: a terminal's Ctrl-C does not reach it.
    assert sessions == {child.pid for child in children}


def test_a_second_signal_kills_jobs_that_do_not_stop(runs, children):
    started = time.monotonic()
    sweep_and_signal(runs, signal.SIGINT, signal.SIGTERM, job=DEAF_JOB)
    assert [child.returncode for child in children] == [-signal.SIGKILL] * 2
    assert time.monotonic() - started < processes.GRACE


def test_the_end_of_the_grace_period_kills_jobs_that_do_not_stop(runs, children, monkeypatch):
    monkeypatch.setattr(processes, "GRACE", 0.7)
    sweep_and_signal(runs[:1], signal.SIGTERM, job=DEAF_JOB, jobs=1)
    assert [child.returncode for child in children] == [-signal.SIGKILL]


def test_an_error_stops_the_jobs(runs, children, monkeypatch):
    """Such as standard output that is closed (`| head`)."""
    monkeypatch.setattr(processes, "JOB", (sys.executable, "-c", FAKE_JOB))

    def run_and_fail() -> None:
        with JobPool(1) as pool:
            pool.submit(sweeping.execute, runs[0], "test", [1], "cpu", 1, pool)
            wait_for(lambda: runs[0].folder.with_suffix(".started").exists())
            raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        run_and_fail()
    assert [child.returncode for child in children] == [1]


def test_jobs_do_not_outlive_a_killed_comparison(tmp_path):
    """SIGKILL leaves the comparison no time to do anything."""
    pool = f"""
import runpy, sys
JobPool = runpy.run_path({processes.__file__!r})["JobPool"]
with JobPool(2) as pool:
    for name in "ab":
        pool.submit(pool.run, [sys.executable, "-c", {FAKE_JOB!r}, "", {str(tmp_path)!r} + "/" + name])
"""
    comparison = subprocess.Popen([sys.executable, "-c", pool], stdout=subprocess.PIPE)
    wait_for(lambda: len(list(tmp_path.glob("*.started"))) == 2)
    comparison.kill()
    comparison.communicate(timeout=20)  # ends when no process holds its standard output any more
    assert sorted(path.name for path in tmp_path.glob("*.saved")) == ["a.saved", "b.saved"]


def test_a_stopped_command_says_how_to_continue(settings, tmp_path):
    """With real jobs: it exits with 128 + signal, its job has ended, and the second was not started."""
    options = [option for setting in settings for option in ("--set", setting)]
    arguments = ["compare", "case", "--seeds", "2", "--out", str(tmp_path), "--device", "cpu"]
    comparison = subprocess.Popen(
        [sys.executable, "-m", "regard", *arguments, *options, "--set", "training.epochs=5000"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        wait_for(lambda: list(tmp_path.glob("runs/*/seed-1/last/*.safetensors")), 60)
        comparison.terminate()
        _, errors = comparison.communicate(timeout=60)
    finally:
        comparison.kill()
    assert comparison.returncode == 128 + signal.SIGTERM
    assert errors.splitlines()[-1] == "stopped: the same command continues where it was"
    [run] = tmp_path.glob("runs/*/seed-1")
    assert last_line(run.with_suffix(".log")) == "regard: stopped"  # after a checkpoint
    with files.lock(run):  # free: the job has ended
        assert {path.name for path in run.parent.iterdir()} == {
            "seed-1",
            "seed-1.toml",
            "seed-1.log",
        }


# --- two comparisons ------------------------------------------------------------------------------


@pytest.fixture
def unfinished_runs(finished_runs, tmp_path, monkeypatch) -> list[Run]:
    """The finished runs in empty folders, where `execute` copies them."""
    runs = [
        replace(run, folder=tmp_path / run.folder.parent.name / run.folder.name)
        for run in finished_runs
    ]
    sources = dict(zip([run.folder for run in runs], finished_runs, strict=True))

    def execute(run: Run, *_: object) -> str:
        time.sleep(0.05)
        shutil.copytree(sources[run.folder].folder, run.folder)  # an error if it exists
        return ""

    monkeypatch.setattr(sweeping, "execute", execute)
    return runs


def test_a_comparison_waits_for_another_and_skips_what_it_finished(finished_runs, unfinished_runs):
    messages: list[str] = []
    first = unfinished_runs[0].folder
    held = files.open_locked(first.with_suffix(".lock"), wait=False)

    def finish() -> None:
        wait_for(lambda: any(line.endswith("waiting") for line in messages))
        wait_for(lambda: any(line.endswith("seed 2: done") for line in messages))
        shutil.copytree(finished_runs[0].folder, first)
        files.remove_locked(first.with_suffix(".lock"), held)

    other = threading.Thread(target=finish)
    other.start()
    assert sweep(unfinished_runs[:2], "test", [1], "cpu", JobPool(2), messages.append) == []
    other.join()
    assert messages[1:] == [
        "cell gru, seed 1: another comparison is training it; waiting",
        "[1/2] cell gru, seed 2: done",
        "[2/2] cell gru, seed 1: done",
    ]


def test_two_comparisons_share_the_runs(unfinished_runs):
    """They name the same runs in other orders; every run is executed once."""
    failures: list[list[str]] = []

    def compare(runs: list[Run]) -> None:
        failures.append(sweep(runs, "test", [1], "cpu", JobPool(2), lambda line: None))

    other = threading.Thread(target=compare, args=[unfinished_runs[::-1]])
    other.start()
    compare(unfinished_runs)
    other.join()
    assert failures == [[], []]
    assert all(sweeping.is_finished(run, "test", [1]) for run in unfinished_runs)


def test_a_comparison_that_waits_can_be_stopped(runs):
    lock = runs[0].folder.with_suffix(".lock")
    held = files.open_locked(lock, wait=False)
    try:
        with pytest.raises(Stopped):
            sweep(runs[:1], "test", [1], "cpu", JobPool(1), signal_if_waiting)
    finally:
        files.remove_locked(lock, held)
    assert not runs[0].folder.with_suffix(".toml").exists()


def test_a_signal_between_the_last_job_and_the_end_counts(unfinished_runs):
    def signal_at_the_end(line: str) -> None:
        if line == "[1/1] cell gru, seed 1: done":
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Stopped):
        sweep(unfinished_runs[:1], "test", [1], "cpu", JobPool(1), signal_at_the_end)


def signal_if_waiting(line: str) -> None:
    if "waiting" in line:
        os.kill(os.getpid(), signal.SIGINT)
