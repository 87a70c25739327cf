"""What is printed is the text itself, and no terminal obeys it."""

import ast
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from rich.table import Table
from rich.text import Text

from regard.display import Display
from regard.escaping import escape_controls, escape_for, to_json
from regard.terminal import Console
from tests.hostile import EVERYTHING, HOSTILE, Terminal

SOURCE = Path(__file__).parents[1] / "src" / "regard"


def make_table(text: str, cell: object) -> Table:
    table = Table(title=text, caption=text)
    table.add_column(text, footer=text)
    table.add_row(cell)  # type: ignore[arg-type]
    return table


FORMS = {
    "text": lambda text: text,
    "path": Path,
    "rich text": Text,
    "table": lambda text: make_table(text, text),
    "table of rich text": lambda text: make_table(text, Text(text)),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_a_console_prints_what_it_is_given(text: str, form: str) -> None:
    terminal = Terminal()
    Console(file=terminal, width=200, no_color=True).print(FORMS[form](text), markup=True)
    printed = terminal.read_safe()
    if form == "text":
        assert printed == escape_controls(text) + "\n"
    if form == "table" and "\n" not in text:
        assert escape_controls(text) in printed


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_a_progress_bar_prints_what_it_is_given(text: str) -> None:
    terminal = Terminal()
    with Display(Console(file=terminal, width=200)) as display:
        display.update(0.5, f"{text} {EVERYTHING}")
        display.print(text)
    assert "7;35m" in terminal.read_safe()


def test_a_program_reads_what_was_written() -> None:
    text = "\x1b[31m\ta\x9b\u202e\r\n"
    assert escape_for(False, text) == text
    assert escape_for(True, text) == "\\x1b[31m\ta\\x9b\\u202e\\r\n"
    assert escape_for(False, "\udcff") == r"\udcff"


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_json_is_one_line_of_printable_characters(text: str) -> None:
    printed = to_json({text: [text, "ä"]})
    assert printed.splitlines() == [printed]
    assert printed.isprintable()
    assert "ä" in printed
    assert json.loads(printed) == {text: [text, "ä"]}


PROBE = "models/int8_probe.py"  # a process of its own, which prints numbers for its parent


# What prints or reads markup, by name: whether this call does, as code with what is imported.
PRINTERS: dict[str, Callable[[str, set[str]], bool]] = {
    "print": lambda code, _: code.startswith("print("),
    "echo": lambda code, _: code.startswith("typer."),
    "secho": lambda code, _: True,
    "from_markup": lambda code, _: True,
    "TextColumn": lambda code, _: "description" in code and "markup=False" not in code,
    # Its default columns have markup.
    "Progress": lambda code, names: "rich.progress.Progress" in names and "(*columns" not in code,
    "status": lambda code, _: not code.startswith("err.status(Text("),
}


def test_everything_is_printed_by_our_consoles() -> None:
    for path in SOURCE.rglob("*.py"):
        if path.relative_to(SOURCE).as_posix() not in ("terminal.py", PROBE):
            assert list(find_other_printers(ast.parse(path.read_text("utf-8")))) == [], path.name


def find_other_printers(tree: ast.Module) -> Iterator[str]:
    """The code that prints, or reads markup, without `regard.terminal`."""
    imported = {
        f"{node.module}.{alias.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    yield from imported & {"rich.print", "rich.get_console", "rich.console.Console"}
    for call in ast.walk(tree):
        if isinstance(call, ast.Call):
            name = getattr(call.func, "id", getattr(call.func, "attr", ""))
            if name in PRINTERS and PRINTERS[name](ast.unparse(call), imported):
                yield ast.unparse(call)


OTHERS = {
    "builtin": "print(1)",
    "typer": "typer.echo(1)",
    "console": "from rich.console import Console",
    "markup": "Text.from_markup(text)",
    "bar": "TextColumn('{task.description}')",
    "bars": "from rich.progress import Progress\nProgress()",
    "status": "err.status(text)",
}


@pytest.mark.parametrize("code", OTHERS.values(), ids=OTHERS)
def test_other_printers_are_found(code: str) -> None:
    assert list(find_other_printers(ast.parse(code)))
