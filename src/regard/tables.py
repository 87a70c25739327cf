"""Tables in Markdown."""

from collections.abc import Sequence

Rows = Sequence[Sequence[str]]


def markdown_table(rows: Rows) -> str:
    """A Markdown table; the first row holds the headings."""
    lines = ["| " + " | ".join(cell.replace("|", r"\|") for cell in row) + " |" for row in rows]
    lines.insert(1, "|---" + "|---:" * (len(rows[0]) - 1) + "|")
    return "\n".join(lines) + "\n"
