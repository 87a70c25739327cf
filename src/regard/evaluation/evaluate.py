"""Evaluation of a translator on a split: likelihood, translation quality, and both by source length."""

import math
import time
import warnings
from collections.abc import Sequence
from typing import Any

import torch

from regard.errors import NotFiniteError, RegardWarning
from regard.evaluation.likelihood import Likelihood, aggregate, likelihoods
from regard.evaluation.metrics import (
    References,
    bleu_lower,
    exact_match,
    headline_bleu,
    longest_fifth,
    score,
    score_corpus,
)
from regard.models import Model
from regard.text.batch import EncodedPairs
from regard.text.moses import is_preprocessed
from regard.text.tokenizer import BOS, EOS, UNK
from regard.translator import Translator

Pairs = list[tuple[str, str]]


def evaluate(
    translator: Translator,
    pairs: Pairs,
    beams: Sequence[int] = (1,),
    batch_tokens: int | None = None,
    *,
    references: References | None = None,
) -> dict[str, Any]:
    """The fields of `regard evaluate --json`; each result also holds its outputs, in order.

    `references`: for each pair, one or several texts to compare the outputs with, instead of its target.
    Likelihoods are always those of the targets. All texts are as `corpus.load` gives them: preprocessed, if
    the model's are.
    """
    encoded = EncodedPairs.from_pairs(pairs, translator.tokenizers)
    translator.check_lengths(encoded)
    warn_of_long_sources(encoded, translator)
    by_pair = likelihoods(translator.model, encoded)
    corpus = aggregate(by_pair)
    if not math.isfinite(corpus.loss):
        raise NotFiniteError
    # EOS counts as one character, as a newline would, because its cost is part of the sum.
    characters = sum(len(target) + 1 for _, target in pairs)
    unknown = sum(ids.count(UNK) for ids in encoded.target)
    references = [target for _, target in pairs] if references is None else references
    return {
        "loss": corpus.loss,
        "perplexity": corpus.perplexity,
        # UNK stands for any spelling, whose cost is not part of the sum: no figure would be comparable.
        "bits_per_character": None if unknown else corpus.bits_per_character(characters),
        "unknown_tokens": unknown,
        "token_accuracy": corpus.token_accuracy,
        "cache_bytes_per_token": cache_bytes_per_token(translator.model),
        "sentences": len(pairs),
        # A language model has no source, so there are no translations to score.
        "results": [
            evaluate_beam(translator, pairs, references, encoded, by_pair, beam, batch_tokens)
            for beam in beams
            if not translator.config.is_language_model
        ],
    }


def warn_of_long_sources(encoded: EncodedPairs, translator: Translator) -> None:
    """Warn of sources over the limit, which training skipped and `translate` rejects."""
    tokenizers = translator.tokenizers
    limit = tokenizers.max_tokens + tokenizers.source_eos
    numbers = [n for n, ids in enumerate(encoded.source, start=1) if len(ids) > limit]
    if numbers:
        some = ", ".join(map(str, numbers[:5])) + (", ..." if len(numbers) > 5 else "")
        warnings.warn(
            f"{len(numbers):,} of {len(encoded):,} sources have more than {tokenizers.max_tokens} tokens "
            f"(tokenizer.max_tokens), which `translate` rejects: number {some}",
            RegardWarning,
            stacklevel=3,
        )


def greedy_bleu(
    translator: Translator, pairs: Pairs, encoded: EncodedPairs, batch_tokens: int | None = None
) -> float:
    """BLEU of greedy search: lowercased, or on tokens of preprocessed text."""
    hypotheses = translator.search(encoded, batch_tokens=batch_tokens)
    outputs = [translator.tokenizers.target.decode(nbest[0].ids) for nbest in hypotheses]
    return score(headline_bleu(translator.config.data), outputs, [target for _, target in pairs])


def evaluate_beam(
    translator: Translator,
    pairs: Pairs,
    references: References,
    encoded: EncodedPairs,
    by_pair: list[Likelihood],
    beam: int,
    batch_tokens: int | None,
) -> dict[str, Any]:
    """Translation quality with one beam width, overall and by source length."""
    start = time.perf_counter()
    hypotheses = translator.search(encoded, beam, batch_tokens=batch_tokens)
    seconds = time.perf_counter() - start
    outputs = [translator.tokenizers.target.decode(nbest[0].ids) for nbest in hypotheses]
    sources = [source for source, _ in pairs]
    lengths = source_lengths(sources, translator)
    on_tokens = is_preprocessed(translator.config.data)
    quality = evaluate_outputs(outputs, sources, references, lengths, on_tokens)
    for bucket, (_, _, rows) in zip(quality["lengths"], length_buckets(lengths), strict=True):
        bucket["token_accuracy"] = aggregate(by_pair[row] for row in rows).token_accuracy
    return {"beam": beam, "seconds": seconds, **quality}


def evaluate_outputs(
    outputs: Sequence[str],
    sources: Sequence[str],
    references: References,
    lengths: Sequence[int] | None = None,
    on_tokens: bool = False,
) -> dict[str, Any]:
    """The quality of any system's outputs, overall, on the longest sources, and by source length.

    `lengths`: of the sources, in tokens; by default in words. `on_tokens`: all texts are preprocessed.
    """

    def select(rows: Sequence[int]) -> tuple[list[str], list[Any]]:
        return [outputs[row] for row in rows], [references[row] for row in rows]

    by_length = "bleu_tokens" if on_tokens else "chrf"
    longest = select(longest_fifth(sources))
    return {
        **score_corpus(outputs, references, on_tokens),
        "bleu_lower_longest": None if on_tokens else bleu_lower(*longest),
        "sentences": len(outputs),
        "lengths": [
            {
                "from": low,
                "to": high,
                "sentences": len(rows),
                by_length: score(by_length, *select(rows)),
                "exact_match": exact_match(*select(rows)),
            }
            for low, high, rows in length_buckets(lengths or source_lengths(sources))
        ],
        "outputs": list(outputs),
    }


def source_lengths(sources: Sequence[str], translator: Translator | None = None) -> list[int]:
    """The length of each source: in the translator's tokens, without EOS, or in words."""
    if translator is None:
        return [len(source.split()) for source in sources]
    return [len(translator.tokenizers.source.encode(source)) for source in sources]


@torch.inference_mode()
def cache_bytes_per_token(model: Model) -> int:
    """The bytes by which the decoder state of one sentence grows in its second step.

    A sliding window stops growing when it is full.
    """
    source = torch.tensor([[EOS]], device=next(model.parameters()).device)
    state = model.init_state(model.encode(source, torch.ones_like(source, dtype=torch.bool)))
    sizes = []
    for _ in range(2):
        _, state = model.step(torch.full_like(source[0], BOS), state)
        sizes.append(state.cache_bytes())
    return sizes[1] - sizes[0]


def length_buckets(
    lengths: Sequence[int], max_buckets: int = 6
) -> list[tuple[int, int, list[int]]]:
    """(from, to, rows) of at most `max_buckets` non-empty length ranges of one round width."""
    steps = (m * 10**e for e in range(9) for m in (1, 2, 4, 5, 8))
    width = next(step for step in steps if math.ceil(max(lengths) / step) <= max_buckets)
    buckets: dict[int, list[int]] = {}
    for row, length in enumerate(lengths):
        buckets.setdefault((max(length, 1) - 1) // width, []).append(row)
    return [(b * width + 1, (b + 1) * width, rows) for b, rows in sorted(buckets.items())]
