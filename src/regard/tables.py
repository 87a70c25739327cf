"""Tables in Markdown, LaTeX and CSV."""

import csv
import io
import re
from collections.abc import Sequence

from regard.escaping import escape_formula, escape_latex, escape_markdown, unescape_markdown

Rows = Sequence[Sequence[str]]


def markdown_table(rows: Rows, text_columns: int = 1) -> str:
    """A Markdown table; the first row holds the headings, the first columns text, the others numbers."""
    lines = ["| " + " | ".join(map(escape_markdown, row)) + " |" for row in rows]
    lines.insert(1, "|---" * text_columns + "|---:" * (len(rows[0]) - text_columns) + "|")
    return "\n".join(lines) + "\n"


def read_markdown_table(text: str) -> tuple[tuple[tuple[str, ...], ...], tuple[str, ...]]:
    """(rows, lines after them) of a file that starts with a `markdown_table`; without indented lines."""
    lines = text.splitlines()
    rows = [
        tuple(unescape_markdown(cell.strip()) for cell in re.split(r"(?<!\\)\|", line)[1:-1])
        for line in lines
        if line.startswith("|") and not re.fullmatch(r"[|:-]+", line)
    ]
    notes = [unescape_markdown(line.strip()) for line in lines if re.match(r"[^|\s]", line)]
    return tuple(rows), tuple(notes)


def latex_table(rows: Rows) -> str:
    """A booktabs table; the first row holds the headings, the first column text, the others numbers."""
    body = [" & ".join(map(escape_latex, row)) + r" \\" for row in rows]
    columns = "l" + "r" * (len(rows[0]) - 1)
    top = [rf"\begin{{tabular}}{{{columns}}}", r"\toprule", body[0], r"\midrule"]
    return "\n".join([*top, *body[1:], r"\bottomrule", r"\end{tabular}"]) + "\n"


def csv_table(rows: Sequence[Sequence[str | float | None]]) -> str:
    """Comma-separated values: numbers as they are, None as an empty cell, and texts that are no formulas."""
    text = io.StringIO()
    for row in rows:
        cells = [escape_formula(cell) if isinstance(cell, str) else cell for cell in row]
        csv.writer(text).writerow(cells)
    return text.getvalue()
