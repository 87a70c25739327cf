"""One output a row, a token at a time: the loop that greedy search and sampling share."""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.models.interface import Memory, Model
from regard.search.hypothesis import Hypothesis
from regard.text.tokenizer import BEGIN, END, PAD

LogProbabilities = Float[Tensor, "rows vocab"]
Choice = Callable[[LogProbabilities, Int[Tensor, " rows"], int], Int[Tensor, " rows"]]


def next_token(
    model: Model, tokens: Int[Tensor, " rows"], state: Any
) -> tuple[LogProbabilities, Any]:
    """Log-probabilities of the next token; padding and begin are never an output."""
    logits, state = model.step(tokens, state)
    chances = logits.float().log_softmax(-1)
    chances[:, [PAD, BEGIN]] = float("-inf")
    return chances, state


def follow(
    model: Model, memory: Memory, limits: Int[Tensor, " batch"], choose: Choice
) -> list[Hypothesis]:
    """All rows side by side; one that has ended, or reached its own limit, is dropped."""
    state = model.begin(memory)
    rows = torch.arange(len(limits), device=limits.device)
    tokens = torch.full_like(rows, BEGIN)
    ids = torch.full((len(rows), int(limits.max())), PAD, device=rows.device)
    scores = torch.zeros(len(rows), device=rows.device)
    for place in range(ids.shape[1]):
        chances, state = next_token(model, tokens, state)
        tokens = choose(chances, rows, place)
        ids[rows, place] = tokens
        scores[rows] += chances.gather(1, tokens[:, None])[:, 0]
        going = ((tokens != END) & (place + 1 < limits[rows])).nonzero()[:, 0]
        if len(going) == 0:
            break
        if len(going) < len(rows):
            rows, tokens, state = rows[going], tokens[going], state.select(going)
    return [
        Hypothesis([i for i in row if i != PAD], score, score)
        for row, score in zip(ids.tolist(), scores.tolist(), strict=True)
    ]
