"""One model on 1, 2 and 4 processes for 200 steps: are losses and weights equal to rounding?

    python -m tests.training.distributed [--steps 200]

gloo on the CPU, dropout off, every model family, the whole model in each process and sharded (FSDP). Then,
through the command line: a worker is killed (SIGKILL), with --max-restarts; a run is killed on 4 processes
and continued on 2, and on 1; two "nodes" of torchrun on the loopback interface. Exit code 1 if a figure is
above its limit.
"""

import argparse
import io
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.config import Config
from regard.models.weights import read
from regard.terminal import Console
from regard.training import checkpoint, run, train
from tests.training.conftest import MODELS
from tests.training.pool import Pool

LIMIT = 1e-5
"""Relative difference of the weights of two runs, ||a - b|| / ||a||, and of their validation losses."""
SIZES = {"d_model": 32, "d_ff": 48, "hidden_dim": 32, "embedding_dim": 24}


def make_config(family: str, steps: int, sharding: str) -> Config:
    model = {**MODELS[family], "dropout": 0.0}
    model |= {name: size for name, size in SIZES.items() if name in model}
    training = {
        "epochs": 1.0,
        "batch_sentences": 16,
        "validate_every": steps // 4,
        "warmup_steps": steps // 10,
        "keep_last": True,
        "sharding": sharding,
    }
    data = {"name": "copy", "train": 16 * steps, "val": 50, "test": 5, "max_length": 20}
    return Config.model_validate({"data": data, "model": model, "training": training})


@dataclass(frozen=True)
class Difference:
    """Between two runs."""

    weights: float
    largest: float
    """Of one weight, absolute."""
    loss: float
    steps: int

    @property
    def is_rounding(self) -> bool:
        return max(self.weights, self.loss) <= LIMIT

    def __str__(self) -> str:
        return (
            f"{self.steps} steps: weights {self.weights:.1e} (largest {self.largest:.1e}), "
            f"validation losses {self.loss:.1e}{'' if self.is_rounding else '   ABOVE THE LIMIT'}"
        )


def compare(one: Path, other: Path) -> Difference:
    a, b = (flatten(read(folder / checkpoint.FILE)[0]) for folder in (one, other))
    losses, others = read_losses(one), read_losses(other)
    assert losses.keys() == others.keys()
    return Difference(
        float((a - b).norm() / a.norm()),
        float((a - b).abs().max()),
        max(abs(losses[step] - others[step]) / losses[step] for step in losses),
        max(losses),
    )


def flatten(tensors: dict[str, Tensor]) -> Tensor:
    weights = {name: tensor for name, tensor in tensors.items() if name.startswith("model.")}
    return torch.cat([weights[name].double().flatten() for name in sorted(weights)])


def read_losses(folder: Path) -> dict[int, float]:
    events = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return {event["step"]: event["loss"] for event in events if event["event"] == "validation"}


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def check_families(steps: int, folder: Path) -> list[Difference]:
    """1, 2 and 4 processes, for every family, whole and sharded."""
    differences = []
    pools = {size: Pool(size) for size in (2, 4)}
    for family in MODELS:
        alone = folder / f"{family}-1"
        train(make_config(family, steps, "none"), alone, "cpu", False, Console(file=io.StringIO()))
        for sharding in ("none", "fsdp"):
            for size, pool in pools.items():
                path = folder / f"{family}-{size}-{sharding}"
                outcomes = pool.train(make_config(family, steps, sharding), path)
                assert not any(each.error for each in outcomes), outcomes
                differences.append(compare(alone, path))
                kind = "DDP" if sharding == "none" else "FSDP"
                say(f"{family:13} {size} processes  {kind:4}  {differences[-1]}")
    for pool in pools.values():
        pool.close()
    return differences


def start(folder: Path, *words: object, launcher: Sequence[str] = ()) -> subprocess.Popen[str]:
    """`regard train WORDS` in the folder."""
    command = [*(launcher or (sys.executable, "-m", "regard")), "train", *map(str, words)]
    return subprocess.Popen(
        [*command, "--device", "cpu"],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def wait_for_validations(folder: Path, count: int) -> None:
    """Until a run has a checkpoint of that many validations."""
    path = folder / "metrics.jsonl"
    while not path.is_file() or path.read_bytes().count(b"\n") <= count:
        time.sleep(0.05)


def kill_worker(command: subprocess.Popen[str]) -> None:
    """SIGKILL for the youngest process that the command has started."""
    children = Path(f"/proc/{command.pid}/task/{command.pid}/children").read_text().split()
    os.kill(int(children[-1]), signal.SIGKILL)


def finish(command: subprocess.Popen[str], code: int) -> str:
    output, _ = command.communicate(timeout=600)
    assert command.returncode == code, output
    return output


def check_commands(steps: int, folder: Path) -> list[Difference]:
    """Killed workers, other numbers of processes, two nodes: all as one process."""
    family = "transformer"
    alone = folder / f"{family}-1"
    for sharding in ("none", "fsdp"):
        config = make_config(family, steps, sharding)
        (folder / f"{sharding}.toml").write_text(config.to_toml())
    differences: list[Difference] = []

    def report(name: str, path: str) -> None:
        differences.append(compare(alone, folder / path))
        say(f"{name:43} {differences[-1]}")

    for sharding in ("none", "fsdp"):
        name = f"restarted-{sharding}"
        options = ("--run", name, "--devices", 2, "--max-restarts", 1)
        command = start(folder, f"{sharding}.toml", *options)
        wait_for_validations(folder / name, 2)
        kill_worker(command)
        output = finish(command, 0)
        assert "was killed by SIGKILL" in output, output
        assert "Traceback" not in output, output
        report(f"worker killed, restarted once ({sharding})", name)

    command = start(folder, "fsdp.toml", "--run", "fewer", "--devices", 4)
    wait_for_validations(folder / "fewer", 1)
    kill_worker(command)
    output = finish(command, 1)
    assert output.count("regard: ") == 1, output
    assert "Traceback" not in output, output
    command = start(folder, "--resume", "./fewer", "--devices", 2)
    wait_for_validations(folder / "fewer", 2)
    kill_worker(command)
    finish(command, 1)
    finish(start(folder, "--resume", "./fewer"), 0)
    report("killed on 4 processes, on 2, ended on 1", "fewer")

    nodes = [start_node(folder, "none.toml", "--run", "nodes") for _ in range(2)]
    for node in nodes:
        finish(node, 0)
    report("torchrun, two nodes of 2 processes", "nodes")
    return differences


def start_node(folder: Path, *words: str) -> subprocess.Popen[str]:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2"]
    torchrun += ["--nproc-per-node", "2", "--rdzv-backend", "c10d", "--rdzv-id", "check"]
    torchrun += ["--rdzv-endpoint", "127.0.0.1:29613", "-m", "--", "regard"]
    return start(folder, *words, launcher=torchrun)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    steps = parser.parse_args().steps
    torch.set_num_threads(1)
    original: Any = run.draw_examples
    run.draw_examples = lambda *_: None
    with tempfile.TemporaryDirectory() as name:
        differences = check_families(steps, Path(name))
        differences += check_commands(steps, Path(name))
    run.draw_examples = original
    worst = max(differences, key=lambda each: each.weights)
    say(f"{len(differences)} runs; the worst: {worst}; the limit is {LIMIT:g}")
    sys.exit(not all(each.is_rounding and math.isfinite(each.weights) for each in differences))


if __name__ == "__main__":
    main()
