"""Compressed files, read up to a bound: a few kilobytes can unpack to more than a disk or a memory holds."""

import gzip
import io
import os
import stat
from pathlib import Path
from typing import IO, Any

from regard.errors import UserError

RATIO = 250  # text that repeats a few sentences shrinks by 100, and gzip by 1,032 at most
FLOOR = 64 << 20  # bytes that any file may have
MAX_BYTES = 64 << 30


def largest_size(compressed: int) -> int:
    """The bytes that a file of `compressed` bytes may unpack to."""
    return min(MAX_BYTES, max(FLOOR, RATIO * compressed))


def check_size(name: object, compressed: int, size: int) -> None:
    """Raise an error if `size` bytes are too many for a file of `compressed` bytes."""
    allowed = largest_size(compressed)
    if size > allowed:
        raise UserError(
            f"{name} unpacks to more than {allowed / 2**20:,.0f} MiB from {compressed:,} bytes, as no text "
            "does: unpack it yourself, if you trust it"
        )


class BoundedReader(io.RawIOBase):
    """Reads from `file`, and raises an error once it has given more than its compressed size allows."""

    def __init__(self, file: gzip.GzipFile, name: object, compressed: int) -> None:
        self.file, self.name, self.compressed = file, name, compressed
        self.size = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count = self.file.readinto(buffer)
        self.size += count
        check_size(self.name, self.compressed, self.size)
        return count

    def close(self) -> None:
        self.file.close()
        super().close()


def open_gzip(source: Path | IO[bytes], name: object) -> io.BufferedReader:
    """The content of a gzip file, given by path or open."""
    compressed = MAX_BYTES  # of a pipe, whose size is not known
    status = os.stat(source if isinstance(source, Path) else source.fileno())
    if stat.S_ISREG(status.st_mode):
        compressed = status.st_size
    return io.BufferedReader(BoundedReader(gzip.open(source), name, compressed), 1 << 16)
