"""What outputs are worth: sacreBLEU on detokenised text, chrF, exact match."""

import math
from collections.abc import Sequence
from typing import Any

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF


def quality(outputs: Sequence[str], references: Sequence[str]) -> dict[str, Any]:
    """Corpus scores of `outputs`; the signatures say how each was computed."""
    metrics = {"bleu": BLEU(), "bleu_lower": BLEU(lowercase=True), "chrf": CHRF()}
    found: dict[str, Any] = {}
    for name, metric in metrics.items():
        found[name] = metric.corpus_score(list(outputs), [list(references)]).score
    found["signatures"] = {name: str(m.get_signature()) for name, m in metrics.items()}
    found["exact_match"] = exact_match(outputs, references)
    return found


def bleu_lower(outputs: Sequence[str], references: Sequence[str]) -> float:
    """The lower-cased BLEU of `quality`, alone."""
    return BLEU(lowercase=True).corpus_score(list(outputs), [list(references)]).score


def exact_match(outputs: Sequence[str], references: Sequence[str]) -> float:
    """The share of outputs that are the reference, to the letter."""
    same = [output == reference for output, reference in zip(outputs, references, strict=True)]
    return sum(same) / len(same)


def longest_fifth(sources: Sequence[str]) -> list[int]:
    """Which sentences have the longest sources, a fifth of all; of equals, those that come first.

    In characters of the text as it stands: the same sentences whatever a model's tokens are.
    """
    by_length = sorted(range(len(sources)), key=lambda row: -len(sources[row]))
    return sorted(by_length[: math.ceil(len(sources) / 5)])


def sentence_bleu(outputs: Sequence[str], references: Sequence[str]) -> list[str]:
    """BLEU of each sentence by itself, to find the good and the bad ones."""
    metric = BLEU(effective_order=True)
    pairs = zip(outputs, references, strict=True)
    return [
        f"{metric.sentence_score(output, [reference]).score:.1f}" for output, reference in pairs
    ]
