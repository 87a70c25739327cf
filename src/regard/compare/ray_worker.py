"""One run on a node of a Ray cluster: a process like those of `JobPool`, in a temporary folder.

Ray makes an actor of `Worker` and calls its methods; nothing here needs Ray.
"""

import hashlib
import os
import socket
import subprocess
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from regard import documents, files
from regard.compare import processes, sources, transfer
from regard.compare.sources import Source
from regard.compare.transfer import Snapshot, Stamps

PACKAGE = Path(__file__).parents[1]
POLL = 1.0  # seconds after which `Worker.update` answers though nothing is new
SHARE = 10  # sending checkpoints takes at most this part of the time


@dataclass(frozen=True)
class Job:
    """What is executed: the arguments of `regard.compare.job` behind the two paths."""

    folder: str
    """Of the run, seen from the folder of all runs."""
    config: str
    arguments: tuple[str, ...]
    threads: int


@dataclass(frozen=True)
class Update:
    """What is new since the last one."""

    log: str
    snapshot: Snapshot | None = None
    exit_code: int | None = None
    """Once the process has ended."""


class Worker:
    """Executes one run, and hands over its folder whenever that has changed."""

    def __init__(self) -> None:
        self.stack = ExitStack()
        self.paths: dict[str, str] = {}
        self.data_folders: list[str] = []
        self.known: Stamps = {}
        self.next_push = 0.0

    def where(self) -> tuple[str, str]:
        """The name of this machine, and Ray's name of the node."""
        import ray

        return socket.gethostname(), ray.get_runtime_context().get_node_id()

    def find_missing(self, wanted: list[Source]) -> list[str]:
        """The names of what this machine lacks."""
        here = [source for source in wanted if source.is_here()]
        self.paths = {s.name: str(s.root / s.entry) for s in here if not s.languages}
        return [source.name for source in wanted if source not in here]

    def start(self, job: Job, folders: list[str], missing: list[Source], *sent: Snapshot) -> None:
        """Write what was `sent`, run folders and then what was missing, and start the process.

        `folders`: of the run itself and of its prerequisites, seen from the folder of all runs.
        """
        for source, snapshot in zip(missing, sent[len(folders) :], strict=True):
            root = sources.store(snapshot)
            if source.languages:
                self.data_folders.append(str(root))
            else:
                self.paths[source.name] = str(root / source.entry)
        temporary = Path(tempfile.gettempdir()) / "run"
        lock, file = self.stack.enter_context(files.new_temporary(temporary, files.LOCK))
        root = lock.parent
        for name, snapshot in zip(folders, sent, strict=False):
            transfer.write(root / name, snapshot)
        self.folder, self.log = root / job.folder, root / "job.log"
        self.known = {
            name: transfer.stamp(p) for name, p in transfer.find_files(self.folder).items()
        }
        config = root / "config.toml"
        files.write(config, job.config)
        # The process keeps the lock of the folder: it may outlive this one, to save a checkpoint.
        handles = {"pass_fds": (file.fileno(),)} if os.name == "posix" else {}
        output = self.stack.enter_context(files.open_log(self.log))
        self.process = processes.start_process(
            [*processes.JOB, str(config), str(self.folder), *job.arguments],
            stdout=output,
            stderr=subprocess.STDOUT,
            env=self.environment(job.threads),
            **handles,
        )

    def environment(self, threads: int) -> dict[str, str]:
        """That of this process, where the job finds this very package and the files it needs."""
        package = str(PACKAGE.parent)
        inherited = processes.job_environment(threads)
        data = [inherited.get("REGARD_DATA", ""), *self.data_folders]
        return inherited | {
            "PYTHONPATH": os.pathsep.join(filter(None, [package, inherited.get("PYTHONPATH", "")])),
            "REGARD_DATA": os.pathsep.join(filter(None, data)),
            files.PATHS: documents.dumps(self.paths),
        }

    def update(self, stop: bool) -> Update:
        """What is new, at the latest after a second. `stop`: let the process save a checkpoint and end."""
        if stop:
            processes.ask_to_stop(self.process)
        deadline = time.monotonic() + POLL
        while self.process.poll() is None and time.monotonic() < deadline:
            if time.monotonic() >= self.next_push and self.has_changed():
                break
            time.sleep(processes.INTERVAL)
        exit_code = self.process.poll()
        start = time.monotonic()
        is_due = exit_code is not None or start >= self.next_push
        snapshot = self.take_snapshot() if is_due and self.has_changed() else None
        if snapshot:
            self.next_push = time.monotonic() + SHARE * (time.monotonic() - start)
        log = self.log.read_text("utf-8", errors="replace")
        if exit_code is not None:
            processes.ask_to_stop(self.process)
            self.stack.close()
        return Update(log, snapshot, exit_code)

    def has_changed(self) -> bool:
        try:
            found = transfer.find_files(self.folder)
            return {name: transfer.stamp(path) for name, path in found.items()} != self.known
        except FileNotFoundError:
            return True

    def take_snapshot(self) -> Snapshot:
        snapshot, self.known = transfer.read_changes(self.folder, self.known)
        return snapshot


def fingerprint() -> str:
    """SHA-256 of this package's Python files: equal code gives equal runs."""
    digest = hashlib.sha256()
    for path in sorted(PACKAGE.rglob("*.py")):
        digest.update(f"{path.relative_to(PACKAGE).as_posix()}\0".encode() + path.read_bytes())
    return digest.hexdigest()
