"""Is what we see what matters? A model's figures with a part of its attention taken away.

    heads       each head silenced, one at a time: its weights are zero, it adds nothing to the sum
    attention   a layer's weights replaced by equal ones, and all layers' of a mechanism; and for each
                target token, the source word it looks at most hidden from it, against another word

The loss is by teacher forcing, per target token, as everywhere. BLEU (lower-cased, of greedy search) is
the ablated model's own: it is told for `attention`, where there are few rows, and for heads on request.

Which word to hide is read off the untouched model over the reference, so it has a loss and no BLEU. It is
the word with most weight on average over layers and heads. The end token is no word: models rest their
gaze there when they need nothing, so it counts in neither choice and is hidden in a row of its own. What
a word told its neighbours when the source was read stays visible through them. A word of little weight
can change little, whatever it says: what is at stake is whether the one of much weight is needed.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.errors import UserError
from regard.evaluation.likelihood import Likelihood, likelihoods, of_batch, total
from regard.evaluation.metrics import bleu_lower
from regard.models.ablate import NOTHING, masked, silenced, uniform
from regard.models.interface import Attending, Model
from regard.text.batch import Encoded
from regard.translator import Translator, batches

Row = dict[str, Any]
Change = tuple[Row, AbstractContextManager[None]]
Words = Int[Tensor, "batch target"]
Tell = Callable[[float, Row], None]

MOST, RANDOM, END = "most-attended word", "random other word", "end token"


def ablate(
    translator: Translator,
    pairs: Sequence[tuple[str, str]],
    what: Literal["heads", "attention"],
    *,
    bleu: bool = False,
    draws: int = 5,
    seed: int = 0,
    tell: Tell = lambda share, row: None,
) -> dict[str, Any]:
    """The figures of `regard evaluate --ablate`. `tell(share done, row)` hears of each row."""
    layers = translator.model.attentions()
    if not any(layers.values()):
        raise UserError(
            "this model has no attention to take away: choose the run of one that attends "
            '(trained without model.attention = "none")'
        )
    encoded = Encoded.of(pairs, translator.tokenizers)
    translator.refuse_too_long(encoded)
    changes = list(heads(translator.model, encoded) if what == "heads" else levels(layers))
    measure = Measure(translator, pairs, encoded, bleu or what == "attention")
    words = what == "attention" and bool(looking(translator.model))
    rows: list[Row] = []
    for number, (name, change) in enumerate(changes, start=1):
        with change:
            rows.append(name | measure())
        tell(number / (len(changes) + words), rows[-1])
    found = {"what": what, "sentences": len(pairs), "untouched": measure.untouched, "rows": rows}
    if words:
        hidden, found["words"] = hide(translator.model, encoded, measure.parts, draws, seed)
        rows += hidden
        for row in hidden:
            tell(1.0, row)
    return found


class Measure:
    """Loss, and BLEU if wanted, of a translator as it stands, against what it was at first."""

    def __init__(
        self,
        translator: Translator,
        pairs: Sequence[tuple[str, str]],
        encoded: Encoded,
        bleu: bool,
    ) -> None:
        self.translator, self.encoded, self.wanted = translator, encoded, bleu
        self.references = [target for _, target in pairs]
        self.parts = likelihoods(translator.model, encoded)
        self.untouched: dict[str, float] = {"loss": total(self.parts).loss} | self._bleu()

    def __call__(self) -> Row:
        row = against(self.parts, likelihoods(self.translator.model, self.encoded))
        for name, score in self._bleu().items():
            row |= {name: score, f"{name}_change": score - self.untouched[name]}
        return row

    def _bleu(self) -> dict[str, float]:
        if not self.wanted:
            return {}
        found = self.translator.search(self.encoded)
        outputs = [self.translator.tokenizers.target.decode(best[0].ids) for best in found]
        return {"bleu_lower": bleu_lower(outputs, self.references)}


def against(before: Sequence[Likelihood], after: Sequence[Likelihood]) -> Row:
    """The loss, its change, and the standard error of that change over the sentences (paired)."""
    change = total(after).loss - total(before).loss
    both = zip(before, after, strict=True)
    # Of a ratio of sums: what a sentence changes beyond its share of the tokens.
    beyond = [two.nats - one.nats - change * one.tokens for one, two in both]
    count, tokens = len(beyond), total(before).tokens
    spread = math.sqrt(sum(x * x for x in beyond) * count / (count - 1)) if count > 1 else None
    error = None if spread is None else spread / tokens
    return {"loss": total(after).loss, "loss_change": change, "loss_error": error}


def heads(model: Model, encoded: Encoded) -> Iterator[Change]:
    """Every head of every layer, silenced."""
    first = encoded.batch([0]).to(next(model.parameters()).device)
    with torch.inference_mode():
        shown = model.explain(first.source, first.source_mask, first.target)
    for mechanism, layers in model.attentions().items():
        for layer, attention in enumerate(layers):
            for head in range(shown[mechanism].shape[2]):
                name = {"mechanism": mechanism, "layer": layer + 1, "head": head + 1}
                yield name | {"change": "silenced"}, silenced(attention, head)


def levels(attentions: dict[str, list[Attending]]) -> Iterator[Change]:
    """Every layer with equal weights, then (layer None) all of a mechanism's at once."""
    for mechanism, layers in attentions.items():
        several = [(None, layers)] if len(layers) > 1 else []
        for number, some in [*enumerate(([layer] for layer in layers), start=1), *several]:
            yield {"mechanism": mechanism, "layer": number, "change": "uniform"}, uniform(some)


