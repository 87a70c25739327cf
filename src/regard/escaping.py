"""Texts of users in each format that Regard writes: they print as they are, and nothing obeys them."""

import html
import re
from typing import Any

from regard import documents

SURROGATES = "\ud800-\udfff"  # half a character, which no encoding has
# Control characters but tab and line feed, line separators, and what changes the direction of text.
CONTROLS = "\0-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069"
UNPRINTABLE = re.compile(f"[{CONTROLS}{SURROGATES}]")
UNENCODABLE = re.compile(f"[{SURROGATES}]")
LINE_BREAKS = re.compile("[\n\r\x0b\x0c\x1c-\x1e\x85\u2028\u2029]+")  # those of `str.splitlines`


# --- terminals, and programs that read lines ------------------------------------------------------


def escape_controls(text: str) -> str:
    r"""The text with control characters as in a Python string: an escape is `\x1b`."""
    return UNPRINTABLE.sub(lambda match: escape_character(match[0]), text)


def escape_for(terminal: bool, text: str) -> str:
    """The text with controls escaped for a terminal; for a program, as it is."""
    if terminal:
        return escape_controls(text)
    return UNENCODABLE.sub(lambda match: escape_character(match[0]), text)


def escape_character(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def one_line(text: str) -> str:
    """The text with a space for each run of line breaks, so that line N of an output stays line N."""
    return LINE_BREAKS.sub(" ", text)


def one_cell(text: str) -> str:
    """The same for a cell of tab-separated text: without tabs either."""
    return one_line(text).replace("\t", " ")


# --- formats --------------------------------------------------------------------------------------


def to_json(document: Any, **options: Any) -> str:
    r"""JSON that reads the same for a program, and has no control character: they are `\uXXXX`."""
    text = documents.dumps(document, ensure_ascii=False, **options)
    return UNPRINTABLE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def escape_markdown(text: str) -> str:
    """Text that Markdown prints literally, also in a cell: `<U>` is no tag, `|` ends nothing."""
    text = escape_controls(" ".join(text.split())).replace("&", "&amp;").replace("<", "&lt;")
    # An underscore inside a word, as in model.d_model, is literal anyway.
    return re.sub(r"([\\`*\[\]|~#$]|(?<!\w)_|_(?!\w))", r"\\\1", text)


def unescape_markdown(text: str) -> str:
    return html.unescape(re.sub(r"\\([^\w\s])", r"\1", text))


def escape_latex(text: str) -> str:
    """Text that LaTeX prints literally, also in a cell of a table."""
    return escape_controls(one_line(text)).translate(LATEX).replace("--", "-{}-")


LATEX = str.maketrans(
    {character: f"\\{character}" for character in "%_&#${}"}
    # In braces, as the first character of a row they are no option of the \\ before it.
    | {character: f"{{{character}}}" for character in "[]*"}
    | {
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "`": r"\textasciigrave{}",
        "<": r"\textless{}",
        ">": r"\textgreater{}",
        "|": r"\textbar{}",
        '"': r"{\char34}",  # not a shorthand of babel
        "±": r"$\pm$",
        "\t": " ",
    }
)


def escape_formula(text: str) -> str:
    """A cell of a CSV file that no spreadsheet computes: an apostrophe in front (OWASP's advice)."""
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r", "\n")) else text
