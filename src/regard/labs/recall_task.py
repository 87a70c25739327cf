"""A made language of questions, each answered by the latest capital: what `extrapolation` trains on."""

import random

import torch

from regard.models import Model
from regard.text.batch import Encoded
from regard.text.tokenizer import TokenizerPair

LETTERS, FILLERS, ASK = "abcdef", ".,", "?"


def sample_text(length: int, chance: random.Random) -> str:
    """Capitals, fillers and questions; a question is answered by the latest capital: `B.;?bC,?c`."""
    latest, said = "", ""
    while len(said) < length:
        draw = chance.random()
        if draw < 0.2 or not latest:
            latest = chance.choice(LETTERS)
            said += latest.upper()
        else:
            said += ASK + latest if draw < 0.55 else chance.choice(FILLERS)
    return said[:length]


def sample_pairs(
    count: int, shortest: int, longest: int, chance: random.Random
) -> list[tuple[str, str]]:
    """Nothing to read, a text to write."""
    return [("", sample_text(chance.randint(shortest, longest), chance)) for _ in range(count)]


def accuracy_by_position(
    model: Model, tokenizers: TokenizerPair, pairs: list[tuple[str, str]], width: int
) -> list[float]:
    """Share of questions that get the right answer, for every `width` places; any letter may be it."""
    batch = Encoded.of(pairs, tokenizers).batch(range(len(pairs)))
    letters = torch.tensor([tokenizers.target.ids[letter] for letter in LETTERS])
    with torch.inference_mode():
        logits = model(batch.source, batch.source_mask, batch.target)[..., letters]
    right = letters[logits.argmax(-1)] == batch.wanted
    asked = (batch.target == tokenizers.target.ids[ASK]) & torch.isin(batch.wanted, letters)
    characters = slice(len(pairs[0][1]))  # without the end
    parts = (seen[:, characters].split(width, dim=1) for seen in (right, asked))
    return [float(good[counted].float().mean()) for good, counted in zip(*parts, strict=True)]
