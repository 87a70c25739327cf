"""Score functions e(q, k). A kind of attention is a score and a normaliser.

A score has no query or key projection: the layer that uses it owns W_q and W_k. `projected` says whether
the score takes projected queries and keys (of a common dimension) or the original ones.
"""

import math
from abc import ABC, abstractmethod

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.errors import UserError

Query = Float[Tensor, "*batch query query_depth"]
Keys = Float[Tensor, "*batch key key_depth"]
Scores = Float[Tensor, "*batch query key"]


class Score(nn.Module, ABC):
    """score(query, keys) -> one number for each pair."""

    projected = True
    pairwise = False
    """Does e(q_i, k_j) depend on q_i and k_j alone, not on the index j? (If in doubt, False.)"""

    def __init__(self, query_dim: int, key_dim: int) -> None:
        super().__init__()
        if self.projected and query_dim != key_dim:
            raise ValueError(f"query_dim ({query_dim}) and key_dim ({key_dim}) must be equal")

    @abstractmethod
    def forward(self, query: Query, keys: Keys) -> Scores:
        """A score for each query and key."""


def constant_scores(value: float, query: Tensor, keys: Tensor) -> Tensor:
    return query.new_full((*query.shape[:-1], keys.shape[-2]), value)


class Dummy(Score):
    """e = minus infinity: attends to no key, so the context is zeros."""

    projected = False
    pairwise = True

    def forward(self, query: Query, keys: Keys) -> Scores:
        return constant_scores(float("-inf"), query, keys)


class Mean(Score):
    """e = 0: attends equally to every key that is not masked."""

    projected = False
    pairwise = True

    def forward(self, query: Query, keys: Keys) -> Scores:
        return constant_scores(0.0, query, keys)


class Location(Score):
    """e_i = (W q + b)_i, i = the key's index: ignores the keys (Luong et al., 2015; the PyTorch tutorial).

    An ablation. At most `max_length` keys.
    """

    projected = False

    def __init__(self, query_dim: int, key_dim: int, max_length: int) -> None:
        super().__init__(query_dim, key_dim)
        self.index_scores = nn.Linear(query_dim, max_length)

    def forward(self, query: Query, keys: Keys) -> Scores:
        max_length, length = self.index_scores.out_features, keys.shape[-2]
        if length > max_length:
            raise UserError(
                f'the score "location" supports at most {max_length} keys and got {length}: shorten '
                "the text, or train with a larger max_length"
            )
        return self.index_scores(query)[..., :length]


class Additive(Score):
    """e = v . tanh(q + k) (Bahdanau et al., 2015)"""

    pairwise = True

    def __init__(self, query_dim: int, key_dim: int) -> None:
        super().__init__(query_dim, key_dim)
        bound = 1 / math.sqrt(key_dim)
        self.v = nn.Parameter(torch.empty(key_dim).uniform_(-bound, bound))

    def forward(self, query: Query, keys: Keys) -> Scores:
        return torch.tanh(query[..., :, None, :] + keys[..., None, :, :]) @ self.v


class Dot(Score):
    """e = q . k"""

    pairwise = True

    def forward(self, query: Query, keys: Keys) -> Scores:
        return query @ keys.transpose(-1, -2)


class ScaledDot(Score):
    """e = q . k / sqrt(d) (Vaswani et al., 2017)"""

    pairwise = True

    def forward(self, query: Query, keys: Keys) -> Scores:
        return query @ keys.transpose(-1, -2) / math.sqrt(query.shape[-1])


class Bilinear(Score):
    """e = q . W k (Luong et al., 2015, "general"); q and k are not projected"""

    projected = False
    pairwise = True

    def __init__(self, query_dim: int, key_dim: int) -> None:
        super().__init__(query_dim, key_dim)
        self.linear = nn.Linear(key_dim, query_dim, bias=False)

    def forward(self, query: Query, keys: Keys) -> Scores:
        return query @ self.linear(keys).transpose(-1, -2)


SCORES: dict[str, type[Score]] = {
    "dummy": Dummy,
    "mean": Mean,
    "location": Location,
    "additive": Additive,
    "dot": Dot,
    "scaled-dot": ScaledDot,
    "bilinear": Bilinear,
}
