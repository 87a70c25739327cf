"""The checker's side of a reader's process: start it, ask it, and end it whatever it does."""

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
from regard.labs import sandbox_worker
from regard.labs.sandbox_worker import decode, receive, send

WAKING = 120.0  # seconds that the import of PyTorch may take
SHOWN = 2000  # characters of what an answer printed
KEPT = ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")  # of the environment
ALONE = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}


class SandboxError(UserError):
    """A file that cannot be asked, or no longer."""


class AnswerError(Exception):
    """What the reader's own code raised, and in which line."""

    def __init__(self, kind: str, words: str, line: int | None, source: str) -> None:
        self.kind, self.words, self.line = sanitize(kind), sanitize(words), line
        lines = source.splitlines()
        self.code = (
            sanitize(lines[line - 1].strip())[:80] if line and 0 < line <= len(lines) else ""
        )

    @property
    def place(self) -> str:
        """' in line 7 (`return keys[k]`)'"""
        return f" in line {self.line} (`{self.code}`)" if self.code else ""

    def __str__(self) -> str:
        return f"{self.kind}: {self.words}" if self.words else self.kind


class Sandbox:
    """A reader's file in a process of its own, for as long as the `with` lasts.

    The process has its own session, an empty folder, a bare environment and no input; it is ended with all
    that it started. Nothing it sends is more than data.
    """

    def __init__(self, path: Path, source: str, seconds: float) -> None:
        self.path, self.source, self.seconds = path, source, seconds
        self.printed = ""

    def __enter__(self) -> Self:
        if os.name != "posix":
            raise SandboxError("answers can be checked on Linux and macOS only")
        self._folder = tempfile.TemporaryDirectory(prefix="regard-answer-")
        self._said = Path(self._folder.name) / "said"
        self._channel, theirs = socket.socketpair()
        with self._said.open("wb") as said, theirs:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-B", "-P", "-u", sandbox_worker.__file__),
                    *(str(theirs.fileno()), str(self.seconds)),
                ],
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                cwd=self._folder.name,
                env=self._environment(),
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        self._until = time.monotonic() + WAKING
        try:
            self._hear("PyTorch was imported")
        except BaseException:
            self.__exit__()
            raise
        self._until = time.monotonic() + self.seconds
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._channel.close()
        self._listen()
        self._folder.cleanup()

    def load(self, function: str) -> None:
        """Run the file, and see that it has the function."""
        doing = "the file was read"
        message = {"file": str(self.path), "source": self.source, "function": function}
        match self._say(message, doing):
            case {"ready": True}:
                return
            case {"functions": list(names)}:
                known = [sanitize(str(name))[:80] for name in names]
                raise SandboxError(
                    f'{self.path} has no function "{function}".{suggest(function, known)} '
                    f"It has: {join_names(known) or 'none'}"
                )
            case reply:
                raised = self._raised(reply)
        line = f", line {raised.line}" if raised.line else ""
        code = f"\n  {raised.code}" if raised.code else ""
        raise SandboxError(f"{self.path}{line}: {raised}{code}")

    def ask(self, arguments: Any, asked: str) -> Any:
        """What the function returns for these encoded arguments; AnswerError if it raises."""
        reply = self._say({"call": arguments}, f"it was asked for {asked}")
        if reply.keys() != {"answer"}:
            raise self._raised(reply)
        try:
            return decode(reply["answer"])
        except (ValueError, TypeError, RuntimeError, RecursionError):
            self._meddled()

    def _say(self, message: dict[str, Any], doing: str) -> dict[str, Any]:
        try:
            self._channel.settimeout(max(1e-3, self._until - time.monotonic()))
            send(self._channel, message)
        except OSError:  # full or closed: what there is to hear says why
            pass
        return self._hear(doing)

    def _hear(self, doing: str) -> dict[str, Any]:
        try:
            return receive(self._channel, self._until)
        except TimeoutError:
            self._end(
                f"time is up: more than {self.seconds:g} s had passed when {doing}. "
                "Is there a loop that does not end? --limit SECONDS gives it longer"
            )
        except (EOFError, OSError):
            self._end(f"its process {self._ending()} when {doing}")
        except (ValueError, RecursionError):
            self._meddled()

    def _raised(self, reply: dict[str, Any]) -> AnswerError:
        match reply:
            case {"error": str(kind), "words": str(words), "line": int() | None as line}:
                return AnswerError(kind[:80], words[:500], line, self.source)
        return self._meddled()

    def _meddled(self) -> NoReturn:
        self._end("it wrote to the checker's own channel; a function answers by what it returns")

    def _end(self, why: str) -> NoReturn:
        self._listen()
        printed = f"\nIt printed:\n{self.printed}" if self.printed else ""
        raise SandboxError(f"{self.path}: {why}{printed}")

    def _ending(self) -> str:
        try:
            code = self._process.wait(0.5)
        except subprocess.TimeoutExpired:
            return "closed its channel to the checker"
        return (
            f"was ended by {signal.Signals(-code).name}" if code < 0 else f"left with code {code}"
        )

    def _listen(self) -> None:
        """What the answer printed so far."""
        with contextlib.suppress(OSError), self._said.open("rb") as said:
            data = said.read(SHOWN)
            more = os.fstat(said.fileno()).st_size - len(data)
            text = sanitize(data.decode("utf-8", errors="replace"))
            self.printed = f"{text}\n... and {more} bytes more" if more else text

    def _environment(self) -> dict[str, str]:
        kept = {name: os.environ[name] for name in KEPT if name in os.environ}
        home = self._folder.name
        path = os.pathsep.join(os.path.abspath(entry) for entry in sys.path if entry)
        return {**kept, **ALONE, "PYTHONPATH": path, "HOME": home, "MPLCONFIGDIR": home}


def sanitize(text: str) -> str:
    """The text without characters that would move or colour a terminal."""
    return "".join(
        one if one.isprintable() or one in "\n\t" else "\N{REPLACEMENT CHARACTER}" for one in text
    )
