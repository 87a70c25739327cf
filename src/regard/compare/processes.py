"""Jobs in separate processes, which stop when the comparison stops, however it stops."""

import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from regard import files
from regard.compare.stopping import GRACE
from regard.compare.view import View
from regard.signals import Stopped, replace_handlers, restore_handlers, write_message

if TYPE_CHECKING:
    from regard.compare.plan import Run

JOB = (sys.executable, "-m", "regard.compare.job")
MISTAKE = 2  # exit code of a job whose user can fix it: to try again would not help
INTERVAL = 0.1  # seconds between two looks at a process
MESSAGE = "\nstopping: running jobs save a checkpoint; repeat to kill them\n"


class JobPool(ThreadPoolExecutor):
    """Threads that run jobs in processes, until a signal ends the comparison.

    The first signal asks the running processes to stop, and none is started after it; the second kills
    them, as does the end of the grace period. A process is asked by closing its standard input, which the
    system does, too, if this process is killed: see `stopping`.

    `threads`: CPU threads of each job; by default, jobs that run at the same time share the cores.
    """

    def __init__(self, jobs: int, threads: int | None = None, view: View | None = None) -> None:
        super().__init__(jobs)
        self.jobs = jobs
        self.threads = threads
        self.view = view or View()
        self.signal_number: int | None = None
        self.kill_at = math.inf
        self.former_handlers: dict[int, Any] = {}

    def __enter__(self) -> "JobPool":
        self.former_handlers = replace_handlers(self.handle_signal)
        self.view.start()
        return self

    def __exit__(self, *error: Any) -> None:
        if error[0] is not None and self.signal_number is None:
            self.stop(signal.SIGTERM)
        try:
            self.shutdown()
        finally:
            self.view.stop()
            restore_handlers(self.former_handlers)

    def handle_signal(self, number: int, _: FrameType | None) -> None:
        write_message(number, MESSAGE if self.signal_number is None else "")
        self.stop(number)

    def stop(self, signal_number: int) -> None:
        """Ask all processes to stop; kill them if they were asked before. Their threads see to it."""
        self.kill_at = time.monotonic() + (GRACE if self.signal_number is None else 0)
        self.signal_number = signal_number

    def pause(self) -> None:
        """Wait a moment; `Stopped` if a signal has come."""
        time.sleep(INTERVAL)
        self.raise_if_stopped()

    def raise_if_stopped(self) -> None:
        if self.signal_number is not None:
            raise Stopped(self.signal_number)

    def describe(self) -> str:
        """How many jobs run at a time."""
        return f"{self.jobs} at a time"

    def run_job(
        self, run: "Run", config: Path, arguments: Sequence[str], share: int, log: Path
    ) -> int:
        """The exit code of the job of a run. Its output is in `log`; `share`: how many share the device."""
        threads = self.threads
        if threads is None and share > 1:
            threads = max(1, (os.cpu_count() or 1) // share)
        with files.open_log(log) as file, self.view.show(run.title, log):
            return self.run(
                [*JOB, str(config), str(run.folder), *arguments],
                stdout=file,
                stderr=subprocess.STDOUT,
                env=None if threads is None else job_environment(threads),
            )

    def run(self, command: Sequence[str], **options: Any) -> int:
        """The exit code of a command; `Stopped` if a signal comes before it has ended."""
        self.raise_if_stopped()
        process = start_process(command, **options)
        while process.poll() is None:
            if self.signal_number is not None:
                ask_to_stop(process)
            if time.monotonic() >= self.kill_at:
                process.kill()
            time.sleep(INTERVAL)
        ask_to_stop(process)
        self.raise_if_stopped()
        return process.returncode


def job_environment(threads: int) -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": "false"}


def start_process(command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
    """A process in a session of its own, so that Ctrl-C in a terminal does not reach it."""
    return subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True, **options)


def ask_to_stop(process: subprocess.Popen[Any]) -> None:
    assert process.stdin is not None
    process.stdin.close()
