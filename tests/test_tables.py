"""Tables with any text in any cell."""

import csv
import io
import re

import pytest

from regard.escaping import escape_formula, escape_latex, escape_markdown, unescape_markdown
from regard.tables import csv_table, latex_table, markdown_table, read_markdown_table
from tests.hostile import HOSTILE

ENCODABLE = {name: text for name, text in HOSTILE.items() if not re.search("[\ud800-\udfff]", text)}


def test_a_table_is_read_back():
    rows = [["system", "BLEU", ""], ["a|b", "± 1.5", ""], ["--", ":-", "x"]]
    text = markdown_table(rows) + "\nTwo seeds; greedy.\n\n    regard compare a\n\nFailed: a|b\n"
    assert read_markdown_table(text) == (
        tuple(map(tuple, rows)),
        ("Two seeds; greedy.", "Failed: a|b"),
    )
    assert read_markdown_table("") == ((), ())


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_markdown_has_every_text_in_its_cell(text: str) -> None:
    rows = [[text, "figure"], [text, text], ["a\\", "|"]]
    table = markdown_table(rows)
    assert len(table.splitlines()) == 4
    assert not re.search(r"(?<!\\)[`*\[\]~$]|<", table)
    assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}) == 1
    visible = [[unescape_markdown(escape_markdown(cell)) for cell in row] for row in rows]
    assert read_markdown_table(table) == (tuple(map(tuple, visible)), ())


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("a\tb\n c ", "a b c"),
        ("1 < 2 & 3", "1 &lt; 2 &amp; 3"),
        (r"\*_`[x]~#$", r"\\\*\_\`\[x\]\~\#\$"),
        ("model.d_model=_x_", r"model.d_model=\_x\_"),
        ('"so", he said', '"so", he said'),
        ("\x1b[0m", r"\\x1b\[0m"),
    ],
)
def test_markdown_is_escaped(text: str, escaped: str) -> None:
    assert escape_markdown(text) == escaped


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_latex_has_every_text_in_its_cell(text: str) -> None:
    table = latex_table([[text, "figure"], [text, text]])
    body = [line for line in table.splitlines() if line.endswith(r" \\")]
    assert len(table.splitlines()) == 7
    assert [len(re.findall(r"(?<!\\)&", line)) for line in body] == [1, 1]
    # Nothing is left but our own commands, and no row begins with an option of the \\ before it.
    plain = re.sub(
        r"\\text\w+\{\}|\{\\char34\}|\\[%_&#${}]|\{[\[\]*]\}|-\{\}-", "", escape_latex(text)
    )
    assert not re.search(r"[\\{}$&#^_%~\[\]*\"|<>`\0-\x1f\x7f-\x9f]", plain)


def test_latex_is_escaped() -> None:
    assert escape_latex(r"50% a_b \x {y} ~^ ± --") == (
        r"50\% a\_b \textbackslash{}x \{y\} \textasciitilde{}\textasciicircum{} $\pm$ -{}-"
    )
    assert escape_latex("[2cm]") == "{[}2cm{]}"


@pytest.mark.parametrize("text", ENCODABLE.values(), ids=ENCODABLE)
def test_csv_has_texts_that_no_spreadsheet_computes(text: str) -> None:
    rows = [[text, "figure"], [text, -1.5], [f"{text},\n{text}", None]]
    [heading, first, second] = csv.reader(io.StringIO(csv_table(rows), newline=""))
    assert heading == [escape_formula(text), "figure"]
    assert first == [escape_formula(text), "-1.5"]  # a number stays one
    assert second == [escape_formula(f"{text},\n{text}"), ""]
    assert heading[0].removeprefix("'") == text
    assert heading[0][0] not in "=+-@\t\r\n"


@pytest.mark.parametrize("start", "=+-@\t\r\n")
def test_formulas_have_an_apostrophe(start: str) -> None:
    assert escape_formula(f"{start}1") == f"'{start}1"
    assert escape_formula(f"1{start}") == f"1{start}"
    assert escape_formula("") == ""
