"""Processes that train together, started once for many small runs: gloo on the CPU, a thread each."""

import functools
import io
import multiprocessing
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import distributed

from regard.config import Config
from regard.terminal import Console
from regard.text import corpus
from regard.training import run, step, train
from regard.training.distributed import World, report_lost_process

# Imported once, not in every process.
PRELOADED = ["torch._dynamo", "torch.distributed.fsdp", "tests.training.pool"]
TIMEOUT = 120  # seconds for a run
WRITING = ("os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.link", "os.truncate")


class KilledError(Exception):
    """Stands for the end of all processes."""


@dataclass(frozen=True)
class Outcome:
    """What a process did in a run."""

    output: str
    written: list[str]
    """The files in the run folder that it changed."""
    error: str
    """The name of an exception and its message."""
    tells: bool
    """Whether it is this process that prints the message."""


class Pool:
    """`size` processes. `train` runs `regard.training.train` in all of them."""

    def __init__(self, size: int) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOADED)
        self.folder = tempfile.TemporaryDirectory()
        self.connections, self.processes = [], []
        for rank in range(size):
            ours, theirs = context.Pipe()
            arguments = (rank, size, f"{self.folder.name}/store", theirs)
            process = context.Process(target=work, args=arguments, daemon=True)
            process.start()
            theirs.close()
            self.connections.append(ours)
            self.processes.append(process)
        for connection in self.connections:  # all are connected
            connection.recv()

    def start(
        self, config: Config, folder: Path, resume: bool = False, kill_at: int | None = None
    ) -> None:
        """Train in every process. `kill_at`: the number of the step that none does any more."""
        for connection in self.connections:
            connection.send((config, folder, resume, kill_at))

    def outcome(self, rank: int) -> Outcome:
        """What a process did, once it is done."""
        assert self.connections[rank].poll(TIMEOUT), f"process {rank} hangs"
        return self.connections[rank].recv()

    def train(self, *arguments: Any, **options: Any) -> list[Outcome]:
        """`start`, and the outcome in each process."""
        self.start(*arguments, **options)
        return [self.outcome(rank) for rank in range(len(self.processes))]

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.join()
        self.folder.cleanup()


def work(rank: int, size: int, store_path: str, connection: Any) -> None:
    """What a process of the pool does."""
    torch.set_num_threads(1)
    store = distributed.FileStore(store_path, size)
    timeout = timedelta(seconds=TIMEOUT)
    distributed.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=timeout)
    run.draw_examples = lambda *_: None
    corpus.load = functools.cache(corpus.load)
    written = record_writes()
    connection.send("ready")
    while True:
        connection.send(run_once(World(rank, size, store), written, *connection.recv()))


def record_writes() -> list[str]:
    """A list to which every path is added that Python opens for writing, renames, makes or removes."""
    written: list[str] = []

    def hook(event: str, arguments: Sequence[Any]) -> None:
        writes = (
            event == "open" and isinstance(arguments[1], str) and set(arguments[1]) & set("wax+")
        )
        if writes or event in WRITING:
            written.append(str(arguments[0]))

    sys.addaudithook(hook)
    return written


def run_once(
    world: World,
    written: list[str],
    config: Config,
    folder: Path,
    resume: bool,
    kill_at: int | None,
) -> Outcome:
    output, error, tells = io.StringIO(), "", False
    original = step.TrainStep.__call__
    written.clear()

    def step_or_die(self: Any, batches: Any, learning_rate: float, number: int) -> None:
        if number == kill_at:
            raise KilledError
        original(self, batches, learning_rate, number)

    step.TrainStep.__call__ = step_or_die
    try:
        with report_lost_process():
            train(config, folder, "cpu", resume, Console(file=output, width=200), world=world)
    except Exception as problem:
        error = f"{type(problem).__name__}: {problem}"
        tells = world.is_first_to_say(f"{folder} {problem}")  # a new question for each run
    step.TrainStep.__call__ = original
    inside = [path for path in written if path.startswith(str(folder))]
    return Outcome(output.getvalue(), inside, error, tells)
