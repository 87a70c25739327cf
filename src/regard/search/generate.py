"""Autoregressive generation of one output per row: the loop that greedy search and sampling share."""

import math
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.errors import NotFiniteError
from regard.models.interface import Rows, StateT, Tokens
from regard.search.constrain import Constrain
from regard.search.hypothesis import Hypothesis
from regard.search.step import LogProbs, StepModel, next_log_probs, select_check_interval
from regard.search.traced import trace_steps
from regard.text.tokenizer import BOS, EOS, PAD

ChooseToken = Callable[[LogProbs, Rows, int], tuple[Tokens, Float[Tensor, " rows"]]]
"""(log-probs, row numbers, step) -> (token of each row, its log-probability)"""


@torch.inference_mode()
def generate(
    model: StepModel[StateT],
    memory: Any,
    max_lengths: Int[Tensor, " batch"],
    choose: ChooseToken,
    check_every: int | None = None,
    constrain: Constrain | None = None,
) -> list[Hypothesis]:
    """Generate all rows in parallel; `choose` selects the next token of each, if `constrain` allows it.

    A row that has produced EOS or reached its maximum length produces no more. Such rows are removed
    from the batch every `check_every` steps (on a GPU not at every step, since the check synchronises),
    and always at a row's maximum length, since the model may support no further position.
    """
    check_every = check_every or select_check_interval(max_lengths.device)
    model = trace_steps(model, max_lengths)
    state = model.init_state(memory)
    length_limits = set(max_lengths.tolist())
    longest = max(length_limits)
    rows = torch.arange(len(max_lengths), device=max_lengths.device)
    tokens = torch.full_like(rows, BOS)
    active = torch.ones_like(rows, dtype=torch.bool)
    ids = torch.full((len(rows), longest), PAD, device=rows.device)
    scores = torch.zeros(len(rows), device=rows.device)
    for step in range(longest):
        log_probs, state = next_log_probs(model, tokens, state)
        log_probs = constrain(log_probs, step) if constrain else log_probs
        tokens, token_scores = choose(log_probs, rows, step)
        ids[rows, step] = torch.where(active, tokens, PAD)
        scores[rows] += torch.where(active, token_scores, 0.0)
        active = active & (tokens != EOS) & (step + 1 < max_lengths[rows])
        if (step + 1) % check_every == 0 or step + 1 in length_limits:
            remaining = active.nonzero()[:, 0]
            if len(remaining) == 0:
                break
            if len(remaining) < len(rows):
                rows, tokens, state = rows[remaining], tokens[remaining], state.select(remaining)
                active = active[remaining]
    totals = scores.tolist()
    if not all(map(math.isfinite, totals)):
        raise NotFiniteError
    return [
        Hypothesis([i for i in row if i != PAD], score, score)
        for row, score in zip(ids.tolist(), totals, strict=True)
    ]
