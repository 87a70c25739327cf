"""The signals that end a command: Ctrl-C, SIGTERM, and SIGHUP, which says that the terminal is gone."""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

NAMES = ("SIGINT", "SIGTERM", "SIGHUP")  # Windows has no SIGHUP
ENDING = tuple(getattr(signal, name) for name in NAMES if hasattr(signal, name))
PATIENCE = 2.0  # seconds that a command has to end; a signal after them ends it at once


class Stopped(KeyboardInterrupt):
    """A signal has ended the command."""

    def __init__(self, signal_number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(signal_number).name}")
        self.signal_number = signal_number


def exit_code(stop: KeyboardInterrupt) -> int:
    """As a shell reports a program that a signal ended."""
    return 128 + getattr(stop, "signal_number", signal.SIGINT)


def replace_handlers(handle: Callable[[int, FrameType | None], Any]) -> dict[int, Any]:
    """Let `handle` handle the ending signals; return the former handlers. In other threads, do nothing."""
    if threading.current_thread() is not threading.main_thread():
        return {}
    return {
        number: signal.signal(number, handle)
        for number in ENDING
        # Some are ignored (in the background, say) or not Python's (None): they stay.
        if signal.getsignal(number) not in (signal.SIG_IGN, None)
    }


def restore_handlers(former: dict[int, Any]) -> None:
    for number, handler in former.items():
        signal.signal(number, handler)


def write_message(number: int, text: str) -> None:
    """Write to standard error from a handler: not print, as a signal may come in the middle of one."""
    if number == getattr(signal, "SIGHUP", None):
        leave_terminal()
    with suppress(OSError):
        os.write(2, text.encode())


def leave_terminal() -> None:
    """Whatever is printed to a terminal that is gone fails: from now on it goes nowhere."""
    with suppress(OSError):
        nowhere = os.open(os.devnull, os.O_RDWR)
        for handle in range(3):
            if os.isatty(handle):
                os.dup2(nowhere, handle)


def is_importing(frame: FrameType | None) -> bool:
    """Whether this code runs while a module is imported."""
    while frame is not None and frame.f_code.co_filename != "<frozen importlib._bootstrap>":
        frame = frame.f_back
    return frame is not None


class Ending:
    """Raises `Stopped` at the first signal. Others that come soon after it change nothing."""

    def __init__(self) -> None:
        self.received: int | None = None
        self.since = 0.0

    def handle(self, number: int, frame: FrameType | None) -> None:
        # An exception in the middle of an import may end in C++ code that aborts.
        if (self.received is None and is_importing(frame)) or self.is_hanging():
            write_message(number, f"regard: {Stopped(number)}\n")
            os._exit(128 + number)
        write_message(number, "")
        if self.received is None:
            self.received, self.since = number, time.monotonic()
            raise Stopped(number)

    def is_hanging(self) -> bool:
        """Whether the first signal was long ago."""
        return self.received is not None and time.monotonic() > self.since + PATIENCE

    def handle_unraisable(self, problem: Any) -> None:
        """Python drops an exception in a destructor or a callback: raise `Stopped` again after it."""
        if self.received and isinstance(problem.exc_value, Stopped):
            number, self.received = self.received, None
            # A moment later: an exception in this function would be dropped as well.
            threading.Timer(0.1, os.kill, (os.getpid(), number)).start()
        else:
            sys.__unraisablehook__(problem)


def find_stop(end: SystemExit) -> KeyboardInterrupt | None:
    """What Typer ended a command for without a word. A command that has said something ends `from None`."""
    cause: BaseException | None = end
    while cause is not None and not isinstance(cause, KeyboardInterrupt):
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
    return cause


@contextmanager
def end_at_signals() -> Iterator[None]:
    """A signal raises `Stopped`, also where others would make something else of it."""
    ending = Ending()
    former = replace_handlers(ending.handle)
    sys.unraisablehook = ending.handle_unraisable
    try:
        yield
    except SystemExit as end:
        stop = find_stop(end)
        if stop is not None:
            raise stop from None
        raise
    except Stopped:
        raise
    except BaseException:
        if ending.received:
            raise Stopped(ending.received) from None
        raise
    finally:  # what is left is the end of the interpreter, which a signal would only disturb
        restore_handlers(dict.fromkeys(former, signal.SIG_IGN))
