"""What a lab is: a claim, its derivation, parameters to turn, a measurement, checks and a picture."""

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Literal

import torch
from matplotlib.figure import Figure
from pydantic import ValidationError
from torch import Generator

from regard.config.table import Table
from regard.diagrams.themes import Theme, get_theme
from regard.errors import UserError
from regard.labs.plotting import new_figure
from regard.presets import explain

Value = float | int | bool | str
Series = Sequence[Any]


def shown(figure: float) -> str:
    """A number in a few digits; a whole number, which may be counted exactly, in all of them."""
    return str(figure) if isinstance(figure, int) else f"{figure:.6g}"


@dataclass(frozen=True)
class Check:
    """One measured figure against the law: equal within a tolerance, or on one side of a bound."""

    name: str
    measured: float
    relation: Literal["=", "<=", ">="]
    expected: float
    tolerance: float = 0.0
    hint: str = ""  # what a failure means, and on which input it shows

    @property
    def passed(self) -> bool:
        """No figure that is not a number passes."""
        match self.relation:
            case "=":
                return abs(self.measured - self.expected) <= self.tolerance
            case "<=":
                return self.measured <= self.expected + self.tolerance
            case ">=":
                return self.measured >= self.expected - self.tolerance

    @property
    def requirement(self) -> str:
        """What the law asks for: '0.5 (within 1e-06)', 'at most 3'."""
        side = {"=": "", "<=": "at most ", ">=": "at least "}[self.relation]
        room = f" (within {self.tolerance:.2g})" if self.tolerance else ""
        return f"{side}{shown(self.expected)}{room}"

    @property
    def message(self) -> str:
        """The check as a sentence."""
        sign = self.relation if self.passed else {"=": "≠", "<=": ">", ">=": "<"}[self.relation]
        room = f" (within {self.tolerance:.2g})" if self.tolerance else ""
        said = f"{self.name}: {shown(self.measured)} {sign} {shown(self.expected)}{room}"
        return said if self.passed or not self.hint else f"{said}. {self.hint}"


@dataclass(frozen=True)
class ResultTable:
    """A small table."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Value]]


@dataclass(frozen=True)
class Findings:
    """What a measurement brings: named numbers and series, what they must be, a table to show, and
    what a reader of the table should know.
    """

    figures: dict[str, Value | Series]
    checks: Sequence[Check]
    table: ResultTable
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class Result:
    """One run of a lab."""

    name: str
    claim: str
    seed: int
    parameters: dict[str, Value]
    figures: dict[str, Any]
    checks: Sequence[Check]
    table: ResultTable
    notes: Sequence[str]
    seconds: float

    @property
    def passed(self) -> bool:
        return bool(self.checks) and all(check.passed for check in self.checks)

    @property
    def document(self) -> dict[str, Any]:
        """The result as plain lists and numbers."""
        return document(self)


def document(judged: Any) -> dict[str, Any]:
    """A record of checks as data for JSON; each check, and the whole, with whether it passed."""
    checks = [asdict(check) | {"passed": check.passed} for check in judged.checks]
    return finite(asdict(judged) | {"passed": judged.passed, "checks": checks})


def finite(value: Any) -> Any:
    """Plain data for JSON, which has no word for a number that is not finite: "nan", "inf"."""
    if isinstance(value, dict):
        return {key: finite(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [finite(part) for part in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


@dataclass(frozen=True)
class Exercise:
    """The one function that a lab is about, for the reader to write.

    `starter` is the source of a function that answers nothing yet, `answer` is ours, and `grade` holds any
    answer against the law. Arguments and answers are plain data (numbers, strings, tensors, tuples, lists),
    for a reader's function runs in a process of its own. `background` is what a worksheet tells beforehand:
    the derivation without its last step.
    """

    starter: str
    solution: Callable[..., Any]
    grade: Callable[[Callable[..., Any]], Iterable[Check]]
    background: str = ""

    @property
    def function(self) -> str:
        """The name of what is to be written."""
        return self.solution.__name__


@contextmanager
def one_thread() -> Iterator[None]:
    """PyTorch on one thread: on tensors this small several wait for each other, and clocks get noisy."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class Parameters(Table):
    """What can be turned: one field a parameter, with its default, its range, and a line about it."""


class Lab(ABC):
    """A claim that can be run. A subclass says what it claims, measures it, and draws what it found."""

    name: ClassVar[str]
    claim: ClassVar[str]
    derivation: ClassVar[str]
    exercise: ClassVar[Exercise]
    parameters: ClassVar[type[Parameters]] = Parameters
    quick: ClassVar[
        dict[str, Value]
    ] = {}  # parameters of the short form, for labs that train models

    @abstractmethod
    def measure(self, params: Any, generator: Generator) -> Findings:
        """Measure with the library's own parts, and say what the figures must be."""

    @abstractmethod
    def draw(self, result: Result, figure: Figure, colours: Theme) -> None:
        """Draw the closed form over the measurement, below the title that `plot` wrote."""

    def run(self, seed: int = 0, **parameters: Value) -> Result:
        """One run; parameters that are not given keep their defaults."""
        params = self.checked(parameters)
        begun = time.perf_counter()
        with torch.random.fork_rng(devices=[]), one_thread():
            torch.manual_seed(seed)  # models draw their first weights from the global generator
            found = self.measure(params, torch.Generator().manual_seed(seed))
        seconds = time.perf_counter() - begun
        told = params.model_dump()
        parts = found.figures, found.checks, found.table, found.notes
        return Result(self.name, self.claim, seed, told, *parts, seconds)

    def plot(self, result: Result, theme: str = "light") -> Figure:
        """The picture of a result, titled with the claim."""
        colours = get_theme(theme)
        figure = new_figure(self.claim, colours)
        self.draw(result, figure, colours)
        return figure

    def checked(self, parameters: dict[str, Value]) -> Any:
        """The parameters, turned; a wrong name or a value out of range gets its sentence."""
        try:
            return self.parameters.model_validate(parameters)
        except ValidationError as error:
            mistakes = [explain(detail, self.parameters) for detail in error.errors()]
        raise UserError(f"lab {self.name}: " + "; ".join(mistakes))
