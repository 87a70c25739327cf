"""Sentence pairs in named splits, from every kind of data that a config can name."""

import hashlib
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from regard import config
from regard.errors import UserError, join_names, suggest
from regard.text import datasets, hf, moses, pairs, synthetic
from regard.text.noise import corrupt_pairs
from regard.text.pairs import SPLITS, Counts, Pairs
from regard.text.sequences import check_pairs
from regard.text.stream import PairStream, open_stream
from regard.text.tasks import TASKS, generate_splits
from regard.text.wildcards import has_wildcard


@dataclass(frozen=True)
class Corpus:
    """(source, target) texts by split, and the task symbols that a source may start with."""

    splits: dict[str, list[tuple[str, str]]]
    symbols: tuple[str, ...] = ()
    is_synthetic: bool = False
    """Generated on the fly: not worth caching."""
    messages: tuple[str, ...] = ()
    """What to report to the user: lines skipped, sentences excluded, the fraction used."""
    stream: PairStream | None = None
    """All training pairs, if they stay on disk: then splits["train"] is a sample of them."""

    def __getitem__(self, split: str) -> list[tuple[str, str]]:
        if split not in self.splits:
            raise missing_split(split, self.splits)
        return self.splits[split]

    @property
    def num_train(self) -> int:
        """The number of training pairs."""
        return len(self["train"] if self.stream is None else self.stream)

    def checksums(self) -> dict[str, str]:
        """sha256 of each split's text: equal data gives equal sums on every machine."""
        known = {} if self.stream is None else {"train": self.stream.checksum}
        others = ((split, pairs) for split, pairs in self.splits.items() if split not in known)
        return known | {split: checksum(pairs) for split, pairs in others}

    def add_stream(self, stream: PairStream) -> "Corpus":
        """The corpus with training pairs that stay on disk."""
        splits = {"train": stream.sample, **self.splits}
        return replace(self, splits=splits, stream=stream).add_messages(stream.messages)

    def take_fraction(self, fraction: float) -> "Corpus":
        """The corpus with this fraction of its training pairs."""
        train = self["train"]
        rows = select_rows(len(train), max(1, round(fraction * len(train))))
        if len(rows) == len(train):
            return self
        noun = "pairs" if train[0][0] else "sentences"
        message = f"train: {len(rows):,} of {len(train):,} {noun} (data.fraction is {fraction:g})"
        splits = self.splits | {"train": [train[row] for row in rows]}
        return replace(self, splits=splits).add_messages([message])

    def swap(self) -> "Corpus":
        """The other direction: each source a target, each target a source."""
        swapped = {
            split: [(target, source) for source, target in pairs]
            for split, pairs in self.splits.items()
        }
        return replace(self, splits=swapped)

    def add_synthetic(self, data: config.ParallelData) -> "Corpus":
        """The corpus with the training pairs of `data.repeat` and `data.synthetic`."""
        held_out = [pairs for split, pairs in self.splits.items() if split != "train"]
        train, symbols, messages = synthetic.mix(self["train"], held_out, data)
        mixed = replace(self, splits=self.splits | {"train": train}, symbols=symbols)
        return mixed.add_messages(messages)

    def add_messages(self, messages: Iterable[str]) -> "Corpus":
        return replace(self, messages=(*self.messages, *messages))


def select_rows(total: int, count: int) -> list[int]:
    """`count` of `total` row indices, in order: those with the smallest hashes.

    A smaller selection is always a subset of a larger one, on every machine.
    """

    def rank(row: int) -> bytes:
        return hashlib.blake2b(str(row).encode(), digest_size=8).digest()

    return sorted(sorted(range(total), key=rank)[:count])


def checksum(pairs: list[tuple[str, str]]) -> str:
    digest = hashlib.sha256()
    for source, target in pairs:
        digest.update(f"{source}\t{target}\n".encode())
    return digest.hexdigest()


def load_split(data: config.Data, split: str, *, raw: bool = False) -> Pairs:
    """The pairs of one split: only its files are read, and a public corpus may have more than `SPLITS`.

    `raw`: before `data.preprocess`, as a user would type them.
    """
    names = data.file_splits
    if isinstance(data, config.DatasetData):
        names = datasets.lookup(data.name).all_splits
    if names and split not in names:
        raise missing_split(split, names)
    return load(data, (split,), raw=raw)[split]


