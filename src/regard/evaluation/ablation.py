"""Are attention weights faithful? The change in loss and BLEU when parts of attention are ablated.

    heads       each head ablated, one at a time: its weights are set to zero
    attention   uniform weights in each layer, and in all layers of a mechanism; and for each target
                token, its most-attended source token masked, compared with a random other token

Losses are teacher-forced, per target token. BLEU (greedy search; lowercased, or on the tokens of preprocessed
text) is that of the ablated model: always computed for `attention`, which has few rows, and on request for
`heads`.

The most-attended token is the one with the largest weight in the intact model, averaged over layers and
heads, given the reference prefix; so masking has a loss but no BLEU. EOS is excluded from both choices,
because models attend to it when they need nothing from the source (an attention sink); it is masked in a
row of its own. Masking applies to the target tokens' attention only: what other source positions absorbed
from a token stays visible through them. A token with little weight can have little effect by construction;
the question is whether the most-attended one is needed.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from itertools import product
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.errors import NotFiniteError, UserError
from regard.evaluation.likelihood import Likelihood, aggregate, batch_likelihoods, likelihoods
from regard.evaluation.metrics import headline_bleu, score
from regard.interventions import MECHANISMS, Ablate
from regard.models.batching import batch_rows
from regard.models.interface import AttentionLayer, Model
from regard.models.intervene import (
    NO_KEY,
    count_heads,
    intervene,
    mask_keys,
    source_attention,
    uniform_attention,
)
from regard.text.batch import EncodedPairs
from regard.translator import Translator

Row = dict[str, Any]
Ablation = tuple[Row, AbstractContextManager[None]]
TokenIndices = Int[Tensor, "batch target"]
Progress = Callable[[float, Row], None]

MOST_ATTENDED, RANDOM_OTHER, EOS_TOKEN = "most-attended token", "random other token", "EOS token"


def ablate(
    translator: Translator,
    pairs: Sequence[tuple[str, str]],
    kind: Literal["heads", "attention"],
    *,
    bleu: bool = False,
    draws: int = 5,
    seed: int = 0,
    progress: Progress = lambda fraction, row: None,
) -> dict[str, Any]:
    """The results of `regard evaluate --ablate`. Calls `progress(fraction_done, row)` after each row."""
    translator.check_engine("ablations")
    layers = translator.model.attention_layers()
    if not any(layers.values()):
        raise UserError(
            "this model has no attention to ablate: choose a run with attention "
            '(trained without model.attention = "none")'
        )
    if translator.config.is_language_model and (bleu or kind == "attention"):
        raise UserError(
            "this is a language model, which has no source tokens to mask and no translations to score: "
            "use --ablate heads without --bleu"
        )
    if kind == "attention" and not translator.tokenizers.source_eos:
        raise UserError(
            "--ablate attention compares source tokens with the EOS token, and this model's sources have "
            "none (tokenizer.source_eos = false): use --ablate heads"
        )
    encoded = EncodedPairs.from_pairs(pairs, translator.tokenizers)
    translator.check_lengths(encoded)
    ablations = list(
        head_ablations(translator.model) if kind == "heads" else uniform_ablations(layers)
    )
    measure = Measurement(translator, pairs, encoded, bleu or kind == "attention")
    masks_tokens = kind == "attention" and bool(source_attention(translator.model))
    rows: list[Row] = []
    for number, (description, ablation) in enumerate(ablations, start=1):
        with ablation:
            rows.append(description | measure())
        progress(number / (len(ablations) + masks_tokens), rows[-1])
    report = {"kind": kind, "sentences": len(pairs), "baseline": measure.baseline, "rows": rows}
    if masks_tokens:
        masked_rows, report["token_masking"] = mask_tokens(
            translator.model, encoded, measure.likelihoods, draws, seed
        )
        rows += masked_rows
        for row in masked_rows:
            progress(1.0, row)
    return report


class Measurement:
    """Loss, and optionally BLEU, of a translator in its current state, compared with the baseline."""

    def __init__(
        self,
        translator: Translator,
        pairs: Sequence[tuple[str, str]],
        encoded: EncodedPairs,
        bleu: bool,
    ) -> None:
        self.translator, self.encoded, self.bleu = translator, encoded, bleu
        self.references = [target for _, target in pairs]
        self.likelihoods = likelihoods(translator.model, encoded)
        loss = aggregate(self.likelihoods).loss
        if not math.isfinite(loss):
            raise NotFiniteError
        self.baseline: dict[str, float] = {"loss": loss} | self._bleu()

    def __call__(self) -> Row:
        ablated = likelihoods(self.translator.model, self.encoded)
        row = compare_losses(self.likelihoods, ablated)
        for name, value in self._bleu().items():
            row |= {name: value, f"{name}_change": value - self.baseline[name]}
        return row

    def _bleu(self) -> dict[str, float]:
        if not self.bleu:
            return {}
        hypotheses = self.translator.search(self.encoded)
        outputs = [self.translator.tokenizers.target.decode(nbest[0].ids) for nbest in hypotheses]
        name = headline_bleu(self.translator.config.data)
        return {name: score(name, outputs, self.references)}


def compare_losses(before: Sequence[Likelihood], after: Sequence[Likelihood]) -> Row:
    """The loss, its change, and the standard error of that change over sentences (paired)."""
    change = aggregate(after).loss - aggregate(before).loss
    # Standard error of a ratio estimator: residuals of each sentence's change in nats.
    residuals = [b.nats - a.nats - change * a.tokens for a, b in zip(before, after, strict=True)]
    count, tokens = len(residuals), aggregate(before).tokens
    error = None
    if count > 1:
        error = math.sqrt(sum(x * x for x in residuals) * count / (count - 1)) / tokens
    return {"loss": aggregate(after).loss, "loss_change": change, "standard_error": error}


def head_ablations(model: Model) -> Iterator[Ablation]:
    """Every head of every layer, ablated: in a decoder-only model for source and target tokens."""
    counts: dict[Any, tuple[int, int]] = {**count_heads(model)}
    for mechanism, layers in model.attention_layers().items():
        ablated: Any = MECHANISMS if model.is_decoder_only else (mechanism,)
        for layer, head in product(range(len(layers)), range(counts[mechanism][1])):
            row = {"mechanism": mechanism, "layer": layer + 1, "head": head + 1}
            interventions = [Ablate(mechanism=one, layer=layer, head=head) for one in ablated]
            yield row | {"intervention": "ablated"}, intervene(model, interventions)


def uniform_ablations(attentions: dict[str, list[AttentionLayer]]) -> Iterator[Ablation]:
    """Each layer with uniform weights, then (layer None) all layers of a mechanism at once."""
    for mechanism, layers in attentions.items():
        selections = [*enumerate(([layer] for layer in layers), start=1)]
        selections += [(None, layers)] if len(layers) > 1 else []
        for number, selected in selections:
            row = {"mechanism": mechanism, "layer": number, "intervention": "uniform"}
            yield row, uniform_attention(selected)


# --- token masking --------------------------------------------------------------------------------


def mask_tokens(
    model: Model,
    encoded: EncodedPairs,
    before: Sequence[Likelihood],
    draws: int,
    seed: int,
    batch_tokens: int = 8192,
) -> tuple[list[Row], dict[str, Any]]:
    """Mask one source token per target token: a row for each way to choose it, and a comparison."""
    device = next(model.parameters()).device
    by_choice: dict[str, dict[int, Likelihood]] = {}
    eos_count, token_count = 0, 0
    with torch.inference_mode():
        for rows in batch_rows(model, encoded, batch_tokens):
            batch = encoded.batch(rows).to(device)
            weights = model.attention_weights(batch.source, batch.source_mask, batch.target)[
                "cross"
            ]
            memory = model.encode(batch.source, batch.source_mask)
            mean_weights = weights.mean((1, 2))  # over layers and heads: [batch target source]
            eos = (batch.source_mask.sum(1) - 1)[:, None].expand_as(batch.target)
            most = most_attended(mean_weights, eos)
            choices = {MOST_ATTENDED: most, EOS_TOKEN: eos}
            for draw in range(draws):
                choices[f"{RANDOM_OTHER} {draw}"] = sample_other(most, eos, rows, [seed, draw])
            for name, tokens in choices.items():
                # A sentence of one token has no other token to compare with: mask nothing there.
                tokens = tokens.masked_fill(eos < 2, NO_KEY)
                with mask_keys(model, tokens):
                    results = zip(rows, batch_likelihoods(model, batch, memory), strict=True)
                    by_choice.setdefault(name, {}).update(results)
            is_eos = (mean_weights.argmax(-1) == eos) & batch.target_mask
            eos_count, token_count = eos_count + int(is_eos.sum()), token_count + batch.num_tokens
    ordered = {
        name: [by_row[row] for row in range(len(encoded))] for name, by_row in by_choice.items()
    }
    random = [ordered.pop(f"{RANDOM_OTHER} {draw}") for draw in range(draws)]
    after = {
        MOST_ATTENDED: ordered[MOST_ATTENDED],
        RANDOM_OTHER: [average(sentence) for sentence in zip(*random, strict=True)],
        EOS_TOKEN: ordered[EOS_TOKEN],
    }
    description = {"mechanism": "cross", "layer": None}
    masked_rows = [
        description | {"intervention": f"{name} masked"} | compare_losses(before, parts)
        for name, parts in after.items()
    ]
    contrast = compare_losses(after[RANDOM_OTHER], after[MOST_ATTENDED])
    return masked_rows, {
        "most_minus_random": contrast["loss_change"],
        "most_minus_random_error": contrast["standard_error"],
        "random_losses": [aggregate(parts).loss for parts in random],
        "seed": seed,
        "eos_most_attended": eos_count / token_count,
    }


def most_attended(weights: Float[Tensor, "batch target source"], eos: TokenIndices) -> TokenIndices:
    """The source token with the largest weight for each target token, EOS and padding excluded."""
    positions = torch.arange(weights.shape[-1], device=weights.device)
    return weights.masked_fill(positions >= eos[..., None], float("-inf")).argmax(-1)


def sample_other(
    tokens: TokenIndices, eos: TokenIndices, rows: Sequence[int], seed: Sequence[int]
) -> TokenIndices:
    """A uniform random source token for each target token, never the given one nor EOS.

    Seeded per sentence, so the draw does not depend on the batch.
    """
    uniform_draws = [
        np.random.Generator(np.random.PCG64([*seed, row])).random(tokens.shape[1]) for row in rows
    ]
    scaled = torch.from_numpy(np.stack(uniform_draws)).to(tokens.device) * (eos - 1)
    sampled = scaled.long()  # an index into the other tokens: skip the excluded one
    return sampled + (sampled >= tokens)


def average(parts: Sequence[Likelihood]) -> Likelihood:
    """The mean over several draws for one sentence."""
    nats = sum(part.nats for part in parts) / len(parts)
    return Likelihood(nats, parts[0].tokens, round(sum(p.correct for p in parts) / len(parts)))
