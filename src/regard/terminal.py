"""A console for texts of users.

A path, a token or a line of a file can have rich's markup (`[/]`), an emoji code (`:smile:`), an escape
sequence, or characters that reorder a line. All messages and tables are printed by this console.
"""

from collections.abc import Iterable
from typing import Any

from rich import console
from rich.console import ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from regard.escaping import escape_controls


class Console(console.Console):
    """rich's, without markup, emoji codes and highlighting, whatever is asked for; controls are escaped."""

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
