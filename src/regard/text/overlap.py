"""Sentences that occur both in training text and in a test set: leakage, which must be known."""

from regard import config
from regard.text import corpus
from regard.text.pairs import Pairs, normalise


def count_overlap(sentences: set[str], pairs: Pairs) -> dict[str, int]:
    """How many sources and how many targets of `pairs` are in `sentences`, a set of normalised ones."""
    sides = zip(("source", "target"), zip(*pairs, strict=True), strict=True)
    return {side: sum(normalise(text) in sentences for text in texts) for side, texts in sides}


def training_sentences(data: config.Data) -> set[str]:
    """Every source and target that training on this data uses, normalised (no case, punctuation or
    space). With denoising, the sentences before corruption.
    """
    if isinstance(data, config.PlainText):
        data = data.model_copy(update={"noise": None})
    texts = {side for pair in corpus.load(data)["train"] for side in pair}
    return {normalise(text) for text in texts if text}
