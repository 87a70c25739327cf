"""Training pairs that are not kept in memory (`data.storage = "disk"`): read from their files, one by one.

They are read once to count them, for a checksum, and for a sample of bounded size, from which the tokenizer
is trained. That scan is cached, under a hash of the files.
"""

import hashlib
import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from regard import config, documents, files
from regard.errors import UserError
from regard.text import datasets, pairs
from regard.text.code_version import code_version
from regard.text.pairs import Counts, Pairs
from regard.text.wildcards import expand

SAMPLE = 200_000
"""Pairs in memory: at most so many, and half of them or more if there are enough."""
SCAN = "scan"
SETTINGS = ("fields", "on_error", "max_characters", "fraction", "swap")
"""What decides, besides the files, which pairs there are."""


@dataclass(frozen=True)
class PairStream:
    """The training pairs of files, in their order. Iterating reads the files again."""

    data: config.FileData
    key: str
    """A hash of the files and of what is read of them."""
    count: int
    checksum: str
    """That of the same pairs in memory: see `Corpus.checksums`."""
    sample: Pairs
    """Every pair, or every second, fourth, .. one."""
    summary: str
    """What was skipped."""

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return iterate(self.data, Counts())

    @property
    def folder(self) -> Path:
        """What is cached of these pairs."""
        return cache_folder(self.key)

    @property
    def messages(self) -> list[str]:
        lines = [f"train: {self.summary}"] if self.summary else []
        if self.data.fraction < 1:
            lines.append(f"train: {self.count:,} pairs (data.fraction is {self.data.fraction:g})")
        if len(self.sample) < self.count:
            lines.append(
                f"train: {self.count:,} pairs stay on disk (data.storage); checks and a new tokenizer see "
                f"{len(self.sample):,} of them, evenly spread"
            )
        return lines


def open_stream(data: config.FileData) -> PairStream:
    """The training pairs of these files, which are read once, unless they were before."""
    key = hash_files(data)
    folder = cache_folder(key)
    with files.lock(folder, wait=True):  # of several processes, one reads
        with suppress(OSError, ValueError, KeyError):  # none, or damaged
            return PairStream(data, key, **read_scan(folder / SCAN))
        found = scan(data)
        write_scan(folder / SCAN, found)
    return PairStream(data, key, **found)


def cache_folder(key: str) -> Path:
    return datasets.cache_dir() / "shards" / key


def hash_files(data: config.FileData) -> str:
    """A hash of what the training files contain, not of their names, and of the settings."""
    settings = {name: getattr(data, name) for name in SETTINGS}
    sides = [data.train] if isinstance(data.train, str) else data.train
    try:
        sums = [
            [hash_file(files.local_path(Path(path))) for path in expand(side)] for side in sides
        ]
    except OSError as error:
        reason = error.strerror or error
        raise UserError(f"data.train: {error.filename} cannot be read: {reason}") from None
    return hashlib.sha256(documents.dumps([code_version(), settings, sums]).encode()).hexdigest()[
        :32
    ]


def hash_file(path: Path) -> str:
    files.refuse_device(path)
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def iterate(data: config.FileData, counts: Counts) -> Iterator[tuple[str, str]]:
    """The training pairs: swapped, or some of them, as the settings say."""
    source, target = (data.train, None) if isinstance(data.train, str) else data.train
    options = {name: getattr(data, name) for name in ("fields", "on_error", "max_characters")}
    rows = enumerate(pairs.stream_pairs(source, target, counts, **options))
    chosen = (pair for row, pair in rows if is_chosen(row, data.fraction))
    return ((target, source) for source, target in chosen) if data.swap else chosen


def is_chosen(row: int, fraction: float) -> bool:
    """Whether a row is among a fraction of all: if its hash is small. A smaller fraction is a subset."""
    if fraction == 1:
        return True
    digest = hashlib.blake2b(str(row).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") < fraction * 2**64


def scan(data: config.FileData) -> dict:
    """Count, checksum, sample and summary of the training pairs."""
    counts, digest = Counts(), hashlib.sha256()
    count, step, sample = 0, 1, []
    try:
        for source, target in iterate(data, counts):
            digest.update(f"{source}\t{target}\n".encode())
            if count % step == 0:
                if len(sample) == SAMPLE:
                    sample, step = sample[::2], 2 * step
                if count % step == 0:
                    sample.append((source, target))
            count += 1
    except UserError as error:
        raise UserError(f"data.train: {error}") from None
    if not count:
        raise UserError(
            f"data.fraction is {data.fraction:g}, and leaves none of {counts.kept:,} training pairs: raise it"
        )
    summary = counts.summary() if counts.skipped else ""
    return {"count": count, "checksum": digest.hexdigest(), "sample": sample, "summary": summary}


def write_scan(path: Path, found: dict) -> None:
    body = documents.dumps(found, ensure_ascii=False)
    files.write(path, f"{hashlib.sha256(body.encode()).hexdigest()}\n{body}")


def read_scan(path: Path) -> dict:
    """What `write_scan` wrote; ValueError if it is not exactly that."""
    digest, _, body = path.read_bytes().partition(b"\n")
    if hashlib.sha256(body).hexdigest() != digest.decode():
        raise ValueError("not what was written")
    found = json.loads(body)
    return found | {"sample": [(source, target) for source, target in found["sample"]]}
