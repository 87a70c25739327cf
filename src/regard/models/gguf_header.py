"""The header of a GGUF file, checked before anything else reads it.

    magic, version, number of tensors, number of fields, the fields, then of each tensor its name, shape,
    type and offset

The package `gguf` believes every count: a damaged one keeps it busy for days.
"""

import mmap
import struct
from pathlib import Path

from regard.errors import UserError

MAGIC, VERSIONS = b"GGUF", (2, 3)
# The type numbers of fields: integers, floats and booleans by their size in bytes; strings; arrays.
SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
STRING, ARRAY = 8, 9
MAX_DIMENSIONS = 8
BLOCKS = b".block_count"  # the layers: each has tensors of its own


class Header:
    """Reads a file from its start, never past its end."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data, self.position = data, 0

    def skip(self, size: int) -> bytes:
        """Go on by `size` bytes, if there are as many; return the first of them."""
        start, end = self.position, self.position + size
        if end > len(self.data):
            raise ValueError(f"its header needs {end:,} bytes, and the file has {len(self.data):,}")
        self.position = end
        return self.data[start : min(end, start + 64)]

    def number(self, form: str) -> int:
        return struct.unpack(form, self.skip(struct.calcsize(form)))[0]

    def string(self) -> bytes:
        return self.skip(self.number("<Q"))

    def value(self, kind: int, nested: bool = False) -> bytes:
        if kind in SIZES:
            return self.skip(SIZES[kind])
        if kind == STRING:
            return self.string()
        if kind != ARRAY or nested:
            raise ValueError(f"there is no field of type {kind}")
        inner, count = self.number("<I"), self.number("<Q")
        if inner in SIZES:
            return self.skip(count * SIZES[inner])
        for _ in range(count):  # each takes 8 bytes or more: the end of the file ends it
            self.value(inner, nested=True)
        return b""

    def check(self) -> None:
        """ValueError unless all that the header announces is there."""
        if self.skip(4) != MAGIC or self.number("<I") not in VERSIONS:
            raise ValueError("it is not GGUF of version 2 or 3")
        tensors, fields = self.number("<Q"), self.number("<Q")
        for _ in range(fields):
            name, kind = self.string(), self.number("<I")
            value = self.value(kind)
            if name.endswith(BLOCKS) and int.from_bytes(value, "little") > tensors:
                raise ValueError(f"it has more layers than its {tensors:,} tensors")
        for _ in range(tensors):
            self.string()
            dimensions = self.number("<I")
            if dimensions > MAX_DIMENSIONS:
                raise ValueError(f"a tensor has {dimensions:,} dimensions")
            self.skip(8 * dimensions + 4 + 8)  # shape, type, offset


def check_header(path: Path) -> None:
    """Raise an error if the header of a GGUF file is damaged."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            Header(data).check()
    except (ValueError, OSError) as error:
        raise UserError(
            f'"{path}" cannot be loaded: {error}. The file is truncated or damaged (download it again), or '
            "not GGUF"
        ) from None
