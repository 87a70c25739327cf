"""Ctrl-C and SIGTERM while a model is trained: the first stops after a checkpoint, the second at once."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

MESSAGE = b"\nstopping after this step and a checkpoint; repeat to stop at once\n"


class Interrupted(KeyboardInterrupt):
    """A signal stopped the training, and its checkpoint is saved."""

    def __init__(self, signal_number: int) -> None:
        super().__init__(f"training was stopped by {signal.Signals(signal_number).name}")
        self.signal_number = signal_number


class Signals:
    """Notes the first signal, and restores the former handlers, so that the second acts at once."""

    received: int | None = None

    def __init__(self) -> None:
        self.former = {
            number: handler
            for number in (signal.SIGINT, signal.SIGTERM)
            # Some are ignored (in the background, say) or not Python's (None): they stay.
            if (handler := signal.getsignal(number)) not in (signal.SIG_IGN, None)
        }

    def catch(self) -> None:
        for number in self.former:
            signal.signal(number, self.handle)

    def restore(self) -> None:
        for number, handler in self.former.items():
            signal.signal(number, handler)

    def handle(self, number: int, _: FrameType | None) -> None:
        self.received = number
        self.restore()
        with suppress(OSError):
            os.write(2, MESSAGE)  # not print: a signal may come in the middle of one


@contextmanager
def catch_signals() -> Iterator[Signals]:
    """Note Ctrl-C and SIGTERM in `received` instead of stopping. In other threads, do nothing."""
    signals = Signals()
    if threading.current_thread() is not threading.main_thread():
        yield signals
        return
    signals.catch()
    try:
        yield signals
    finally:
        signals.restore()
