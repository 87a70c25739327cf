"""Progress output of long commands: a progress bar on a terminal, plain lines elsewhere."""

import time
from collections.abc import Iterable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any

from rich.progress import BarColumn, Progress, TextColumn

from regard.terminal import Console


class Display(AbstractContextManager["Display"]):
    """`print` writes a line; `update` moves the progress bar, if there is one.

    `has_bar`: whether a terminal gets one. `has_end`: whether it is known how much there is to do.
    `time_left` is estimated from the speed since the first update, so a resumed run does not count the
    work of earlier sessions.
    """

    def __init__(self, console: Console, has_bar: bool = True, has_end: bool = True) -> None:
        self.console = console
        self.bar: Progress | None = None
        self.task: Any = None
        self.start: tuple[float, float] | None = None  # fraction and time of the first update
        self.fraction = 0.0
        if console.is_terminal and has_bar:
            columns = [BarColumn(), TextColumn("{task.percentage:>3.0f}%")] if has_end else []
            columns += [TextColumn("{task.description}", markup=False)]
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
        self.console.print(line)

    def print_all(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.print(line)

    def update(self, fraction: float, description: str) -> None:
        self.start = self.start or (fraction, time.monotonic())
        self.fraction = fraction
        if self.bar:
            description = "  ".join(filter(None, (description, self.time_left)))
            self.bar.update(self.task, completed=fraction, description=description)

    @property
    def time_left(self) -> str:
        """'about 3 min left'; empty while there is nothing to estimate it from, and at the end."""
        start, begin = self.start or (self.fraction, 0.0)
        done = self.fraction - start
        if done <= 0 or self.fraction >= 1:
            return ""
        elapsed = time.monotonic() - begin
        return f"about {format_duration(elapsed * (1 - self.fraction) / done)} left"


def format_duration(seconds: float) -> str:
    """'40 s', '3 min', '2 h 5 min'"""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    minutes = round(seconds / 60)
    if minutes < 90:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min"
