"""The lines of a UTF-8 text file, plain, .gz or .zst.

A line ends at LF or CR LF only; `str.splitlines` also splits at form feeds and other characters within one.
"""

import sys
import zlib
from io import BufferedReader
from pathlib import Path

from regard import files
from regard.errors import UserError
from regard.text.decompress import OPENERS, split_suffix

BOM = b"\xef\xbb\xbf"


def open_binary(path: Path) -> BufferedReader:
    """A file to read, decompressed if its name says so. Not a device: /dev/zero has no end."""
    (_, suffix), path = split_suffix(path.name), files.local_path(path)
    files.refuse_device(path)
    return OPENERS[suffix](path, path) if suffix else path.open("rb")


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
