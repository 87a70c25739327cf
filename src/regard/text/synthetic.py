"""Synthetic pairs in the training data, and the monolingual text that they are made of."""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from regard import files
from regard.config import DatasetData, ParallelData, limits
from regard.config.synthetic import TRAIN
from regard.errors import UserError, join_names, suggest
from regard.text import datasets
from regard.text.pairs import Pairs, normalise, read_pairs, read_sentences

TAG = "<BT>"
"""Starts the source of a tagged pair."""


def mix(
    train: Pairs, held_out: Iterable[Pairs], data: ParallelData
) -> tuple[Pairs, tuple[str, ...], list[str]]:
    """(training pairs, symbols that a source may start with, messages).

    Every real pair `data.repeat` times, then those of `data.synthetic`, without sentences of `held_out`.
    """
    mixed, messages = train * data.repeat, []
    sentences = normalised_sentences(held_out)
    for number, entry in enumerate(data.synthetic):
        where = f"data.synthetic.{number}"
        pairs = read_synthetic(entry, where)
        kept = [pair for pair in pairs if not sentences & {normalise(side) for side in pair}]
        if not kept:
            raise UserError(f"{where}: every pair of {entry.file} is in the validation or test set")
        count = f"{len(kept):,} synthetic pairs" + (f", {entry.repeat} times" * (entry.repeat > 1))
        left_out = len(pairs) - len(kept)
        messages.append(
            f"train: {count}; {left_out:,} left out, which have a sentence of the validation or test set"
        )
        start = f"{TAG} " * entry.tag
        mixed += [(start + source, target) for source, target in kept] * entry.repeat
    if data.repeat != 1:
        messages.insert(0, f"train: {len(train):,} real pairs, {data.repeat} times")
    symbols = (TAG,) if any(entry.tag for entry in data.synthetic) else ()
    return mixed, symbols, messages


def normalised_sentences(splits: Iterable[Pairs]) -> set[str]:
    """Every source and target of these splits, without case, punctuation and whitespace."""
    return {normalise(side) for pairs in splits for pair in pairs for side in pair}


def read_synthetic(entry: Any, where: str) -> Pairs:
    """The pairs of a table of data.synthetic, which must have been translated."""
    if entry.file is None or (entry.translator is not None and not os.path.isfile(entry.file)):
        raise UserError(
            f"{where}: the pairs that {entry.translator} makes of {entry.monolingual} are not there: "
            "`regard train` and `regard compare` make them first"
        )
    try:
        pairs, _ = read_pairs(entry.file, on_error="skip", max_characters=limits.CHARACTERS)
    except UserError as error:
        raise UserError(f"{where}: {error}") from None
    return pairs


# --- monolingual text -----------------------------------------------------------------------------


def load_sentences(name: str, language: str | None, default_language: str | None) -> list[str]:
    """The sentences of a file, or the training text of a public corpus in one language."""
    path = files.local_path(Path(name))
    if name in datasets.DATASETS and not path.exists():
        known = datasets.lookup(name).languages
        chosen = language or (default_language if default_language in known else None)
        if chosen is None:
            raise UserError(
                f"{name} has the languages {join_names(known)}: say which one, with language"
            )
        return datasets.load_monolingual(name, chosen)["train"]
    if language is not None:
        raise UserError(f"language is for a public corpus, and {name} is a file: leave it out")
    if not path.exists():
        raise UserError(
            f"there is no file {name}, and no public corpus of that name."
            f"{suggest(name, datasets.DATASETS)} Corpora: {join_names(datasets.DATASETS)}."
        )
    pairs, _ = read_sentences([name], "skip", limits.CHARACTERS)
    return [text for _, text in pairs]


def languages(data: Any) -> tuple[str | None, str | None]:
    """The languages of source and target, where the data names them."""
    if not isinstance(data, DatasetData):
        return None, None
    return (data.target, data.source) if data.swap else (data.source, data.target)


def load_monolingual(entry: Any, data: ParallelData, train: Pairs) -> Sequence[str]:
    """The text that an entry of `data.synthetic` translates; `train`: the real training pairs."""
    side = 1 if entry.reverse else 0
    if entry.monolingual == TRAIN:
        return [pair[side] for pair in train]
    return load_sentences(entry.monolingual, entry.language, languages(data)[side])
