"""The next token by chance: temperature, the k likeliest, or the nucleus of likeliest tokens."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.models.interface import Memory, Model
from regard.search.follow import follow
from regard.search.hypothesis import Hypothesis


def sample(
    model: Model,
    memory: Memory,
    limits: Int[Tensor, " batch"],
    seeds: list[int],
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    check_every: int | None = None,
) -> list[Hypothesis]:
    """One draw a row. A row's draw depends on its own seed alone, not on the batch it is in.

    The score is the model's own log-probability, whatever the temperature was.
    """
    longest = int(limits.max())
    luck = torch.stack([dice(seed, longest) for seed in seeds]).to(limits.device)

    def choose(
        chances: Float[Tensor, "rows vocab"], rows: Int[Tensor, " rows"], place: int
    ) -> tuple[Int[Tensor, " rows"], Float[Tensor, " rows"]]:
        # Below the likeliest, in double precision: no temperature makes all of them vanish.
        below = (chances - chances.amax(-1, keepdim=True)).double() / temperature
        ordered, tokens = below.softmax(-1).sort(-1, descending=True)
        kept = nucleus(ordered, top_k, top_p)
        share = kept.cumsum(-1)
        # The token whose share of the kept mass the die falls into.
        drawn = torch.searchsorted(share, luck[rows, place, None] * share[:, -1:], right=True)
        last = (kept > 0).sum(-1, keepdim=True) - 1  # rounding must not lead past it
        token = tokens.gather(1, torch.minimum(drawn, last))
        return token[:, 0], chances.gather(1, token)[:, 0]

    return follow(model, memory, limits, choose, check_every)


def dice(seed: int, count: int) -> Float[Tensor, " count"]:
    return torch.rand(count, generator=torch.Generator().manual_seed(seed))


def nucleus(
    ordered: Float[Tensor, "rows vocab"], top_k: int | None, top_p: float | None
) -> Float[Tensor, "rows vocab"]:
    """Probabilities in falling order, with 0 for what is not among the likeliest."""
    if top_k is not None:
        ordered = ordered.masked_fill(
            torch.arange(ordered.shape[1], device=ordered.device) >= top_k, 0.0
        )
    if top_p is not None:
        # A token stays if those before it do not fill the nucleus yet: the likeliest always does.
        ordered = ordered.masked_fill(ordered.cumsum(-1) - ordered >= top_p, 0.0)
    return ordered
