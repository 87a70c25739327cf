"""Spoiled sentences, for a model to mend: words hidden, lost and moved (Lewis et al., 2020)."""

from collections.abc import Iterator, Sequence
from random import Random

from regard.config import Noise
from regard.text.pairs import Pairs

MARK = "_"
"""Stands for a run of hidden words. Plain text, so that a user can ask for words to be filled in."""


def noisy(pairs: Pairs, noise: Noise, copies: int, name: str) -> Pairs:
    """(spoiled target, target) of each pair, `copies` times over; seed and name decide how."""
    random = Random(f"{noise.seed} {name}")
    return [(spoil(text, noise, random), text) for _ in range(copies) for _, text in pairs]


def spoil(text: str, noise: Noise, random: Random) -> str:
    """A sentence with words hidden, then lost, then moved; there is always something left to read."""
    words = list(hidden(text.split(), noise.mask_ratio, noise.span_length, random))
    words = [word for word in words if word == MARK or random.random() >= noise.delete_ratio]
    return " ".join(moved(words, noise.shuffle_distance, random)) or MARK


def hidden(words: Sequence[str], share: float, span: float, random: Random) -> Iterator[str]:
    """One mark for each run of hidden words.

    Hidden or not is a chain of two states, begun where it stays in the mean: a run goes on with
    probability 1 - 1/span, and one begins with what keeps the share as it is.
    """
    begin = share / (1 - share) / span
    inside = random.random() < share
    for number, word in enumerate(words):
        before = inside and number > 0
        if number:
            inside = random.random() < (1 - 1 / span if inside else begin)
        if not inside:
            yield word
        elif not before:
            yield MARK


def moved(words: Sequence[str], most: int, random: Random) -> list[str]:
    """The words in an order where each stands at most `most` places from where it stood."""
    # Two words that lie further apart than that keep their order: their keys cannot cross.
    keys = [place + (most + 1) * random.random() for place in range(len(words))]
    return [words[place] for place in sorted(range(len(words)), key=keys.__getitem__)]
