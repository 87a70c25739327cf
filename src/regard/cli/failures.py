"""What goes wrong outside of Regard, in one sentence: files, memory, encodings, standard streams."""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TextIO

from regard.errors import UserError, describe_shortage


def explain(error: Exception) -> str | None:
    """The sentence for a user's mistake or a failure of the system; None for a bug."""
    text = str(error)
    match error:
        case UserError():
            return text
        case MemoryError() | RuntimeError() if shortage := describe_shortage(error):
            return shortage
        case OSError():
            return explain_os_error(error)
        case RecursionError():
            return "the input is nested too deeply: write it with fewer brackets or tables inside each other"
        case RuntimeError() if "home directory" in text:
            return "there is no home directory: set HOME, or REGARD_CACHE to a folder for downloads"
        case UnicodeEncodeError():
            character = ascii(error.object[error.start])
            if error.encoding == "utf-8":
                return f"{character} is half a character (a lone surrogate): give valid Unicode"
            return (
                f"{character} does not exist in the encoding {error.encoding} of this system: set "
                "PYTHONUTF8=1"
            )
        case ValueError() if text.startswith("embedded null"):
            return "a path contains the character NUL, which no file name has: remove it"
    return None


def explain_os_error(error: OSError) -> str:
    reason = error.strerror or str(error) or type(error).__name__
    if error.filename is not None:
        return f"{shorten(os.fsdecode(error.filename))}: {reason}"
    return f"an input or output failed: {reason}"


def check_working_directory() -> None:
    """Raise an error for one that was deleted: libraries abort the process in it."""
    try:
        os.getcwd()
    except OSError:
        raise UserError("the working directory no longer exists: change to another one") from None


def check_arguments(arguments: Sequence[str]) -> None:
    """Raise an error for an argument that is no text: it could not be printed, nor saved as JSON."""
    for number, argument in enumerate(arguments, start=1):
        if "\0" in argument:
            raise UserError(f"argument {number} contains the character NUL: remove it")
        if not argument.isascii() and any("\ud800" <= c <= "\udfff" for c in argument):
            hint = "" if sys.getfilesystemencoding() == "utf-8" else ", or set PYTHONUTF8=1"
            raise UserError(
                f"argument {number} is not valid UTF-8: {shorten(ascii(argument))}. Write it in UTF-8; a "
                f"file of that name must be renamed{hint}"
            )


def shorten(text: str, length: int = 100) -> str:
    return text if len(text) <= length else f"{text[:length]}..."


def open_missing_streams() -> None:
    """Replace standard streams that are closed, as with `<&-`, by the null device.

    Otherwise the next file to be opened would get their number, and be read or written by mistake.
    """
    streams = {"stdin": "r", "stdout": "w", "stderr": "w"}
    missing = [name for name in streams if getattr(sys, name) is None]
    if missing:
        while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
            os.set_inheritable(number, True)
        os.close(number)
    for name in missing:
        setattr(sys, name, open(os.devnull, streams[name], encoding="utf-8"))  # noqa: SIM115


@contextmanager
def flush_output() -> Iterator[None]:
    """Flush standard output after the body, so that a full disk is reported, and not only at exit."""
    try:
        yield
    finally:
        try:
            sys.stdout.flush()
        except BrokenPipeError:
            discard(sys.stdout)
            raise
        except OSError as error:
            discard(sys.stdout)
            reason = error.strerror or error
            raise UserError(f"standard output cannot be written: {reason}") from None


def discard(stream: TextIO) -> None:
    """Send to the null device what a standard stream still holds: at exit, Python would fail to flush it."""
    with suppress(OSError, ValueError):  # a stream of a test, say, which has no number
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
