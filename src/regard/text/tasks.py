"""Made data: pairs of texts that need no network, for models that read and write characters."""

import random as randoms
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b

from regard.errors import UserError, join_names
from regard.text.sentences import sentences


@dataclass(frozen=True)
class Task:
    """What turns a sentence into a source and its target.

    `symbols` are the whole-token marks that may stand at the start of a source.
    """

    describe: str
    pair: Callable[[str, randoms.Random], tuple[str, str]]
    symbols: tuple[str, ...] = ()


def case(sentence: str, random: randoms.Random) -> tuple[str, str]:
    """`<U> text` -> `TEXT` or `<L> text` -> `text`, by a fair coin."""
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
    "reverse": Task("write the characters backwards", reverse),
    "copy": Task("write the same again", copy),
}

# Of all sentences, `train` may use four shares, every other split one.
TRAIN_SHARES = 4


def make(
    task: Task, *, sizes: dict[str, int], min_length: int, max_length: int, seed: int
) -> dict[str, list[tuple[str, str]]]:
    """Pairs of `task` for every split; a sentence, in whatever case and with
    or without its full stop, belongs to one split only.

    A hash says which split may use a sentence, so no split's pairs depend on the size of another,
    and short sentences, of which there are few, are shared out fairly. Lengths are the sentence's,
    without the symbol.
    """
    for split, size in sizes.items():
        if size < 0:
            raise UserError(
                f"expected a size of 0 or more for split {split!r}; got {size}. Ask for more."
            )
    # Sorted, because the order in which a user names the splits means nothing.
    owners = sorted([*sizes] + ["train"] * (TRAIN_SHARES - 1) * ("train" in sizes))

    def owner(sentence: str) -> str:
        bare = sentence.lower().rstrip(".?!")
        digest = blake2b(f"{seed} {bare}".encode(), digest_size=8).digest()
        return owners[int.from_bytes(digest, "big") % len(owners)]

    made = {}
    for split, size in sizes.items():
        # Strings seed alike on every platform, and give every split a stream of its own.
        random = randoms.Random(f"{seed} {split}")
        try:
            mine = sentences(
                size,
                min_length,
                max_length,
                seed=random.getrandbits(64),
                keep=lambda sentence, split=split: owner(sentence) == split,
            )
        except UserError as error:
            raise UserError(
                f"cannot make split {split!r} (the splits {join_names(sizes)} share the sentences): "
                f"{error}"
            ) from error
        made[split] = [task.pair(sentence, random) for sentence in mine]
    return made
