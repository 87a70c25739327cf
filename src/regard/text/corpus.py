"""Sentence pairs in named splits, wherever they come from."""

import hashlib
from dataclasses import dataclass

from regard import config
from regard.errors import UserError, listing, nearest
from regard.text import datasets, pairs
from regard.text.tasks import TASKS, make

SPLITS = ("train", "val", "test")


@dataclass(frozen=True)
class Corpus:
    """Pairs of source and target text, by split, and the task symbols a source may start with."""

    splits: dict[str, list[tuple[str, str]]]
    symbols: tuple[str, ...] = ()
    made: bool = False
    """Made on the spot, and as soon made again: not worth keeping in a cache."""
    told: tuple[str, ...] = ()
    """What a person should know about how it was read."""

    def __getitem__(self, split: str) -> list[tuple[str, str]]:
        if split not in self.splits:
            raise UserError(
                f'this data has no split "{split}".{nearest(split, self.splits)} '
                f"It has {listing(self.splits)}."
            )
        return self.splits[split]

    def checksums(self) -> dict[str, str]:
        """sha256 of each split's text: the same data gives the same sums everywhere."""
        return {split: checksum(pairs) for split, pairs in self.splits.items()}


def checksum(pairs: list[tuple[str, str]]) -> str:
    digest = hashlib.sha256()
    for source, target in pairs:
        digest.update(f"{source}\t{target}\n".encode())
    return digest.hexdigest()


def load(data: config.MadeTask | config.Named | config.Files | config.Text) -> Corpus:
    """The corpus that a config's [data] table asks for."""
    if isinstance(data, config.Named):
        return Corpus(datasets.load(data.name, data.source, data.target))
    if isinstance(data, config.Files):
        return from_files(data)
    if isinstance(data, config.Text):
        return plain_text(data)
    task = TASKS[data.name]
    sizes = {split: getattr(data, split) for split in SPLITS}
    lengths = {"min_length": data.min_length, "max_length": data.max_length}
    return Corpus(make(task, sizes=sizes, seed=data.seed, **lengths), task.symbols, made=True)


def from_files(data: config.Files) -> Corpus:
    """A user's own text; what was left out of it is told."""
    splits, told = {}, []
    for split in SPLITS:
        given = getattr(data, split)
        if given is None:
            continue
        source, target = (given, None) if isinstance(given, str) else given
        choices = {"keys": data.keys, "bad": data.bad, "max_characters": data.max_characters}
        splits[split], counts = pairs.read(source, target, **choices)
        if counts.skipped:
            told.append(f"{split}: {counts.summary()}")
    return Corpus(splits, told=tuple(told))


def plain_text(data: config.Text) -> Corpus:
    """Sentences to write, with nothing to read before them."""
    if data.name is not None:
        found = datasets.monolingual(data.name, data.language)
        return Corpus({split: [("", line) for line in found[split] if line] for split in found})
    splits, told = {}, []
    for split in SPLITS:
        given = getattr(data, split)
        if given is None:
            continue
        files = (given,) if isinstance(given, str) else given
        splits[split], counts = pairs.read_text(files, data.bad, data.max_characters)
        if counts.skipped:
            told.append(f"{split}: {counts.summary()}")
    return Corpus(splits, told=tuple(told))
