"""The progress of all running jobs in one view: on a terminal, what each has printed last."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.live import Live
from rich.table import Table

from regard.terminal import Console

REFRESHES = 2  # per second


class View:
    """A row for each job, with the last line of its log. Nothing without a console that is a terminal."""

    def __init__(self, console: Console | None = None) -> None:
        self.logs: dict[str, Path] = {}
        is_shown = console is not None and console.is_terminal
        self.live = (
            Live(
                console=console,
                get_renderable=self.render,
                refresh_per_second=REFRESHES,
                transient=True,
            )
            if is_shown
            else None
        )

    def start(self) -> None:
        if self.live:
            self.live.start()

    def stop(self) -> None:
        if self.live:
            self.live.stop()

    @contextmanager
    def show(self, title: str, log: Path) -> Iterator[None]:
        """A row while the body runs."""
        self.logs[title] = log
        try:
            yield
        finally:
            self.logs.pop(title, None)

    def render(self) -> Table:
        table = Table.grid(padding=(0, 2))
        for _ in range(2):
            table.add_column(no_wrap=True, overflow="ellipsis")
        for title, log in list(self.logs.items()):
            table.add_row(title, last_line(log) if log.is_file() else "waiting")
        return table


def last_line(path: Path) -> str:
    text = path.read_text("utf-8", errors="replace")
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "no output"