# --- words ----------------------------------------------------------------------------------------


def hide(
    model: Model,
    encoded: Encoded,
    before: Sequence[Likelihood],
    draws: int,
    seed: int,
    batch_tokens: int = 8192,
) -> tuple[list[Row], dict[str, Any]]:
    """A row for each choice of words to hide, and how they compare. A target token misses one word."""
    device = next(model.parameters()).device
    found: dict[str, dict[int, Likelihood]] = {}
    at_end, tokens = 0, 0
    with torch.inference_mode():
        for rows in batches(model, encoded, batch_tokens):
            batch = encoded.batch(rows).to(device)
            weights = model.explain(batch.source, batch.source_mask, batch.target)["cross"]
            memory = model.encode(batch.source, batch.source_mask)
            seen = weights.mean((1, 2))  # over layers and heads: [batch target source]
            ends = (batch.source_mask.sum(1) - 1)[:, None].expand_as(batch.target)
            choices = {MOST: most_attended(seen, ends), END: ends}
            for draw in range(draws):
                choices[f"{RANDOM} {draw}"] = another(choices[MOST], ends, rows, [seed, draw])
            for name, words in choices.items():
                # A sentence of one word has no other word to compare with: there, nothing is hidden.
                words = words.masked_fill(ends < 2, NOTHING)
                with masked(looking(model), words):
                    parts = zip(rows, of_batch(model, batch, memory), strict=True)
                    found.setdefault(name, {}).update(parts)
            looked = (seen.argmax(-1) == ends) & batch.target_mask
            at_end, tokens = at_end + int(looked.sum()), tokens + batch.tokens
    each = {name: [parts[row] for row in range(len(encoded))] for name, parts in found.items()}
    drawn = [each.pop(f"{RANDOM} {draw}") for draw in range(draws)]
    each = {MOST: each[MOST], RANDOM: [mean(of) for of in zip(*drawn, strict=True)], END: each[END]}
    name = {"mechanism": "cross", "layer": None}
    made = [name | {"change": f"{k} masked"} | against(before, each[k]) for k in each]
    contrast = against(each[RANDOM], each[MOST])
    return made, {
        "most_over_random": contrast["loss_change"],
        "most_over_random_error": contrast["loss_error"],
        "random_losses": [total(parts).loss for parts in drawn],
        "seed": seed,
        "end_most_attended": at_end / tokens,
    }


def looking(model: Model) -> list[Attending]:
    """The layers through which target tokens see the source: of their own, or those they see all by."""
    layers = model.attentions()
    return layers.get("cross") or layers.get("decoder", [])


def most_attended(seen: Float[Tensor, "batch target source"], ends: Words) -> Words:
    """The word, end token and padding apart, with most weight for each target token."""
    places = torch.arange(seen.shape[-1], device=seen.device)
    return seen.masked_fill(places >= ends[..., None], float("-inf")).argmax(-1)


def another(words: Words, ends: Words, rows: Sequence[int], seed: Sequence[int]) -> Words:
    """A word by chance for each target token, not the given one: the same in whatever batch."""
    chances = [
        np.random.Generator(np.random.PCG64([*seed, row])).random(words.shape[1]) for row in rows
    ]
    below = torch.from_numpy(np.stack(chances)).to(words.device) * (ends - 1)
    drawn = below.long()  # one of the words but one, counted past the one that is left out
    return drawn + (drawn >= words)


def mean(parts: Sequence[Likelihood]) -> Likelihood:
    """One sentence over several draws."""
    nats = sum(part.nats for part in parts) / len(parts)
    return Likelihood(nats, parts[0].tokens, round(sum(p.correct for p in parts) / len(parts)))
