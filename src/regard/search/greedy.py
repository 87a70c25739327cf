"""The likeliest next token, again and again."""

import torch
from jaxtyping import Int
from torch import Tensor

from regard.models.interface import Memory, Model
from regard.search.hypothesis import Hypothesis
from regard.text.tokenizer import BEGIN, END, PAD


def greedy(model: Model, memory: Memory, limits: Int[Tensor, " batch"]) -> list[Hypothesis]:
    """Decode all rows side by side; a row that has ended, or reached its own limit, is dropped."""
    state = model.begin(memory)
    rows = torch.arange(len(limits), device=limits.device)
    tokens = torch.full_like(rows, BEGIN)
    ids = torch.full((len(rows), int(limits.max())), PAD, device=rows.device)
    scores = torch.zeros(len(rows), device=rows.device)
    for place in range(ids.shape[1]):
        logits, state = model.step(tokens, state)
        chances = logits.float().log_softmax(-1)
        chances[:, [PAD, BEGIN]] = float("-inf")  # no output contains these
        best, tokens = chances.max(-1)
        ids[rows, place] = tokens
        scores[rows] += best
        going = ((tokens != END) & (place + 1 < limits[rows])).nonzero()[:, 0]
        if len(going) == 0:
            break
        if len(going) < len(rows):
            rows, tokens, state = rows[going], tokens[going], state.select(going)
    return [
        Hypothesis([i for i in row if i != PAD], score, score)
        for row, score in zip(ids.tolist(), scores.tolist(), strict=True)
    ]
