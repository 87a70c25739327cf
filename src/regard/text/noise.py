"""Denoising pretraining (BART, Lewis et al., 2020): spans masked, words deleted and shuffled."""

from collections.abc import Iterator, Sequence
from random import Random

from regard.config import Noise
from regard.text.pairs import Pairs

MASK = "_"
"""Replaces a masked span. Plain text, so that a user can type it to have a gap filled in."""


def corrupt_pairs(pairs: Pairs, noise: Noise, copies: int, name: str) -> Pairs:
    """(corrupted target, target) of each pair, `copies` times; noise.seed and `name` seed the noise."""
    random = Random(f"{noise.seed} {name}")
    return [(corrupt(text, noise, random), text) for _ in range(copies) for _, text in pairs]


def corrupt(text: str, noise: Noise, random: Random) -> str:
    """The text with spans masked, then words deleted, then words shuffled; never empty."""
    words = list(mask_spans(text.split(), noise.mask_ratio, noise.span_length, random))
    words = [word for word in words if word == MASK or random.random() >= noise.delete_ratio]
    return " ".join(shuffle_words(words, noise.shuffle_distance, random)) or MASK


def mask_spans(
    words: Sequence[str], mask_ratio: float, span_length: float, random: Random
) -> Iterator[str]:
    """The words with each masked span replaced by one MASK.

    Masked or not is a two-state Markov chain, started from its stationary distribution: a span
    continues with probability 1 - 1/span_length, and one starts with the probability that keeps the
    fraction of masked words at mask_ratio.
    """
    start = mask_ratio / (1 - mask_ratio) / span_length
    is_masked = random.random() < mask_ratio
    for index, word in enumerate(words):
        was_masked = is_masked and index > 0
        if index:
            is_masked = random.random() < (1 - 1 / span_length if is_masked else start)
        if not is_masked:
            yield word
        elif not was_masked:
            yield MASK


def shuffle_words(words: Sequence[str], max_distance: int, random: Random) -> list[str]:
    """A random order in which no word moves by more than `max_distance` positions."""
    # Words further apart than that keep their order, because their sort keys cannot cross.
    keys = [index + (max_distance + 1) * random.random() for index in range(len(words))]
    return [words[index] for index in sorted(range(len(words)), key=keys.__getitem__)]
