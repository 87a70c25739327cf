"""What can be wrong with the user's parallel text, checked before training.

A mistake with which no training can be meant raises an error; what may be meant is a warning.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, pairwise, zip_longest
from math import sqrt
from pathlib import Path

from regard.config import Data, FileData, PlainText
from regard.errors import UserError
from regard.text.corpus import Corpus
from regard.text.pairs import Pairs, is_tsv, read_columns
from regard.text.wildcards import expand

FEW_TRAINING_PAIRS = 500
FEW_VALIDATION_PAIRS = 50
SAMPLE = 1000
"""How many pairs are looked at, from the start of a file."""
MOST = 0.5
"""The fraction of pairs from which on something is no accident."""
FEW_TEXTS, FEW_DIFFERENT = 10, 0.05
"""How many different texts, and which fraction of all, are no language."""
SWAPPED_BY = 0.1
"""How much more similar the sides of two splits are crosswise if their languages are swapped."""
ALIKE = 10
"""How many characters at the start of most texts are equal if they are no sentences."""
OVERLAP = 0.01
"""The fraction of held-out pairs that may be training pairs by accident: captions and greetings recur."""

COLUMN_NAMES = """
    source target src tgt trg sentence sentence1 sentence2 text text1 text2 input output original
    translation reference lang1 lang2 language1 language2 id
    ar cs da de el en es et fi fr he hi hu it ja ko nl no pl pt ro ru sv tr uk zh
    arabic chinese czech danish dutch english estonian finnish french german greek hebrew hindi hungarian
    italian japanese korean norwegian polish portuguese romanian russian spanish swedish turkish ukrainian
"""
"""In lower case: a first pair of these, or of several joined as in sentence_de, is a header."""


def check_corpus(data: Data, corpus: Corpus) -> list[str]:
    """Warnings about the user's parallel text; an error where no training can be meant."""
    if not data.is_user_data or isinstance(data, PlainText):
        return []
    messages = list(check_tables(data)) if isinstance(data, FileData) else []
    splits = [split for split, pairs in corpus.splits.items() if pairs]
    for split in splits:
        messages += check_header(f"data.{split}", corpus[split])
        messages += check_copies(split, corpus[split])
        messages += check_variety(split, corpus[split])
    for split in splits:
        if split != "train":
            check_direction(split, corpus)
            messages += check_overlap(split, corpus)
    return [*messages, *check_sizes(corpus)]


def check_tables(data: FileData) -> Iterator[str]:
    for split in data.file_splits:
        names = getattr(data, split)
        for path in map(Path, expand(names) if isinstance(names, str) else ()):
            if is_tsv(path):
                yield from check_table(split, path, data.max_characters)


def check_table(split: str, path: Path, max_characters: int) -> Iterator[str]:
    """More columns than two, and quotation marks around the columns of a .tsv."""
    rows = list(islice(read_columns(path, max_characters), SAMPLE))
    wide = next((row for row in rows if len(row) > 2), None)
    if wide:
        check_identifiers(f"data.{split}", path, [row[:2] for row in rows])
        yield (
            f"data.{split}: {path} has {len(wide)} columns: the first is the source, the second the target, "
            f'and the rest is ignored, such as "{shorten(wide[2])}"'
        )
    quoted = sum(all(is_quoted(cell) for cell in row[:2]) for row in rows)
    if quoted > MOST * len(rows):
        yield (
            f"data.{split}: {quoted:,} of the first {len(rows):,} lines of {path} have quotation marks "
            "around both columns, which become part of the text: save it as tab-separated text without them"
        )


def check_identifiers(where: str, path: Path, rows: Sequence[Sequence[str]]) -> None:
    """Raise an error if a column of text holds only numbers; `rows` of a table with more columns than two."""
    columns = zip_longest(*(rows[1:] or rows), fillvalue="")
    for number, cells in enumerate(columns, start=1):
        if all(cell.strip().isdecimal() for cell in cells):
            raise UserError(
                f"{where}: column {number} of {path} holds only numbers, as identifiers do, where a "
                f"{'source' if number == 1 else 'target'} is expected: delete that column"
            )


