"""Kill every worker of a comparison on a local Ray: are its results those of a serial one?

    python -m tests.compare.kills [--runs 40] [--node]

Small runs with two workers at a time; the worker of each run is killed (SIGKILL) once it has a checkpoint.
All must end, each with one retry, from its checkpoint; weights, cards and tables must be those of the same
runs one after the other without Ray, times aside. With --node, a Ray of two nodes is started instead, and
one of them is killed, with what runs on it. Linux only. Exit code 1 if not.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.faults.commands import read_results, write_data

OPTIONS = (
    *("--set", "training.epochs=40", "--set", "training.validate_every=20"),
    *("--columns", "seeds,exact_match", "--device", "cpu"),
)
CHECKPOINT = Path("last", "state.safetensors")


def start_compare(folder: Path, runs: int, out: str, *options: str, **variables: str) -> Any:
    """`regard compare` on the data of `folder`, with output and errors in `out`.txt."""
    command = ["compare", "task.toml", "--seeds", str(runs), "--threads", "1", "--out", out]
    environment = {"RAY_USAGE_STATS_ENABLED": "0", "REGARD_CACHE": str(folder / "cache")}
    with (folder / f"{out}.txt").open("w") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "regard", *command, *OPTIONS, *options],
            cwd=folder,
            env={**os.environ, **environment, **variables},
            stdout=output,
            stderr=subprocess.STDOUT,
        )


@dataclass(frozen=True)
class Process:
    """A job on Ray: its process, the worker that started it, and its folder on the node."""

    job: int
    worker: int
    folder: Path

    @property
    def has_checkpoint(self) -> bool:
        return (self.folder / CHECKPOINT).is_file()

    def signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.job, number)


def find_jobs(ancestor: int) -> dict[str, Process]:
    """The jobs that have a worker, of the Ray of process `ancestor`, by the name of the run folder."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = process.joinpath("cmdline").read_text().split("\0")
            if "regard.compare.job" in words:
                folder = Path(words[words.index("regard.compare.job") + 2])
                worker = parent(int(process.name))
                if is_worker(worker) and ancestor in ancestors(worker):
                    found[folder.name] = Process(int(process.name), worker, folder)
        except (OSError, ValueError):
            continue
    return found


def parent(process: int) -> int:
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])


def ancestors(process: int) -> list[int]:
    above = parent(process)
    return [above, *ancestors(above)] if above > 1 else []


def kill_workers(comparison: Any, runs: Path, most: int) -> list[str]:
    """Until the comparison ends, kill the worker of each run once, when its checkpoint has come back.

    Its job waits for that, as it may be faster.
    """
    killed: list[str] = []
    while comparison.poll() is None:
        for name, process in find_jobs(comparison.pid).items():
            if name in killed or len(killed) == most or not process.has_checkpoint:
                continue
            process.signal(signal.SIGSTOP)
            if any(runs.glob(f"*/{name}/{CHECKPOINT}")):
                os.kill(process.worker, signal.SIGKILL)
                process.signal(signal.SIGCONT)
                killed.append(name)
        time.sleep(0.02)
    return killed


def is_worker(process: int) -> bool:
    """Not once the worker has been killed: another process is then the parent of its job."""
    try:
        return Path(f"/proc/{process}/cmdline").read_text().startswith("ray::")
    except OSError:
        return False


def validation_steps(run: Path) -> list[int]:
    events = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [event["step"] for event in events if event["event"] == "validation"]


def results(folder: Path) -> dict[str, Any]:
    """What must be equal, by file: without the command, and without how many runs shared the device."""
    found = {name: value for name, value in read_results(folder).items() if is_compared(name)}
    found |= {"table": (folder / "table.md").read_text().split("\n\n")[0]}
    return {name: without_place(value) for name, value in found.items()}


def is_compared(name: str) -> bool:
    return name.startswith("runs/") or name in ("results.json", "table.csv", "outputs.md")


