"""e(q, k): how well a key answers a query. A kind of attention is its score and its normaliser.

A score holds no projection: the layer that uses it owns W_q and W_k. `projected` says whether the
score wants them (to a common width) or takes queries and keys as they come.
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
    """score(query, keys) -> one number for each pair. `location` has a largest number of keys."""

    projected = True
    pairwise = False
    """Does the number for a pair depend on that pair alone, wherever the key stands? (If in doubt, no.)"""

    def __init__(self, query_width: int, key_width: int) -> None:
        super().__init__()
        if self.projected and query_width != key_width:
            raise ValueError(
                f"queries are {query_width} wide and keys {key_width}: they must agree"
            )

    @abstractmethod
    def forward(self, query: Query, keys: Keys) -> Scores:
        """One number for each query and key."""


def constant(value: float, query: Tensor, keys: Tensor) -> Tensor:
    return query.new_full((*query.shape[:-1], keys.shape[-2]), value)


class Dummy(Score):
    """e = minus infinity: attends to no word, so the context is zeros."""

    projected = False
    pairwise = True

    def forward(self, query: Query, keys: Keys) -> Scores:
        return constant(float("-inf"), query, keys)


class Mean(Score):
    """e = 0: attends equally to every real word."""

    projected = False
    pairwise = True

    def forward(self, query: Query, keys: Keys) -> Scores:
        return constant(0.0, query, keys)


class Location(Score):
    """e_i = (W q + b)_i, i = the position: looks only at the query. An ablation (tutorial form)."""

    projected = False

    def __init__(self, query_width: int, key_width: int, max_length: int) -> None:
        super().__init__(query_width, key_width)
        self.places = nn.Linear(query_width, max_length)

    def forward(self, query: Query, keys: Keys) -> Scores:
        if keys.shape[-2] > self.places.out_features:
            raise UserError(
                f'the score "location" looks at no more than {self.places.out_features} places and '
                f"got {keys.shape[-2]}: shorten the text, or train with a larger max_length"
            )
        return self.places(query)[..., : keys.shape[-2]]


class Additive(Score):
    """e = v . tanh(q + k) (Bahdanau et al., 2015)"""

    pairwise = True

    def __init__(self, query_width: int, key_width: int) -> None:
        super().__init__(query_width, key_width)
        bound = 1 / math.sqrt(key_width)
        self.v = nn.Parameter(torch.empty(key_width).uniform_(-bound, bound))

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
    """e = q . W k (Luong et al., 2015, "general"); q and k unprojected"""

    projected = False
    pairwise = True

    def __init__(self, query_width: int, key_width: int) -> None:
        super().__init__(query_width, key_width)
        self.inner = nn.Linear(key_width, query_width, bias=False)

    def forward(self, query: Query, keys: Keys) -> Scores:
        return query @ self.inner(keys).transpose(-1, -2)


SCORES: dict[str, type[Score]] = {
    "dummy": Dummy,
    "mean": Mean,
    "location": Location,
    "additive": Additive,
    "dot": Dot,
    "scaled-dot": ScaledDot,
    "bilinear": Bilinear,
}