def missing_split(split: str, available: Iterable[str]) -> UserError:
    return UserError(
        f'this data has no split "{split}".{suggest(split, available)} It has {join_names(available)}.'
    )


def load(
    data: config.Data, splits: Sequence[str] = SPLITS, *, raw: bool = False, on_disk: bool = False
) -> Corpus:
    """The corpus of a config's [data] table. Of files, only those of these `splits` are read.

    `raw`: without `data.preprocess`. `on_disk`: training pairs stay there if `data.storage` says so.
    """
    if on_disk and isinstance(data, config.FileData) and data.storage == "disk":
        in_memory = load(data, tuple(split for split in splits if split != "train"), raw=raw)
        return in_memory.add_stream(open_stream(data)) if "train" in splits else in_memory
    is_mixed = (
        isinstance(data, config.ParallelData)
        and "train" in splits
        and (bool(data.synthetic) or data.repeat != 1)
    )
    # All splits: synthetic pairs must have no sentence of the others.
    corpus = load_full(data, SPLITS if is_mixed else splits)
    if isinstance(data, config.ParallelData) and data.swap:
        corpus = corpus.swap()
    if "train" in corpus.splits:
        corpus = corpus.take_fraction(data.fraction)
    if moses.is_preprocessed(data) and not raw:
        texts = corpus.splits.items()
        corpus = replace(corpus, splits={k: moses.preprocess_pairs(v, data) for k, v in texts})
    if is_mixed:
        assert isinstance(data, config.ParallelData)
        corpus = corpus.add_synthetic(data)
    noise = data.noise if isinstance(data, config.PlainText) else None
    if noise is None:
        return corpus
    copies = {split: noise.copies if split == "train" else 1 for split in corpus.splits}
    corrupted = {name: corrupt_pairs(corpus[name], noise, copies[name], name) for name in copies}
    return replace(corpus, splits=corrupted)


