"""Progress output of long commands: a progress bar on a terminal, plain lines elsewhere."""

from collections.abc import Iterable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn


class Display(AbstractContextManager["Display"]):
    """`print` writes a line; `update` moves the progress bar, if there is one."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.bar: Progress | None = None
        self.task: Any = None
        if console.is_terminal:
            columns = (
                BarColumn(),
                TextColumn("{task.percentage:>3.0f}%"),
                TextColumn("{task.description}"),
            )
            self.bar = Progress(*columns, TimeRemainingColumn(), console=console, transient=True)
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

    def print_all(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.print(line)

    def update(self, fraction: float, description: str) -> None:
        if self.bar:
            self.bar.update(self.task, completed=fraction, description=description)
