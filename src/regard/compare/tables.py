"""The results table in Markdown, LaTeX and CSV."""

import csv
import io
from collections.abc import Sequence
from typing import Any

from regard.compare.columns import COLUMNS
from regard.tables import Rows, markdown_table


def format_rows(systems: Sequence[dict[str, Any]], names: Sequence[str]) -> list[list[str]]:
    """A row of headings, then one row per system, with the named columns."""
    columns = [COLUMNS[name] for name in names]
    headings = ["system", *(column.heading for column in columns)]
    return [headings, *([s["system"], *(c.format_cell(s) for c in columns)] for s in systems)]


def to_markdown(rows: Rows, notes: Sequence[str], command: str, failed: Sequence[str]) -> str:
    """The table, followed by the notes, the command and the failed runs."""
    footer = f"\n{'; '.join(notes)}.\n\n    {command}\n"
    footer += "".join(f"\nFailed: {line}\n" for line in failed)
    return markdown_table(rows) + footer


def to_latex(rows: Rows) -> str:
    """A booktabs table."""
    escape = str.maketrans(
        {character: f"\\{character}" for character in "%_&#${}"} | {"±": r"$\pm$"}
    )
    body = [" & ".join(cell.translate(escape) for cell in row) + r" \\" for row in rows]
    columns = "l" + "r" * (len(rows[0]) - 1)
    top = [rf"\begin{{tabular}}{{{columns}}}", r"\toprule", body[0], r"\midrule"]
    return "\n".join([*top, *body[1:], r"\bottomrule", r"\end{tabular}"]) + "\n"


def to_csv(systems: Sequence[dict[str, Any]]) -> str:
    """All columns, by name, as unformatted numbers; missing values are empty."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(["system", *COLUMNS])
    for system in systems:
        writer.writerow([system["system"], *(c.get_value(system) for c in COLUMNS.values())])
    return text.getvalue()
