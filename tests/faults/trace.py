"""Sees every file operation of this process below a folder; lets the process die before one, or one fail.

Python's audit events report what opens, renames, deletes and creates files. Written bytes and `fsync` have no
event: `open` and `os.fsync` are replaced. An operation is known by what it does to which path, and how often
that happened before, so threads may come in any order. C code that writes by itself is seen as it opens.
"""

import builtins
import errno
import io
import os
import re
import signal
import sys
import threading
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
# Events whose first argument is the path, and where the argument `dir_fd` is.
EVENTS = {
    "os.remove": 1,
    "os.rmdir": 1,
    "os.mkdir": 2,
    "os.rename": 2,
    "os.truncate": None,
    "os.utime": 3,
    "os.symlink": None,
    "os.link": None,
}
RANDOM = re.compile(r"(?<=-)[0-9a-f]{16}(?=[./]|$)")  # in the names of temporary files
MAIN = "main"  # the process of the command; a job of a comparison has the name of its run


@dataclass(frozen=True)
class Operation:
    """The `number`-th time, from 1, that a process does `kind` to `path`."""

    process: str
    kind: str
    path: str
    number: int

    def __str__(self) -> str:
        return f"{self.kind} {self.path} ({self.process}, {self.number})"


@dataclass(frozen=True)
class Fault:
    """`operation` fails with the error number, or the process dies before it; half of a write is done."""

    operation: Operation
    error: int | None = None


class Tracer:
    """Writes the operations below `root` to a file; injects a fault; refuses writes below `read_only`."""

    def __init__(
        self, root: Path, log: Path, fault: Fault | None = None, read_only: Path | None = None
    ) -> None:
        self.root, self.fault, self.read_only = f"{root}{os.sep}", fault, read_only
        self.log = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self.process, self.done = MAIN, Counter()
        self.mutex = threading.RLock()

    def install(self) -> None:
        """From now on, for the rest of this process and of those forked from it."""
        sys.addaudithook(self.audit)
        self.open, self.fsync = io.open, os.fsync
        builtins.open = io.open = self.traced_open  # type: ignore[assignment]
        os.fsync = self.traced_fsync

    def audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = arguments
            if isinstance(flags, int) and flags & WRITING:
                self.observe("open", path)
        elif event in EVENTS:
            place = EVENTS[event]
            folder = arguments[place] if place is not None and len(arguments) > place else -1
            self.observe(event.removeprefix("os."), arguments[0], folder)

    def observe(self, kind: str, path: Any, folder: int = -1) -> None:
        """Note an operation, and let it fail or die if it is to."""
        fault = self.note(kind, path, folder)
        if fault is not None:
            self.inject(fault, path)

    def note(self, kind: str, path: Any, folder: int = -1) -> Fault | None:
        """Note an operation; return the fault if it is to fail."""
        name = self.locate(path, folder)
        if not f"{name}{os.sep}".startswith(self.root):
            return None
        relative = RANDOM.sub("*", name.removeprefix(self.root))
        with self.mutex:
            self.done[kind, relative] += 1
            operation = Operation(self.process, kind, relative, self.done[kind, relative])
        line = "\t".join([operation.process, kind, relative, str(operation.number)])
        os.write(self.log, f"{line}\n".encode())
        if self.read_only is not None and Path(name).is_relative_to(self.read_only):
            return Fault(operation, errno.EROFS)
        return self.fault if self.fault and self.fault.operation == operation else None

    def locate(self, path: Any, folder: int = -1) -> str:
        if isinstance(path, int):
            return os.readlink(f"/proc/self/fd/{path}")
        name = os.fsdecode(path)
        if isinstance(folder, int) and folder >= 0:
            name = os.path.join(os.readlink(f"/proc/self/fd/{folder}"), name)
        return os.path.abspath(name)

    def inject(self, fault: Fault, path: Any) -> None:
        if fault.error is None:
            os.kill(os.getpid(), signal.SIGKILL)
        assert fault.error is not None
        name = os.fsdecode(path) if not isinstance(path, int) else None
        raise OSError(fault.error, os.strerror(fault.error), name)

    def traced_fsync(self, file: Any) -> None:
        self.observe("fsync", file if isinstance(file, int) else file.fileno())
        self.fsync(file)

    def traced_open(
        self,
        file: Any,
        mode: str = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
        closefd: bool = True,
        opener: Any = None,
    ) -> Any:
        """`open`, whose files tell when bytes reach the system."""
        is_path = isinstance(file, str | bytes | os.PathLike)
        if not (is_path and set(mode) & set("wax+")):
            return self.open(file, mode, buffering, encoding, errors, newline, closefd, opener)
        raw = TracedFile(self, file, mode.replace("b", "").replace("t", ""), closefd, opener)
        if buffering == 0:
            return raw
        buffered = (io.BufferedRandom if "+" in mode else io.BufferedWriter)(raw)
        if "b" in mode:
            return buffered
        text = io.TextIOWrapper(buffered, encoding, errors, newline, line_buffering=buffering == 1)
        text.mode = mode  # type: ignore[misc]
        return text


class TracedFile(io.FileIO):
    """A file whose writes are noted."""

    def __init__(self, tracer: Tracer, *arguments: Any) -> None:
        self.tracer = tracer
        super().__init__(*arguments)

    def write(self, data: Any) -> int:
        fault = self.tracer.note("write", self.fileno())
        if fault is not None:
            super().write(bytes(data)[: len(data) // 2])
            self.tracer.inject(fault, self.name)
        return super().write(data)

    def truncate(self, size: int | None = None) -> int:
        self.tracer.observe("truncate", self.fileno())
        return super().truncate(size)


def read_operations(log: Path) -> list[Operation]:
    """What a process noted, in order."""
    rows = [line.split("\t") for line in log.read_text("utf-8").splitlines()]
    return [Operation(process, kind, path, int(number)) for process, kind, path, number in rows]
