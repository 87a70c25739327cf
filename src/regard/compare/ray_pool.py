"""Runs on the machines of a Ray cluster, or on this one with a local Ray.

Ray decides where a run is executed, and starts and ends its worker; see `ray_worker`. Here is what `JobPool`
does with processes: start, follow, stop. The folder of a run is on this machine, and after each of its
checkpoints it is as on the node: if the worker or its node dies, another one continues from there.
"""

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from regard import files
from regard.compare import transfer
from regard.compare.plan import Run
from regard.compare.processes import INTERVAL, MISTAKE, JobPool
from regard.compare.ray_cluster import Cluster
from regard.compare.ray_worker import Job, Update
from regard.compare.sources import find_sources
from regard.compare.sweep import prerequisites
from regard.compare.transfer import Snapshot
from regard.compare.view import View, last_line
from regard.config import limits
from regard.signals import Stopped
from regard.training import checkpoint

ATTEMPTS = 3  # that bring no new checkpoint
NOT_SENT = ("last/", "examples/", "model/")  # what a run that starts from another does not need
PROGRESS = (
    checkpoint.FILE.as_posix(),
    "card.json",
    files.PART,
)  # endings: what a retry goes on from


class RayPool(JobPool):
    """`JobPool` on a Ray cluster."""

    def __init__(
        self, cluster: Cluster, jobs: int | None, view: View, report: Callable[[str], None]
    ) -> None:
        super().__init__(jobs or limits.PROCESSES, cluster.threads, view)
        self.cluster = cluster
        self.most = jobs
        self.jobs = min(cluster.runs_per_device(), jobs or limits.PROCESSES)
        self.report = report
        self.sent: dict[str, Any] = {}  # references to what is in the object store, each once
        self.lock = threading.Lock()

    def __exit__(self, *error: Any) -> None:
        try:
            super().__exit__(*error)
        finally:
            self.cluster.ray.shutdown()

    def describe(self) -> str:
        most = "" if self.most is None else f", at most {self.most} at a time"
        return self.cluster.describe() + most

    def run_job(
        self, run: Run, config: Path, arguments: Sequence[str], share: int, log: Path
    ) -> int:
        """The exit code of the job of a run, in as many attempts as bring it forward."""
        folder = run.folder.relative_to(root_of(run)).as_posix()
        job = Job(folder, config.read_text("utf-8"), tuple(arguments), self.cluster.threads)
        failures, avoided = 0, []
        files.write(log, "")
        with self.view.show(run.title, log), files.lock(run.folder, wait=True):
            while True:
                attempt = Attempt(self, run, log, avoided)
                exit_code = attempt.execute(job)
                if exit_code in (0, MISTAKE):
                    return exit_code
                failures = 1 if attempt.has_progressed else failures + 1
                if failures == ATTEMPTS:
                    files.append(log, f"{attempt.problem}, {failures} times\n".encode())
                    return exit_code
                avoided = [attempt.node_id] if attempt.node_id else []
                has_checkpoint = (run.folder / checkpoint.FILE).is_file()
                start = "its last checkpoint" if has_checkpoint else "the start"
                self.report(f"{run.title}: {attempt.problem}; it goes on from {start}")

    def wait_for(self, reference: Any, is_saving: bool) -> Any:
        """What a method of a worker returns; `Stopped` if a signal comes before, unless `is_saving`, and
        then at the end of the grace period.
        """
        ray = self.cluster.ray
        while not ray.wait([reference], timeout=INTERVAL)[0]:
            if not is_saving:
                self.raise_if_stopped()
            elif self.signal_number is not None and time.monotonic() >= self.kill_at:
                raise Stopped(self.signal_number)
        return ray.get(reference)

    def send_once(self, name: str, read: Callable[[], Snapshot]) -> Any:
        """A reference to a snapshot in Ray's object store, which brings it to each node once."""
        with self.lock:
            if name not in self.sent:
                self.sent[name] = self.cluster.ray.put(read())
            return self.sent[name]


class Attempt:
    """One worker for a run."""

    def __init__(self, pool: RayPool, run: Run, log: Path, avoided: list[str]) -> None:
        self.pool = pool
        self.run = run
        self.log = log
        self.earlier = log.read_text("utf-8")
        self.avoided = avoided
        self.node, self.node_id = "", ""
        self.has_progressed = False
        self.problem = ""
        """Why it ended before the run did."""

    def execute(self, job: Job) -> int:
        """The exit code of the job; 1 if its worker was lost."""
        from ray.exceptions import RayError, RayTaskError

        worker = self.pool.cluster.create_worker(self.avoided)
        try:
            self.start(worker, job)
            exit_code = self.follow(worker)
            self.problem = f"failed on {self.node}: {last_line(self.log)}"
            return exit_code
        except RayTaskError as error:
            self.problem = f"failed on {self.node}: {error.cause}"
        except RayError:
            self.problem = f"lost its worker on {self.node}" if self.node else "lost its worker"
        finally:
            with suppress(RayError):
                self.pool.cluster.ray.kill(worker)
        return 1

    def start(self, worker: Any, job: Job) -> None:
        """Send what the node lacks, and let the worker start the process."""
        self.node, self.node_id = self.pool.wait_for(worker.where.remote(), False)
        runs = [self.run, *prerequisites([self.run])]
        sources = find_sources(run.config for run in runs)
        names = self.pool.wait_for(worker.find_missing.remote(sources), False)
        missing = [source for source in sources if source.name in names]
        own, _ = transfer.read_changes(self.run.folder, {})
        root = root_of(self.run)
        folders = [run.folder.relative_to(root).as_posix() for run in runs]
        sent = [
            self.pool.send_once(str(run.folder), lambda run=run: needed(run)) for run in runs[1:]
        ]
        sent += [self.pool.send_once(source.name, source.read) for source in missing]
        self.pool.wait_for(worker.start.remote(job, folders, missing, own, *sent), False)

    def follow(self, worker: Any) -> int:
        """Write what the worker hands over, until its process has ended; return the exit code."""
        while True:
            stop = self.pool.signal_number is not None
            update: Update = self.pool.wait_for(worker.update.remote(stop), True)
            files.write(self.log, self.earlier + update.log)
            if update.snapshot:
                transfer.write(self.run.folder, update.snapshot)
                if any(name.endswith(PROGRESS) for name in update.snapshot.content):
                    self.has_progressed = True
            if update.exit_code is not None:
                self.pool.raise_if_stopped()
                return update.exit_code


def root_of(run: Run) -> Path:
    """The folder of all runs of a comparison."""
    return run.folder.parent.parent


def needed(run: Run) -> Snapshot:
    """What a run that starts from this one needs of its folder."""
    whole, _ = transfer.read_changes(run.folder, {})
    content = {n: data for n, data in whole.content.items() if not n.startswith(NOT_SENT)}
    return Snapshot(tuple(content), content)