def from_pairs(train: Any, val: Any = None, fraction: float = 1.0) -> Corpus:
    """A corpus of pairs given in Python. Without `val`, one in twenty is held out, at most 1,000."""
    pairs = check_sides(train, "pairs")
    if val is not None:
        splits = {"train": pairs, "val": check_sides(val, "validation")}
        return Corpus(splits).take_fraction(fraction)
    if len(pairs) < 2:
        raise UserError("train got one pair and no validation: give more pairs, or validation=...")
    rows = set(select_rows(len(pairs), max(1, min(1000, len(pairs) // 20))))
    splits = {
        "train": [pair for row, pair in enumerate(pairs) if row not in rows],
        "val": [pairs[row] for row in sorted(rows)],
    }
    message = f"validation: {len(rows):,} of {len(pairs):,} pairs are held out"
    return Corpus(splits, messages=(message,)).take_fraction(fraction)


def check_sides(given: Any, name: str) -> Pairs:
    """Pairs given in Python to train on, or an error if a side is blank."""
    checked = check_pairs(given, "train", name)
    for number, pair in enumerate(checked, start=1):
        if not all(side.strip() for side in pair):
            side = "target" if pair[0].strip() else "source"
            raise UserError(f"{name}: item {number} has an empty {side}: add it, or leave it out")
    return checked


def load_full(data: config.Data, splits: Sequence[str] = SPLITS) -> Corpus:
    """The corpus before a fraction is taken and noise is added; `splits` as in `load`."""
    if isinstance(data, config.DatasetData):
        return Corpus(datasets.load(data.name, data.source, data.target, splits))
    if isinstance(data, config.FileData):
        return load_files(data, splits, lambda paths: read_pair_files(paths, data))
    if isinstance(data, config.HubData):
        by_split, messages = hf.load(data)
        return Corpus(by_split, messages=tuple(messages))
    if isinstance(data, config.PlainText):
        corpus = load_plain_text(data, splits)
        return exclude_sentences(corpus, data) if "train" in corpus.splits else corpus
    if isinstance(data, config.PairsData):
        raise UserError(
            'data.kind = "pairs" stands for pairs given in Python, which the run folder does not contain: '
            "use model.evaluate(pairs), or regard.train(..., pairs=pairs)"
        )
    assert isinstance(data, config.SyntheticData)
    task = TASKS[data.name]
    sizes = {split: getattr(data, split) for split in SPLITS}
    lengths = {"min_length": data.min_length, "max_length": data.max_length}
    generated = generate_splits(task, sizes=sizes, seed=data.seed, **lengths)
    return Corpus(generated, task.symbols, is_synthetic=True)


def load_files(
    data: config.FileData | config.PlainText,
    splits: Sequence[str],
    read: Callable[[Any], tuple[Pairs, Counts]],
) -> Corpus:
    """The user's files, split by split, with a message for each split that had lines skipped."""
    pairs_of, messages = {}, []
    for split in data.file_splits:
        if split not in splits:
            continue
        try:
            pairs_of[split], counts = read(getattr(data, split))
        except UserError as error:
            raise UserError(f"data.{split}: {error}{explain_missing(data, split)}") from None
        if counts.skipped:
            messages.append(f"{split}: {counts.summary()}")
    return Corpus(pairs_of, messages=tuple(messages))


def explain_missing(data: config.FileData | config.PlainText, split: str) -> str:
    """What to do about a file that is not where the config says, which may be that of a moved run."""
    paths = getattr(data, split)
    paths = (paths,) if isinstance(paths, str) else paths
    if all(os.path.exists(path) or has_wildcard(path) for path in paths):
        return ""
    return f" Put it there, or change data.{split} (of a trained model: in the config.toml of its run)."


def read_pair_files(paths: str | tuple[str, str], data: config.FileData) -> tuple[Pairs, Counts]:
    source, target = (paths, None) if isinstance(paths, str) else paths
    options = {
        "fields": data.fields,
        "on_error": data.on_error,
        "max_characters": data.max_characters,
    }
    return pairs.read_pairs(source, target, **options)


def read_text_files(paths: str | tuple[str, ...], data: config.PlainText) -> tuple[Pairs, Counts]:
    paths = (paths,) if isinstance(paths, str) else paths
    return pairs.read_sentences(paths, data.on_error, data.max_characters)


def load_plain_text(data: config.PlainText, splits: Sequence[str]) -> Corpus:
    """Monolingual text as pairs with an empty source."""
    if data.name is not None:
        texts = [datasets.load_monolingual(data.name, language) for language in data.languages]
        lines = {split: [line for each in texts for line in each[split]] for split in texts[0]}
        return Corpus({split: [("", line) for line in lines[split] if line] for split in lines})
    return load_files(data, splits, lambda paths: read_text_files(paths, data))


def exclude_sentences(corpus: Corpus, data: config.PlainText) -> Corpus:
    """The corpus without the training sentences that occur in the splits of `data.exclude`."""
    for table in data.exclude:
        excluded = load_excluded(table, data.languages)
        train = corpus["train"]
        kept = [pair for pair in train if pairs.normalise(pair[1]) not in excluded]
        if not kept:
            raise UserError(f"data.exclude: every training sentence is in {table.name}")
        message = (
            f"train: excluded {len(train) - len(kept):,} of {len(train):,} sentences, which occur in "
            f"{table.name} ({join_names(table.splits)})"
        )
        splits = corpus.splits | {"train": kept}
        corpus = replace(corpus, splits=splits).add_messages([message])
    return corpus


def load_excluded(table: config.ExcludedSplits, languages: tuple[str, ...]) -> set[str]:
    """The normalised sentences of a dataset's splits, in those of `languages` that it has."""
    available = datasets.lookup(table.name).languages
    shared = [language for language in languages if language in available]
    if not shared:
        raise UserError(
            f"data.exclude: {table.name} has the languages {join_names(available)}, and data.language is "
            f"{join_names(languages)}: they have none in common"
        )
    texts = [datasets.load_monolingual(table.name, language) for language in shared]
    lines = (line for each in texts for split in table.splits for line in each[split])
    return {pairs.normalise(line) for line in lines}
