"""Evaluation of a translator on a split: likelihood, translation quality, and both by source length."""

import math
import time
from collections.abc import Sequence
from typing import Any

import torch

from regard.errors import NotFiniteError
from regard.evaluation.likelihood import Likelihood, aggregate, likelihoods
from regard.evaluation.metrics import bleu_lower, exact_match, longest_fifth, score_corpus
from regard.models import Model
from regard.text.batch import EncodedPairs
from regard.text.tokenizer import BOS, EOS, UNK
from regard.translator import Translator

Pairs = list[tuple[str, str]]


def evaluate(
    translator: Translator,
    pairs: Pairs,
    beams: Sequence[int] = (1,),
    batch_tokens: int | None = None,
) -> dict[str, Any]:
    """The fields of `regard evaluate --json`; each result also holds its outputs, in order."""
    encoded = EncodedPairs.from_pairs(pairs, translator.tokenizers)
    translator.check_lengths(encoded)
    by_pair = likelihoods(translator.model, encoded)
    corpus = aggregate(by_pair)
    if not math.isfinite(corpus.loss):
        raise NotFiniteError
    # EOS counts as one character, as a newline would, because its cost is part of the sum.
    characters = sum(len(target) + 1 for _, target in pairs)
    unknown = sum(ids.count(UNK) for ids in encoded.target)
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
            evaluate_beam(translator, pairs, encoded, by_pair, beam, batch_tokens)
            for beam in beams
            if not translator.config.is_language_model
        ],
    }


def greedy_bleu(
    translator: Translator, pairs: Pairs, encoded: EncodedPairs, batch_tokens: int | None = None
) -> float:
    """Lower-cased BLEU of greedy search."""
    hypotheses = translator.search(encoded, batch_tokens=batch_tokens)
    outputs = [translator.tokenizers.target.decode(nbest[0].ids) for nbest in hypotheses]
    return bleu_lower(outputs, [target for _, target in pairs])


def evaluate_beam(
    translator: Translator,
    pairs: Pairs,
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
    references = [target for _, target in pairs]
    longest = longest_fifth([source for source, _ in pairs])
    num_eos = int(translator.tokenizers.source_eos)
    lengths = [len(source) - num_eos for source in encoded.source]
    return {
        "beam": beam,
        **score_corpus(outputs, references),
        "bleu_lower_longest": bleu_lower(
            [outputs[r] for r in longest], [references[r] for r in longest]
        ),
        "sentences": len(pairs),
        "seconds": seconds,
        "lengths": [
            {
                "from": low,
                "to": high,
                "sentences": len(rows),
                "exact_match": exact_match(
                    [outputs[r] for r in rows], [references[r] for r in rows]
                ),
                "token_accuracy": aggregate(by_pair[r] for r in rows).token_accuracy,
            }
            for low, high, rows in length_buckets(lengths)
        ],
        "outputs": outputs,
    }


@torch.inference_mode()
def cache_bytes_per_token(model: Model) -> int:
    """The bytes by which the decoder state of one sentence grows in its second step.

    A sliding window stops growing when it is full.
    """
    source = torch.tensor([[EOS]], device=model.output_projection[0].device)
    state = model.init_state(model.encode(source, torch.ones_like(source, dtype=torch.bool)))
    sizes = []
    for _ in range(2):
        _, state = model.step(torch.full_like(source[0], BOS), state)
        sizes.append(state.cache_bytes())
    return sizes[1] - sizes[0]


def length_buckets(lengths: list[int], max_buckets: int = 6) -> list[tuple[int, int, list[int]]]:
    """(from, to, rows) of at most `max_buckets` non-empty length ranges of one round width."""
    steps = (m * 10**e for e in range(9) for m in (1, 2, 4, 5, 8))
    width = next(step for step in steps if math.ceil(max(lengths) / step) <= max_buckets)
    buckets: dict[int, list[int]] = {}
    for row, length in enumerate(lengths):
        buckets.setdefault((max(length, 1) - 1) // width, []).append(row)
    return [(b * width + 1, (b + 1) * width, rows) for b, rows in sorted(buckets.items())]