def without_place(value: Any) -> Any:
    if isinstance(value, dict):
        kept = {key: part for key, part in value.items() if key not in ("jobs", "command")}
        return {key: without_place(part) for key, part in kept.items()}
    return [without_place(part) for part in value] if isinstance(value, list) else value


def find_differences(expected: dict[str, Any], actual: dict[str, Any]) -> list[str]:
    names = [name for name in expected | actual if expected.get(name) != actual.get(name)]
    return [f"{name}: differs" for name in names]


def check(folder: Path, runs: int, killed: list[str], most: int) -> list[str]:
    """What is wrong with the comparison `ray` beside `serial`."""
    output = (folder / "ray.txt").read_text()
    lost = [line for line in output.splitlines() if "lost its worker" in line]
    problems = find_differences(results(folder / "serial"), results(folder / "ray"))
    if len(killed) < most or len(lost) != len(killed):
        problems.append(f"{len(killed)} workers killed, {len(lost)} reported: {output}")
    if not all(line.endswith("goes on from its last checkpoint") for line in lost):
        problems.append(f"not from the last checkpoint: {lost}")
    for seed in range(1, runs + 1):
        steps = [validation_steps(next((folder / out).glob(f"runs/*/seed-{seed}"))) for out in OUTS]
        if steps[0] != steps[1]:
            problems.append(f"seed {seed}: validations at {steps[1]}, serially at {steps[0]}")
        [log] = (folder / "ray").glob(f"runs/*/seed-{seed}.log")
        starts = log.read_text().count("resuming at step")
        if starts != killed.count(f"seed-{seed}"):
            problems.append(f"seed {seed}: resumed {starts} times")
    return problems


OUTS = ("serial", "ray")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.compare.kills", description=__doc__)
    parser.add_argument("--runs", type=int, default=40)
    parser.add_argument("--node", action="store_true", help="kill a node of a cluster of two")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="regard-kills-"))
    write_data(folder)
    start = time.monotonic()
    serial = start_compare(folder, options.runs, "serial")
    if serial.wait():
        sys.exit((folder / "serial.txt").read_text())
    middle = time.monotonic()
    if options.node:
        killed, most = compare_and_kill_node(folder, options.runs)
    else:
        comparison = start_compare(folder, options.runs, "ray", "--on", "ray")
        most = options.runs
        killed = kill_workers(comparison, folder / "ray" / "runs", most)
    problems = check(folder, options.runs, killed, most)
    sys.stdout.write((folder / "ray.txt").read_text())
    sys.stdout.write(
        f"{options.runs} runs; serially {middle - start:.0f} s, on Ray {time.monotonic() - middle:.0f} s; "
        f"{len(killed)} workers killed; {len(problems)} problems\n"
    )
    sys.stdout.writelines(f"{problem}\n" for problem in problems)
    shutil.rmtree(folder)
    sys.exit(bool(problems))


def compare_and_kill_node(folder: Path, runs: int) -> tuple[list[str], int]:
    """Two nodes of one CPU each; the second is killed as soon as the run on it has a checkpoint."""
    from ray.cluster_utils import Cluster

    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False}
    )
    other = cluster.add_node(num_cpus=1)
    cluster.wait_for_nodes()
    comparison = start_compare(folder, runs, "ray", "--on", "ray", RAY_ADDRESS=cluster.address)
    killed: list[str] = []
    while comparison.poll() is None:
        jobs = {} if killed else find_jobs(os.getpid())
        for name, process in jobs.items():
            raylet = other.all_processes["raylet"][0].process.pid
            if parent(process.worker) != raylet or not process.has_checkpoint:
                continue
            process.signal(signal.SIGSTOP)
            if any(folder.glob(f"ray/runs/*/{name}/{CHECKPOINT}")):
                cluster.remove_node(other, allow_graceful=False)
                process.signal(signal.SIGCONT)
                killed.append(name)
                break
        time.sleep(0.02)
    cluster.shutdown()
    return killed, 1


if __name__ == "__main__":
    main()
