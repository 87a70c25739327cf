"""Folders between machines: what a folder holds, what has changed in it, and how that is written.

A run folder comes back while its run goes on. It is read in the reverse order in which training writes it,
and written in that order, each file complete or absent: a copy is what a crash at some moment would have
left of the original, and training continues from it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from regard import files

Stamps = dict[str, tuple[int, int]]
"""Size and time of change, in nanoseconds, of each file by its name in the folder."""
APPENDED = (
    "metrics.jsonl",
    files.PART,
)  # endings of files that grow: more of them than needed is no harm


@dataclass(frozen=True)
class Snapshot:
    """The names of all files of a folder, and the content of some, in the order to write them."""

    names: tuple[str, ...]
    content: dict[str, bytes]


def find_files(folder: Path) -> dict[str, Path]:
    """Every file below a folder by its name, without locks and temporary files."""
    found = {path.relative_to(folder): path for path in sorted(folder.rglob("*"))}
    return {
        name.as_posix(): path
        for name, path in found.items()
        if name.name != files.LOCK
        and not any(part.startswith(files.TEMPORARY_PREFIX) for part in name.parts)
        and path.is_file()
    }


def stamp(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_size, status.st_mtime_ns


def read_changes(folder: Path, known: Mapping[str, tuple[int, int]]) -> tuple[Snapshot, Stamps]:
    """The files of a folder that have changed since their `known` stamps, and the stamps of all."""
    while True:
        try:
            return read_once(folder, known)
        except FileNotFoundError:  # deleted meanwhile, as a checkpoint is at the end of a run
            continue


def read_once(folder: Path, known: Mapping[str, tuple[int, int]]) -> tuple[Snapshot, Stamps]:
    paths = find_files(folder)
    # The time of the last rename, too, unlike that of the last change.
    times = {name: path.stat().st_ctime_ns for name, path in paths.items()}
    order = sorted(paths, key=lambda name: (not name.endswith(APPENDED), times[name]))
    stamps, content = {}, {}
    for name in reversed(order):
        stamps[name] = stamp(paths[name])
        if stamps[name] != known.get(name):
            content[name] = paths[name].read_bytes()
    return Snapshot(tuple(order), dict(reversed(content.items()))), stamps


def write(folder: Path, snapshot: Snapshot) -> None:
    """Make a folder equal to the one that a snapshot was taken of."""
    for name, data in snapshot.content.items():
        files.write(folder / name, data)
    for name, path in find_files(folder).items():
        if name not in snapshot.names:
            files.remove(path)
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.is_dir() and not any(path.iterdir()):
            files.remove(path)
