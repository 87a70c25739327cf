"""The bias of a position encoding as a rule: what is added to the score of one query and one key.

`Position.bias` computes the same numbers as a matrix [batch heads query key].
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

AddBias = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
"""(score, batch, head, query index, key position - query position) -> score + bias"""


class BiasRule(ABC):
    """A bias that depends on the query and the distance of the key."""

    @abstractmethod
    def adder(self) -> AddBias:
        """The function that adds the bias to a score. It is not differentiated with respect to parameters."""


@dataclass(frozen=True)
class LinearBias(BiasRule):
    """- slope_h |distance| (ALiBi)"""

    slopes: Float[Tensor, " heads"]

    def adder(self) -> AddBias:
        # At least float32: the product with a distance of 4,097 needs more than the 8 bits of bfloat16.
        slopes = self.slopes.to(torch.promote_types(self.slopes.dtype, torch.float32))

        def add(
            score: Tensor, batch: Tensor, head: Tensor, query: Tensor, distance: Tensor
        ) -> Tensor:
            return score - slopes[head] * distance.abs()

        return add


@dataclass(frozen=True)
class ClippedBias(BiasRule):
    """A learned number for each distance, clipped to -m .. m, of each head or of each query (relative)"""

    table: Float[Tensor, "#batch heads #query distances"]
    """For the distances -m .. m. Sentence and query have one row each, or share one."""

    @property
    def limit(self) -> int:
        """m: all distances from m on share a number, and all up to -m."""
        return self.table.shape[-1] // 2

    def adder(self) -> AddBias:
        table, limit = self.table.detach(), self.limit
        if table.shape[0] == table.shape[2] == 1:
            by_head = table[0, :, 0]

            def add_shared(
                score: Tensor, batch: Tensor, head: Tensor, query: Tensor, distance: Tensor
            ) -> Tensor:
                return score + by_head[head, distance.clamp(-limit, limit) + limit]

            return add_shared

        def add(
            score: Tensor, batch: Tensor, head: Tensor, query: Tensor, distance: Tensor
        ) -> Tensor:
            return score + table[batch, head, query, distance.clamp(-limit, limit) + limit]

        return add
