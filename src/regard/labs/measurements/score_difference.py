"""z = q . (k_a - k_b), of which the sigmoid is one head's split between two noisy keys: its distribution."""

import math
from dataclasses import dataclass
from typing import Self

import torch
from jaxtyping import Float
from torch import Tensor

from regard.labs.measurements.noise import MAX_DEVIATIONS, bernstein_bound

ONE_SIDED = 0.9  # share of a head's two weights from which one key dominates


def normal_grid(points: int) -> tuple[Float[Tensor, " point"], Float[Tensor, " point"]]:
    """Points of a standard normal variable, and their probabilities."""
    grid = torch.linspace(-MAX_DEVIATIONS, MAX_DEVIATIONS, points, dtype=torch.float64)
    return grid, (-(grid**2) / 2).softmax(0)


@dataclass(frozen=True)
class ScoreDifference:
    """z, normal with mean 0 and standard deviation tau, where tau may be random itself."""

    taus: Float[Tensor, " case"]
    probabilities: Float[Tensor, " case"]

    @classmethod
    def normal(cls, tau: float) -> Self:
        """For q = beta (mu_a + mu_b): one tau."""
        return cls(*torch.tensor([[tau], [1.0]], dtype=torch.float64))

    @classmethod
    def of_squares(cls, beta: float, sigma: float) -> Self:
        """For q = beta (k_a + k_b): z = beta (lambda_a^2 - lambda_b^2), with lambda normal(1, sigma).

        This is beta u w, where u = lambda_a - lambda_b is normal(0, sigma sqrt(2)), and independent of it
        w = lambda_a + lambda_b is normal(2, sigma sqrt(2)). So tau = beta sigma sqrt(2) |w|.
        """
        grid, probabilities = normal_grid(401)
        std = sigma * math.sqrt(2)
        return cls(beta * std * (2 + std * grid).abs(), probabilities)

    @property
    def tau(self) -> float:
        """The standard deviation of z."""
        return math.sqrt(self.probabilities @ self.taus**2)

    def swing(self, draws: int) -> tuple[float, float]:
        """(E[s], tolerance of its sample mean over `draws`) for s = (sigmoid(z) - 1/2)^2"""
        grid, probabilities = normal_grid(4001)
        s = (torch.sigmoid(self.taus[:, None] * grid) - 0.5) ** 2
        probabilities = self.probabilities[:, None] * probabilities
        mean = (probabilities * s).sum()
        variance = (probabilities * (s - mean) ** 2).sum()
        return float(mean), bernstein_bound(float(variance), float(s.max()), draws)

    def one_sided(self) -> float:
        """P(sigmoid(z) is outside [0.1, 0.9])"""
        limit = math.log(ONE_SIDED / (1 - ONE_SIDED))
        return float(self.probabilities @ torch.erfc(limit / self.taus / math.sqrt(2)))

    def histogram(self, edges: Float[Tensor, " edge"]) -> list[float]:
        """The probability of sigmoid(z) in each bin."""
        return (
            (self.probabilities @ torch.special.ndtr(edges.logit() / self.taus[:, None]))
            .diff()
            .tolist()
        )
