"""Beam search: the k most probable hypotheses, extended in parallel.

At each step all extensions of a sentence's live hypotheses are ranked together and the best k kept. Those
that end with EOS are finished; the others stay live. Finished hypotheses of all lengths are ranked by
score / length^length_penalty. A sentence is done only when no live hypothesis can still win: a score never
rises, so score / max_length^length_penalty is an upper bound for every continuation.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import pad

from regard.errors import NotFiniteError
from regard.models.interface import Record, StateT
from regard.search.constrain import Constrain
from regard.search.hypothesis import Hypothesis
from regard.search.step import StepModel, next_log_probs, select_check_interval, topk
from regard.search.traced import trace_steps
from regard.text.tokenizer import BOS, EOS, PAD

NEG_INF = float("-inf")


@dataclass
class Finished(Record):
    """The best finished hypotheses of each sentence so far, best first."""

    max_lengths: Int[Tensor, " batch"]
    ids: Int[Tensor, "batch nbest longest"]
    scores: Float[Tensor, "batch nbest"]
    normalised: Float[Tensor, "batch nbest"]
    length_penalty: float

    @classmethod
    def empty(
        cls, max_lengths: Int[Tensor, " batch"], nbest: int, length_penalty: float
    ) -> "Finished":
        shape = (len(max_lengths), nbest)
        ids = max_lengths.new_full((*shape, int(max_lengths.max())), PAD)
        scores = max_lengths.new_full(shape, NEG_INF, dtype=torch.float64)
        return cls(max_lengths, ids, scores, scores, length_penalty)

    def add(
        self, ids: Int[Tensor, "batch beam length"], scores: Float[Tensor, "batch beam"]
    ) -> None:
        """Insert hypotheses with a finite score. On ties, earlier ones rank first."""
        length, nbest = ids.shape[-1], self.ids.shape[1]
        ids = pad(ids, (0, self.ids.shape[-1] - length), value=PAD)
        ranked = torch.cat([self.normalised, scores / length**self.length_penalty], dim=1)
        self.normalised, index = (x[:, :nbest] for x in ranked.sort(descending=True, stable=True))
        self.scores = torch.cat([self.scores, scores], dim=1).gather(1, index)
        rows = index[..., None].expand(-1, -1, ids.shape[-1])
        self.ids = torch.cat([self.ids, ids], dim=1).gather(1, rows)

    def is_final(self, best_live_score: Float[Tensor, " batch"]) -> Bool[Tensor, " batch"]:
        """Can no live hypothesis still enter the n-best list?"""
        return self.normalised[:, -1] >= best_live_score / self.max_lengths**self.length_penalty

    def hypotheses(self) -> list[list[Hypothesis]]:
        columns = (self.ids.tolist(), self.scores.tolist(), self.normalised.tolist())
        return [
            [
                Hypothesis([i for i in ids if i != PAD], score, normalised)
                for ids, score, normalised in zip(*row, strict=True)
                if normalised != NEG_INF
            ]
            for row in zip(*columns, strict=True)
        ]


@torch.inference_mode()
def beam(
    model: StepModel[StateT],
    memory: Any,
    max_lengths: Int[Tensor, " batch"],
    beam_size: int = 5,
    nbest: int = 1,
    length_penalty: float = 1.0,
    check_every: int | None = None,
    constrain: Constrain | None = None,
) -> list[list[Hypothesis]]:
    """The `nbest` hypotheses of each sentence, best first. A larger `nbest` never changes the best.

    Sentences that are done are removed from the batch every `check_every` steps, and at every maximum
    length, since the model may support no further position.

    Any module with `init_state` and `step` will do, such as a bigram model, whose state is empty:

    >>> from torch import nn
    >>> from regard.models import DecoderState
    >>> class Empty(DecoderState):
    ...     expand = reorder = lambda self, _: self
    >>> class Bigram(nn.Embedding):
    ...     init_state = lambda self, memory: Empty()
    ...     step = lambda self, tokens, state: (self(tokens), state)
    >>> model = Bigram(11, 11)                                  # logits of the next token, by the last
    >>> [[best]] = beam(model, memory=None, max_lengths=torch.tensor([7]))
    >>> len(best.ids) <= 7, best.score < 0
    (True, True)
    """
    check_every = check_every or select_check_interval(max_lengths.device)
    length_limits = set(max_lengths.tolist())
    results: dict[int, list[Hypothesis]] = {}
    sentences = list(range(len(max_lengths)))  # those still in the batch
    finished = Finished.empty(max_lengths, nbest, length_penalty)
    tokens = torch.full_like(max_lengths, BOS)
    model = trace_steps(model, max_lengths)
    log_probs, state = next_log_probs(model, tokens, model.init_state(memory))
    log_probs = constrain(log_probs, 0) if constrain else log_probs
    scores = torch.zeros_like(max_lengths, dtype=torch.float64)[:, None]
    scores, _, tokens = best_extensions(scores, log_probs, beam_size)
    state = state.expand(beam_size)
    ids = tokens[..., None]
    while True:
        scores = move_finished(finished, ids, scores)
        length = ids.shape[-1]
        if length in length_limits or length % check_every == 0:
            best_live = scores.amax(1).tolist()
            if any(map(math.isnan, best_live)):
                raise NotFiniteError
            live = [score > NEG_INF for score in best_live]
            if not all(live):
                nbest_lists = finished.hypotheses()
                results |= {s: nbest_lists[i] for i, s in enumerate(sentences) if not live[i]}
                kept = [i for i, is_live in enumerate(live) if is_live]
                if not kept:
                    return check_scores([results[s] for s in range(len(max_lengths))])
                keep = torch.tensor(kept, device=tokens.device)
                sentences = [sentences[i] for i in kept]
                finished, state = finished.select(keep), state.select(keep)
                scores, tokens, ids = scores[keep], tokens[keep], ids[keep]
        log_probs, state = next_log_probs(model, tokens.flatten(), state)
        log_probs = constrain(log_probs, length) if constrain else log_probs
        scores, beam_indices, tokens = best_extensions(scores, log_probs, beam_size)
        state = state.reorder(beam_indices)
        prefixes = ids.gather(1, beam_indices[..., None].expand_as(ids))
        ids = torch.cat([prefixes, tokens[..., None]], dim=-1)


def check_scores(nbest_lists: list[list[Hypothesis]]) -> list[list[Hypothesis]]:
    """The n-best lists, if every sentence has an output; NaN ranks first."""
    if not all(best and math.isfinite(best[0].score) for best in nbest_lists):
        raise NotFiniteError
    return nbest_lists


def best_extensions(
    scores: Float[Tensor, "batch hypotheses"],
    log_probs: Float[Tensor, "rows vocab"],
    beam_size: int,
) -> tuple[Float[Tensor, "batch beam"], Int[Tensor, "batch beam"], Int[Tensor, "batch beam"]]:
    """(score, hypothesis it extends, token) of the `beam_size` best extensions of each sentence.

    They are among the `beam_size` best extensions of each hypothesis.
    """
    batch, vocab = scores.shape[0], log_probs.shape[-1]
    per_hypothesis = min(beam_size, vocab)
    top, tokens = (x.view(batch, -1, per_hypothesis) for x in topk(log_probs, per_hypothesis))
    totals = (scores[..., None] + top).flatten(1)
    missing = max(0, beam_size - totals.shape[1])  # fewer extensions than the beam holds
    best, index = pad(totals, (0, missing), value=NEG_INF).topk(beam_size)
    index = index.clamp(max=totals.shape[1] - 1)
    return best, index // per_hypothesis, tokens.flatten(1).gather(1, index)


def move_finished(
    finished: Finished, ids: Int[Tensor, "batch beam length"], scores: Float[Tensor, "batch beam"]
) -> Float[Tensor, "batch beam"]:
    """Add hypotheses that end with EOS to `finished`. Returns the scores of live hypotheses.

    Others get minus infinity, as do all hypotheses of a sentence that is done, but NaN stays NaN.
    """
    has_eos = ids[..., -1] == EOS
    live = scores.masked_fill(has_eos, NEG_INF)
    finished.add(ids, scores.masked_fill(~has_eos, NEG_INF))
    at_limit = (ids.shape[-1] >= finished.max_lengths)[:, None]
    # Truncated hypotheses count only where none has ended with EOS.
    truncated = at_limit & (finished.normalised[:, :1] == NEG_INF)
    finished.add(ids, live.masked_fill(~truncated, NEG_INF))
    done = at_limit | finished.is_final(live.amax(1))[:, None]
    return torch.where(done, live + NEG_INF, live)
