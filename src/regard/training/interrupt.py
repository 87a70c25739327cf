"""Signals while a model is trained: the first stops after a checkpoint, the second at once."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from regard.signals import Stopped, replace_handlers, restore_handlers, write_message

MESSAGE = "\nstopping after this step and a checkpoint; repeat to stop at once\n"


class Interrupted(Stopped):
    """A signal stopped the training, and its checkpoint is saved."""


class Signals:
    """Notes the first signal, and restores the former handlers, so that the second acts at once."""

    def __init__(self, tell: bool) -> None:
        self.tell = tell
        self.received: int | None = None
        self.former: dict[int, Any] = {}  # a signal may come before the next line is done
        self.former = replace_handlers(self.handle)

    def restore(self) -> None:
        restore_handlers(self.former)

    def handle(self, number: int, _: FrameType | None) -> None:
        self.received = number
        self.restore()
        write_message(number, MESSAGE if self.tell else "")


@contextmanager
def catch_signals(tell: bool = True) -> Iterator[Signals]:
    """Note the signals that end a command in `received` instead of stopping. In other threads, do nothing.

    `tell`: say so when one comes.
    """
    signals = Signals(tell)
    try:
        yield signals
    finally:
        signals.restore()
