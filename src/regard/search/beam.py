"""The k likeliest beginnings, extended side by side.

At each step all extensions of a sentence's live beginnings are ranked together and the best k kept.
Those that end are set aside as finished; the others live on. Finished outputs of every length are
ranked by score / length^power. A sentence stops only when no live beginning can still overtake: a score
never rises, so score / limit^power bounds whatever may become of it.
"""

from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.models.interface import Memory, Model
from regard.search.follow import next_token
from regard.search.hypothesis import Hypothesis
from regard.text.tokenizer import BEGIN, END


@dataclass
class Finished:
    """The finished outputs of one sentence, and whether more can matter."""

    limit: int
    power: float
    wanted: int
    found: list[Hypothesis] = field(default_factory=list)

    def add(self, ids: list[int], score: float) -> None:
        self.found.append(Hypothesis(ids, score, score / len(ids) ** self.power))
        self.found.sort(key=lambda h: -h.normalised)

    def settled(self, best_live: float) -> bool:
        """Can nothing that lives still change the outputs that were asked for?"""
        if len(self.found) < self.wanted:
            return best_live == float("-inf")
        return self.found[self.wanted - 1].normalised >= best_live / self.limit**self.power


def beam(
    model: Model,
    memory: Memory,
    limits: Int[Tensor, " batch"],
    width: int,
    nbest: int = 1,
    length_power: float = 1.0,
) -> list[list[Hypothesis]]:
    """The `nbest` outputs of each row, best first. Asking for more never changes the best."""
    batch = len(limits)
    done = [Finished(limit, length_power, nbest) for limit in limits.tolist()]
    rows = list(range(batch))  # the sentences still searched
    tokens = torch.full((batch,), BEGIN, device=limits.device)
    chances, state = next_token(model, tokens, model.begin(memory))
    scores, origin, tokens = best_extensions(torch.zeros_like(chances[:, :1]), chances, width)
    state = state.select(slots(origin, 1))
    ids = tokens[..., None]
    while True:
        scores, going = settle(done, rows, ids, tokens, scores)
        if not going:
            return [row.found[:nbest] for row in done]
        if len(going) < len(rows):
            keep = torch.tensor(going, device=tokens.device)
            every = torch.arange(width, device=tokens.device).expand(len(rows), -1)
            state = state.select(slots(every, width).view(-1, width)[keep].flatten())
            rows = [rows[index] for index in going]
            scores, tokens, ids = scores[keep], tokens[keep], ids[keep]
        chances, state = next_token(model, tokens.flatten(), state)
        scores, origin, tokens = best_extensions(scores, chances, width)
        state = state.select(slots(origin, width))
        ids = torch.cat(
            [ids.gather(1, origin[..., None].expand_as(ids)), tokens[..., None]], dim=-1
        )


def slots(slot: Int[Tensor, "batch width"], each: int) -> Int[Tensor, " rows"]:
    """The state's rows that hold these slots, where every sentence has `each` of them."""
    sentence = torch.arange(slot.shape[0], device=slot.device)[:, None]
    return (sentence * each + slot).flatten()


def best_extensions(
    scores: Float[Tensor, "batch slots"], chances: Float[Tensor, "rows vocab"], width: int
) -> tuple[Float[Tensor, "batch width"], Int[Tensor, "batch width"], Int[Tensor, "batch width"]]:
    """(score, slot it came from, token) of the best `width` extensions of each sentence."""
    batch, vocab = scores.shape[0], chances.shape[-1]
    totals = (scores[..., None] + chances.view(batch, -1, vocab)).flatten(1)
    best, index = totals.topk(min(width, totals.shape[1]))
    missing = width - best.shape[1]  # fewer extensions than slots: the rest stays empty
    if missing:
        best = torch.nn.functional.pad(best, (0, missing), value=float("-inf"))
        index = torch.nn.functional.pad(index, (0, missing))
    return best, index // vocab, index % vocab


def settle(
    done: list[Finished],
    rows: list[int],
    ids: Int[Tensor, "batch width length"],
    tokens: Int[Tensor, "batch width"],
    scores: Float[Tensor, "batch width"],
) -> tuple[Float[Tensor, "batch width"], list[int]]:
    """Set aside what has ended. (scores of what lives, the sentences to go on with)"""
    real = scores > float("-inf")
    ended = (tokens == END) & real
    for index, slot in ended.nonzero().tolist():
        done[rows[index]].add(ids[index, slot].tolist(), float(scores[index, slot]))
    scores = scores.masked_fill(ended, float("-inf"))
    going = []
    for index, (row, best) in enumerate(zip(rows, scores.amax(1).tolist(), strict=True)):
        if ids.shape[-1] >= done[row].limit:
            # Cut short by the limit: these count only where nothing has ended by itself.
            if not done[row].found:
                for slot in real[index].nonzero()[:, 0].tolist():
                    done[row].add(ids[index, slot].tolist(), float(scores[index, slot]))
        elif not done[row].settled(best):
            going.append(index)
    return scores, going
