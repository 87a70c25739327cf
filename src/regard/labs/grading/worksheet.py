"""Worksheets: a lab's central function as an exercise, and the grading of a user's answer file."""

import inspect
import math
import textwrap
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from regard import files
from regard.errors import UserError, join_names
from regard.labs.grading.sandbox import AnswerError, Sandbox, SandboxError, sanitize
from regard.labs.grading.values import (
    cast_like,
    count_numbers,
    describe_type,
    has_nan,
    summarize,
)
from regard.labs.grading.worker.confine import PROTECTIONS
from regard.labs.grading.worker.wire import Unsupported, decode, encode
from regard.labs.lab import (
    Check,
    Exercise,
    Lab,
    all_pass,
    checks_to_dicts,
    stringify_nonfinite,
)

MAX_SOURCE = 1 << 20  # characters of an answer file
MAX_REMARK = 2000  # characters
MAX_NUMBERS = (
    1000  # in a result, or four times as many as the solution's: `grade` may multiply them
)
# What an answer file can do where a protection of `worker.confine` is missing.
POSSIBLE = {
    "landlock": "read your files",
    "seccomp": "write files, start programs and use the network",
    "limits": "take all memory",
}

TEMPLATE = '''"""Lab {name}

{claim}.
{background}
Implement the function below, then check it:

    regard lab {name} --check {file}

The check tests properties of the result: any correct implementation passes. `regard lab {name}` shows the
full derivation, which gives away much of the answer.
"""

import math

import torch

torch.set_default_dtype(torch.float64)  # the precision of the function's arguments


{starter}
'''


def worksheet_path(lab: Lab, folder: Path) -> Path:
    """The path of a lab's worksheet. UserError if the file exists: a user's work is never overwritten."""
    path = folder / f"{lab.name}.py"
    if path.exists():
        raise UserError(
            f"{path} already exists and may contain your work: move it, or name another folder"
        )
    return path


def write_worksheet(lab: Lab, folder: Path) -> Path:
    """Write the starter file into `folder`."""
    path, background = worksheet_path(lab, folder), lab.exercise.background.strip()
    text = TEMPLATE.format(
        name=lab.name,
        claim=textwrap.fill(lab.claim, 100, break_on_hyphens=False),
        background=f"\n{background}\n" if background else "",
        file=path,
        starter=lab.exercise.starter.strip(),
    )
    files.create(path, text)
    return path


@dataclass(frozen=True)
class GradeReport:
    """The grading of one answer file."""

    name: str
    function: str
    file: str
    checks: Sequence[Check]
    remark: str  # why grading stopped early, or a likely reason for a failed check
    printed: str
    seconds: float
    protections: dict[str, str] = field(default_factory=dict)  # of `worker.confine`, with details

    @property
    def passed(self) -> bool:
        return all_pass(self.checks) and not self.remark

    @property
    def warning(self) -> str:
        """What an answer file could do on this system, where a protection is missing."""
        possible = [text for name, text in POSSIBLE.items() if name not in self.protections]
        if not possible:
            return ""
        return (
            f"on this system an answer file can {join_names(possible)}: check only files you trust"
        )

    def to_dict(self) -> dict[str, Any]:
        """The report as data for JSON."""
        judgements = {"passed": self.passed, "checks": checks_to_dicts(self.checks)}
        return stringify_nonfinite(asdict(self) | judgements)


def check_answer(
    lab: Lab, path: Path, seconds: float = 20.0, protections: Collection[str] = PROTECTIONS
) -> GradeReport:
    """Grade an answer file, run in a separate process with a time limit of `seconds` in total.

    Of the `protections`, those that this system has are set, and named in the report.

    UserError if the file cannot be run: no such function, a syntax error, the time limit exceeded.
    """
    if not 0 < seconds < math.inf:
        raise UserError(f"--limit must be a positive number of seconds, not {seconds:g}")
    source, started = read_answer(path), time.perf_counter()
    with Sandbox(path, source, seconds, protections) as sandbox:
        sandbox.load(lab.exercise.function)
        checks, remark = grade_answer(lab.exercise, RemoteFunction(lab.exercise, sandbox.call))
    return GradeReport(
        lab.name,
        lab.exercise.function,
        str(path),
        checks,
        remark,
        sandbox.printed,
        time.perf_counter() - started,
        sandbox.protections,
    )


def read_answer(path: Path) -> str:
    """The source of an answer file."""
    try:
        with path.open(encoding="utf-8") as file:
            source = file.read(MAX_SOURCE + 1)
    except FileNotFoundError:
        raise UserError(f"there is no file {path}; --worksheet DIR writes a starter file") from None
    except UnicodeDecodeError:
        raise UserError(f"{path} is not valid UTF-8") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
    if len(source) > MAX_SOURCE:
        raise UserError(
            f"{path} is too large: an answer file may have at most {MAX_SOURCE >> 20} MiB"
        )
    return source


def grade_answer(exercise: Exercise, answer: "RemoteFunction") -> tuple[list[Check], str]:
    """All checks up to the first error, and a remark on the error or on a failed check."""
    checks: list[Check] = []
    remark = ""
    try:
        for check in exercise.grade(answer):
            remark = remark or ("" if check.passed else answer.mismatch)
            checks.append(check)
    except AnswerError as error:
        remark = answer.describe_error(error)
    except SandboxError:
        raise
    except UserError as error:  # raised by `grade` itself, about types and shapes
        remark = str(error)
    except Exception as error:
        reason = str(error).strip().split("\n")[0][:200]
        remark = answer.mismatch or f"the result of {answer.last_call} cannot be graded: {reason}"
    return checks, sanitize(remark[:MAX_REMARK])


class RemoteFunction:
    """The user's function as passed to `grade`: evaluated in the sandbox, its results in our precision."""

    def __init__(self, exercise: Exercise, call: Callable[[Any, str], Any]) -> None:
        self._exercise, self._call = exercise, call
        self.last_call = exercise.function
        self.mismatch = ""  # how the last result differs in type or shape from the solution's

    def __call__(self, *args: Any) -> Any:
        names = inspect.signature(self._exercise.solution).parameters
        values = [f"{name} = {summarize(value)}" for name, value in zip(names, args, strict=False)]
        self.last_call = f"{self._exercise.function}({', '.join(values)})"
        encoded = encode(args)
        expected = self._exercise.solution(*decode(encoded))
        result = cast_like(self._call(encoded, self.last_call), expected)
        returned, required = describe_type(result), describe_type(expected)
        self.mismatch = ""
        if returned != required:
            self.mismatch = f"{self.last_call} returned {returned}; expected {required}"
        if result is None and expected is not None:
            raise UserError(f"{self.mismatch}. Is a return statement missing?")
        if isinstance(result, Unsupported):
            raise UserError(self.mismatch)
        if count_numbers(result) > max(MAX_NUMBERS, 4 * count_numbers(expected)):
            raise UserError(f"{self.last_call} returned too much: {returned}; expected {required}")
        # Rejected here, for every lab: in `grade`, comparisons and `max` may drop a NaN, by its place.
        if has_nan(result) and not has_nan(expected):
            raise UserError(f"{self.last_call} returned NaN: {returned}; expected {required}")
        return result

    def describe_error(self, error: AnswerError) -> str:
        if error.kind == "NotImplementedError" and not error.message:
            return f"not implemented yet: fill in {self._exercise.function}{error.location}"
        return f"{self.last_call} failed{error.location}: {error}"
