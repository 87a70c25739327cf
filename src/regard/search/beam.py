"""The k likeliest beginnings, extended side by side.

At each step all extensions of a sentence's live beginnings are ranked together and the best k kept.
Those that end are set aside as finished; the others live on. Finished outputs of every length are
ranked by score / length^power. A sentence stops only when no live beginning can still overtake: a score
never rises, so score / limit^power bounds whatever may become of it.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import pad

from regard.models.interface import Memory, Model, Record
from regard.search.hypothesis import Hypothesis
from regard.search.step import best, next_token, patience
from regard.text.tokenizer import BOS, EOS, PAD

NEVER = float("-inf")


@dataclass
class Finished(Record):
    """The best finished outputs of each sentence so far, best first, and whether more can matter."""

    limits: Int[Tensor, " batch"]
    ids: Int[Tensor, "batch nbest longest"]
    scores: Float[Tensor, "batch nbest"]
    normalised: Float[Tensor, "batch nbest"]
    power: float

    @classmethod
    def none(cls, limits: Int[Tensor, " batch"], nbest: int, power: float) -> "Finished":
        ids = limits.new_full((len(limits), nbest, int(limits.max())), PAD)
        nothing = limits.new_full((len(limits), nbest), NEVER, dtype=torch.float64)
        return cls(limits, ids, nothing, nothing, power)

    def add(
        self, ids: Int[Tensor, "batch beam length"], scores: Float[Tensor, "batch beam"]
    ) -> None:
        """Let outputs compete; a score of minus infinity is none. Of equals, the earlier leads."""
        length, nbest = ids.shape[-1], self.ids.shape[1]
        ids = pad(ids, (0, self.ids.shape[-1] - length), value=PAD)
        ranked = torch.cat([self.normalised, scores / length**self.power], dim=1)
        self.normalised, index = (x[:, :nbest] for x in ranked.sort(descending=True, stable=True))
        self.scores = torch.cat([self.scores, scores], dim=1).gather(1, index)
        rows = index[..., None].expand(-1, -1, ids.shape[-1])
        self.ids = torch.cat([self.ids, ids], dim=1).gather(1, rows)

    def settled(self, best_live: Float[Tensor, " batch"]) -> Bool[Tensor, " batch"]:
        """Can nothing that lives still change the outputs that were asked for?"""
        return self.normalised[:, -1] >= best_live / self.limits**self.power

    def hypotheses(self) -> list[list[Hypothesis]]:
        columns = (self.ids.tolist(), self.scores.tolist(), self.normalised.tolist())
        return [
            [
                Hypothesis([i for i in ids if i != PAD], score, rank)
                for ids, score, rank in zip(*row, strict=True)
                if rank > NEVER
            ]
            for row in zip(*columns, strict=True)
        ]


@torch.inference_mode()
def beam(
    model: Model,
    memory: Memory,
    limits: Int[Tensor, " batch"],
    width: int,
    nbest: int = 1,
    length_penalty: float = 1.0,
    check_every: int | None = None,
) -> list[list[Hypothesis]]:
    """The `nbest` outputs of each row, best first. Asking for more never changes the best.

    Every `check_every` steps the sentences that are settled are dropped (on a GPU, now and then), and
    at each limit, since the model may have no place for a further token.
    """
    check_every = check_every or patience(limits.device)
    ends = set(limits.tolist())
    found: dict[int, list[Hypothesis]] = {}
    rows = list(range(len(limits)))  # the sentences still searched
    done = Finished.none(limits, nbest, length_penalty)
    tokens = torch.full_like(limits, BOS)
    chances, state = next_token(model, tokens, model.begin(memory))
    start = torch.zeros_like(limits, dtype=torch.float64)[:, None]
    scores, _, tokens = best_extensions(start, chances, width)
    state = state.spread(width)
    ids = tokens[..., None]
    while True:
        scores = settle(done, ids, scores)
        length = ids.shape[-1]
        if length in ends or length % check_every == 0:
            going = (scores > NEVER).any(1).tolist()
            if not all(going):
                outputs = done.hypotheses()
                found |= {row: outputs[i] for i, row in enumerate(rows) if not going[i]}
                kept = [i for i, goes in enumerate(going) if goes]
                if not kept:
                    return [found[row] for row in range(len(limits))]
                keep = torch.tensor(kept, device=tokens.device)
                rows = [rows[i] for i in kept]
                done, state = done.select(keep), state.select(keep)
                scores, tokens, ids = scores[keep], tokens[keep], ids[keep]
        chances, state = next_token(model, tokens.flatten(), state)
        scores, origin, tokens = best_extensions(scores, chances, width)
        state = state.reorder(origin)
        before = ids.gather(1, origin[..., None].expand_as(ids))
        ids = torch.cat([before, tokens[..., None]], dim=-1)


def best_extensions(
    scores: Float[Tensor, "batch slots"], chances: Float[Tensor, "rows vocab"], width: int
) -> tuple[Float[Tensor, "batch width"], Int[Tensor, "batch width"], Int[Tensor, "batch width"]]:
    """(score, slot it came from, token) of the best `width` extensions of each sentence.

    They are among the best `width` of each slot.
    """
    batch, vocab = scores.shape[0], chances.shape[-1]
    each = min(width, vocab)
    top, tokens = (x.view(batch, -1, each) for x in best(chances, each))
    totals = (scores[..., None] + top).flatten(1)
    missing = max(0, width - totals.shape[1])  # fewer extensions than slots: the rest stays empty
    chosen, index = pad(totals, (0, missing), value=NEVER).topk(width)
    index = index.clamp(max=totals.shape[1] - 1)
    return chosen, index // each, tokens.flatten(1).gather(1, index)


def settle(
    done: Finished, ids: Int[Tensor, "batch width length"], scores: Float[Tensor, "batch width"]
) -> Float[Tensor, "batch width"]:
    """Set aside what has ended. (scores of what lives; none lives where the sentence is settled)"""
    ended = ids[..., -1] == EOS
    live = scores.masked_fill(ended, NEVER)
    done.add(ids, scores.masked_fill(~ended, NEVER))
    at_limit = (ids.shape[-1] >= done.limits)[:, None]
    # Cut short by the limit: these count only where nothing has ended by itself.
    cut = at_limit & (done.normalised[:, :1] == NEVER)
    done.add(ids, live.masked_fill(~cut, NEVER))
    over = at_limit | done.settled(live.amax(1))[:, None]
    return live.masked_fill(over, NEVER)
