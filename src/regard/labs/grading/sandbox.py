"""Run a user's answer file in a worker process: start it, call its function, and always stop it."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NoReturn, Self

from regard.errors import UserError, join_names, suggest
from regard.labs.grading import sandbox_worker
from regard.labs.grading.sandbox_worker import decode, receive, send

STARTUP_SECONDS = 120.0  # for importing PyTorch
MAX_SHOWN = 2000  # bytes of what an answer printed
# Of the parent's environment, and set for the worker.
INHERITED = ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}


class SandboxError(UserError):
    """An answer file that cannot be loaded, or whose process has ended."""


class AnswerError(Exception):
    """An exception raised by the user's code, with its line."""

    def __init__(self, kind: str, message: str, line: int | None, source: str) -> None:
        self.kind, self.message, self.line = sanitize(kind), sanitize(message), line
        lines = source.splitlines()
        self.code = (
            sanitize(lines[line - 1].strip())[:80] if line and 0 < line <= len(lines) else ""
        )

    @property
    def location(self) -> str:
        """' in line 7 (`return keys[k]`)'"""
        return f" in line {self.line} (`{self.code}`)" if self.code else ""

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}" if self.message else self.kind


class Sandbox:
    """A worker process that holds a user's answer file, for the duration of the `with` block.

    The process has its own session, an empty working folder, a minimal environment and no standard input;
    it is killed together with its children. Its replies are parsed as data only.
    """

    def __init__(self, path: Path, source: str, seconds: float) -> None:
        self.path, self.source, self.seconds = path, source, seconds
        self.printed = ""

    def __enter__(self) -> Self:
        if os.name != "posix":
            raise SandboxError("answers can only be checked on Linux and macOS")
        self._folder = tempfile.TemporaryDirectory(prefix="regard-answer-")
        self._output = Path(self._folder.name) / "output"
        self._channel, worker_end = socket.socketpair()
        with self._output.open("wb") as output, worker_end:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-B", "-P", "-u", sandbox_worker.__file__),
                    *(str(worker_end.fileno()), str(self.seconds)),
                ],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=self._folder.name,
                env=self._environment(),
                pass_fds=[worker_end.fileno()],
                start_new_session=True,
            )
        self._deadline = time.monotonic() + STARTUP_SECONDS
        try:
            self._receive("importing PyTorch")
        except BaseException:
            self.__exit__()
            raise
        self._deadline = time.monotonic() + self.seconds
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._channel.close()
        self._read_output()
        self._folder.cleanup()

    def load(self, function: str) -> None:
        """Execute the file and look up the function."""
        request = {"file": str(self.path), "source": self.source, "function": function}
        match self._request(request, "loading the file"):
            case {"ready": True}:
                return
            case {"functions": list(names)}:
                known = [sanitize(str(name))[:80] for name in names]
                raise SandboxError(
                    f'{self.path} has no function "{function}".{suggest(function, known)} '
                    f"It has: {join_names(known) or 'none'}"
                )
            case reply:
                error = self._parse_error(reply)
        line = f", line {error.line}" if error.line else ""
        code = f"\n  {error.code}" if error.code else ""
        raise SandboxError(f"{self.path}{line}: {error}{code}")

    def call(self, arguments: Any, description: str) -> Any:
        """The function's result for these encoded arguments; AnswerError if it raises."""
        reply = self._request({"call": arguments}, f"calling {description}")
        if reply.keys() != {"answer"}:
            raise self._parse_error(reply)
        try:
            return decode(reply["answer"])
        except (ValueError, TypeError, RuntimeError, RecursionError):
            self._fail_on_forged_message()

    def _request(self, message: dict[str, Any], action: str) -> dict[str, Any]:
        try:
            self._channel.settimeout(max(1e-3, self._deadline - time.monotonic()))
            send(self._channel, message)
        except OSError:  # full or closed: receiving reports the reason
            pass
        return self._receive(action)

    def _receive(self, action: str) -> dict[str, Any]:
        try:
            return receive(self._channel, self._deadline)
        except TimeoutError:
            self._fail(
                f"exceeded the time limit of {self.seconds:g} s while {action}. "
                "Is there an infinite loop? --limit SECONDS sets a longer limit"
            )
        except (EOFError, OSError):
            self._fail(f"its process {self._exit_reason()} while {action}")
        except (ValueError, RecursionError):
            self._fail_on_forged_message()

    def _parse_error(self, reply: dict[str, Any]) -> AnswerError:
        match reply:
            case {"error": str(kind), "message": str(message), "line": int() | None as line}:
                return AnswerError(kind[:80], message[:500], line, self.source)
        return self._fail_on_forged_message()

    def _fail_on_forged_message(self) -> NoReturn:
        self._fail("it wrote to the checker's socket; a function must return its result instead")

    def _fail(self, reason: str) -> NoReturn:
        self._read_output()
        printed = f"\nIt printed:\n{self.printed}" if self.printed else ""
        raise SandboxError(f"{self.path}: {reason}{printed}")

    def _exit_reason(self) -> str:
        try:
            code = self._process.wait(0.5)
        except subprocess.TimeoutExpired:
            return "closed its socket to the checker"
        return (
            f"was killed by {signal.Signals(-code).name}"
            if code < 0
            else f"exited with code {code}"
        )

    def _read_output(self) -> None:
        """Read what the answer has printed so far."""
        with contextlib.suppress(OSError), self._output.open("rb") as output:
            data = output.read(MAX_SHOWN)
            more = os.fstat(output.fileno()).st_size - len(data)
            text = sanitize(data.decode("utf-8", errors="replace"))
            self.printed = f"{text}\n... and {more} more bytes" if more else text

    def _environment(self) -> dict[str, str]:
        inherited = {name: os.environ[name] for name in INHERITED if name in os.environ}
        home = self._folder.name
        path = os.pathsep.join(os.path.abspath(entry) for entry in sys.path if entry)
        return {**inherited, **ENVIRONMENT, "PYTHONPATH": path, "HOME": home, "MPLCONFIGDIR": home}


def sanitize(text: str) -> str:
    """Replace control characters, which could move the cursor or colour a terminal."""
    return "".join(
        character if character.isprintable() or character in "\n\t" else "\N{REPLACEMENT CHARACTER}"
        for character in text
    )
