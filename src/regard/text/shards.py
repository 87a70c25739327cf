"""Files of token ids, each of some thousand pairs, which are memory-mapped: any process can read the same.

A shard is a header, with the SHA-256 of the rest, and then: source lengths and target lengths (int32),
source ids and target ids (uint16, or int32 for a larger vocabulary). It is complete or absent, and one that
is not exactly what was written is an error.
"""

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
from jaxtyping import Int, Integer

from regard import files
from regard.text.tokenizer import TokenizerPair

PAIRS = 2**14
"""Read pairs of a shard; it has fewer if some are too long."""
MAGIC = b"regard\0S"
VERSION = 1
# Magic, version, bytes of an id, pairs, pairs that were too long, SHA-256: 64 bytes.
HEADER = struct.Struct("<8sHHII32s12x")


@dataclass(frozen=True)
class Shard:
    """A memory-mapped shard."""

    source_lengths: Int[np.ndarray, " pairs"]
    target_lengths: Int[np.ndarray, " pairs"]
    source: Integer[np.ndarray, " source_tokens"]
    target: Integer[np.ndarray, " target_tokens"]
    too_long: int

    def __len__(self) -> int:
        return len(self.source_lengths)


def write(path: Path, pairs: Sequence[tuple[str, str]], tokenizers: TokenizerPair) -> None:
    """The shard of these pairs, without those that are longer than the tokenizer's limit."""
    sides = (
        tokenizers.encode_sources([source for source, _ in pairs]),
        tokenizers.target.encode_all([target for _, target in pairs]),
    )
    limit = tokenizers.max_tokens
    limits = limit + tokenizers.source_eos, limit
    fits = [len(s) <= limits[0] and len(t) <= limits[1] for s, t in zip(*sides, strict=True)]
    kept = [[row for row, is_kept in zip(side, fits, strict=True) if is_kept] for side in sides]
    dtype = id_type(tokenizers)
    arrays = [np.fromiter(map(len, rows), np.int32, len(rows)) for rows in kept]
    arrays += [np.fromiter(chain.from_iterable(rows), dtype) for rows in kept]
    counts = dtype.itemsize, len(kept[0]), len(pairs) - len(kept[0])
    content = b"".join(array.astype(array.dtype.newbyteorder("<")).tobytes() for array in arrays)
    header = HEADER.pack(MAGIC, VERSION, *counts, checksum(counts, content))
    files.write(path, header + content)


def read(path: Path, tokenizers: TokenizerPair, verify: bool = True) -> Shard:
    """A shard; ValueError or OSError if it is damaged, or of another version. `verify` reads all of it."""
    with path.open("rb") as file:
        header = file.read(HEADER.size)
    if len(header) < HEADER.size:
        raise ValueError("no header")
    magic, version, id_bytes, count, too_long, digest = HEADER.unpack(header)
    dtype = id_type(tokenizers)
    if (magic, version, id_bytes) != (MAGIC, VERSION, dtype.itemsize):
        raise ValueError("another format")
    content = np.memmap(path, np.uint8, mode="r")[HEADER.size :]
    if verify and checksum((id_bytes, count, too_long), content) != digest:
        raise ValueError("not what was written")
    if 8 * count > len(content) or (len(content) - 8 * count) % id_bytes:
        raise ValueError("another size")
    source_lengths, target_lengths = content[: 8 * count].view("<i4").reshape(2, count)
    ids = content[8 * count :].view(dtype)
    end = int(source_lengths.sum(dtype=np.int64))
    if end + int(target_lengths.sum(dtype=np.int64)) != len(ids):
        raise ValueError("not as many ids as the lengths say")
    shard = Shard(source_lengths, target_lengths, ids[:end], ids[end:], too_long)
    if verify:
        check_ids(shard, tokenizers)
    return shard


def check_ids(shard: Shard, tokenizers: TokenizerPair) -> None:
    for lengths in (shard.source_lengths, shard.target_lengths):
        if lengths.min(initial=0) < 0:
            raise ValueError("negative lengths")
    sides = ((shard.source, tokenizers.source), (shard.target, tokenizers.target))
    for ids, tokenizer in sides:
        if ids.min(initial=0) < 0 or ids.max(initial=0) >= tokenizer.vocab_size:
            raise ValueError("ids outside the vocabulary")


def id_type(tokenizers: TokenizerPair) -> np.dtype:
    """The type of ids in a shard."""
    largest = max(tokenizers.source.vocab_size, tokenizers.target.vocab_size) - 1
    return np.dtype("<u2" if largest < 2**16 else "<i4")


def checksum(counts: tuple[int, int, int], content: bytes | np.ndarray) -> bytes:
    digest = hashlib.sha256(struct.pack("<HII", *counts))
    digest.update(memoryview(content))  # type: ignore[arg-type]
    return digest.digest()
