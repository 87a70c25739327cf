"""The lab interface: a claim, its derivation, parameters, a measurement, checks and a plot.

A lab judges two things. The *law*: what is measured equals what was derived, at any parameters. The
*effect*: what the claim says happens does happen at these parameters, and by how much. A law without its
effect is a formula about nothing (a query of length 0 copies no value), so a lab passes only with both.
"""

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Literal

import torch
from matplotlib.figure import Figure
from pydantic import ValidationError
from torch import Generator

from regard.config.table import Table
from regard.devices import use_threads
from regard.diagrams.themes import Theme, get_theme
from regard.errors import UserError
from regard.labs.plotting import new_figure
from regard.presets import describe_error

Value = float | int | bool | str
Series = Sequence[Any]


def format_number(figure: float) -> str:
    """A float to six significant digits; an integer, which may be an exact count, in full."""
    return str(figure) if isinstance(figure, int) else f"{figure:.6g}"


@dataclass(frozen=True)
class Check:
    """A measured figure and its expected value: equal within a tolerance, or an upper or lower bound."""

    name: str
    measured: float
    relation: Literal["=", "<=", ">="]
    expected: float
    tolerance: float = 0.0
    hint: str = ""  # what a failure means, and for which input

    @classmethod
    def worst(
        cls,
        name: str,
        values: Iterable[float],
        relation: Literal["=", "<=", ">="],
        expected: float,
        tolerance: float = 0.0,
        hint: str = "",
    ) -> "Check":
        """A check that every value of a set must pass: on the worst value, or on NaN if there is none.

        So an empty set fails, as does a set with a NaN anywhere (`max` would keep or drop it by its place).
        """
        sign = {"=": abs, "<=": lambda gap: gap, ">=": lambda gap: -gap}[relation]
        numbers = [float(value) for value in values]
        measured = max(numbers, key=lambda x: sign(x - expected), default=math.nan)
        if any(math.isnan(number) for number in numbers):
            measured = math.nan
        if not numbers:
            hint = "There is no case to measure at these parameters."
        return cls(name, measured, relation, expected, tolerance, hint)

    @property
    def passed(self) -> bool:
        """NaN never passes."""
        match self.relation:
            case "=":
                return abs(self.measured - self.expected) <= self.tolerance
            case "<=":
                return self.measured <= self.expected + self.tolerance
            case ">=":
                return self.measured >= self.expected - self.tolerance

    @property
    def requirement(self) -> str:
        """The expected value in words: '0.5 (within 1e-06)', 'at most 3'."""
        bound = {"=": "", "<=": "at most ", ">=": "at least "}[self.relation]
        return f"{bound}{self._expected}"

    @property
    def message(self) -> str:
        """The check in one line, with its hint if it failed."""
        sign = self.relation if self.passed else {"=": "≠", "<=": ">", ">=": "<"}[self.relation]
        line = f"{self.name}: {format_number(self.measured)} {sign} {self._expected}"
        return line if self.passed or not self.hint else f"{line}. {self.hint}"

    @property
    def _expected(self) -> str:
        tolerance = f" (within {self.tolerance:.2g})" if self.tolerance else ""
        return f"{format_number(self.expected)}{tolerance}"


