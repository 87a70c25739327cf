"""Run cases, each a (kind, seed): mutate a file, read it as the commands do, and judge what came of it.

Cases run in a forked child of this process, which has imported everything; so a case takes milliseconds. The
child has little memory and time: a size of 10**18 shows as an error, and a hang or a crash ends only it.
"""

import contextlib
import io
import json
import os
import re
import resource
import select
import shutil
import signal
import tempfile
import traceback
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

from regard.compare import report
from regard.errors import RegardWarning, UserError
from regard.training import run
from tests.fuzz.kinds import KINDS, Kind
from tests.fuzz.mutations import mutate
from tests.fuzz.samples import SAMPLES

HANG_SECONDS = 20
MEMORY = 3 * 2**30  # bytes beyond what this process has already
FILE_SIZE = 2**28
LONGEST_MESSAGE = 4000  # characters
# What is as good as a file's name: a setting, or the only model that is loaded.
NAMED = re.compile(
    r"(data|tokenizer|model|training|search)\.\w+: |.*training\.\w+|.*(this|the) model"
)

FIGURES = ((run, "draw_examples"), (report, "draw_curves"), (report, "draw_quality"))

OUTCOMES = {
    "clean": "one error that names what is wrong (exit code 2)",
    "same": "the result of the file as it was",
    "noticed": "another result, with a warning",
    "edited": "another result of a file that anyone may edit, or that has no checksum",
    "traceback": "an exception that is not a UserError, or an error that names no file or has no end",
    "hang": f"more than {HANG_SECONDS} seconds",
    "crash": "the process ended by a signal",
    "silent": "another result without a warning",
}
DEFECTS = ("traceback", "hang", "crash", "silent")


@dataclass(frozen=True)
class Outcome:
    """What became of a case."""

    kind: str
    seed: int
    name: str
    detail: str = ""

    @property
    def is_defect(self) -> bool:
        return self.name in DEFECTS


