"""Folders that cannot be written, little memory, few open files, short files, signals at any moment.

Each ends with success or one sentence, and then the same command completes with the same results.
"""

import os
import resource
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from tests.faults.commands import COMMANDS, TEXT
from tests.faults.harness import Harness, compare_results
from tests.faults.processes import TIMEOUT, Ended, start_fresh

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
READING = (
    "train --resume run --device cpu",
    "info run",
    "runs run",
    f"translate run {TEXT} --device cpu",
    "evaluate run --device cpu",
    f"diagram run --out a.png --device cpu {TEXT}",
    "export run --to hub --out hub --no-bleu",
)
MIB = 2**20
CRASHES = (-signal.SIGSEGV, -signal.SIGABRT, -signal.SIGBUS)
Check = Callable[[], Iterator[str]]


def check_environment(harness: Harness, short: bool) -> tuple[int, list[str]]:
    """How many checks there were, and what they found."""
    checks = {
        **read_only_checks(harness, short),
        **limit_checks(harness, short),
        **signal_checks(harness, short),
        **({} if short else comparison_checks(harness) | server_checks(harness)),
    }
    found = {name: "; ".join(check()) for name, check in checks.items()}
    return len(checks), [f"{name}: {problem}" for name, problem in found.items() if problem]


def check_end(ended: Ended, codes: Sequence[int], *words: str) -> Iterator[str]:
    """Success, or one sentence with these words."""
    if not ended.is_clean or ended.code not in codes:
        yield f"exit code {ended.code}: {(ended.out + ended.err)[-1500:]}"
    elif ended.code and len(ended.err.strip().splitlines()) != 1:
        yield f"not one sentence: {ended.err[-1500:]}"
    for word in words:
        if word not in ended.out + ended.err:
            yield f'no "{word}": {ended.out[-500:]} {ended.err[-500:]}'


# --- folders that cannot be written ---------------------------------------------------------------


def read_only_checks(harness: Harness, short: bool) -> dict[str, Check]:
    def read(command: str, keep_last: bool = False) -> Iterator[str]:
        harness.prepare("kept" if keep_last else "finished")
        ended = harness.run(command, read_only=harness.work / "run")
        yield from check_end(ended, [0], *(["is finished"] if "--resume" in command else []))

    def write(command: str) -> Iterator[str]:
        harness.prepare("data")
        ended = harness.run(command, read_only=harness.work)
        yield from check_end(ended, [2], "cannot be written: Read-only file system")

    reading = {f"{command}, read-only run": partial(read, command) for command in READING}
    kept = {f"{READING[0]}, read-only, with its checkpoint": partial(read, READING[0], True)}
    names = ("train", "compare --jobs 2", "lab --worksheet")
    writing = {f"{name}, read-only": partial(write, COMMANDS[name].words) for name in names}
    return dict(list(reading.items())[:1]) | kept if short else reading | kept | writing


# --- limits of the system -------------------------------------------------------------------------


def used_memory() -> int:
    """Bytes of address space of this process."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def limit_checks(harness: Harness, short: bool) -> dict[str, Check]:
    """Limits in a process that has imported everything, and in one that has not."""
    command = COMMANDS["train"]

    def train(kind: int, limit: int) -> Iterator[str]:
        _, expected = harness.record("train")
        harness.prepare(command.start)
        ended = harness.run(command.words, before=lambda: resource.setrlimit(kind, (limit, limit)))
        # Where PyTorch's own libraries crash without memory, all that is left is to lose nothing.
        if kind != resource.RLIMIT_AS or ended.code not in CRASHES:
            yield from check_end(ended, [0, 2])
        again = harness.run(command.again)
        yield from check_end(again, [0])
        yield from compare_results(expected, harness.results(), False)

    def start(kind: int, limit: int) -> Iterator[str]:
        harness.prepare("finished")
        process = start_fresh(
            f"translate run {TEXT} --device cpu".split(),
            preexec_fn=lambda: resource.setrlimit(kind, (limit, limit)),
        )
        yield from check_end(finish(process), [0, 2])

    size, used = resource.RLIMIT_FSIZE, used_memory()
    memory, handles = resource.RLIMIT_AS, resource.RLIMIT_NOFILE
    warm = {
        **{f"files of {n} bytes at most": partial(train, size, n) for n in (100, 4096, 20_000)},
        **{f"{n} open files at most": partial(train, handles, n) for n in (4, 6, 8, 10, 14, 20)},
        **{f"{n} MiB more memory": partial(train, memory, used + n * MIB) for n in (4, 8, 24, 128)},
    }
    cold = {
        **{f"{n} open files from the start": partial(start, handles, n) for n in (5, 8, 12, 24)},
        **{
            f"{n} MiB from the start": partial(start, memory, n * MIB)
            for n in (200, 400, 1000, 2000)
        },
    }
    return dict(list(warm.items())[1:5:3]) if short else warm | cold


# --- signals --------------------------------------------------------------------------------------


def finish(process: subprocess.Popen, timeout: float = TIMEOUT) -> Ended:
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        return Ended(-signal.SIGKILL, out, f"hangs: {err}")
    return Ended(process.returncode, out, err)


def wait_for_handlers(process: subprocess.Popen) -> None:
    """Until Regard's first lines have run: before them, Python itself answers a signal."""
    mask, deadline = 1 << (signal.SIGTERM - 1), time.monotonic() + TIMEOUT
    while time.monotonic() < deadline and process.poll() is None:
        lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
        fields = dict(line.split(":", 1) for line in lines)
        if int(fields.get("SigCgt", "0").strip(), 16) & mask:
            return
        time.sleep(0.005)


