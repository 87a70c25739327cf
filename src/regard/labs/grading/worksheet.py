"""Worksheets: a lab's central function as an exercise, and the grading of a user's answer file."""

import cmath
import inspect
import math
import textwrap
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard import files
from regard.errors import UserError
from regard.labs.grading.sandbox import AnswerError, Sandbox, SandboxError, sanitize
from regard.labs.grading.sandbox_worker import Unsupported, decode, encode
from regard.labs.lab import (
    Check,
    Exercise,
    Lab,
    all_pass,
    checks_to_dicts,
    stringify_nonfinite,
)

MAX_SOURCE = 1 << 20  # characters of an answer file
INTEGER_DTYPES = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)

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

    @property
    def passed(self) -> bool:
        return all_pass(self.checks) and not self.remark

    def to_dict(self) -> dict[str, Any]:
        """The report as data for JSON."""
        judgements = {"passed": self.passed, "checks": checks_to_dicts(self.checks)}
        return stringify_nonfinite(asdict(self) | judgements)


def check_answer(lab: Lab, path: Path, seconds: float = 20.0) -> GradeReport:
    """Grade an answer file, run in a separate process with a time limit of `seconds` in total.

    UserError if the file cannot be run: no such function, a syntax error, the time limit exceeded.
    """
    if not 0 < seconds < math.inf:
        raise UserError(f"--limit must be a positive number of seconds, not {seconds:g}")
    source, started = read_answer(path), time.perf_counter()
    with Sandbox(path, source, seconds) as sandbox:
        sandbox.load(lab.exercise.function)
        checks, remark = grade_answer(lab.exercise, RemoteFunction(lab.exercise, sandbox.call))
    elapsed = time.perf_counter() - started
    function = lab.exercise.function
    return GradeReport(lab.name, function, str(path), checks, remark, sandbox.printed, elapsed)


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
    return checks, sanitize(remark)


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
        # Rejected here, for every lab: in `grade`, comparisons and `max` may drop a NaN, by its place.
        if has_nan(result) and not has_nan(expected):
            raise UserError(f"{self.last_call} returned NaN: {returned}; expected {required}")
        return result

    def describe_error(self, error: AnswerError) -> str:
        if error.kind == "NotImplementedError" and not error.message:
            return f"not implemented yet: fill in {self._exercise.function}{error.location}"
        return f"{self.last_call} failed{error.location}: {error}"


def summarize(value: Any) -> str:
    """A number or string as it is, anything larger as its type and shape."""
    if isinstance(value, float):
        return f"{value:.6g}"
    return repr(value) if isinstance(value, int | str) else describe_type(value)


def describe_type(value: Any) -> str:
    """The type and shape of a value, in words."""
    match value:
        case None:
            return "None"
        case Tensor():
            tails = {torch.bool: " of booleans"} | dict.fromkeys(INTEGER_DTYPES, " of integers")
            tail = " of complex numbers" if value.is_complex() else tails.get(value.dtype, "")
            nonfinite = " with NaN" if value.isnan().any() else " with infinity"
            nonfinite = "" if value.isfinite().all() else nonfinite
            return f"a tensor {list(value.shape)}{tail}{nonfinite}"
        case bool():
            return "a boolean"
        case int() | float() | complex():
            return "a number" if cmath.isfinite(value) else f"{value}"
        case str():
            return "a string"
        case tuple() | list():
            parts = ", ".join(dict.fromkeys(map(describe_type, value[:50])))  # each type once
            return f"a {type(value).__name__} of {len(value)} ({parts})"
        case dict():
            return f"a dict with keys {', '.join(list(value)[:50])}"
        case Unsupported():
            return value.description
        case _:
            raise TypeError(f"cannot send a value of type {type(value).__name__} to the sandbox")


def has_nan(value: Any) -> bool:
    """Is there a NaN anywhere in a value?"""
    match value:
        case Tensor():
            return bool(value.isnan().any())
        case float() | complex():
            return cmath.isnan(value)
        case tuple() | list():
            return any(map(has_nan, value))
        case dict():
            return any(map(has_nan, value.values()))
        case _:
            return False


def cast_like(value: Any, like: Any) -> Any:
    """`value` with the dtype of `like`; numbers and one-element tensors are converted into each other.

    A value of another type or shape stays as it is: `grade` decides whether it can be used.
    """
    match value, like:
        case Tensor(), bool() | int() | float() if value.numel() == 1:
            return value.item()
        case int() | float(), Tensor() if like.ndim == 0:
            return like.new_tensor(value)
        case Tensor(), Tensor() if torch.can_cast(value.dtype, like.dtype):
            return value.to(like.dtype)
        case (tuple() | list(), tuple() | list()) if len(value) == len(like):
            return type(like)(cast_like(v, other) for v, other in zip(value, like, strict=True))
        case dict(), dict() if value.keys() == like.keys():
            return {key: cast_like(value[key], like[key]) for key in like}
        case _:
            return value
