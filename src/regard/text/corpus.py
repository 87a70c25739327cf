"""Sentence pairs in named splits, wherever they come from."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from regard import config
from regard.errors import UserError, join_names, suggest
from regard.text import datasets, pairs
from regard.text.noise import noisy
from regard.text.pairs import SPLITS, Counts, Pairs
from regard.text.tasks import TASKS, make


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
                f'this data has no split "{split}".{suggest(split, self.splits)} '
                f"It has {join_names(self.splits)}."
            )
        return self.splits[split]

    def checksums(self) -> dict[str, str]:
        """sha256 of each split's text: the same data gives the same sums everywhere."""
        return {split: checksum(pairs) for split, pairs in self.splits.items()}

    def part(self, share: float) -> "Corpus":
        """With this share of the training pairs."""
        whole = self["train"]
        rows = first_of(len(whole), max(1, round(share * len(whole))))
        if len(rows) == len(whole):
            return self
        noun = "pairs" if whole[0][0] else "sentences"
        line = f"train: {len(rows):,} of {len(whole):,} {noun} (data.fraction is {share:g})"
        splits = self.splits | {"train": [whole[row] for row in rows]}
        return replace(self, splits=splits, told=(*self.told, line))


def first_of(count: int, wanted: int) -> list[int]:
    """`wanted` of `count` rows, in order: those that come first when a hash ranks them all.

    So fewer rows are always among more of them, for everyone.
    """

    def rank(row: int) -> bytes:
        return hashlib.blake2b(str(row).encode(), digest_size=8).digest()

    return sorted(sorted(range(count), key=rank)[:wanted])


def checksum(pairs: list[tuple[str, str]]) -> str:
    digest = hashlib.sha256()
    for source, target in pairs:
        digest.update(f"{source}\t{target}\n".encode())
    return digest.hexdigest()


def load(data: config.Data) -> Corpus:
    """The corpus that a config's [data] table asks for."""
    found = read(data).part(data.fraction)
    noise = data.noise if isinstance(data, config.PlainText) else None
    if noise is None:
        return found
    copies = {split: noise.copies if split == "train" else 1 for split in found.splits}
    spoiled = {name: noisy(found[name], noise, copies[name], name) for name in copies}
    return replace(found, splits=spoiled)


def read(data: config.Data) -> Corpus:
    """All that there is, as it is."""
    if isinstance(data, config.DatasetData):
        return Corpus(datasets.load(data.name, data.source, data.target))
    if isinstance(data, config.FileData):
        return from_files(data, lambda given: pairs_in(given, data))
    if isinstance(data, config.PlainText):
        return set_apart(plain_text(data), data)
    assert isinstance(data, config.SyntheticData)
    task = TASKS[data.name]
    sizes = {split: getattr(data, split) for split in SPLITS}
    lengths = {"min_length": data.min_length, "max_length": data.max_length}
    return Corpus(make(task, sizes=sizes, seed=data.seed, **lengths), task.symbols, made=True)


def from_files(
    data: config.FileData | config.PlainText, read: Callable[[Any], tuple[Pairs, Counts]]
) -> Corpus:
    """A user's own text, a split at a time; what was left out of it is told."""
    splits, told = {}, []
    for split in SPLITS:
        given = getattr(data, split)
        if given is None:
            continue
        splits[split], counts = read(given)
        if counts.skipped:
            told.append(f"{split}: {counts.summary()}")
    return Corpus(splits, told=tuple(told))


def pairs_in(given: str | tuple[str, str], data: config.FileData) -> tuple[Pairs, Counts]:
    source, target = (given, None) if isinstance(given, str) else given
    choices = {
        "fields": data.fields,
        "on_error": data.on_error,
        "max_characters": data.max_characters,
    }
    return pairs.read(source, target, **choices)


def sentences_in(given: str | tuple[str, ...], data: config.PlainText) -> tuple[Pairs, Counts]:
    files = (given,) if isinstance(given, str) else given
    return pairs.read_text(files, data.on_error, data.max_characters)


def plain_text(data: config.PlainText) -> Corpus:
    """Sentences to write, with nothing to read before them."""
    if data.name is not None:
        found = [datasets.monolingual(data.name, language) for language in data.languages]
        lines = {split: [line for each in found for line in each[split]] for split in found[0]}
        return Corpus({split: [("", line) for line in lines[split] if line] for split in lines})
    return from_files(data, lambda given: sentences_in(given, data))


def set_apart(found: Corpus, data: config.PlainText) -> Corpus:
    """The text, its training part without the sentences of `data.exclude`."""
    for other in data.exclude:
        theirs = held_out(other, data.languages)
        whole = found["train"]
        kept = [pair for pair in whole if pairs.bare(pair[1]) not in theirs]
        if not kept:
            raise UserError(f"data.exclude: every training sentence is in {other.name}")
        line = (
            f"train: left out {len(whole) - len(kept):,} of {len(whole):,} sentences, which are in "
            f"{other.name} ({join_names(other.splits)})"
        )
        found = replace(found, splits=found.splits | {"train": kept}, told=(*found.told, line))
    return found


def held_out(table: config.ExcludedSplits, languages: tuple[str, ...]) -> set[str]:
    """The bare sentences of a corpus' splits, in those of the languages that it has."""
    theirs = datasets.known(table.name).languages
    shared = [language for language in languages if language in theirs]
    if not shared:
        raise UserError(
            f"data.exclude: {table.name} has {join_names(theirs)}, and data.language says "
            f"{join_names(languages)}: there is nothing to compare"
        )
    found = [datasets.monolingual(table.name, language) for language in shared]
    return {pairs.bare(line) for each in found for split in table.splits for line in each[split]}