def check_references(path: Path, rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """A header, and more columns than two, in a .tsv of sources and references."""
    yield from check_header(str(path), [(row[0], row[1]) for row in rows[:1]])
    width = max(map(len, rows))
    if width == 2:
        return
    check_identifiers("--input", path, rows)
    yield (
        f"{path} has {width} columns: the first is the source, and the others are {width - 1} "
        "references for it"
    )
    for column in range(2, width):
        cells = [row[column] for row in rows if len(row) > column]
        start, count = Counter(cell[:ALIKE] for cell in cells).most_common(1)[0]
        if count > 1 and count > MOST * len(cells):
            yield (
                f'{path}: {count:,} of {len(cells):,} texts in column {column + 1} start with "{start}", as '
                "licences and names do: delete that column if it holds no references"
            )


def is_quoted(cell: str) -> bool:
    cell = cell.strip()
    return len(cell) > 1 and cell[0] == cell[-1] == '"'


def check_header(where: str, pairs: Pairs) -> Iterator[str]:
    """A first pair that consists of names of columns."""
    names = [re.split(r"[\W_]+", side.strip('"').casefold()) for side in pairs[0]]
    known = set(COLUMN_NAMES.split())
    if all(len(parts) <= 3 and known.issuperset(parts) for parts in names):
        yield (
            f'{where}: the first pair is "{pairs[0][0]}" and "{pairs[0][1]}", which looks like a '
            "header: delete that line, or it is used as a sentence"
        )


def check_copies(split: str, pairs: Pairs) -> Iterator[str]:
    """Sources that equal their targets."""
    copies = sum(source == target for source, target in pairs)
    if copies > MOST * len(pairs):
        yield (
            f"data.{split}: in {copies:,} of {len(pairs):,} pairs the source equals the target: is one file "
            "in both languages given twice?"
        )


def check_variety(split: str, pairs: Pairs) -> Iterator[str]:
    """A side with very few different texts, such as a column with the name of a language."""
    for side, column in (("sources", 0), ("targets", 1)):
        texts = [pair[column] for pair in pairs]
        different = len(take_different(texts, FEW_TEXTS + 1))
        if different <= FEW_TEXTS and different < FEW_DIFFERENT * len(texts):
            yield (
                f"data.{split}: {len(texts):,} {side} are only {different} different texts, such as "
                f'"{shorten(texts[-1])}": is it the wrong column?'
            )


def take_different(texts: Iterable[str], count: int) -> set[str]:
    """The first `count` different texts, or all if there are fewer."""
    found: set[str] = set()
    for text in texts:
        found.add(text)
        if len(found) == count:
            break
    return found


def check_direction(split: str, corpus: Corpus) -> None:
    """Raise an error if a split is in the other direction than the training data."""
    sources, targets = (
        [count_letter_pairs(corpus[name], side) for name in ("train", split)] for side in (0, 1)
    )
    straight = similarity(*sources), similarity(*targets)
    crosswise = similarity(sources[0], targets[1]), similarity(targets[0], sources[1])
    if min(crosswise) > max(straight) + SWAPPED_BY:
        raise UserError(
            f"data.{split}: its sources look like the targets of data.train, and its targets like the "
            "sources: the languages are swapped. Swap the two files (or columns) of one of them"
        )


def count_letter_pairs(pairs: Pairs, side: int) -> Counter[str]:
    """How often each two letters follow each other on one side of the first pairs: a language's profile."""
    counts: Counter[str] = Counter()
    for pair in pairs[:SAMPLE]:
        letters = pairwise(pair[side].casefold())
        counts.update(first + second for first, second in letters if (first + second).isalpha())
    return counts


def similarity(first: Counter[str], second: Counter[str]) -> float:
    """Cosine similarity of two profiles."""
    norms = sqrt(sum(n * n for n in first.values()) * sum(n * n for n in second.values()))
    return sum(count * second[key] for key, count in first.items()) / max(norms, 1.0)


def check_overlap(split: str, corpus: Corpus) -> Iterator[str]:
    """Pairs that are also training pairs, ignoring case."""
    pairs = [fold_case(pair) for pair in corpus[split]]
    held_out = set(pairs)  # not the training pairs: there may be millions
    found = held_out.intersection(map(fold_case, corpus["train"]))
    shared = sum(pair in found for pair in pairs)
    if shared > OVERLAP * len(pairs):
        amount = "all" if shared == len(pairs) else f"{shared:,} of {len(pairs):,}"
        noun = "validation" if split == "val" else split
        yield (
            f"data.{split}: {amount} pairs are also in the training data, so {noun} scores are too good "
            "and show no overfitting: hold out pairs that training does not see"
        )


def fold_case(pair: tuple[str, str]) -> tuple[str, str]:
    return pair[0].casefold(), pair[1].casefold()


def check_sizes(corpus: Corpus) -> Iterator[str]:
    """Too few pairs to learn from, or to measure with."""
    train, val = len(corpus["train"]), len(corpus["val"])
    if train < FEW_TRAINING_PAIRS:
        yield (
            f"data.train: {train:,} pairs are very few to train from scratch, expect a poor model: collect "
            f'{FEW_TRAINING_PAIRS:,} or more, or fine-tune a pretrained model (model.kind = "pretrained")'
        )
    if val < FEW_VALIDATION_PAIRS:
        yield (
            f"data.val: {val:,} pairs are few to choose the best weights by: "
            f"hold out {FEW_VALIDATION_PAIRS} or more"
        )


def shorten(text: str, width: int = 40) -> str:
    text = text.strip()
    return text if len(text) <= width else text[: width - 3] + "..."