@dataclass(frozen=True)
class ResultTable:
    """A small table: column headings and rows."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Value]]


@dataclass(frozen=True)
class Findings:
    """The outcome of a measurement: named figures, checks on them, a table to print, and notes on it."""

    figures: dict[str, Value | Series]
    law: Sequence[Check]  # measured equals derived
    effect: Sequence[Check]  # what the claim says, at these parameters
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
    law: Sequence[Check]
    effect: Sequence[Check]
    table: ResultTable
    notes: Sequence[str]
    seconds: float

    @property
    def law_holds(self) -> bool:
        return all_pass(self.law)

    @property
    def effect_is_present(self) -> bool:
        return all_pass(self.effect)

    @property
    def passed(self) -> bool:
        return self.law_holds and self.effect_is_present

    @property
    def checks(self) -> list[Check]:
        return [*self.law, *self.effect]

    @property
    def verdict(self) -> str:
        """Both judgements in words."""
        law = "the law holds" if self.law_holds else "THE LAW FAILS"
        return f"{law}, the effect is {'present' if self.effect_is_present else 'ABSENT'}"

    def to_dict(self) -> dict[str, Any]:
        """The result as data for JSON."""
        judgements = {
            "passed": self.passed,
            "law": {"passed": self.law_holds, "checks": checks_to_dicts(self.law)},
            "effect": {"passed": self.effect_is_present, "checks": checks_to_dicts(self.effect)},
        }
        return stringify_nonfinite(asdict(self) | judgements)


def all_pass(checks: Sequence[Check]) -> bool:
    """Do all checks pass? No check at all proves nothing."""
    return bool(checks) and all(check.passed for check in checks)


def checks_to_dicts(checks: Iterable[Check]) -> list[dict[str, Any]]:
    return [asdict(check) | {"passed": check.passed} for check in checks]


def stringify_nonfinite(value: Any) -> Any:
    """Data for JSON, which cannot represent NaN and infinity: they become "nan" and "inf"."""
    if isinstance(value, dict):
        return {key: stringify_nonfinite(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [stringify_nonfinite(part) for part in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


@dataclass(frozen=True)
class Exercise:
    """The central function of a lab, as an exercise for the user.

    `starter` is the source of a function stub, `solution` is our implementation, and `grade` checks any
    implementation. Arguments and results are plain data (numbers, strings, tensors, tuples, lists), because
    a user's function runs in a separate process. `background` is the introduction in the worksheet: the
    derivation without its last step.
    """

    starter: str
    solution: Callable[..., Any]
    grade: Callable[[Callable[..., Any]], Iterable[Check]]
    background: str = ""

    @property
    def function(self) -> str:
        """The name of the function to implement."""
        return self.solution.__name__


class Parameters(Table):
    """The parameters of a lab: each field has a default, a range and a one-line description."""


class Lab(ABC):
    """A claim that can be run. A subclass states the claim, measures it, and draws the result."""

    name: ClassVar[str]
    claim: ClassVar[str]
    derivation: ClassVar[str]
    exercise: ClassVar[Exercise]
    parameters: ClassVar[type[Parameters]] = Parameters
    absent: ClassVar[dict[str, Value]] = {}  # parameters at which the law holds without the effect
    quick: ClassVar[dict[str, Value]] = {}  # parameters for --quick, in labs that train or time

    @abstractmethod
    def measure(self, params: Any, generator: Generator) -> Findings:
        """Measure with the library's own modules, and check the figures."""

    @abstractmethod
    def draw(self, result: Result, figure: Figure, colours: Theme) -> None:
        """Draw the closed form over the measurement, below the title set by `plot`."""

    def run(self, seed: int = 0, **parameters: Value) -> Result:
        """Run the lab; parameters that are not given keep their defaults."""
        params = self.validate_parameters(parameters)
        started = time.perf_counter()
        with torch.random.fork_rng(devices=[]), use_threads(1):
            torch.manual_seed(seed)  # models initialise their weights from the global generator
            findings = self.measure(params, torch.Generator().manual_seed(seed))
        seconds = time.perf_counter() - started
        parts = findings.figures, findings.law, findings.effect, findings.table, findings.notes
        return Result(self.name, self.claim, seed, params.model_dump(), *parts, seconds)

    def plot(self, result: Result, theme: str = "light") -> Figure:
        """Plot a result, with the claim as the title."""
        colours = get_theme(theme)
        figure = new_figure(self.claim, colours)
        self.draw(result, figure, colours)
        return figure

    def validate_parameters(self, parameters: dict[str, Value]) -> Any:
        """The parameters as an object; UserError for an unknown name or a value out of range."""
        try:
            return self.parameters.model_validate(parameters)
        except ValidationError as error:
            mistakes = [describe_error(detail, self.parameters) for detail in error.errors()]
        raise UserError(f"lab {self.name}: " + "; ".join(mistakes))
