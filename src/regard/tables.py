"""Tables in Markdown."""

import re
from collections.abc import Sequence

Rows = Sequence[Sequence[str]]


def markdown_table(rows: Rows, text_columns: int = 1) -> str:
    """A Markdown table; the first row holds the headings, the first columns text, the others numbers."""
    lines = ["| " + " | ".join(cell.replace("|", r"\|") for cell in row) + " |" for row in rows]
    lines.insert(1, "|---" * text_columns + "|---:" * (len(rows[0]) - text_columns) + "|")
    return "\n".join(lines) + "\n"


def read_markdown_table(text: str) -> tuple[tuple[tuple[str, ...], ...], tuple[str, ...]]:
    """(rows, lines after them) of a file that starts with a `markdown_table`; without indented lines."""
    lines = text.splitlines()
    rows = [
        tuple(cell.strip().replace(r"\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1])
        for line in lines
        if line.startswith("|") and not re.fullmatch(r"[|:-]+", line)
    ]
    notes = [line.strip() for line in lines if re.match(r"[^|\s]", line)]
    return tuple(rows), tuple(notes)
