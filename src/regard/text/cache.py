"""Text is tokenised once: the ids are cached on disk under a hash of text, tokenizers and code.

An entry is one array of int32: number of pairs, source lengths, target lengths, source ids, target ids.
"""

import hashlib
import os
import shutil
import unicodedata
from contextlib import suppress
from functools import cache
from importlib import resources
from pathlib import Path

import numpy as np
import tokenizers as tokenizers_package

from regard import documents, files
from regard.errors import UserError
from regard.text import datasets
from regard.text.batch import EncodedPairs, RaggedArray
from regard.text.tokenizer import TokenizerPair

GIB = 2**30
LIMIT = "REGARD_CACHE_LIMIT"  # environment variable, in GiB


def encode_cached(pairs: list[tuple[str, str]], tokenizers: TokenizerPair) -> EncodedPairs:
    """`EncodedPairs.from_pairs`, memory-mapped from the cache if these pairs were tokenised before."""
    path, max_bytes = folder() / f"{cache_key(pairs, tokenizers)}.npy", limit()
    try:
        encoded = read(path)
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


@cache
def code_version() -> list[str]:
    """What the ids depend on besides text and vocabulary: our code, `tokenizers`, Python's Unicode."""
    modules = sorted(resources.files("regard.text").iterdir(), key=lambda file: file.name)
    sources = b"".join(file.read_bytes() for file in modules if file.name.endswith(".py"))
    versions = [tokenizers_package.__version__, unicodedata.unidata_version]
    return [hashlib.sha256(sources).hexdigest(), *versions]


def read(path: Path) -> EncodedPairs:
    """An entry, memory-mapped."""
    ids = np.lib.format.open_memmap(path, mode="r")
    if ids.dtype != np.int32 or ids.ndim != 1 or not len(ids):
        raise ValueError("not int32 ids")
    count = int(ids[0])
    lengths, values = ids[1 : 1 + 2 * count].reshape(2, count), ids[1 + 2 * count :]
    source, target = (np.concatenate([[0], row.cumsum(dtype=np.int64)]) for row in lengths)
    if source[-1] + target[-1] != len(values):
        raise ValueError("not as many ids as the lengths say")
    sides = (values[: source[-1]], source), (values[source[-1] :], target)
    return EncodedPairs(*(RaggedArray(*side) for side in sides))


def save(path: Path, encoded: EncodedPairs) -> None:
    """Write an entry atomically."""
    sides = [
        side if isinstance(side, RaggedArray) else RaggedArray.from_rows(side)
        for side in (encoded.source, encoded.target)
    ]
    lengths = [np.diff(side.offsets) for side in sides]
    arrays = [[len(encoded)], *lengths, *(side.values for side in sides)]
    ids = np.concatenate(arrays, dtype=np.int32, casting="same_kind")
    files.write_with(path, lambda temporary: np.save(temporary, ids))


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


def evict(max_bytes: int) -> None:
    """Delete the least recently used entries above `max_bytes`, and what killed processes left.

    A process that has an entry memory-mapped keeps it: on POSIX, the file goes with its last user, and
    Windows refuses.
    """
    files.remove_temporary(folder())
    kept = entries()
    total = sum(kept.values())
    for path, bytes_ in kept.items():
        if total <= max_bytes:
            return
        with suppress(OSError):
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
            total -= bytes_
