"""Attacks on the checker of worksheets: answer files that try to do harm, and what came of it.

Each file of `answers/` is an answer to the lab `copying`. Its docstring says what it tries and, in fields:

    Once: what it did in version 0.2
    Harm: what to look for, one of HARMS
    Stopped by: protections of `regard.labs.grading.worker.confine`; Landlock and seccomp each suffice, if
        both are named. Or "design" (the checker grades outside, and reads data only), or "nothing (why)".
        "system": many systems forbid it without our help.
    Seconds: the time limit, if it waits for it

The harm is observed from outside, except that an attack without a trace prints DONE.
"""

import ast
import functools
import os
import re
import secrets
import shutil
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from regard.errors import UserError
from regard.labs import LABS
from regard.labs.grading import launch
from regard.labs.grading.sandbox import Sandbox
from regard.labs.grading.worker.confine import PROTECTIONS
from regard.labs.grading.worksheet import check_answer

FOLDER = Path(__file__).parent / "answers"
HARMS = {
    "passed": "a wrong answer passes",
    "wrote": "a file is written, changed or deleted",
    "leaked": "a secret is printed",
    "killed": "the worker process ends",
    "late": "the checker waits beyond its limit",
    "terminal": "control characters reach the terminal",
    "done": "it says that it succeeded",
}
PATIENCE = 3.0  # seconds beyond the time limit


@dataclass(frozen=True)
class Attack:
    """An answer file, with the fields of its docstring."""

    name: str
    source: str
    title: str
    once: str
    harm: str
    stopped_by: str
    seconds: float

    @property
    def stoppers(self) -> set[str]:
        """The protections against it."""
        return set(self.stopped_by.split(", ")) & set(PROTECTIONS)

    @property
    def unstoppable(self) -> bool:
        return self.stopped_by.startswith("nothing")

    @property
    def works_alone(self) -> bool:
        """Does it do harm wherever its stoppers are missing?"""
        return bool(self.stoppers) and "system" not in self.stopped_by.split(", ")


def read_attack(path: Path) -> Attack:
    source = path.read_text("utf-8")
    title, _, rest = (ast.get_docstring(ast.parse(source)) or "").partition("\n")
    fields = dict(re.findall(r"^(Once|Harm|Stopped by|Seconds): (.*)$", rest, re.MULTILINE))
    seconds = float(fields.get("Seconds", 10))
    return Attack(
        path.stem, source, title, fields["Once"], fields["Harm"], fields["Stopped by"], seconds
    )


ATTACKS = [read_attack(path) for path in sorted(FOLDER.glob("*.py"))]


@dataclass(frozen=True)
class Outcome:
    """What an attack did."""

    harms: set[str]
    text: str  # what it printed, and the remark or error


@functools.cache
def available_protections() -> dict[str, str]:
    """The protections of this system, with details."""
    with Sandbox(Path("answer.py"), "", 1.0) as sandbox:
        return sandbox.protections


def run_attack(attack: Attack, folder: Path, protections: Collection[str] = PROTECTIONS) -> Outcome:
    """Check the attack's file in `folder`, beside a file that it may read or change."""
    folder.mkdir()
    token = secrets.token_hex(16)
    (folder / "secret.txt").write_text(token)
    (folder / "victim.txt").write_text("unchanged")
    path = folder / f"{attack.name}.py"
    path.write_text(attack.source)
    before = describe_folder(folder)
    worker = launch.take_worker()
    launch.give_back(worker)
    started = time.monotonic()
    passed = False
    try:
        report = check_answer(LABS["copying"], path, attack.seconds, protections)
        passed = report.passed
        text = f"{report.printed}\n{report.remark}"
    except UserError as error:
        text = str(error)
    late = time.monotonic() - started > attack.seconds + PATIENCE
    observed = {
        "passed": passed,
        "wrote": describe_folder(folder) != before,
        "leaked": token in text or os.environ["PATH"] in text,
        "killed": not worker.alive,
        "late": late,
        "terminal": not all(character.isprintable() or character in "\n\t" for character in text),
        "done": bool(re.search(r"^DONE|: DONE$", text, re.MULTILINE)),
    }
    shutil.rmtree(folder)
    return Outcome({harm for harm, seen in observed.items() if seen}, text)


def describe_folder(folder: Path) -> list[tuple[str, int, int, bytes]]:
    """Names, modes, times and contents."""
    return [
        (path.name, path.lstat().st_mode, path.lstat().st_mtime_ns, path.read_bytes())
        for path in sorted(folder.iterdir())
    ]
