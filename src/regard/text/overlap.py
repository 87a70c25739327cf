"""Sentences of one text that another text holds, too: what a test must not share with training."""

from collections.abc import Iterable

from regard import config
from regard.text import corpus
from regard.text.pairs import Pairs, bare


def overlap(text: set[str], pairs: Pairs) -> dict[str, int]:
    """How many sources and targets of `pairs` are in `text`, a set of bare sentences."""
    sides = zip(("source", "target"), zip(*pairs, strict=True), strict=True)
    return {side: sum(bare(each) in text for each in each_side) for side, each_side in sides}


def learned(data: config.Data) -> set[str]:
    """Every sentence that training on this data reads or writes, bare: without case, punctuation and
    space. A spoiled sentence is there as it was before.
    """
    if isinstance(data, config.PlainText):
        data = data.model_copy(update={"noise": None})
    return sentences(side for pair in corpus.load(data)["train"] for side in pair)


def sentences(texts: Iterable[str]) -> set[str]:
    return {bare(text) for text in set(texts) if text}
