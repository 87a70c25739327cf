"""Run a user's answer file in a worker process: start it, call its function, and always stop it."""

import contextlib
import os
import signal
import socket
import tempfile
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any, NoReturn, Self

from regard.errors import join_names, suggest
from regard.labs.grading.launch import SandboxError, Worker, give_back, take_worker
from regard.labs.grading.worker.confine import PROTECTIONS
from regard.labs.grading.worker.wire import decode, receive, send

CONFINE_SECONDS = 20.0  # for setting the protections
EXIT_SECONDS = 0.5  # between the end of an answer's socket and that of its process
MAX_SHOWN = 2000  # bytes of what an answer printed


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
    """A process that holds a user's answer file, for the duration of the `with` block.

    It has an empty environment, no standard input, and the protections of this system (`worker.confine`);
    it is always killed. Its replies are parsed as data only.
    """

    def __init__(
        self, path: Path, source: str, seconds: float, requested: Collection[str] = PROTECTIONS
    ) -> None:
        self.path, self.source, self.seconds, self.requested = path, source, seconds, requested
        self.protections: dict[str, str] = {}  # those that were set, with details
        self.printed = ""

    def __enter__(self) -> Self:
        self._worker: Worker | None = take_worker()
        self._output = tempfile.TemporaryFile()
        self._channel, theirs = socket.socketpair()
        self._deadline = time.monotonic() + CONFINE_SECONDS
        limits = {"seconds": self.seconds, "protections": list(self.requested)}
        try:
            with theirs, contextlib.suppress(OSError):  # receiving reports the reason
                self._worker.start(theirs, self._output, limits)
            self.protections = self._receive("starting")["protections"]
        except BaseException:
            self.__exit__()
            raise
        self._deadline = time.monotonic() + self.seconds
        return self

    def __exit__(self, *_: object) -> None:
        self._stop(0.0)
        self._channel.close()
        self._read_output()
        self._output.close()

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
        match self._stop(EXIT_SECONDS):
            case None:
                return "closed its socket to the checker"
            case code if code < 0:
                return f"was killed by {signal.Signals(-code).name}"
            case code:
                return f"exited with code {code}"

    def _stop(self, grace: float) -> int | None:
        """Stop the process and keep its worker for the next answer."""
        worker, self._worker = self._worker, None
        if worker is None:
            return None
        code = worker.stop(grace)
        give_back(worker)
        return code

    def _read_output(self) -> None:
        """Read what the answer has printed so far."""
        data = os.pread(self._output.fileno(), MAX_SHOWN, 0)
        more = os.fstat(self._output.fileno()).st_size - len(data)
        text = sanitize(data.decode("utf-8", errors="replace"))
        self.printed = f"{text}\n... and {more} more bytes" if more else text


def sanitize(text: str) -> str:
    """Replace control characters, which could move the cursor or colour a terminal."""
    return "".join(
        character if character.isprintable() or character in "\n\t" else "\N{REPLACEMENT CHARACTER}"
        for character in text
    )
