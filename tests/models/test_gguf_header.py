"""A GGUF header with any counts and sizes: an error at once, or it is right."""

import random
import struct
from pathlib import Path

import pytest

from regard.errors import UserError
from regard.models.gguf_header import ARRAY, STRING, check_header

UINT32, UINT64 = 4, 10


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def field(name: bytes, kind: int, value: bytes) -> bytes:
    return text(name) + struct.pack("<I", kind) + value


def array(kind: int, count: int, content: bytes) -> bytes:
    return struct.pack("<IQ", kind, count) + content


def tensor(name: bytes, *shape: int) -> bytes:
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, 0, 0)


def write(path: Path, written: list[bytes], infos: list[bytes], **counts: int) -> Path:
    numbers = {"version": 3, "tensors": len(infos), "fields": len(written)} | counts
    start = struct.pack("<4sIQQ", b"GGUF", *numbers.values())
    path.write_bytes(start + b"".join(written + infos) + bytes(64))
    return path


FIELDS = [
    field(b"general.name", STRING, text(b"tiny")),
    field(b"llama.block_count", UINT32, struct.pack("<I", 2)),
    field(b"tokens", ARRAY, array(STRING, 2, text(b"a") + text(b"bc"))),
    field(b"scores", ARRAY, array(UINT64, 3, bytes(24))),
]
TENSORS = [tensor(b"blk.0.a", 3, 2), tensor(b"blk.1.a", 3, 2), tensor(b"norm", 3)]


def test_a_header_that_is_right(tmp_path):
    check_header(write(tmp_path / "a.gguf", FIELDS, TENSORS))
    check_header(write(tmp_path / "a.gguf", FIELDS, TENSORS, version=2))


DAMAGED = {
    "another version": (FIELDS, {"version": 9}, "it is not GGUF of version 2 or 3"),
    "fields without end": (
        FIELDS,
        {"fields": 2**60},
        "its header needs .* bytes, and the file has",
    ),
    "tensors without end": (FIELDS, {"tensors": 2**60}, "its header needs|dimensions"),
    "an array without end": (
        [field(b"a", ARRAY, array(UINT32, 2**61, b""))],
        {},
        "its header needs",
    ),
    "strings without end": (
        [field(b"a", ARRAY, array(STRING, 2**61, b""))],
        {},
        "its header needs",
    ),
    "a string without end": ([text(b"a") + struct.pack("<IQ", STRING, 2**62)], {}, "needs"),
    "a type that does not exist": ([field(b"a", 99, b"")], {}, "no field of type 99"),
    "an array of arrays": ([field(b"a", ARRAY, array(ARRAY, 1, b""))], {}, "no field of type 9"),
    "too many layers": (
        [field(b"llama.block_count", UINT32, struct.pack("<I", 10**9))],
        {},
        "more layers than its 3 tensors",
    ),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_header_is_an_error_at_once(tmp_path, name):
    fields, counts, message = DAMAGED[name]
    path = write(tmp_path / "a.gguf", fields, TENSORS, **counts)
    with pytest.raises(UserError, match=rf"cannot be loaded: .*({message}).*truncated or damaged"):
        check_header(path)


def test_any_bytes_are_a_header_or_an_error(tmp_path):
    path = write(tmp_path / "a.gguf", FIELDS, TENSORS)
    content, rng, messages = path.read_bytes(), random.Random(5), []
    for _ in range(300):
        start = rng.randrange(len(content))
        changed = content[:start] + rng.randbytes(rng.randrange(9)) + content[start + 3 :]
        path.write_bytes(changed[: rng.choice([len(changed), start])])
        try:
            check_header(path)
        except UserError as error:
            messages.append(str(error))
    assert len(messages) > 100
    assert all("truncated or damaged" in message for message in messages)
