"""Translation metrics: sacreBLEU on detokenised text, chrF, exact match."""

import math
from collections.abc import Sequence
from typing import Any

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF


def score_corpus(outputs: Sequence[str], references: Sequence[str]) -> dict[str, Any]:
    """Corpus-level scores, with the sacreBLEU signature of each metric."""
    metrics = {"bleu": BLEU(), "bleu_lower": BLEU(lowercase=True), "chrf": CHRF()}
    scores: dict[str, Any] = {}
    for name, metric in metrics.items():
        scores[name] = metric.corpus_score(list(outputs), [list(references)]).score
    scores["signatures"] = {name: str(m.get_signature()) for name, m in metrics.items()}
    scores["exact_match"] = exact_match(outputs, references)
    return scores


def bleu_lower(outputs: Sequence[str], references: Sequence[str]) -> float:
    """Only the lower-cased BLEU of `score_corpus`."""
    return BLEU(lowercase=True).corpus_score(list(outputs), [list(references)]).score


def exact_match(outputs: Sequence[str], references: Sequence[str]) -> float:
    """The fraction of outputs that equal their reference exactly."""
    matches = [output == reference for output, reference in zip(outputs, references, strict=True)]
    return sum(matches) / len(matches)


def longest_fifth(sources: Sequence[str]) -> list[int]:
    """The indices of the longest 20% of the sources, rounded up; earlier ones win ties.

    Measured in characters of the raw text, so that the subset does not depend on the tokenizer.
    """
    by_length = sorted(range(len(sources)), key=lambda row: -len(sources[row]))
    return sorted(by_length[: math.ceil(len(sources) / 5)])


def sentence_bleu(outputs: Sequence[str], references: Sequence[str]) -> list[str]:
    """Sentence-level BLEU of each output, formatted."""
    metric = BLEU(effective_order=True)
    pairs = zip(outputs, references, strict=True)
    return [
        f"{metric.sentence_score(output, [reference]).score:.1f}" for output, reference in pairs
    ]
