"""A synthetic recall task for `extrapolation`: each question is answered by the latest capital letter."""

import random

import torch

from regard.models import Model
from regard.text.batch import EncodedPairs
from regard.text.tokenizer import TokenizerPair

LETTERS, FILLERS, QUESTION = "abcdef", ".,", "?"


def sample_text(length: int, rng: random.Random) -> str:
    """Capitals, fillers and questions, each answered by the latest capital in lower case: `B.,?bC,?c`."""
    latest, text = "", ""
    while len(text) < length:
        draw = rng.random()
        if draw < 0.2 or not latest:
            latest = rng.choice(LETTERS)
            text += latest.upper()
        else:
            text += QUESTION + latest if draw < 0.55 else rng.choice(FILLERS)
    return text[:length]


def sample_pairs(
    count: int, shortest: int, longest: int, rng: random.Random
) -> list[tuple[str, str]]:
    """Pairs of an empty source and a text as target."""
    return [("", sample_text(rng.randint(shortest, longest), rng)) for _ in range(count)]


def accuracy_by_position(
    model: Model, tokenizers: TokenizerPair, pairs: list[tuple[str, str]], width: int
) -> list[float]:
    """Accuracy of the answers, argmax over the letters only, in bins of `width` positions."""
    batch = EncodedPairs.from_pairs(pairs, tokenizers).batch(range(len(pairs)))
    letters = torch.tensor([tokenizers.target.piece_to_id[letter] for letter in LETTERS])
    with torch.inference_mode():
        logits = model(batch.source, batch.source_mask, batch.target)[..., letters]
    correct = letters[logits.argmax(-1)] == batch.labels
    is_answer = (batch.target == tokenizers.target.piece_to_id[QUESTION]) & torch.isin(
        batch.labels, letters
    )
    characters = slice(len(pairs[0][1]))  # without the end token
    bins = (x[:, characters].split(width, dim=1) for x in (correct, is_answer))
    return [float(hits[mask].float().mean()) for hits, mask in zip(*bins, strict=True)]
