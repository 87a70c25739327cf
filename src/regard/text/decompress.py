"""Compressed files, read up to a bound: a few kilobytes can unpack to more than a disk or a memory holds."""

import gzip
import io
import os
import stat
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
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
    """Reads from `file`, and raises an error once it has given more than its compressed size allows.

    `damaged`: what the file raises if it is damaged; that becomes an EOFError.
    """

    def __init__(
        self, file: Any, name: object, compressed: int, damaged: type[Exception] = EOFError
    ) -> None:
        self.file, self.name, self.compressed, self.damaged = file, name, compressed, damaged
        self.size = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            count = self.file.readinto(buffer)
        except self.damaged as error:
            raise EOFError(str(error)) from None
        self.size += count
        check_size(self.name, self.compressed, self.size)
        return count

    def close(self) -> None:
        self.file.close()
        super().close()


def open_gzip(source: Path | IO[bytes], name: object) -> io.BufferedReader:
    """The content of a gzip file, given by path or open."""
    return io.BufferedReader(
        BoundedReader(gzip.open(source), name, compressed_size(source)), 1 << 16
    )


def open_zstd(source: Path | IO[bytes], name: object) -> io.BufferedReader:
    """The content of a Zstandard file, given by path or open."""
    zstd = import_zstd(name)
    size = compressed_size(source)
    reader = BoundedReader(zstd.ZstdFile(source), name, size, zstd.ZstdError)
    return io.BufferedReader(reader, 1 << 16)


OPENERS: dict[str, Callable[[Path | IO[bytes], object], io.BufferedReader]] = {
    ".gz": open_gzip,
    ".zst": open_zstd,
}
"""By the end of a file's name."""


def split_suffix(name: str) -> tuple[str, str]:
    """A file's name without the end that says how it is compressed, and that end, or ""."""
    suffix = next((suffix for suffix in OPENERS if name.lower().endswith(suffix)), "")
    return name[: len(name) - len(suffix)], suffix


def compressed_size(source: Path | IO[bytes]) -> int:
    """The bytes of a file; of a pipe, whose size is not known, the most."""
    status = os.stat(source if isinstance(source, Path) else source.fileno())
    return status.st_size if stat.S_ISREG(status.st_mode) else MAX_BYTES


def import_zstd(name: object) -> Any:
    """The module `compression.zstd` of Python 3.14, or the same for an earlier one."""
    for module in ("compression.zstd", "backports.zstd"):
        with suppress(ImportError):
            return import_module(module)
    raise UserError(
        f'{name} is compressed with Zstandard, which needs one more package: pip install "regard[zstd]"'
    )
