"""What `regard lab` prints: claims, tables, verdicts and grades."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from regard.cli.common import out, print_wide

if TYPE_CHECKING:
    from regard.labs import Check, Lab, Result
    from regard.labs.grading.worksheet import GradeReport


def print_result(lab: "Lab", result: "Result") -> None:
    print_text(f"{lab.name}: {lab.claim}", "bold")
    print_text(f"\n{lab.derivation.strip()}\n")
    print_table(result.table.columns, result.table.rows)
    parameters = "".join(f"{name} = {value}, " for name, value in result.parameters.items())
    notes = "".join(f"\n{note}" for note in result.notes)
    absent = "".join(f" --set {name}={value}" for name, value in lab.absent.items())
    print_text(f"{notes}\n{parameters}seed = {result.seed}", "dim")
    print_text(f"the effect is absent with{absent}", "dim")
    print_text("law: what is measured equals what was derived", "bold")
    for check in result.law:
        print_text(check.message, passed=check.passed)
    print_text("effect: what the claim says, at these parameters", "bold")
    for check in result.effect:
        print_text(check.message, passed=check.passed, words=("present", "ABSENT"))
    style = "green" if result.passed else "red"
    print_text(f"{lab.name}: {result.verdict} ({format_seconds(result.seconds)})", style)


def print_summary(results: "Sequence[Result]") -> None:
    rows = [
        (
            result.name,
            "pass" if result.passed else "FAIL",
            "holds" if result.law_holds else "FAILS",
            "present" if result.effect_is_present else "ABSENT",
            format_seconds(result.seconds),
            count_passed(result.checks),
        )
        for result in results
    ]
    print_table(["lab", "verdict", "law", "effect", "time", "checks"], rows)
    passed = sum(result.passed for result in results)
    seconds = sum(result.seconds for result in results)
    print_text(f"{passed} of {len(results)} labs pass ({format_seconds(seconds)})", "bold")


def format_seconds(seconds: float) -> str:
    return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"


def count_passed(checks: "Sequence[Check]") -> str:
    return f"{sum(check.passed for check in checks)} of {len(checks)}"


def print_grade(report: "GradeReport") -> None:
    """Every check; a failed one with the measured and the expected value, and each hint once."""
    from regard.labs.lab import format_number

    if report.printed:
        print_text(f"your file printed:\n{report.printed.rstrip()}\n", "dim")
    if report.warning:
        print_text(f"{report.warning}\n", "dim")
    hints = set()
    for check in report.checks:
        print_text(check.name, passed=check.passed)
        if not check.passed:
            hint = f"\n{check.hint}" if check.hint not in hints else ""
            measured = format_number(check.measured)
            print_text(f"got {measured}; expected {check.requirement}{hint}", indent=6)
            hints.add(check.hint)
    if report.remark:
        print_text(report.remark, passed=False)
    checks = f"{count_passed(report.checks)} checks pass"
    if report.passed:
        print_text(f"{report.function} is correct: {checks}", "green")
    else:
        failed = f"{report.function} is not correct yet"
        print_text(failed + f": {checks}" * bool(report.checks), "red")


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print a small table; numbers to six digits, right-aligned."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    body = [list(row) for row in rows]
    for i, column in enumerate(columns):
        number = all(type(row[i]) in (int, float) for row in body)  # not bool, a subclass of int
        table.add_column(column, justify="right" if number else "left", no_wrap=i == 0)
    for row in body:
        cells = (f"{cell:.6g}" if isinstance(cell, float) else str(cell) for cell in row)
        table.add_row(*cells)
    print_wide(table)


def print_text(
    text: str,
    style: str = "",
    passed: bool | None = None,
    indent: int = 0,
    words: tuple[str, str] = ("pass", "FAIL"),
) -> None:
    """Print text without markup; `passed` puts one of the two words in front."""
    yes, no = (f"{word}  " for word in words)
    verdict = {None: Text(""), True: Text(yes, "green"), False: Text(no, "bold red")}
    lines = text.replace("\n", "\n" + " " * indent)
    out.print(verdict[passed] + Text(" " * indent + lines, style))
