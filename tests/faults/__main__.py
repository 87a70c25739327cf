"""What if the process dies before any file operation, if any write fails, if a signal comes at any moment?

    python -m tests.faults                   everything: most of an hour
    python -m tests.faults --short           a few of each: 15 seconds
    python -m tests.faults train compare     the commands whose name contains a word; "environment" is one

Each command that writes is run once to list its file operations. Then, for each operation, it is run again:
the process is killed right before the operation, or the operation fails with ENOSPC or EIO. Then the user
types the same command again, and weights, cards and tables must equal those of the undisturbed run. Exit
code 1 if not.
"""

import argparse
import gc
import importlib
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from itertools import cycle
from pathlib import Path

import torch

from tests.faults.commands import COMMANDS
from tests.faults.environment import check_environment
from tests.faults.harness import ERRORS, Harness
from tests.faults.trace import MAIN, Operation

# Imported here once, and not in each of the forked processes.
WARM = (
    "cli",
    "training",
    "compare.job",
    "export",
    "diagrams",
    "labs",
    "page.build",
    "engines.folders",
)
POINTS = 1  # of a command in the short form, of each kind


def select_all(operations: Sequence[Operation]) -> list[tuple[Operation, int | None]]:
    """Each operation, but for those of a comparison's other jobs: they are those of the first."""
    others = sorted({operation.process for operation in operations} - {MAIN})[1:]
    kept = [operation for operation in operations if operation.process not in others]
    return [(operation, error) for operation in kept for error in (None, *ERRORS)]


def select_few(operations: Sequence[Operation]) -> list[tuple[Operation, int | None]]:
    """Crash points and failures at equal distances, with errors in turn."""
    distance = len(operations) / (2 * POINTS + 1)
    places = [operations[int(distance * (number + 1))] for number in range(2 * POINTS)]
    errors = cycle(ERRORS)
    return [
        (operation, None if number % 2 else next(errors)) for number, operation in enumerate(places)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("words", nargs="*", help="only commands whose name contains one of these")
    parser.add_argument("--short", action="store_true", help="a few points of each command")
    options = parser.parse_args()
    torch.set_num_threads(1)  # a process that has started threads cannot be forked
    for module in WARM:
        importlib.import_module(f"regard.{module}")
    gc.freeze()  # a forked process would copy each page of memory that its garbage collection visits
    select, problems = select_few if options.short else select_all, []
    show("command", "crash points", "equal", "failed writes", "clean, and nothing lost")
    memory = Path("/dev/shm")  # where nothing waits for a disk
    place = memory if memory.is_dir() else None
    with (
        tempfile.TemporaryDirectory(prefix="regard-faults-", dir=place) as folder,
        closing(Harness(Path(folder).resolve())) as harness,
    ):
        for name in COMMANDS:
            if is_selected(name, options.words):
                start = time.perf_counter()
                row = harness.check(name, select)
                show(*row.cells(), f"{time.perf_counter() - start:.0f} s")
                problems += show_problems([*row.problems["crash"], *row.problems["failure"]])
        if is_selected("environment", options.words):
            tried, found = check_environment(harness, options.short)
            show("environment", "", "", str(tried), str(tried - len(found)))
            problems += show_problems(found)
    sys.exit(bool(problems))


def is_selected(name: str, words: Sequence[str]) -> bool:
    return not words or any(word in name for word in words)


def show_problems(problems: list[str]) -> list[str]:
    for problem in problems:
        sys.stderr.write(f"{problem}\n")
    return problems


def show(*cells: str) -> None:
    widths = (31, 13, 6, 14, 24)
    padded = [cell.ljust(width) for cell, width in zip(cells, (*widths, 0), strict=False)]
    sys.stdout.write(" ".join(padded).rstrip() + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
