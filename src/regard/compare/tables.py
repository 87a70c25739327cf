"""A table as a paper prints it (Markdown, LaTeX) and as a program reads it (CSV)."""

import csv
import io
from collections.abc import Sequence
from typing import Any

from regard.compare.columns import COLUMNS

Rows = Sequence[Sequence[str]]


def shown(systems: Sequence[dict[str, Any]], names: Sequence[str]) -> list[list[str]]:
    """Headings, then a row for each system, in these columns."""
    heads = ["system", *(COLUMNS[name].head for name in names)]
    return [heads, *([s["system"], *(COLUMNS[name].cell(s) for name in names)] for s in systems)]


def markdown(rows: Rows, notes: Sequence[str], command: str, failed: Sequence[str]) -> str:
    told = f"\n{'; '.join(notes)}.\n\n    {command}\n"
    told += "".join(f"\nFailed: {line}\n" for line in failed)
    return grid(rows) + told


def grid(rows: Rows) -> str:
    """A table in Markdown, its first row the headings."""
    lines = ["| " + " | ".join(cell.replace("|", r"\|") for cell in row) + " |" for row in rows]
    lines.insert(1, "|---" + "|---:" * (len(rows[0]) - 1) + "|")
    return "\n".join(lines) + "\n"


def latex(rows: Rows) -> str:
    """A booktabs table."""
    escape = str.maketrans({sign: f"\\{sign}" for sign in "%_&#${}"} | {"±": r"$\pm$"})
    body = [" & ".join(cell.translate(escape) for cell in row) + r" \\" for row in rows]
    columns = "l" + "r" * (len(rows[0]) - 1)
    top = [rf"\begin{{tabular}}{{{columns}}}", r"\toprule", body[0], r"\midrule"]
    return "\n".join([*top, *body[1:], r"\bottomrule", r"\end{tabular}"]) + "\n"


def comma_separated(systems: Sequence[dict[str, Any]]) -> str:
    """Every column there is, by its name, as plain numbers; what is not known is empty."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(["system", *COLUMNS])
    for system in systems:
        writer.writerow([system["system"], *(c.value(system) for c in COLUMNS.values())])
    return text.getvalue()
