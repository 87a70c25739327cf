"""Jobs in separate processes, which stop when the comparison stops, however it stops."""

import math
import os
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from types import FrameType
from typing import Any

from regard.signals import Stopped, replace_handlers, restore_handlers, write_message

GRACE = 30.0  # seconds that a job has to save a checkpoint and stop
INTERVAL = 0.1  # seconds between two looks at a process
MESSAGE = "\nstopping: running jobs save a checkpoint; repeat to kill them\n"


class JobPool(ThreadPoolExecutor):
    """Threads that run jobs in processes, until a signal ends the comparison.

    The first signal asks the running processes to stop, and none is started after it; the second kills
    them, as does the end of the grace period. A process is asked by closing its standard input, which the
    system does, too, if this process is killed: see `stop_at_end_of_input`.
    """

    def __init__(self, max_workers: int) -> None:
        super().__init__(max_workers)
        self.signal_number: int | None = None
        self.kill_at = math.inf
        self.former_handlers: dict[int, Any] = {}

    def __enter__(self) -> "JobPool":
        self.former_handlers = replace_handlers(self.handle_signal)
        return self

    def __exit__(self, *error: Any) -> None:
        if error[0] is not None and self.signal_number is None:
            self.stop(signal.SIGTERM)
        try:
            self.shutdown()
        finally:
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

    def run(self, command: Sequence[str], **options: Any) -> int:
        """The exit code of a command; `Stopped` if a signal comes before it has ended."""
        self.raise_if_stopped()
        # In a session of its own, so that Ctrl-C in a terminal reaches this process only.
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, start_new_session=True, **options
        )
        assert process.stdin is not None
        while process.poll() is None:
            if self.signal_number is not None:
                process.stdin.close()
            if time.monotonic() >= self.kill_at:
                process.kill()
            time.sleep(INTERVAL)
        process.stdin.close()
        self.raise_if_stopped()
        return process.returncode


def stop_at_end_of_input() -> None:
    """In a job: SIGTERM once standard input is closed, so that it saves a checkpoint; later, end it."""

    def wait_for_end() -> None:
        while os.read(0, 1):  # not sys.stdin, whose lock would block the end of the interpreter
            pass
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(GRACE)
        os._exit(1)

    threading.Thread(target=wait_for_end, daemon=True).start()
