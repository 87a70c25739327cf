"""Runs on Ray: what travels between machines, what goes wrong, and a worker that is killed."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from regard import files
from regard.compare import ray_cluster, transfer
from regard.compare.plan import plan
from regard.compare.ray_cluster import Cluster, check_reachable, parse_address
from regard.compare.ray_worker import Job, Worker, fingerprint
from regard.compare.sources import find_sources, store
from regard.compare.view import View
from regard.devices import use_threads
from regard.errors import UserError
from regard.text.lines import read_lines
from tests.compare.conftest import LONG, execute_in_process
from tests.compare.kills import CHECKPOINT, Process, find_jobs

NEEDS_RAY = pytest.mark.skipif(not find_spec("ray"), reason="needs the extra ray")
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


# --- folders and files between machines -----------------------------------------------------------


def make_folder(folder: Path) -> None:
    for name in ("metrics.jsonl", "model.safetensors", "last/state.safetensors", "card.json"):
        files.write(folder / name, name)


def test_a_folder_is_written_in_the_order_of_training(tmp_path):
    make_folder(tmp_path / "a")
    (tmp_path / "a" / files.LOCK).touch()
    files.write(tmp_path / "a" / "last" / ".regard-x", "")
    with (tmp_path / "a" / "metrics.jsonl").open("a") as file:  # after the checkpoint
        file.write("more")
    snapshot, known = transfer.read_changes(tmp_path / "a", {})
    order = ["metrics.jsonl", "model.safetensors", "last/state.safetensors", "card.json"]
    assert list(snapshot.content) == list(snapshot.names) == order
    transfer.write(tmp_path / "b", snapshot)
    assert transfer.find_files(tmp_path / "b").keys() == set(order)
    assert (tmp_path / "b" / "metrics.jsonl").read_text() == "metrics.jsonlmore"
    assert transfer.read_changes(tmp_path / "a", known)[0].content == {}


def test_only_what_has_changed_is_sent_and_what_was_deleted_goes(tmp_path):
    make_folder(tmp_path / "a")
    first, known = transfer.read_changes(tmp_path / "a", {})
    transfer.write(tmp_path / "b", first)
    files.write(tmp_path / "a" / "model.safetensors", "better")
    files.remove(tmp_path / "a" / "last")
    second, _ = transfer.read_changes(tmp_path / "a", known)
    assert second.content == {"model.safetensors": b"better"}
    transfer.write(tmp_path / "b", second)
    assert sorted(path.name for path in (tmp_path / "b").iterdir()) == [
        *("card.json", "metrics.jsonl", "model.safetensors")
    ]


def test_a_file_that_vanishes_while_it_is_read_is_no_error(tmp_path, monkeypatch):
    make_folder(tmp_path)
    original = transfer.stamp

    def stamp(path: Path) -> tuple[int, int]:
        if path.name == "state.safetensors":
            path.unlink()
        return original(path)

    monkeypatch.setattr(transfer, "stamp", stamp)
    snapshot, _ = transfer.read_changes(tmp_path, {})
    assert sorted(snapshot.names) == ["card.json", "metrics.jsonl", "model.safetensors"]


def test_a_file_is_found_where_it_was_sent(tmp_path, monkeypatch):
    (tmp_path / "here.txt").write_text("a\nb\n")
    monkeypatch.setenv(files.PATHS, json.dumps({"/elsewhere/text.txt": str(tmp_path / "here.txt")}))
    assert read_lines("/elsewhere/text.txt") == ["a", "b"]
    assert files.local_path(tmp_path / "other") == tmp_path / "other"


def test_a_worker_without_the_files_gets_them_and_does_the_same_run(
    settings, tmp_path, monkeypatch
):
    """As on another machine: the data is gone, and everything the job needs was sent."""
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    [run] = plan(["case"], [], settings, [1], tmp_path / "here")
    wanted = find_sources([run.config])
    assert {Path(source.name).name for source in wanted} == {"train.tsv", "val.tsv", "test.tsv"}
    sent = [source.read() for source in wanted]
    worker = Worker()
    assert worker.find_missing(wanted) == []
    monkeypatch.setattr("regard.compare.sources.Source.is_here", lambda self: False)
    assert len(worker.find_missing(wanted)) == 3
    folder = f"{run.folder.parent.name}/seed-1"
    arguments = ("cpu", "1", "test", "1")
    empty = transfer.Snapshot((), {})
    worker.start(Job(folder, run.config.to_toml(), arguments, 1), [folder], wanted, empty, *sent)
    assert Path(json.loads(worker.environment(1)[files.PATHS])[wanted[0].name]).is_file()
    log = follow(worker, tmp_path / "there")
    assert not worker.folder.exists()
    with use_threads(1):
        assert execute_in_process(run, "test", [1], "cpu", 1, None) == "", log  # type: ignore[arg-type]
    for name in ("model.safetensors", "config.toml", "tokenizer.json"):
        assert (tmp_path / "there" / name).read_bytes() == (run.folder / name).read_bytes()
    assert store(sent[0]) == store(sent[0])


def follow(worker: Worker, folder: Path) -> str:
    while True:
        update = worker.update(stop=False)
        if update.snapshot:
            transfer.write(folder, update.snapshot)
        if update.exit_code is not None:
            assert update.exit_code == 0, update.log
            return update.log


# --- mistakes -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--on", "rey"], '--on is ray, or the .* got "rey". Did you mean "ray"'),
        (["--on", "ray://head"], '"ray://head" is no address .* ray://head:10001'),
        (["--on", "ray://head:x"], "is no address of a Ray cluster"),
        (["--on", "ray", "--device", "cuda:1"], 'the device is auto, cpu or cuda.* got "cuda:1"'),
        (["--per-gpu", "3"], "--per-gpu is for --on ray"),
        (["--on", "ray://127.0.0.1:{port}"], "no Ray cluster answers at ray://127.0.0.1"),
    ],
)
def test_a_mistake_is_one_sentence(options, message, tmp_path, capsys, monkeypatch):
    import re

    from regard.cli import main

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = [word.format(port=port) for word in options]
    arguments = ["regard", "compare", "case", *words, "--out", str(tmp_path / "out")]
    monkeypatch.setattr(sys, "argv", arguments)
    with pytest.raises(SystemExit) as end:
        main()
    error = capsys.readouterr().err
    assert end.value.code == 2
    assert re.search(message, error)
    assert len(error.splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_without_the_extra_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UserError, match=r"needs one more package: pip install 'regard\[ray\]'"):
        Cluster("ray", "cpu", 1, None)


class FakeRay:
    """A cluster of these nodes."""

    def __init__(self, *nodes: dict[str, float]) -> None:
        self.resources = nodes

    def nodes(self) -> list[dict[str, Any]]:
        return [
            {"Alive": True, "NodeID": str(n), "Resources": r} for n, r in enumerate(self.resources)
        ]

    def shutdown(self) -> None:
        pass


def open_cluster(monkeypatch, *nodes: dict[str, float], **options: Any) -> Cluster:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(ray_cluster, "connect", lambda address: FakeRay(*nodes))
    return Cluster("ray", **{"device": "auto", "threads": 1, "per_gpu": None} | options)


def test_runs_use_the_gpus_of_the_cluster(monkeypatch):
    head, node = {"CPU": 4.0}, {"CPU": 16.0, "GPU": 2.0}
    cluster = open_cluster(monkeypatch, head, node, node, per_gpu=3, threads=2)
    assert (cluster.device, cluster.runs_per_device()) == ("cuda", 3)
    assert cluster.describe() == "on Ray: 3 nodes, 36 CPUs, 4 GPUs"
    cluster = open_cluster(monkeypatch, head, node, device="cpu", threads=2)
    assert (cluster.device, cluster.runs_per_device()) == ("cpu", 8)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": "cuda"}, "--device cuda: this Ray cluster has no GPU"),
        ({"per_gpu": 10}, "--per-gpu 10: this Ray cluster has no GPU"),
        ({"per_gpu": 10, "device": "cpu"}, "--per-gpu 10 and --device cpu are both given"),
        ({"threads": 5}, "--threads 5: the largest node of this Ray cluster has 4 CPUs"),
    ],
)
def test_what_the_cluster_lacks_is_said_before_anything_runs(monkeypatch, options, message):
    with pytest.raises(UserError, match=message):
        open_cluster(monkeypatch, {"CPU": 4.0}, **options)


def test_addresses(monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert parse_address("ray") == "local"
    monkeypatch.setenv("RAY_ADDRESS", "head:6379")
    assert parse_address("ray") == "head:6379"
    assert parse_address("ray://other:10001") == "ray://other:10001"
    monkeypatch.setenv("RAY_ADDRESS", "head")
    with pytest.raises(UserError, match='"head" is no address of a Ray cluster'):
        parse_address("ray")
    with socket.create_server(("127.0.0.1", 0)) as server:
        check_reachable(f"127.0.0.1:{server.getsockname()[1]}")


def test_a_worker_needs_no_pytorch():
    """It is beside each run on a node, and its process would take a second and hundreds of megabytes."""
    code = "import sys; import regard.compare.ray_worker; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_fingerprint_is_that_of_the_code():
    assert fingerprint() == fingerprint()
    assert len(fingerprint()) == 64


# --- the view -------------------------------------------------------------------------------------


def test_the_view_has_a_row_for_each_running_job(tmp_path):
    view = View()
    (tmp_path / "a.log").write_text("step 1\nstep 2\n")
    with view.show("a", tmp_path / "a.log"), view.show("b", tmp_path / "b.log"):
        rows = list(zip(*(column.cells for column in view.render().columns), strict=True))
    assert rows == [("a", "step 2"), ("b", "waiting")]
    assert view.render().row_count == 0


# --- a local Ray ----------------------------------------------------------------------------------


@NEEDS_RAY
@LINUX
@pytest.mark.timeout(300)
def test_a_run_whose_worker_is_killed_goes_on_from_its_checkpoint(settings, tmp_path):
    """Two runs; `python -m tests.compare.kills` kills more."""
    long = [*settings, *LONG]
    options = [word for setting in long for word in ("--set", setting)]
    command = ["compare", "case", "--seeds", "2", "--threads", "1", "--device", "cpu"]
    variables = {"RAY_USAGE_STATS_ENABLED": "0", "REGARD_CACHE": str(tmp_path / "cache")}
    environment = {k: v for k, v in os.environ.items() if k != "RAY_ADDRESS"} | variables
    comparison = subprocess.Popen(
        [sys.executable, "-m", "regard", *command, *options, "--on", "ray", "--out", "out"],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        name = kill_one(comparison, tmp_path / "out" / "runs")
        output = comparison.communicate(timeout=150)[0]
    finally:
        comparison.terminate()
    assert comparison.returncode == 0, output
    seed = name.removeprefix("seed-")
    assert output.count("it goes on from its last checkpoint") == 1
    assert f"case, seed {seed}: lost its worker on " in output
    assert sorted(line[6:] for line in output.splitlines() if line.endswith(": done")) == [
        f"case, seed {n}: done" for n in (1, 2)
    ]
    [log] = tmp_path.glob(f"out/runs/*/{name}.log")
    assert log.read_text().count("resuming at step") == 1
    expected = plan(["case"], [], long, [2], tmp_path / "serial")[int(seed) - 1]
    with use_threads(1), pytest.MonkeyPatch.context() as patch:
        patch.setattr(import_module("regard.training.examples"), "EXAMPLES", 0)
        assert execute_in_process(expected, "test", [1], "cpu", 1, None) == ""  # type: ignore[arg-type]
    for file in ("model.safetensors", "config.toml"):
        assert (expected.folder / file).read_bytes() == (log.with_suffix("") / file).read_bytes()


def kill_one(comparison: subprocess.Popen[str], runs: Path) -> str:
    """Kill the worker of the first run that has a checkpoint; return the name of its folder."""
    found: list[tuple[str, Process]] = []
    while not found:
        assert comparison.poll() is None
        time.sleep(0.02)
        found = [job for job in find_jobs(comparison.pid).items() if job[1].has_checkpoint]
    name, process = found[0]
    process.signal(signal.SIGSTOP)  # it may be faster than what comes back
    while not any(runs.glob(f"*/{name}/{CHECKPOINT}")):
        assert comparison.poll() is None
        time.sleep(0.02)
    os.kill(process.worker, signal.SIGKILL)
    process.signal(signal.SIGCONT)
    return name
