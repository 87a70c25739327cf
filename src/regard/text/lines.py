"""The lines of a UTF-8 text file, plain or .gz.

A line ends at LF or CR LF only. Other programs also split at form feeds and other characters within one, as
`str.splitlines` does: where a text is written as a line, `one_line` leaves none of them.
"""

import gzip
import re
import sys
import zlib
from io import BufferedIOBase
from pathlib import Path

from regard.errors import UserError

BOM = b"\xef\xbb\xbf"
LINE_BREAKS = "\n\r\x0b\x0c\x1c-\x1e\x85\u2028\u2029"  # those of `str.splitlines`


def open_binary(path: Path) -> BufferedIOBase:
    """A file to read, decompressed if its name ends in .gz."""
    return gzip.open(path, "rb") if path.name.lower().endswith(".gz") else path.open("rb")


def read_lines(name: str | Path) -> list[str]:
    """The lines of a file or, for "-", of standard input."""
    try:
        if name == "-":
            data = sys.stdin.buffer.read()
        else:
            with open_binary(Path(name)) as file:
                data = file.read()
    except (EOFError, zlib.error, OSError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"{name} cannot be read: {reason}") from None
    lines = data.removeprefix(BOM).split(b"\n")
    lines = lines if lines[-1] else lines[:-1]
    return [decode(line, f"{name}, line {number}") for number, line in enumerate(lines, start=1)]


def decode(line: bytes, where: str) -> str:
    try:
        return line.decode("utf-8").removesuffix("\r")
    except UnicodeDecodeError:
        raise UserError(f"{where}: not valid UTF-8") from None


def one_line(text: str) -> str:
    """The text with a space for each run of line breaks, so that line N of an output stays line N."""
    return re.sub(f"[{LINE_BREAKS}]+", " ", text)


def one_cell(text: str) -> str:
    """The same for a cell of tab-separated text: without tabs either."""
    return one_line(text).replace("\t", " ")
