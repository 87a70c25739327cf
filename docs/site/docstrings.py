"""Sphinx extension: our docstrings as reStructuredText.

They are plain text: nothing in them is markup but `code`, doctests and indented lines, which stay.
"""

import re
from typing import Any

from sphinx.application import Sphinx


def to_rst(text: str) -> str:
    """A docstring, paragraph by paragraph."""
    paragraphs = re.split(r"\n\s*\n", text.strip("\n"))
    return "\n\n".join(paragraph_to_rst(paragraph) for paragraph in paragraphs)


def paragraph_to_rst(paragraph: str) -> str:
    lines = paragraph.splitlines()
    if lines[0].lstrip().startswith(">>>"):
        return paragraph
    if lines[0].startswith(" "):
        return "::\n\n" + "\n".join(lines)
    kept = [n for n, line in enumerate(lines) if line.startswith(" ")]
    if kept:  # a paragraph whose further lines are indented: a table or a list of our own
        return "\n".join(f"| {escape(line.strip())}" for line in lines)
    return "\n".join(escape(line) for line in lines)


def escape(text: str) -> str:
    """Text in which only `code` is markup."""
    parts = re.split(r"(`[^`]+`)", text)
    return "".join(
        f"`{part}`" if part.startswith("`") else re.sub(r"([\\*_|`<>:])", r"\\\1", part)
        for part in parts
    )


def process(app: Sphinx, what: str, name: str, found: Any, options: Any, lines: list[str]) -> None:
    lines[:] = [*to_rst("\n".join(lines)).splitlines(), ""] if any(lines) else []


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("autodoc-process-docstring", process)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