class Workshop:
    """The samples, made once, and the results of reading them unchanged."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.expected: dict[str, Any] = {}
        self.given: bytes | None = None
        """Instead of a mutation: a file that was saved."""

    def sample(self, name: str) -> Path:
        """The folder of a sample."""
        path = self.folder / "samples" / name / "files"
        if not path.is_dir():
            path.mkdir(parents=True)
            with own_environment(path.parent), quiet():
                SAMPLES[name](path)
        return path

    def prepare(self, name: str) -> None:
        """Read the file of a kind as it is, twice: a reader whose results differ could not be judged."""
        if name in self.expected:
            return
        kind, results = KINDS[name], []
        sample = self.sample(kind.sample)
        assert list(sample.glob(kind.file)), f"{name}: the sample has no file {kind.file}"
        for _ in range(2):
            with self.copy(sample) as folder, quiet():
                results.append(kind.read(folder))
        assert results[0] == results[1], f"{name}: two results of the same file differ"
        self.expected[name] = results[0]

    @contextlib.contextmanager
    def copy(self, sample: Path) -> Iterator[Path]:
        """A copy of a sample, always at the same path, which error messages and settings contain."""
        work = self.folder / "work" / str(os.getpid())
        shutil.copytree(sample, work)
        try:
            with own_environment(work):
                yield work
        finally:
            shutil.rmtree(work, ignore_errors=True)

    def mutated(self, name: str, seed: int) -> tuple[Path, bytes]:
        """(the file's path in the sample, its bytes after the mutation of a case)"""
        kind = KINDS[name]
        sample = self.sample(kind.sample)
        path = min(sample.glob(kind.file))
        content = self.given or mutate(path.read_bytes(), kind.form, Random(f"{name} {seed}"))
        return path.relative_to(sample), content

    def judge(self, name: str, seed: int) -> Outcome:
        """Run a case in this process."""
        kind = KINDS[name]
        path, content = self.mutated(name, seed)
        with self.copy(self.sample(kind.sample)) as folder:
            (folder / path).write_bytes(content)
            return Outcome(name, seed, *read(kind, folder, self.expected[name]))


@contextlib.contextmanager
def own_environment(folder: Path) -> Iterator[None]:
    """A cache of its own, and no figures, which other tests draw; they would take most of the time."""
    with contextlib.ExitStack() as stack:
        cache = {"REGARD_CACHE": str(folder / "cache")}
        stack.enter_context(mock.patch.dict(os.environ, cache))
        for module, name in FIGURES:
            stack.enter_context(mock.patch.object(module, name))
        yield


@contextlib.contextmanager
def quiet() -> Iterator[list[str]]:
    """Catch what is printed; yields a list of the warnings so far."""
    notices: list[str] = []

    def show(message: Warning | str, category: type[Warning], *_: Any) -> None:
        if issubclass(category, RegardWarning):
            notices.append(str(message))

    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("always")
        warnings.showwarning = show
        with contextlib.redirect_stderr(io.StringIO()):
            yield notices


def read(kind: Kind, folder: Path, expected: Any) -> tuple[str, str]:
    """(name of the outcome, detail) of reading a folder with a mutated file."""
    with quiet() as notices:
        try:
            result = kind.read(folder)
        except UserError as error:
            return judge_message(str(error), folder)
        except BaseException:  # also a panic of Rust's, which is no Exception
            return "traceback", traceback.format_exc()
    if result == expected:
        return "same", ""
    if notices:
        return "noticed", notices[0]
    return (
        "silent" if kind.is_checked else "edited",
        f"{result!r:.300}\n   instead of\n{expected!r:.300}",
    )


def judge_message(message: str, folder: Path) -> tuple[str, str]:
    """An error is clean if it names the file, its folder or a setting, and can be read."""
    if str(folder) not in message and not NAMED.match(message):
        return "traceback", f"no file is named in: {message}"
    if len(message) > LONGEST_MESSAGE:
        return "traceback", f"a message of {len(message):,} characters: {message:.200}"
    return "clean", message


def run_cases(workshop: Workshop, name: str, seeds: Sequence[int]) -> Iterator[Outcome]:
    """The outcome of each case, in forked children: a new one after a hang or a crash."""
    workshop.prepare(name)
    done = 0
    while done < len(seeds):
        for outcome in run_in_child(workshop, name, seeds[done:]):
            yield outcome
            done += 1


def run_in_child(workshop: Workshop, name: str, seeds: Sequence[int]) -> Iterator[Outcome]:
    """Outcomes until the last seed, or until a case hangs or crashes, which is then the last outcome."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        run_child(workshop, name, seeds, reader, writer)
    os.close(writer)
    done, hung = 0, False
    with os.fdopen(reader, "rb") as lines:
        while done < len(seeds):
            ready, _, _ = select.select([lines], [], [], HANG_SECONDS)
            if not ready:
                hung = True
                os.kill(pid, signal.SIGKILL)
            line = lines.readline()
            if not line:
                break
            yield Outcome(**json.loads(line))
            done += 1
    _, status = os.waitpid(pid, 0)
    shutil.rmtree(workshop.folder / "work" / str(pid), ignore_errors=True)
    if done < len(seeds):
        signal_name = signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else "exit"
        yield Outcome(name, seeds[done], "hang" if hung else "crash", signal_name)


def run_child(
    workshop: Workshop, name: str, seeds: Sequence[int], reader: int, writer: int
) -> None:
    """Write one line of JSON per case, then end without the parent's clean-up."""
    try:
        os.close(reader)
        limit_resources()
        for seed in seeds:
            line = json.dumps(workshop.judge(name, seed).__dict__) + "\n"
            os.write(writer, line.encode())
    finally:
        os._exit(0)


def limit_resources() -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_SIZE, FILE_SIZE))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


@contextlib.contextmanager
def open_workshop() -> Iterator[Workshop]:
    """In a folder whose path is usually the same: settings contain it, and a seed repeats a case."""
    folder = Path(tempfile.gettempdir()) / "regard-fuzz"
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:  # in use, or left by a process that was killed
        folder = Path(tempfile.mkdtemp(prefix="regard-fuzz-"))
    try:
        yield Workshop(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
