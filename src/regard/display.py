"""Progress output of long commands: a progress bar on a terminal, plain lines elsewhere."""

from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn


class Display(AbstractContextManager["Display"]):
    """`print` writes a line; `update` moves the progress bar, if there is one.

    `has_bar`: whether a terminal gets one. `has_end`: whether it is known how much there is to do.
    """

    def __init__(self, console: Console, has_bar: bool = True, has_end: bool = True) -> None:
        self.console = console
        self.bar: Progress | None = None
        self.task: Any = None
        if console.is_terminal and has_bar:
            columns = [BarColumn(), TextColumn("{task.percentage:>3.0f}%")] if has_end else []
            columns += [TextColumn("{task.description}")]
            columns += [TimeRemainingColumn()] if has_end else []
            self.bar = Progress(*columns, console=console, transient=True)
            self.task = self.bar.add_task("", total=1.0)

    def __enter__(self) -> "Display":
        if self.bar:
            self.bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.bar:
            self.bar.stop()

    def print(self, line: str) -> None:
        self.console.print(line, highlight=False, markup=False)

    def update(self, fraction: float, description: str) -> None:
        if self.bar:
            self.bar.update(self.task, completed=fraction, description=description)
