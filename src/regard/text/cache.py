"""Text is tokenised once: the ids are cached on disk under a hash of text, tokenizers and code.

An entry is a header, with the SHA-256 of the rest, and int32: source lengths, target lengths, source ids,
target ids. One that is not exactly what was written is tokenised again.
"""

import hashlib
import os
import struct
import time
from contextlib import suppress
from pathlib import Path

import numpy as np

from regard import documents, files
from regard.errors import UserError
from regard.text import datasets
from regard.text.batch import EncodedPairs, RaggedArray
from regard.text.code_version import code_version
from regard.text.tokenizer import TokenizerPair

GIB = 2**30
ABANDONED = 7 * 24 * 3600  # seconds since the last byte of a download
LIMIT = "REGARD_CACHE_LIMIT"  # environment variable, in GiB
HEADER = struct.Struct("<8sQ32s16x")  # 64 bytes: magic and version, number of pairs, SHA-256
MAGIC = b"regard\0\1"


def encode_cached(pairs: list[tuple[str, str]], tokenizers: TokenizerPair) -> EncodedPairs:
    """`EncodedPairs.from_pairs`, memory-mapped from the cache if these pairs were tokenised before."""
    path, max_bytes = folder() / f"{cache_key(pairs, tokenizers)}.ids", limit()
    try:
        encoded = read(path, tokenizers)
    except (OSError, ValueError):  # missing, unreadable or damaged
        encoded = EncodedPairs.from_pairs(pairs, tokenizers)
        with suppress(UserError, OSError):  # a cache that cannot be written only costs time
            save(path, encoded)
            evict(max_bytes)
        return encoded
    with suppress(OSError):
        os.utime(path)  # used most recently
    return encoded


def folder() -> Path:
    return datasets.cache_dir() / "tokenised"


def cache_key(pairs: list[tuple[str, str]], tokenizers: TokenizerPair) -> str:
    # JSON, so that a tab or newline inside a text is not mistaken for a separator.
    content = documents.dumps([code_version(), pairs, tokenizers.to_json()], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:32]


def read(path: Path, tokenizers: TokenizerPair) -> EncodedPairs:
    """An entry, memory-mapped; ValueError if it is damaged."""
    with path.open("rb") as file:
        header = file.read(HEADER.size)
    if len(header) < HEADER.size:
        raise ValueError("no header")
    magic, count, checksum = HEADER.unpack(header)
    content = np.memmap(path, np.int32, mode="r", offset=HEADER.size)
    if magic != MAGIC or 2 * count > len(content) or hash_content(count, content) != checksum:
        raise ValueError("not what was written")
    lengths, values = content[: 2 * count].reshape(2, count), content[2 * count :]
    offsets = [np.concatenate([[0], row.cumsum(dtype=np.int64)]) for row in lengths]
    split, end = (int(side[-1]) for side in offsets)
    if lengths.min(initial=0) < 0 or split + end != len(values):
        raise ValueError("not as many ids as the lengths say")
    sides = np.split(values, [split])
    for ids, tokenizer in zip(sides, (tokenizers.source, tokenizers.target), strict=True):
        if ids.min(initial=0) < 0 or ids.max(initial=0) >= tokenizer.vocab_size:
            raise ValueError("ids outside the vocabulary")
    return EncodedPairs(*map(RaggedArray, sides, offsets))


def hash_content(count: int, content: np.ndarray) -> bytes:
    digest = hashlib.sha256(count.to_bytes(8, "little"))
    digest.update(memoryview(content))  # type: ignore[arg-type]
    return digest.digest()


def save(path: Path, encoded: EncodedPairs) -> None:
    """Write an entry atomically."""
    sides = [
        side if isinstance(side, RaggedArray) else RaggedArray.from_rows(side)
        for side in (encoded.source, encoded.target)
    ]
    lengths = [np.diff(side.offsets) for side in sides]
    arrays = [*lengths, *(side.values for side in sides)]
    content = np.concatenate(arrays, dtype=np.int32, casting="same_kind")
    header = HEADER.pack(MAGIC, len(encoded), hash_content(len(encoded), content))

    def write(temporary: Path) -> None:
        with temporary.open("wb") as file:
            file.write(header)
            file.write(memoryview(content))  # type: ignore[arg-type]

    files.write_with(path, write)


# --- size -----------------------------------------------------------------------------------------


def limit() -> int:
    """The most bytes that the cache may have: 2 GiB, or $REGARD_CACHE_LIMIT."""
    text = os.environ.get(LIMIT, "2")
    try:
        return int(max(float(text), 0.0) * GIB)
    except (ValueError, OverflowError):
        raise UserError(f'{LIMIT} is a number of GiB, such as 0.5: got "{text}"') from None


def entries() -> dict[Path, int]:
    """The entries and their sizes in bytes, the least recently used first."""
    found = []
    for path in files.list_files(folder()) if folder().is_dir() else ():
        with suppress(OSError):  # another process deleted it
            found.append((path.stat().st_mtime, path, size(path)))
    return {path: bytes_ for _, path, bytes_ in sorted(found)}


def size(path: Path) -> int:
    """Bytes of a file, or of the files in a folder: an entry of an earlier version was one."""
    parts = list(path.iterdir()) if path.is_dir() else [path]
    return sum(part.stat().st_size for part in parts if part.is_file())


def remove_abandoned() -> None:
    """Delete what killed processes left anywhere in the cache, and downloads that nobody has continued."""
    root, now = datasets.cache_dir(), time.time()
    files.remove_temporary(root)
    with suppress(OSError):  # another process deleted one
        parts = [(part, part.stat().st_mtime) for part in root.rglob(f"*{files.PART}")]
        files.remove_orphans(part for part, changed in parts if now - changed > ABANDONED)


def evict(max_bytes: int) -> None:
    """Delete the least recently used entries above `max_bytes`, and what killed processes left.

    A process that has an entry memory-mapped keeps it: on POSIX, the file goes with its last user, and
    Windows refuses.
    """
    remove_abandoned()
    kept = entries()
    total = sum(kept.values())
    for path, bytes_ in kept.items():
        if total <= max_bytes:
            return
        with suppress(UserError):
            files.remove(path)
            total -= bytes_
