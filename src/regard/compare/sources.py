"""What a run reads besides run folders: the user's own files and folders, and public corpora.

Another machine may have them: a corpus in its REGARD_DATA, a file at the same path with the same size and
time of change, as on a shared disk. What it lacks is sent to it once, and kept in its cache.
"""

import hashlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from regard import files, presets
from regard.compare.transfer import Snapshot, Stamps, find_files, stamp
from regard.config import Config, DatasetData, PlainText
from regard.text import datasets
from regard.text.wildcards import expand, has_wildcard

FOLDER = "from-other-machines"  # in the cache
COMPLETE = "complete"  # a file that is written last


@dataclass(frozen=True)
class Source:
    """A file, a folder or a corpus."""

    name: str
    """As in the config."""
    root: Path
    """The folder that contains it."""
    stamps: Stamps
    """Of its files, by their names in `root`."""
    languages: tuple[str, ...] = ()
    """Of a corpus: those that are here."""

    @property
    def entry(self) -> str:
        """Its own name in `root`."""
        return Path(next(iter(self.stamps))).parts[0]

    def is_here(self) -> bool:
        """Whether this machine has it."""
        if self.languages:
            return datasets.find_folder(self.name, *self.languages) is not None
        paths = {name: self.root / name for name in self.stamps}
        return all(os.path.isfile(p) and stamp(p) == self.stamps[n] for n, p in paths.items())

    def read(self) -> Snapshot:
        return Snapshot(
            tuple(self.stamps), {name: (self.root / name).read_bytes() for name in self.stamps}
        )


def find_sources(configs: Iterable[Config]) -> list[Source]:
    """What these runs read, as far as it is on this machine, each once."""
    found = {source.name: source for config in configs for source in config_sources(config)}
    return list(found.values())


def config_sources(config: Config) -> Iterator[Source]:
    for name in named_files(config):
        path = Path(os.path.abspath(Path(name).expanduser()))
        paths = find_files(path) if path.is_dir() else {"": path}
        stamps = {str(Path(path.name, inner)): stamp(each) for inner, each in paths.items()}
        if stamps:
            yield Source(name, path.parent, stamps)
    available = {row.name: row for row in datasets.list_status()}
    for name in named_corpora(config):
        row = available.get(name)
        if row and row.folder:
            names = datasets.lookup(name).files_for(row.available)
            stamps = {f"{row.folder.name}/{file}": stamp(row.folder / file) for file in names}
            yield Source(name, row.folder.parent, stamps, row.available)


def named_files(config: Config) -> list[str]:
    """The files and folders that a config names: as everywhere, a name is a path if it exists."""
    data = config.data.model_dump(mode="json")
    names = [data.get(key) for key in presets.FILE_KEYS]
    names += [data["name"]] if data["kind"] == "hf" else []
    for entry in data.get("synthetic", ()):
        names += [entry["file"], entry["monolingual"], *(entry["from"] or "").split(",")]
    names += [config.init, getattr(config.model, "name", None)]
    flat = [part for name in names for part in (name if isinstance(name, list) else [name])]
    named = (part for part in flat if isinstance(part, str) and part)
    texts = dict.fromkeys(
        text for part in named for text in (expand(part) if has_wildcard(part) else [part])
    )
    return [text for text in texts if os.path.exists(Path(text).expanduser())]


def named_corpora(config: Config) -> set[str]:
    """The public corpora that a config names."""
    data, names = config.data, set()
    if isinstance(data, DatasetData | PlainText):
        names.add(data.name)
    if isinstance(data, PlainText):
        names.update(table.name for table in data.exclude)
    names.update(entry.monolingual for entry in getattr(data, "synthetic", ()))
    return {name for name in names if name in datasets.DATASETS}


def store(snapshot: Snapshot) -> Path:
    """Write what was sent into the cache of this machine, unless it is there; return its folder."""
    digest = hashlib.sha256()
    for name in sorted(snapshot.content):
        digest.update(f"{name}\0{len(snapshot.content[name])}\0".encode())
        digest.update(snapshot.content[name])
    folder = datasets.cache_dir() / FOLDER / digest.hexdigest()[:32]
    with files.lock(folder, wait=True):
        if not (folder / COMPLETE).is_file():
            for name, data in snapshot.content.items():
                files.write(folder / name, data)
            files.write(folder / COMPLETE, "")
    return folder
