"""Tables in Markdown."""

from collections.abc import Sequence

Rows = Sequence[Sequence[str]]


def markdown_table(rows: Rows, text_columns: int = 1) -> str:
    """A Markdown table; the first row holds the headings, the first columns text, the others numbers."""
    lines = ["| " + " | ".join(cell.replace("|", r"\|") for cell in row) + " |" for row in rows]
    lines.insert(1, "|---" * text_columns + "|---:" * (len(rows[0]) - text_columns) + "|")
    return "\n".join(lines) + "\n"
