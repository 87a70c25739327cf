"""Translation metrics: sacreBLEU's on detokenised text (BLEU, chrF, TER), and exact match.

A model of preprocessed text (`data.preprocess`) writes lower-cased tokens, and its references are such
tokens. The metrics of detokenised text are undefined for it: it has BLEU on tokens, and exact match.

References are one text per sentence, or a list of several. With several, BLEU, chrF and TER are as sacreBLEU
defines them, and an output that equals any of them is an exact match.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sacrebleu.metrics.base import Metric, Score
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER

from regard.config import Data
from regard.text.moses import is_preprocessed

References = Sequence[str] | Sequence[Sequence[str]]


class ExactMatch(Metric):
    """The fraction of outputs that equal a reference exactly, in the form that sacreBLEU's tests take."""

    def _preprocess_segment(self, sent: str) -> str:
        return sent

    def _extract_reference_info(self, refs: Sequence[str]) -> dict[str, Any]:
        return {"references": refs}

    def _compute_segment_statistics(self, hypothesis: str, ref_kwargs: dict) -> list[int]:
        return [int(hypothesis in ref_kwargs["references"]), 1]

    def _compute_score_from_stats(self, stats: Any) -> Score:
        matches, sentences = stats
        return Score("exact match", float(matches) / float(sentences))

    def _aggregate_and_compute(self, stats: list[list[int]]) -> Score:
        return self._compute_score_from_stats([sum(column) for column in zip(*stats, strict=True)])


@dataclass(frozen=True)
class Measure:
    """A metric: its heading in tables, and how to create it."""

    heading: str
    create: Callable[[], Metric]
    lower_is_better: bool = False
    is_on_tokens: bool = False
    """Is it defined on preprocessed text?"""
    is_on_raw_text: bool = True
    """Is it defined on text as people write it?"""


METRICS = {
    "bleu": Measure("BLEU", BLEU),
    "bleu_lower": Measure("BLEU (lowercased)", lambda: BLEU(lowercase=True)),
    "chrf": Measure("chrF", CHRF),
    "ter": Measure("TER", TER, lower_is_better=True),
    "bleu_tokens": Measure(
        "BLEU (tokens)",
        # As multi-bleu.perl: a word is what spaces separate. force: no warning that it looks tokenised.
        lambda: BLEU(tokenize="none", force=True),
        is_on_tokens=True,
        is_on_raw_text=False,
    ),
    "exact_match": Measure("exact match", ExactMatch, is_on_tokens=True),
}
SACREBLEU = tuple(name for name in METRICS if name != "exact_match")


def select_metrics(on_tokens: bool = False) -> dict[str, Measure]:
    """The metrics that are defined on preprocessed text, or on text as people write it."""
    return {
        name: measure
        for name, measure in METRICS.items()
        if (measure.is_on_tokens if on_tokens else measure.is_on_raw_text)
    }


def headline_bleu(data: Data) -> str:
    """The BLEU by which models of this data are compared, one of `METRICS`."""
    return "bleu_tokens" if is_preprocessed(data) else "bleu_lower"


def score_corpus(
    outputs: Sequence[str], references: References, on_tokens: bool = False
) -> dict[str, Any]:
    """Corpus-level scores, with the sacreBLEU signature of each; None: undefined on this text."""
    defined = select_metrics(on_tokens)
    metrics = {name: METRICS[name].create() for name in SACREBLEU if name in defined}
    streams = to_streams(references)
    scores: dict[str, Any] = dict.fromkeys(SACREBLEU)
    for name, metric in metrics.items():
        scores[name] = metric.corpus_score(list(outputs), streams).score
    scores["signatures"] = {name: str(m.get_signature()) for name, m in metrics.items()}
    scores["exact_match"] = exact_match(outputs, references)
    return scores


def score(name: str, outputs: Sequence[str], references: References) -> float:
    """One of `METRICS`, on the whole corpus."""
    return METRICS[name].create().corpus_score(list(outputs), to_streams(references)).score


def bleu_lower(outputs: Sequence[str], references: References) -> float:
    """Only the lowercased BLEU of `score_corpus`."""
    return score("bleu_lower", outputs, references)


def exact_match(outputs: Sequence[str], references: References) -> float:
    """The fraction of outputs that equal a reference exactly."""
    pairs = zip(outputs, map(to_list, references), strict=True)
    matches = [output in accepted for output, accepted in pairs]
    return sum(matches) / len(matches)


def to_list(references: str | Sequence[str]) -> list[str]:
    """The references of one sentence."""
    return [references] if isinstance(references, str) else list(references)


def to_streams(references: References) -> list[list[Any]]:
    """The first reference of every sentence, then the second, ...; None where a sentence has fewer."""
    lists = [to_list(of_sentence) for of_sentence in references]
    count = max(map(len, lists))
    return [[texts[n] if n < len(texts) else None for texts in lists] for n in range(count)]


def longest_fifth(sources: Sequence[str]) -> list[int]:
    """The indices of the longest 20% of the sources, rounded up; earlier ones win ties.

    Measured in characters of the raw text, so that the subset does not depend on the tokenizer.
    """
    by_length = sorted(range(len(sources)), key=lambda row: -len(sources[row]))
    return sorted(by_length[: math.ceil(len(sources) / 5)])


def sentence_bleu(
    outputs: Sequence[str], references: References, on_tokens: bool = False
) -> list[str]:
    """Sentence-level BLEU of each output, formatted."""
    metric = BLEU(effective_order=True, tokenize="none" if on_tokens else None)
    pairs = zip(outputs, map(to_list, references), strict=True)
    return [f"{metric.sentence_score(output, texts).score:.1f}" for output, texts in pairs]
