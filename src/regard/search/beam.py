"""Beam search: the k most probable hypotheses, extended in parallel.

At each step all extensions of a sentence's live hypotheses are ranked together and the best k kept. Those
that end with EOS are finished; the others stay live. Finished hypotheses of all lengths are ranked by
score / length^length_penalty. A sentence is done only when no live hypothesis can still win: a score never
rises, so score / max_length^length_penalty is an upper bound for every continuation.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import pad

from regard.models.interface import DecoderState, Rows, StateT
from regard.search.constrain import Constrain
from regard.search.graphs import Graphs
from regard.search.hypothesis import Hypothesis
from regard.search.run import search
from regard.search.state import NEG_INF, Search
from regard.search.step import LogProbs, StepModel, topk
from regard.text.tokenizer import BOS, EOS, PAD


@dataclass
class Beam(Search):
    """The live hypotheses of each sentence, and the best finished ones so far, best first."""

    ids: Int[Tensor, "batch beam longest"]
    scores: Float[Tensor, "batch beam"]
    """Minus infinity: the hypothesis has ended, or the sentence is done; NaN: see `live_scores`."""
    finished_ids: Int[Tensor, "batch nbest longest"]
    finished_scores: Float[Tensor, "batch nbest"]
    finished_normalised: Float[Tensor, "batch nbest"]
    beam_size: int
    length_penalty: float

    @classmethod
    def init(
        cls,
        decoder: DecoderState,
        max_lengths: Int[Tensor, " batch"],
        *values: Any,
    ) -> "Beam":
        """`values`: beam size, n of the n-best list, length penalty, and number of columns of `ids`."""
        batch, (beam_size, nbest, length_penalty, columns) = len(max_lengths), values
        nothing = max_lengths.new_full((batch, nbest), NEG_INF, dtype=torch.float64)
        return cls(
            decoder,
            max_lengths.new_full((batch, 1), BOS),
            torch.zeros_like(max_lengths),
            max_lengths,
            max_lengths.new_full((batch, 1, columns), PAD),
            max_lengths.new_zeros((batch, 1), dtype=torch.float64),
            max_lengths.new_full((batch, nbest, columns), PAD),
            nothing,
            nothing,
            beam_size,
            length_penalty,
        )

    def extend(self, log_probs: LogProbs) -> "Beam":
        scores, beam_indices, tokens = best_extensions(self.scores, log_probs, self.beam_size)
        is_first = self.scores.shape[1] < self.beam_size
        decoder = self.decoder
        decoder = decoder.expand(self.beam_size) if is_first else decoder.reorder(beam_indices)
        columns = (-1, -1, self.ids.shape[-1])
        ids = self.ids.gather(1, beam_indices[..., None].expand(columns))
        index = self.lengths[:, None, None].expand(-1, self.beam_size, 1)
        extended = replace(
            self,
            decoder=decoder,
            tokens=tokens,
            lengths=self.lengths + 1,
            ids=ids.scatter_(2, index, tokens[..., None]),
            scores=scores,
        )
        return extended.move_finished()

    def move_finished(self) -> "Beam":
        """Hypotheses that end with EOS are finished; the others stay live.

        Scores of the others become minus infinity, as do all of a sentence that is done, but NaN stays NaN.
        """
        has_eos = self.tokens == EOS
        live = self.scores.masked_fill(has_eos, NEG_INF)
        moved = self.add_finished(self.scores.masked_fill(~has_eos, NEG_INF))
        at_limit = (self.lengths >= self.max_lengths)[:, None]
        # Truncated hypotheses count only where none has ended with EOS.
        truncated = at_limit & (moved.finished_normalised[:, :1] == NEG_INF)
        moved = moved.add_finished(live.masked_fill(~truncated, NEG_INF))
        done = at_limit | moved.is_final(live.amax(1))[:, None]
        return replace(moved, scores=torch.where(done, live + NEG_INF, live))

    def add_finished(self, scores: Float[Tensor, "batch beam"]) -> "Beam":
        """Insert hypotheses with a finite score. On ties, earlier ones rank first."""
        nbest = self.finished_ids.shape[1]
        normalised = scores / self.lengths.double()[:, None] ** self.length_penalty
        ranked = torch.cat([self.finished_normalised, normalised], dim=1)
        best, index = (x[:, :nbest] for x in ranked.sort(descending=True, stable=True))
        rows = index[..., None].expand(-1, -1, self.ids.shape[-1])
        return replace(
            self,
            finished_ids=torch.cat([self.finished_ids, self.ids], dim=1).gather(1, rows),
            finished_scores=torch.cat([self.finished_scores, scores], dim=1).gather(1, index),
            finished_normalised=best,
        )

    def is_final(self, best_live_score: Float[Tensor, " batch"]) -> Bool[Tensor, " batch"]:
        """Can no live hypothesis still enter the n-best list?"""
        bound = best_live_score / self.max_lengths**self.length_penalty
        return self.finished_normalised[:, -1] >= bound

    def live_scores(self) -> Float[Tensor, " batch"]:
        return self.scores.amax(1)

    def hypotheses(self, rows: Rows) -> list[list[Hypothesis]]:
        finished = (self.finished_ids, self.finished_scores, self.finished_normalised)
        columns = (values[rows].tolist() for values in finished)
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
    cuda_graphs: bool | Graphs = True,
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
    options = (beam_size, nbest, length_penalty)
    return search(Beam, model, memory, (max_lengths,), options, check_every, constrain, cuda_graphs)


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
