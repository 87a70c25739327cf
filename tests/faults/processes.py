"""Commands in processes forked from one that has imported PyTorch: a tenth of a second each, not three.

The jobs of a comparison are forked, too, by a process that does nothing else (`JobServer`), so that they
inherit as little from the comparison as if they were started by `exec`.
"""

import array
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import regard.__main__
from regard.compare import processes
from tests.faults.trace import Tracer

TIMEOUT = 120.0  # seconds
JOB_MODULE = "regard.compare.job"


@dataclass(frozen=True)
class Ended:
    """How a command ended: its exit code, or minus a signal; what it printed."""

    code: int
    out: str
    err: str

    @property
    def is_clean(self) -> bool:
        """No traceback, no hang, no crash."""
        return "Traceback" not in self.out + self.err and self.code >= 0


def fork(work: Callable[[], object], out: int, err: int, stdin: int) -> int:
    """Do `work` in a new process, with these standard streams, and end it with its exit code."""
    pid = os.fork()
    if pid:
        return pid
    code = 99
    try:
        for number, handle in enumerate((stdin, out, err)):
            os.dup2(handle, number)
        sys.stdin, sys.stdout, sys.stderr = (
            open(number, mode, encoding="utf-8", closefd=False)  # noqa: SIM115
            for number, mode in enumerate("rww")
        )
        try:
            work()
            code = 0
        except SystemExit as end:
            if isinstance(end.code, str):
                sys.stderr.write(f"{end.code}\n")
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        except BaseException:
            traceback.print_exc()
            code = 1
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError):
                stream.flush()
    finally:
        os._exit(code)


def wait(pid: int, timeout: float = TIMEOUT) -> int:
    """The exit code of a process, or minus the signal that ended it."""
    deadline = time.monotonic() + timeout
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
            raise TimeoutError(f"process {pid} did not end in {timeout:g} seconds")
        time.sleep(0.002)


def run_command(
    words: Sequence[str], folder: Path, tracer: Tracer | None = None, before: Any = None
) -> Ended:
    """`regard WORDS` in a forked process; `before()` is called in it first."""

    def work() -> None:
        if tracer is not None:
            tracer.install()
        if before is not None:
            before()
        sys.argv = ["regard", *words]
        regard.__main__.main()

    out, err = folder / "out", folder / "err"
    # To fork a process as large as this one takes as long as a small command.
    server = JobServer(folder, tracer) if words[0] == "compare" else nullcontext()
    with out.open("wb") as out_file, err.open("wb") as err_file, server:
        with open(os.devnull, "rb") as nothing:
            pid = fork(work, out_file.fileno(), err_file.fileno(), nothing.fileno())
        code = wait(pid)
    return Ended(code, *(path.read_text("utf-8", errors="replace") for path in (out, err)))


# --- jobs of a comparison -------------------------------------------------------------------------


class JobServer:
    """A process that forks jobs; while it lives, comparisons forked from this one ask it for theirs."""

    def __init__(self, folder: Path, tracer: Tracer | None) -> None:
        self.path, self.tracer = folder / "jobs", tracer

    def __enter__(self) -> "JobServer":
        self.path.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(self.path))
        listener.listen()
        self.pid = fork(lambda: self.serve(listener), 1, 2, 0)
        listener.close()
        self.popen = processes.subprocess.Popen
        processes.subprocess.Popen = self.start  # type: ignore[misc,assignment]
        return self

    def __exit__(self, *_: object) -> None:
        processes.subprocess.Popen = self.popen  # type: ignore[misc]
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)

    def start(self, command: Sequence[str], **options: Any) -> Any:
        """In the place of `subprocess.Popen`."""
        if JOB_MODULE not in command:
            return self.popen(command, **options)
        return Job(self.path, command[command.index(JOB_MODULE) + 1 :], options["stdout"].fileno())

    def serve(self, listener: socket.socket) -> None:
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # supervisors need no wait
        while True:
            connection, _ = listener.accept()
            if os.fork() == 0:
                listener.close()
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                self.supervise(connection)
                os._exit(0)
            connection.close()

    def supervise(self, connection: socket.socket) -> None:
        """Fork one job, and tell its process id, then its exit code."""
        message, handles, _, _ = socket.recv_fds(connection, 1 << 16, 2)
        if not message:  # who asked has died
            return
        arguments = json.loads(message)

        def work() -> None:
            connection.close()
            os.setsid()
            if self.tracer is not None:
                self.tracer.process = Path(arguments[1]).name
                self.tracer.install()
            sys.argv = [JOB_MODULE, *arguments]
            runpy.run_module(JOB_MODULE, run_name="__main__")

        pid = fork(work, handles[1], handles[1], handles[0])
        for handle in handles:
            os.close(handle)
        with suppress(OSError):
            connection.sendall(array.array("i", [pid]).tobytes())
            connection.sendall(array.array("i", [wait(pid)]).tobytes())


class Job:
    """As much of `subprocess.Popen` as a comparison needs."""

    def __init__(self, server: Path, arguments: Sequence[str], out: int) -> None:
        self.connection = socket.socket(socket.AF_UNIX)
        self.connection.connect(str(server))
        reader, writer = os.pipe()
        socket.send_fds(self.connection, [json.dumps(arguments).encode()], [reader, out])
        os.close(reader)
        self.stdin, self.returncode = os.fdopen(writer, "wb"), None
        self.pid = array.array("i", self.connection.recv(4))[0]
        self.connection.setblocking(False)

    def poll(self) -> int | None:
        if self.returncode is None:
            with suppress(BlockingIOError):
                answer = self.connection.recv(4)
                self.returncode = array.array("i", answer)[0] if answer else -signal.SIGKILL
        return self.returncode

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)


def start_fresh(words: Sequence[str], **options: Any) -> subprocess.Popen:
    """`regard WORDS` in a new interpreter, which has everything to import."""
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    pipes |= {"stdin": subprocess.DEVNULL, "text": True, **options}
    return subprocess.Popen([sys.executable, "-m", "regard", *words], **pipes)
