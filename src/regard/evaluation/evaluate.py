"""A translator on a split: likelihood once, quality as it translates, and both by length."""

import math
import time
from collections.abc import Sequence
from typing import Any

import torch

from regard.evaluation.likelihood import Likelihood, likelihoods, total
from regard.evaluation.metrics import bleu_lower, exact_match, longest_fifth, quality
from regard.text.batch import Encoded
from regard.text.tokenizer import BEGIN, END
from regard.translator import Translator

Pairs = list[tuple[str, str]]


def evaluate(
    translator: Translator,
    pairs: Pairs,
    beams: Sequence[int] = (1,),
    batch_tokens: int | None = None,
) -> dict[str, Any]:
    """The figures of `regard evaluate --json`; each result also holds its outputs, in order."""
    encoded = Encoded.of(pairs, translator.tokenizers)
    translator.refuse_too_long(encoded)
    parts = likelihoods(translator.model, encoded)
    whole = total(parts)
    # The end of a sentence counts as one character, as a newline would: its cost is in the sum.
    characters = sum(len(target) + 1 for _, target in pairs)
    return {
        "loss": whole.loss,
        "perplexity": whole.perplexity,
        "bits_per_character": whole.bits_per_character(characters),
        "token_accuracy": whole.token_accuracy,
        "cache_bytes_per_token": cache_bytes_per_token(translator),
        "sentences": len(pairs),
        # A language model is given nothing to translate: there is no output to compare.
        "results": [
            result(translator, pairs, encoded, parts, width, batch_tokens)
            for width in beams
            if not translator.config.is_language_model
        ],
    }


def greedy_bleu(
    translator: Translator, pairs: Pairs, encoded: Encoded, batch_tokens: int | None = None
) -> float:
    """Lower-cased BLEU of what the translator says when it takes the likeliest word each time."""
    found = translator.search(encoded, batch_tokens=batch_tokens)
    outputs = [translator.tokenizers.target.decode(best[0].ids) for best in found]
    return bleu_lower(outputs, [target for _, target in pairs])


def result(
    translator: Translator,
    pairs: Pairs,
    encoded: Encoded,
    parts: list[Likelihood],
    width: int,
    batch_tokens: int | None,
) -> dict[str, Any]:
    """Quality with one beam width, in all and by length of the source."""
    started = time.perf_counter()
    found = translator.search(encoded, width, batch_tokens=batch_tokens)
    seconds = time.perf_counter() - started
    outputs = [translator.tokenizers.target.decode(best[0].ids) for best in found]
    references = [target for _, target in pairs]
    longest = longest_fifth([source for source, _ in pairs])
    return {
        "beam": width,
        **quality(outputs, references),
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
                "token_accuracy": total(parts[r] for r in rows).token_accuracy,
            }
            for low, high, rows in buckets([len(source) - 1 for source in encoded.source])
        ],
        "outputs": outputs,
    }


@torch.inference_mode()
def cache_bytes_per_token(translator: Translator) -> int:
    """What one more token adds to the memory of a sentence's decoder: a second step is measured."""
    model = translator.model
    source = torch.tensor([[END]], device=translator.device)
    state = model.begin(model.encode(source, torch.ones_like(source, dtype=torch.bool)))
    sizes = []
    for _ in range(2):
        _, state = model.step(torch.full_like(source[0], BEGIN), state)
        sizes.append(state.remembered())
    return sizes[1] - sizes[0]


def buckets(lengths: list[int], most: int = 6) -> list[tuple[int, int, list[int]]]:
    """(from, to, rows) of at most `most` ranges of source length of one round width; none empty."""
    steps = (m * 10**e for e in range(9) for m in (1, 2, 4, 5, 8))
    width = next(step for step in steps if math.ceil(max(lengths) / step) <= most)
    found: dict[int, list[int]] = {}
    for row, length in enumerate(lengths):
        found.setdefault((max(length, 1) - 1) // width, []).append(row)
    return [(b * width + 1, (b + 1) * width, rows) for b, rows in sorted(found.items())]
