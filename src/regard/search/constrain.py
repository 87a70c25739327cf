"""Constraints on an output: which tokens a search may choose at a step."""

from collections.abc import Callable, Mapping, Sequence

import torch

from regard.search.step import LogProbs
from regard.text.tokenizer import EOS

Constrain = Callable[[LogProbs, int], LogProbs]
"""(log-probs, step) -> log-probs, minus infinity for tokens that are not allowed

Those of the others stay as they are, so scores are those of the model.
"""


def force_tokens(forced: Mapping[int, Sequence[int]]) -> Constrain:
    """One of `forced[step]` at each of these steps; so no output ends before the last of them."""
    last = max(forced)

    def constrain(log_probs: LogProbs, step: int) -> LogProbs:
        if step in forced:
            allowed = log_probs.new_tensor(forced[step], dtype=torch.long)
            kept = torch.full_like(log_probs, float("-inf"))
            return kept.index_copy(1, allowed, log_probs[:, allowed])
        if step < last:
            log_probs[:, EOS] = float("-inf")
        return log_probs

    return constrain
