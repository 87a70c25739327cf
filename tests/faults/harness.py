"""Crash points and failed writes: each in a copy of the same folder, then the same command again."""

import errno
import os
import re
import shutil
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from regard import files
from regard.text.hub import RUN_FILES
from tests import hub_server
from tests.faults.commands import COMMANDS, OLD, STARTS, Command, read_results, write_data
from tests.faults.processes import Ended, fork, run_command
from tests.faults.trace import Fault, Operation, Tracer, read_operations

ERRORS = (errno.ENOSPC, errno.EIO)
SENTENCE = re.compile(r"\S+ cannot be (?:written|deleted): (?:No space left|Input/output error)")


@dataclass
class Row:
    """What was tried with one command, and what went wrong."""

    command: str
    crashes: int = 0
    failures: int = 0
    problems: dict[str, list[str]] = field(default_factory=lambda: {"crash": [], "failure": []})

    def cells(self) -> list[str]:
        equal = self.crashes - len(self.problems["crash"])
        clean = self.failures - len(self.problems["failure"])
        return [self.command, *map(str, (self.crashes, equal, self.failures, clean))]


class Harness:
    """Runs commands in `root`/work, always the same path, as results may contain it."""

    def __init__(self, root: Path) -> None:
        self.root, self.work, self.log = root, root / "work", root / "operations"
        os.environ |= {"REGARD_CACHE": str(self.work / "cache"), "REGARD_DATA": str(root / "none")}
        self.starts: dict[str, Path] = {}
        self.server: int | None = None
        self.recorded: dict[str, tuple[list[Operation], dict[str, Any]]] = {}

    def run(
        self, command: str | Sequence[str], fault: Fault | None = None, **options: Any
    ) -> Ended:
        """A command in the work folder, traced."""
        words = command.split() if isinstance(command, str) else command
        read_only = options.pop("read_only", None)
        self.log.unlink(missing_ok=True)
        tracer = Tracer(self.work, self.log, fault, read_only)
        try:
            os.chdir(self.work)
            return run_command(words, self.root, tracer, **options)
        finally:
            os.close(tracer.log)

    def prepare(self, start: str, keeps: Sequence[str] = ()) -> None:
        """Fill the work folder; `keeps`: older files of the user."""
        if start not in self.starts:
            self.starts[start] = self.make_start(start)
            if start == "hub":
                self.serve_run()
        self.clear()
        shutil.copytree(self.starts[start], self.work, dirs_exist_ok=True)
        for name in keeps:
            (self.work / name).write_text(OLD)

    def clear(self) -> None:
        # Not the folder itself: this process is in it.
        self.work.mkdir(exist_ok=True)
        for path in self.work.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    def make_start(self, start: str) -> Path:
        self.clear()
        write_data(self.work)
        if STARTS[start]:
            fault = None
            if start == "interrupted":  # before the second validation is logged
                fault = Fault(Operation("main", "open", "run/metrics.jsonl", 3))
            ended = self.run(STARTS[start], fault)
            assert (ended.code == 0) == (fault is None), ended
        if start == "cached":
            shutil.rmtree(self.work / "other")
        return Path(shutil.copytree(self.work, self.root / "starts" / start))

    def serve_run(self) -> None:
        """Serve a finished run as the Hugging Face hub does, in another process: threads cannot be forked."""
        self.prepare("finished")
        paths = [self.work / "run" / name for name in RUN_FILES]
        content = {path.name: path.read_bytes() for path in paths if path.is_file()}
        reader, writer = os.pipe()

        def work() -> None:
            with hub_server.serve() as hub:
                hub.files, hub.large = {"models/me/run": content}, {"model.safetensors"}
                print(hub.url, flush=True)  # noqa: T201
                signal.pause()

        self.server = fork(work, writer, 2, 0)
        os.close(writer)
        with open(reader, encoding="utf-8") as answer:
            os.environ |= {"HF_ENDPOINT": answer.readline().strip(), "no_proxy": "*"}

    def close(self) -> None:
        """Leave the folder, and end the server."""
        os.chdir(self.root)
        if self.server is not None:
            os.kill(self.server, signal.SIGKILL)
            os.waitpid(self.server, 0)

    def record(self, name: str) -> tuple[list[Operation], dict[str, Any]]:
        """The operations of an undisturbed command, and its results."""
        if name not in self.recorded:
            self.recorded[name] = self.record_now(COMMANDS[name])
        return self.recorded[name]

    def record_now(self, command: Command) -> tuple[list[Operation], dict[str, Any]]:
        self.prepare(command.start, command.keeps)
        ended = self.run(command.words)
        assert ended.code == 0, ended
        return read_operations(self.log), self.results()

    def results(self) -> dict[str, Any]:
        return read_results(self.work)

    def check(self, name: str, select: Any) -> Row:
        """Try `select(operations)`, pairs of an operation and an error number or None (crash)."""
        command, row = COMMANDS[name], Row(name)
        operations, expected = self.record(name)
        for operation, error in select(operations):
            kind = "crash" if error is None else "failure"
            row.crashes, row.failures = row.crashes + (not error), row.failures + bool(error)
            problem = "; ".join(self.try_fault(command, Fault(operation, error), expected))
            if problem:
                what = "dies before" if error is None else errno.errorcode[error]
                row.problems[kind].append(f"{name}: {what} {operation}: {problem}")
        return row

    def try_fault(self, command: Command, fault: Fault, expected: dict[str, Any]) -> Iterator[str]:
        """What is wrong with a command that meets a fault, and with the same command after it."""
        self.prepare(command.start, command.keeps)
        ended = self.run(command.words, fault)
        if fault.operation not in read_operations(self.log):
            # Bytes from the network may arrive in fewer pieces.
            if command.start != "hub" or fault.operation.kind != "write":
                yield "was not reached"
        elif fault.error is not None:
            yield from check_failure(command, ended)
        elif fault.operation.process == "main" and ended.code != -9:
            yield f"did not die: {ended}"
        for name in command.keeps:
            content = (self.work / name).read_bytes()
            if content not in (OLD.encode(), expected[name]):
                yield f"{name} is damaged"
        again = self.run(command.again or command.words)
        is_refused = command.once and again.code == 2 and "exists" in again.err
        if not is_refused and (again.code or not again.is_clean):
            yield f"again: exit code {again.code}: {again.err[-1000:]}"
        yield from compare_results(expected, self.results(), is_refused)


