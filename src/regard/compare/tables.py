"""The results table in Markdown, LaTeX and CSV."""

from collections.abc import Sequence
from typing import Any

from regard.compare.columns import COLUMNS
from regard.escaping import escape_markdown, one_line
from regard.tables import Rows, csv_table, markdown_table


def format_rows(systems: Sequence[dict[str, Any]], names: Sequence[str]) -> list[list[str]]:
    """A row of headings, then one row per system, with the named columns."""
    columns = [COLUMNS[name] for name in names]
    headings = ["system", *(column.heading for column in columns)]
    return [headings, *([s["system"], *(c.format_cell(s) for c in columns)] for s in systems)]


def to_markdown(rows: Rows, notes: Sequence[str], command: str, failed: Sequence[str]) -> str:
    """The table, followed by the notes (in Markdown), the command and the failed runs."""
    footer = f"\n{'; '.join(notes)}.\n\n    {one_line(command)}\n"
    footer += "".join(f"\nFailed: {escape_markdown(line)}\n" for line in failed)
    return markdown_table(rows) + footer


def to_csv(systems: Sequence[dict[str, Any]]) -> str:
    """All columns, by name, as unformatted numbers; missing values are empty."""
    rows = [[s["system"], *(c.get_value(s) for c in COLUMNS.values())] for s in systems]
    return csv_table([["system", *COLUMNS], *rows])
