"""One output a row, a token at a time: the loop that greedy search and sampling share."""

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.models.interface import Memory, Model, Rows
from regard.search.hypothesis import Hypothesis
from regard.search.step import Chances, next_token, patience
from regard.text.tokenizer import BOS, EOS, PAD

Choice = Callable[[Chances, Rows, int], tuple[Rows, Float[Tensor, " rows"]]]


@torch.inference_mode()
def follow(
    model: Model,
    memory: Memory,
    limits: Int[Tensor, " batch"],
    choose: Choice,
    check_every: int | None = None,
) -> list[Hypothesis]:
    """All rows side by side; `choose` gives each its token and that token's log-probability.

    A row that has ended, or reached its own limit, says no more. Every `check_every` steps such rows
    are dropped: a GPU would have to be waited for to know them, so there it is done now and then. At
    a row's limit it is always done: the model may have no place for a further token.
    """
    check_every = check_every or patience(limits.device)
    state = model.begin(memory)
    ends = set(limits.tolist())
    longest = max(ends)
    rows = torch.arange(len(limits), device=limits.device)
    tokens = torch.full_like(rows, BOS)
    going = torch.ones_like(rows, dtype=torch.bool)
    ids = torch.full((len(rows), longest), PAD, device=rows.device)
    scores = torch.zeros(len(rows), device=rows.device)
    for place in range(longest):
        chances, state = next_token(model, tokens, state)
        tokens, found = choose(chances, rows, place)
        ids[rows, place] = torch.where(going, tokens, PAD)
        scores[rows] += torch.where(going, found, 0.0)
        going = going & (tokens != EOS) & (place + 1 < limits[rows])
        if (place + 1) % check_every == 0 or place + 1 in ends:
            kept = going.nonzero()[:, 0]
            if len(kept) == 0:
                break
            if len(kept) < len(rows):
                rows, tokens, state = rows[kept], tokens[kept], state.select(kept)
                going = going[kept]
    return [
        Hypothesis([i for i in row if i != PAD], score, score)
        for row, score in zip(ids.tolist(), scores.tolist(), strict=True)
    ]
