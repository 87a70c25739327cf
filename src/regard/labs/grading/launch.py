"""Start the processes that run answers: `worker/` is their side, this the checker's."""

import atexit
import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO, Any

import numpy
import torch

from regard.errors import UserError
from regard.labs.grading.worker.wire import receive, send

STARTUP_SECONDS = 120.0  # for importing PyTorch
STOP_SECONDS = 5.0
# Of our environment, and set for the worker, to import PyTorch. An answer's own environment is empty.
INHERITED = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
OPTIONS = ("-I", "-S", "-B", "-u", "-X", "utf8")  # no site, no .pth files, no current folder
BOOT = "import sys; sys.path += sys.argv[2:]; from worker.main import main; main(int(sys.argv[1]))"
# PyTorch on macOS cannot be relied on after a fork: there, a worker becomes the process of one answer.
FORKS = sys.platform == "linux"


class SandboxError(UserError):
    """An answer file that cannot be loaded, or whose process has ended."""


class Worker:
    """A Python with PyTorch and without regard, which forks a process for each answer."""

    def __init__(self, forks: bool = FORKS) -> None:
        if os.name != "posix":
            raise SandboxError("answers can only be checked on Linux and macOS")
        self._forks = forks
        self._control, theirs = socket.socketpair()
        path = [*package_folders(), str(Path(__file__).parent)]
        with tempfile.TemporaryFile() as output:
            with theirs:
                self.process = subprocess.Popen(
                    [sys.executable, *OPTIONS, "-c", BOOT, str(theirs.fileno()), *path],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    cwd="/",
                    env={name: os.environ[name] for name in INHERITED if name in os.environ}
                    | ENVIRONMENT,
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,
                )
            try:
                receive(self._control, time.monotonic() + STARTUP_SECONDS)
            except BaseException as error:
                self.close()
                if not isinstance(error, OSError | EOFError):
                    raise
                printed = os.pread(output.fileno(), 2000, 0).decode("utf-8", errors="replace")
                raise SandboxError(
                    f"Python with PyTorch could not be started to run the answer:\n{printed}"
                ) from None

    def start(self, channel: socket.socket, output: IO[bytes], request: dict[str, Any]) -> None:
        """Start the process of one answer, with a socket and a file for what it prints."""
        socket.send_fds(self._control, [b"."], [channel.fileno(), output.fileno()])
        send(self._control, request | {"fork": self._forks})

    def stop(self, grace: float) -> int | None:
        """Stop the answer's process: its exit code if it ends within `grace` seconds, else None."""
        try:
            if self._forks:
                send(self._control, {"grace": grace})
                return receive(self._control, time.monotonic() + grace + STOP_SECONDS)["code"]
            return self.process.wait(grace)
        except subprocess.TimeoutExpired:
            return None
        except (OSError, EOFError):
            self.close()
            return None
        finally:
            if not self._forks:
                self.close()

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def close(self) -> None:
        """Kill the worker's process; that of an answer ends with it."""
        self._control.close()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


_idle: dict[
    int, list[Worker]
] = {}  # by the id of this process: a fork of it has workers of its own


def take_worker() -> Worker:
    """An idle worker, or a new one."""
    idle = _idle.get(os.getpid(), [])
    while idle:
        worker = idle.pop()
        if worker.alive:
            return worker
        worker.close()
    return Worker()


def give_back(worker: Worker) -> None:
    """Keep a worker for the next answer."""
    if worker.alive:
        _idle.setdefault(os.getpid(), []).append(worker)


@atexit.register
def close_workers() -> None:
    for worker in _idle.pop(os.getpid(), []):
        worker.close()


def package_folders() -> list[str]:
    """Where Python finds packages: not the current folder, nor a source tree on the path."""
    installed = [
        entry for entry in sys.path if Path(entry).name in ("site-packages", "dist-packages")
    ]
    imported = [
        str(Path(module.__file__).parents[1]) for module in (torch, numpy) if module.__file__
    ]
    return [os.path.abspath(entry) for entry in dict.fromkeys([*installed, *imported])]
