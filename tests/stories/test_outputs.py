"""Every command, given texts and paths that someone else may have written, on a terminal and in a pipe."""

import contextlib
import json
import shutil
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import typer

from regard import cli
from regard.cli import app
from regard.escaping import escape_controls, one_cell, one_line
from regard.translation import Translation
from tests.hostile import ARGUMENTS, EVERYTHING, Terminal

BREAKS = "a\nb\rc\r\nd\x0be\x0cf\x1cg\x1dh\x1ei\x85j\u2028k\u2029l\tm"  # each line break of Unicode


def list_commands() -> dict[str, Any]:
    """Every command by the words that name it: "data get"."""
    group: Any = typer.main.get_command(app)
    found = {}
    for name, command in group.commands.items():
        nested = getattr(command, "commands", None)
        found |= {f"{name} {n}": c for n, c in nested.items()} if nested else {name: command}
    return found


COMMANDS = list_commands()


def run_on_terminal(*words: object) -> tuple[int, str]:
    """(exit code, what was printed); no control character reached the terminal."""
    terminal = Terminal()
    with (
        mock.patch.object(sys, "argv", ["regard", *map(str, words)]),
        contextlib.redirect_stdout(terminal),
        contextlib.redirect_stderr(terminal),
    ):
        try:
            cli.main()
            code = 0
        except SystemExit as end:
            code = int(end.code or 0)
    return code, terminal.read_safe()


@pytest.mark.parametrize("name", COMMANDS)
def test_errors_print_what_was_typed(name: str) -> None:
    """As the arguments, as the value of each option, and as an option of that name."""
    parameters = COMMANDS[name].params
    arguments = [EVERYTHING for p in parameters if p.param_type_name == "argument"]
    options = {p.opts[0]: p.required for p in parameters if hasattr(p, "is_flag") and not p.is_flag}
    if name == "bench serving":
        del options["--run"]  # starts another process, for which `serve` is tested
    for option in options:
        given = [option, *(other for other in options if options[other] and other != option)]
        words = [word for one in given for word in (one, EVERYTHING)]
        code, printed = run_on_terminal(*name.split(), *words, "--", *arguments)
        assert code == 2, printed
    code, printed = run_on_terminal(*name.split(), f"--{EVERYTHING}")
    assert code == 2
    assert "a[/]b" in printed


@pytest.mark.parametrize("text", ARGUMENTS.values(), ids=ARGUMENTS)
def test_an_error_names_each_text(text: str) -> None:
    assert run_on_terminal("--", text)[0] == 2  # there is no such command
    code, printed = run_on_terminal("settings", "--", text)
    assert code == 2
    assert escape_controls(text) in printed or text == ARGUMENTS["invalid byte"]


# --- what commands print when they succeed -------------------------------------------------------


@pytest.fixture(scope="module")
def hostile_run(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trained run whose name has markup, an emoji code, escape sequences and an override."""
    folder = tmp_path_factory.mktemp("hostile") / "a[" / NAME  # a[/]b
    shutil.copytree(run, folder)
    (folder.parent / f"{NAME}.toml").write_text('base = "case"\ndata.train = 300\n')
    (folder.parent / f"{NAME}.txt").write_text("<U> a\n<L> B\n")
    (folder.parent / f"{NAME}.tsv").write_text("<U> a\tA\n<L> B\tb\n")
    return folder


NAME = "]b[red] :smile: \x1b[7;35m \x9b7;35m \u202e"
SUCCESSES = {
    "info": "info {0}",
    "runs": "runs {0.parent}",
    "translate": "translate {0} <U>~a --beam 2 --nbest 2",
    "translate a file": "translate {0} --input {0}.txt --output {1}/{0.name}",
    "evaluate": "evaluate {0} --first 2 --outputs {1}/{0.name}.tsv",
    "ablate": "evaluate {0} --first 2 --ablate attention --plot {1}/{0.name}.png",
    "evaluate others": "evaluate {0} --input {0}.tsv --hypotheses {0}.txt",
    "score": "score {0} --input {0}.tsv",
    "diagram": "diagram {0} <U>~a --out {1}/{0.name}.html",
    "gallery": "diagram {0} <U>~a <U>~b --out {1}/{0.name} --alignments {1}/{0.name}.align",
    "preset": "presets {0}.toml",
    "dry run": "compare {0}.toml --dry-run --out {1}/{0.name}",
    "finished": "train --resume {0}",
    "page": "export {0} --to page --out {1}/{0.name}.html",
    "hub": "export {0} --to hub --no-bleu --out {1}/{0.name}",
    "worksheet": "lab copying --worksheet {1}/{0.name}",
}


@pytest.mark.parametrize("command", SUCCESSES.values(), ids=SUCCESSES)
def test_results_print_paths_as_they_are(command: str, hostile_run: Path, tmp_path: Path) -> None:
    words = [word.format(hostile_run, tmp_path).replace("~", " ") for word in command.split()]
    code, printed = run_on_terminal(*words)
    assert code == 0, printed
    if not command.startswith(("translate", "score", "preset")):  # they print no path
        assert "]b[red] :smile: \\x1b[7;35m \\x9b7;35m \\u202e" in printed


# --- one line per input ---------------------------------------------------------------------------


@pytest.fixture
def broken_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every translation has every line break."""
    monkeypatch.setattr(Translation, "text", property(lambda _: BREAKS, lambda *_: None), False)


@pytest.mark.usefixtures("broken_outputs")
def test_every_input_has_one_line(regard, run: Path, tmp_path: Path) -> None:
    source, outputs = tmp_path / "source.txt", tmp_path / "outputs.tsv"
    source.write_text("<U> a\n\n<L> B\n")
    flat = "a b c d e f g h i j k l\tm"
    assert regard("translate", run, "--input", source).out.splitlines() == [flat, "", flat]
    assert regard("translate", run, "--input", source, "--output", outputs).code == 0
    assert outputs.read_text("utf-8").splitlines() == [flat, "", flat]
    lines = regard("translate", run, "<U> a", "--beam", 2, "--nbest", 2).out.splitlines()
    assert [line.split("\t")[::2] for line in lines] == [
        ["1", flat.replace("\t", " ")],
        ["2", flat.replace("\t", " ")],
    ]
    result = regard("evaluate", run, "--first", 3, "--outputs", outputs, "--overwrite")
    assert result.code == 0, result.err
    rows = [line.split("\t") for line in outputs.read_text("utf-8").splitlines()]
    assert [len(row) for row in rows] == [4] * 4
    assert regard("diagram", run, "<U> a", "--out", tmp_path / "a.png").out.splitlines()[0] == flat


@pytest.mark.usefixtures("broken_outputs")
def test_json_keeps_every_character(regard, run: Path, tmp_path: Path) -> None:
    [record] = json.loads(regard("translate", run, "<U> a", "--json").out)
    assert record["text"] == BREAKS


def test_lines_and_cells_have_no_line_break() -> None:
    every = "".join(map(chr, range(0x110000)))
    assert one_line(every).splitlines() == [one_line(every)]
    assert one_cell(every).splitlines() == [one_cell(every)]
    assert "\t" in one_line(every)
    assert "\t" not in one_cell(every)
    kept = [c for c in every if c not in "\t" and len(f"a{c}b".splitlines()) == 1]
    assert one_cell("".join(kept)) == "".join(kept)
