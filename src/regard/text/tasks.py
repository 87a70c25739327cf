"""Synthetic data: generated pairs of texts that need no download, for character-level models."""

import random as randoms
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b

from regard.errors import UserError, join_names
from regard.text.sentences import generate_sentences


@dataclass(frozen=True)
class Task:
    """A function from a sentence to a (source, target) pair.

    `symbols` are control tokens, one of which may start a source.
    """

    description: str
    make_pair: Callable[[str, randoms.Random], tuple[str, str]]
    symbols: tuple[str, ...] = ()


def case(sentence: str, random: randoms.Random) -> tuple[str, str]:
    """`<U> text` -> `TEXT` or `<L> text` -> `text`, each with probability 1/2."""
    if random.random() < 0.5:
        return f"<U> {sentence}", sentence.upper()
    return f"<L> {sentence}", sentence.lower()


def reverse(sentence: str, random: randoms.Random) -> tuple[str, str]:
    """`text` -> `txet`."""
    return sentence, sentence[::-1]


def copy(sentence: str, random: randoms.Random) -> tuple[str, str]:
    """`text` -> `text`."""
    return sentence, sentence


TASKS: dict[str, Task] = {
    "case": Task("upper-case after <U>, lower-case after <L>", case, symbols=("<U>", "<L>")),
    "reverse": Task("reverse the characters", reverse),
    "copy": Task("copy the source", copy),
}

# Sentences are divided among the splits by hash: `train` gets four parts, every other split one.
TRAIN_PARTS = 4


def generate_splits(
    task: Task, *, sizes: dict[str, int], min_length: int, max_length: int, seed: int
) -> dict[str, list[tuple[str, str]]]:
    """Pairs of `task` for every split. A sentence occurs in one split only, whatever its case and with
    or without its full stop.

    A hash assigns each sentence to a split, so no split depends on the size of another, and short
    sentences, of which there are few, occur in every split. Lengths are of the sentence, without its
    symbol.
    """
    for split, size in sizes.items():
        if size < 0:
            raise UserError(
                f"expected a size of 0 or more for split {split!r}; got {size}. Ask for more."
            )
    # Sorted, so that the order in which the splits are given does not matter.
    parts = sorted([*sizes] + ["train"] * (TRAIN_PARTS - 1) * ("train" in sizes))

    def assigned_split(sentence: str) -> str:
        normalised = sentence.lower().rstrip(".?!")
        digest = blake2b(f"{seed} {normalised}".encode(), digest_size=8).digest()
        return parts[int.from_bytes(digest, "big") % len(parts)]

    splits = {}
    for split, size in sizes.items():
        # A string seeds identically on every platform, and each split gets its own stream.
        random = randoms.Random(f"{seed} {split}")
        try:
            sentences = generate_sentences(
                size,
                min_length,
                max_length,
                seed=random.getrandbits(64),
                accept=lambda sentence, split=split: assigned_split(sentence) == split,
            )
        except UserError as error:
            raise UserError(
                f"cannot generate split {split!r} (sentences are divided among {join_names(sizes)}): "
                f"{error}"
            ) from error
        splits[split] = [task.make_pair(sentence, random) for sentence in sentences]
    return splits