def find_orphans(folder: Path) -> list[str]:
    """The processes, besides this one, that are in a folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            try:
                if Path(os.readlink(entry / "cwd")) == folder:
                    found.append((entry / "cmdline").read_text().replace("\0", " "))
            except OSError:
                continue
    return [each for each in found if each]  # a zombie has no command line


def wait_for_orphans(folder: Path, seconds: float = 40) -> list[str]:
    """Those that are still there after a while: a job saves its checkpoint first."""
    deadline = time.monotonic() + seconds
    while (orphans := find_orphans(folder)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return orphans


def send(harness: Harness, words: str, number: int, delay: float, times: int) -> Ended:
    """Start a command, send it a signal after a while, and wait for its end."""
    process = start_fresh(words.split(), cwd=harness.work)
    wait_for_handlers(process)
    time.sleep(delay)
    for _ in range(times):
        process.send_signal(number)
        time.sleep(0.02)
    return finish(process)


def signal_checks(harness: Harness, short: bool) -> dict[str, Check]:
    command = COMMANDS["train"]

    def train(number: int, delay: float, times: int) -> Iterator[str]:
        _, expected = harness.record("train")
        harness.prepare(command.start)
        ended = send(harness, command.words, number, delay, times)
        yield from check_stopped(ended, number)
        yield from check_end(harness.run(command.again), [0])
        yield from compare_results(expected, harness.results(), False)

    moments = [0, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1, 1.3, 1.6, 2, 2.5, 3]
    cases = [(n, delay, times) for n in SIGNALS for times in (1, 2) for delay in moments]
    if short:
        cases = [(signal.SIGTERM, 0.6, 2)]
    return {
        f"train, {signal.Signals(n).name} {times} times after {delay:g} s": partial(
            train, n, delay, times
        )
        for n, delay, times in cases
    }


def check_stopped(ended: Ended, number: int) -> Iterator[str]:
    """128 + the signal, and a sentence; or success, if the signal came too late."""
    if not ended.is_clean or ended.code not in (0, 128 + number):
        yield f"exit code {ended.code}: {(ended.out + ended.err)[-1500:]}"
    elif ended.code and not ended.err.strip():
        yield "no sentence"


def comparison_checks(harness: Harness) -> dict[str, Check]:
    command = COMMANDS["compare --jobs 2"]

    def compare(number: int, delay: float, times: int) -> Iterator[str]:
        _, expected = harness.record("compare --jobs 2")
        harness.prepare(command.start)
        ended = send(harness, command.words, number, delay, times)
        yield from check_stopped(ended, number)
        yield from (f"orphan: {orphan}" for orphan in wait_for_orphans(harness.work))
        yield from check_end(harness.run(command.words), [0])
        yield from compare_results(expected, harness.results(), False)

    moments = [(0.1, 1), (0.5, 2), (1.5, 1), (3, 1), (3, 2), (6, 2), (9, 1)]
    return {
        f"compare --jobs 2, {signal.Signals(n).name} {times} times after {delay:g} s": partial(
            compare, n, delay, times
        )
        for n in SIGNALS
        for delay, times in moments
    }


def server_checks(harness: Harness) -> dict[str, Check]:
    def serve(number: int, delay: float | None, times: int) -> Iterator[str]:
        """`delay`: None to wait until it listens."""
        harness.prepare("finished")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        process = start_fresh(f"serve run --port {port} --device cpu".split(), cwd=harness.work)
        wait_for_handlers(process)
        if delay is None:
            wait_for_port(port)
        time.sleep(delay or 0)
        for _ in range(times):
            process.send_signal(number)
            time.sleep(0.02)
        yield from check_stopped(finish(process), number)
        yield from (f"orphan: {orphan}" for orphan in wait_for_orphans(harness.work))

    moments = [(0.2, 1), (1, 2), (2, 1), (None, 1), (None, 2)]
    return {
        f"serve, {signal.Signals(n).name} {times} times after {delay} s": partial(
            serve, n, delay, times
        )
        for n in SIGNALS
        for delay, times in moments
    }


def wait_for_port(port: int) -> None:
    deadline = time.monotonic() + TIMEOUT
    while time.monotonic() < deadline:
        with socket.socket() as client:
            if client.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