def check_failure(command: Command, ended: Ended) -> Iterator[str]:
    """A failed write ends with a sentence that names the file, unless it does not matter."""
    if not ended.is_clean:
        yield f"exit code {ended.code}: {(ended.out + ended.err)[-2000:]}"
    elif ended.code not in (0, 1, 2) or (ended.code == 1 and not command.partial_failure):
        yield f"exit code {ended.code}: {ended.err[-500:]}"
    elif ended.code and not SENTENCE.search(ended.out + ended.err):
        yield f"no sentence: {ended.out[-300:]} {ended.err[-300:]}"
    elif ended.err.count("regard: ") > 1:
        yield f"more than one sentence: {ended.err[-500:]}"


def compare_results(
    expected: dict[str, Any], results: dict[str, Any], is_refused: bool
) -> Iterator[str]:
    """The names of files that are missing, left over or different. Nothing is lost without a cache."""
    missing, extra = expected.keys() - results.keys(), results.keys() - expected.keys()
    missing = {name for name in missing if not name.startswith(f"cache{os.sep}")}
    if is_refused:  # the first command was complete, but for the end of its temporary folder
        extra = {name for name in extra if f"/{files.TEMPORARY_PREFIX}" not in f"/{name}"}
    different = {
        name for name in expected.keys() & results.keys() if expected[name] != results[name]
    }
    for label, names in {"missing": missing, "left over": extra, "different": different}.items():
        if names:
            yield f"{label}: {', '.join(sorted(names))}"
