"""Worksheets: the one function that a lab is about, for the reader to write, and what the law says of it."""

import cmath
import inspect
import math
import textwrap
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.errors import UserError
from regard.labs.lab import Check, Exercise, Lab, document
from regard.labs.sandbox import AnswerError, Sandbox, SandboxError, sanitize
from regard.labs.sandbox_worker import Unsupported, decode, encode

LONGEST = 1 << 20  # characters of an answer file
WHOLE = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)

SHEET = '''"""Lab {name}

{claim}.
{background}
Write the function below, then check it:

    regard lab {name} --check {file}

It is held against the law: any function that obeys it passes. `regard lab {name}` shows the whole claim
with its derivation, and much of the answer.
"""

import math

import torch

torch.set_default_dtype(torch.float64)  # as precise as the tensors that the function is given


{starter}
'''


def place(lab: Lab, folder: Path) -> Path:
    """Where a lab's worksheet goes; what a reader may have written there is never overwritten."""
    path = folder / f"{lab.name}.py"
    if path.exists():
        raise UserError(
            f"{path} is there already, perhaps with your work in it: move it, or name another folder"
        )
    return path


def write(lab: Lab, folder: Path) -> Path:
    """Put a starter file into `folder`."""
    path, background = place(lab, folder), lab.exercise.background.strip()
    sheet = SHEET.format(
        name=lab.name,
        claim=textwrap.fill(lab.claim, 100),
        background=f"\n{background}\n" if background else "",
        file=path,
        starter=lab.exercise.starter.strip(),
    )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.write(sheet)
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror}") from None
    return path


@dataclass(frozen=True)
class Marks:
    """What the law says of one answer file."""

    name: str
    function: str
    file: str
    checks: Sequence[Check]
    remark: str  # why it was not graded to the end, or what may explain a failure
    printed: str
    seconds: float

    @property
    def passed(self) -> bool:
        return bool(self.checks) and not self.remark and all(one.passed for one in self.checks)

    @property
    def document(self) -> dict[str, Any]:
        """The marks as plain lists and numbers."""
        return document(self)


def check(lab: Lab, path: Path, seconds: float = 20.0) -> Marks:
    """Hold the answer in a file against the law, in a process of its own that gets `seconds` in all.

    A file that cannot be asked (no such function, a syntax error, no time left) is a UserError.
    """
    if not 0 < seconds < math.inf:
        raise UserError(f"--limit is a number of seconds above 0, not {seconds:g}")
    source, begun = read(path), time.perf_counter()
    with Sandbox(path, source, seconds) as asking:
        asking.load(lab.exercise.function)
        checks, remark = graded(lab.exercise, Answer(lab.exercise, asking.ask))
    spent = time.perf_counter() - begun
    function = lab.exercise.function
    return Marks(lab.name, function, str(path), checks, remark, asking.printed, spent)


def read(path: Path) -> str:
    """The text of an answer file."""
    try:
        with path.open(encoding="utf-8") as file:
            source = file.read(LONGEST + 1)
    except FileNotFoundError:
        raise UserError(
            f"there is no file {path}; --worksheet DIR writes one to begin with"
        ) from None
    except UnicodeDecodeError:
        raise UserError(f"{path} is not valid UTF-8") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
    if len(source) > LONGEST:
        raise UserError(f"{path} is too long for an answer: more than {LONGEST >> 20} MiB")
    return source


def graded(exercise: Exercise, answer: "Answer") -> tuple[list[Check], str]:
    """Every check that could be made, and what else there is to say."""
    checks: list[Check] = []
    remark = ""
    try:
        for one in exercise.grade(answer):
            remark = remark or ("" if one.passed else answer.differs)
            checks.append(one)
    except AnswerError as error:
        remark = answer.failed(error)
    except SandboxError:
        raise
    except UserError as error:  # the law's own word about types and shapes
        remark = str(error)
    except Exception as error:
        why = str(error).strip().split("\n")[0][:200]
        remark = answer.differs or f"{answer.asked} returned what cannot be graded: {why}"
    return checks, sanitize(remark)


class Answer:
    """The reader's function as `grade` sees it: asked elsewhere, its results in our precision."""

    def __init__(self, exercise: Exercise, ask: Callable[[Any, str], Any]) -> None:
        self._exercise, self._ask = exercise, ask
        self.asked = exercise.function
        self.differs = ""  # how the last answer was not of the type and shape of ours

    def __call__(self, *given: Any) -> Any:
        names = inspect.signature(self._exercise.solution).parameters
        told = [f"{name} = {brief(value)}" for name, value in zip(names, given, strict=False)]
        self.asked = f"{self._exercise.function}({', '.join(told)})"
        sent = encode(given)
        ours = self._exercise.solution(*decode(sent))
        got = fitted(self._ask(sent, self.asked), ours)
        self.differs = ""
        if kind(got) != kind(ours):
            self.differs = f"{self.asked} returned {kind(got)}, where {kind(ours)} is expected"
        if got is None and ours is not None:
            raise UserError(f"{self.differs}; did you forget to return it?")
        if isinstance(got, Unsupported):
            raise UserError(self.differs)
        return got

    def failed(self, raised: AnswerError) -> str:
        if raised.kind == "NotImplementedError" and not raised.words:
            return f"nothing written yet: fill in {self._exercise.function}{raised.place}"
        return f"{self.asked} failed{raised.place}: {raised}"


def brief(value: Any) -> str:
    """A number as it is, anything larger as its kind."""
    if isinstance(value, float):
        return f"{value:.6g}"
    return repr(value) if isinstance(value, int | str) else kind(value)


def kind(value: Any) -> str:
    """What a value is, in words: type and shape."""
    match value:
        case None:
            return "nothing"
        case Tensor():
            tails = {torch.bool: " of truth values"} | dict.fromkeys(WHOLE, " of whole numbers")
            tail = " of complex numbers" if value.is_complex() else tails.get(value.dtype, "")
            strange = "" if value.isfinite().all() else " with nan or infinity in it"
            return f"a tensor {list(value.shape)}{tail}{strange}"
        case bool():
            return "a truth value"
        case int() | float() | complex():
            return "a number" if cmath.isfinite(value) else f"{value}"
        case str():
            return "a string"
        case tuple() | list():
            parts = ", ".join(dict.fromkeys(map(kind, value[:50])))  # each kind once
            return f"a {type(value).__name__} of {len(value)} ({parts})"
        case dict():
            return f"a dict with {', '.join(list(value)[:50])}"
        case Unsupported():
            return value.kind
        case _:
            raise TypeError(f"{type(value).__name__} does not travel to a reader's process")


def fitted(got: Any, like: Any) -> Any:
    """`got` in the precision of `like`; a number may come as a tensor with one element, and back.

    What is of another kind stays as it is: the law knows best what it can be applied to.
    """
    match got, like:
        case Tensor(), bool() | int() | float() if got.numel() == 1:
            return got.item()
        case int() | float(), Tensor() if like.ndim == 0:
            return like.new_tensor(got)
        case Tensor(), Tensor() if torch.can_cast(got.dtype, like.dtype):
            return got.to(like.dtype)
        case (tuple() | list(), tuple() | list()) if len(got) == len(like):
            return type(like)(fitted(one, other) for one, other in zip(got, like, strict=True))
        case dict(), dict() if got.keys() == like.keys():
            return {key: fitted(got[key], like[key]) for key in like}
        case _:
            return got
