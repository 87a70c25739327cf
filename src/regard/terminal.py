"""Text for a terminal: printed as it is, never obeyed.

A path, a token or a line of a file can have rich's markup (`[/]`), an emoji code (`:smile:`), an escape
sequence, or characters that reorder a line. All that is printed goes through `Console` or `escape_for`.
"""

import json
import re
from collections.abc import Iterable
from typing import Any

from rich import console
from rich.console import ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

SURROGATES = "\ud800-\udfff"  # half a character, which no encoding has
# Control characters but tab and line feed, line separators, and what changes the direction of text.
CONTROLS = "\0-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069"
UNPRINTABLE = re.compile(f"[{CONTROLS}{SURROGATES}]")
UNENCODABLE = re.compile(f"[{SURROGATES}]")


class Console(console.Console):
    """rich's, for texts of users: without markup, emoji codes and highlighting; controls are escaped."""

    def render_str(self, text: str, **options: Any) -> Text:
        plain: dict[str, Any] = {"markup": False, "emoji": False, "highlight": False}
        return super().render_str(escape_controls(text), **options | plain)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            # The control codes that rich itself moves the cursor with are marked as such.
            is_ours = segment.control is not None
            yield segment if is_ours else segment._replace(text=escape_controls(segment.text))


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


def to_json(document: Any, **options: Any) -> str:
    r"""JSON that reads the same for a program, and has no control character: they are `\uXXXX`."""
    text = json.dumps(document, ensure_ascii=False, **options)
    return UNPRINTABLE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)
