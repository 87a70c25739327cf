"""Changes of a file's bytes, whatever they mean, and of the lines of a text."""

from collections.abc import Callable
from random import Random

Mutation = Callable[[bytes, Random], bytes]

# NUL, invalid and overlong UTF-8, a surrogate, byte-order marks, line ends, markup, numbers.
CHUNKS = (
    *(
        b"\0",
        b"\xff",
        b"\xc0\xaf",
        b"\xed\xa0\x80",
        b"\xef\xbb\xbf",
        b"\xff\xfe",
        b"\r",
        b"\n",
        b"\t",
    ),
    *(b"\xe2\x80\xa8", b"\x1b[31m", b"[/]", b"<script>", b'"', b"'", b"\\", b"{", b"]", b"\\u0000"),
    *(b"\\ud800", b"NaN", b"-1", b"null", b"=1+1", b"../", b"%s", b"A" * 70_000),
)
NUMBERS = (0, 1, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**62, 2**63 - 1, 2**63, 2**64 - 1)


def flip_bits(data: bytes, random: Random) -> bytes:
    """Between one and four bits, close together."""
    start = random.randrange(len(data))
    changed = bytearray(data)
    for _ in range(random.randint(1, 4)):
        changed[min(start + random.randrange(4), len(data) - 1)] ^= 1 << random.randrange(8)
    return bytes(changed)


def truncate(data: bytes, random: Random) -> bytes:
    return data[: random.randrange(len(data))]


def insert(data: bytes, random: Random) -> bytes:
    at = random.randrange(len(data) + 1)
    chunk = random.choice((random.randbytes(random.randint(1, 8)), random.choice(CHUNKS)))
    return data[:at] + chunk + data[at:]


def delete(data: bytes, random: Random) -> bytes:
    start = random.randrange(len(data))
    return data[:start] + data[start + random.choice((1, 2, 7, 64, 512)) :]


def duplicate(data: bytes, random: Random) -> bytes:
    start = random.randrange(len(data))
    end = start + random.choice((1, 3, 16, 128, len(data)))
    return data[:end] + data[start:end] + data[end:]


def splice(data: bytes, random: Random) -> bytes:
    """Overwrite one part of the file with another."""
    source, target = random.randrange(len(data)), random.randrange(len(data))
    part = data[source : source + random.randint(1, 64)]
    return data[:target] + part + data[target + len(part) :]


def zero(data: bytes, random: Random) -> bytes:
    """A block that was never written, as after a power failure."""
    start = random.randrange(len(data))
    size = min(random.choice((1, 8, 512, 4096)), len(data) - start)
    return data[:start] + bytes(size) + data[start + size :]


def overwrite_number(data: bytes, random: Random) -> bytes:
    """A little-endian integer, more often near the start, where headers are."""
    size = random.choice((1, 2, 4, 8))
    limit = len(data) if random.random() < 0.5 else min(len(data), 512)
    start = random.randrange(limit)
    number = random.choice(NUMBERS) % 256**size
    return data[:start] + number.to_bytes(size, "little") + data[start + size :]


def append(data: bytes, random: Random) -> bytes:
    return data + random.choice((random.choice(CHUNKS), random.randbytes(17), data))


def empty(data: bytes, random: Random) -> bytes:
    return random.choice((b"", b"\n", b"\0" * 64, b"\x80\x04K\x01.", b"PK\x03\x04", b"{}", b"[]"))


BYTES: tuple[Mutation, ...] = (
    *(flip_bits, flip_bits, flip_bits, truncate, insert, insert, delete, duplicate, splice, zero),
    *(overwrite_number, overwrite_number, append, empty),
)


def change_text_line(data: bytes, random: Random) -> bytes:
    lines = data.split(b"\n")
    at = random.randrange(len(lines))
    kind = random.randrange(6)
    if kind == 0:
        lines.insert(at, random.choice((b"", b"\t", b"\t\t\t", b" ", b"\r", *CHUNKS)))
    elif kind == 1:
        del lines[at]
    elif kind == 2:
        lines[at] = lines[at].replace(b"\t", random.choice((b" ", b"\t\t", b"", b",")))
    elif kind == 3:
        lines[at] += random.choice(CHUNKS)
    elif kind == 4:
        lines[at] = lines[at] * random.choice((2, 100, 5000))
    else:
        lines = lines * random.choice((2, 50))
    return b"\n".join(lines)
