"""Noisy keys around orthonormal means: shared by the labs noisy-keys and multi-head."""

import math
from dataclasses import dataclass
from typing import NamedTuple, Self

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Generator, Tensor

from regard.labs.measurements.single_query import ScoreParameters, orthonormal_keys, sample_two

FAILURE_PROBABILITY = 1e-6  # of a check, by sampling error alone
MAX_DEVIATIONS = (
    7  # standard deviations; beyond them lies no draw of a run, with about the same certainty
)


@dataclass(frozen=True)
class Noise:
    """k_i = lambda_i mu_i + sqrt(eps) xi_i, with lambda_i ~ N(1, s_i^2) and xi_i ~ N(0, I).

    So the covariance of key i is eps I + s_i^2 mu_i mu_i^T, where s_i is `std_a` for key a and `std_others`
    for every other key.
    """

    name: str
    std_a: float
    std_others: float
    eps: float

    def sample_keys(
        self, means: Float[Tensor, "key width"], a: int, draws: int, generator: Generator
    ) -> Float[Tensor, "draw key width"]:
        """Sample all keys, `draws` times."""
        std = means.new_full((len(means),), self.std_others)
        std[a] = self.std_a
        normal = {"dtype": means.dtype, "generator": generator}
        lengths = 1 + std * torch.randn(draws, len(means), **normal)
        keys = lengths[..., None] * means
        return keys + math.sqrt(self.eps) * torch.randn(keys.shape, **normal) if self.eps else keys

    def score_variances(self, targets: int) -> tuple[float, float]:
        """Var(q . k_a) and Var(q . k_b), for q a sum of `targets` means, mu_a or mu_b among them."""
        return self.std_a**2 + targets * self.eps, self.std_others**2 + targets * self.eps


class Setup(NamedTuple):
    """Key means, their values, and the indices a and b of the two keys to retrieve."""

    means: Float[Tensor, "key width"]
    values: Float[Tensor, "key width"]
    a: int
    b: int

    @classmethod
    def sample(cls, count: int, generator: Generator) -> Self:
        means = orthonormal_keys(count, count, generator)
        values = torch.randn(count, count, dtype=torch.float64, generator=generator)
        return cls(means, values, *sample_two(count, generator))


class NoiseParameters(ScoreParameters):
    beta: float = Field(12.0, ge=1, le=50)
    """Scale of the query: its dot product with the mean of each key it targets."""
    keys: int = Field(10, ge=3, le=32)
    """m, the number of keys, and their dimension."""
    sigma: float = Field(0.3, ge=0.01, le=1)
    """Standard deviation of lambda, for the noise that scales every key."""
    eps: float = Field(1e-6, gt=0, le=0.1)
    """Variance in every direction, for Gaussian noise."""
    draws: int = Field(10_000, ge=1000, le=20_000)
    """Number of draws of the keys."""

    @property
    def mean_score(self) -> float:
        """The score of the mean of a targeted key: beta, or beta / sqrt(d) if scores are scaled."""
        return self.beta * self.score_scale(self.keys)

    @property
    def noises(self) -> tuple[Noise, Noise, Noise]:
        return (
            Noise("every key scaled", self.sigma, self.sigma, 0),
            Noise("every key Gaussian", 0, 0, self.eps),
            Noise("key a stretched", math.sqrt(0.5), 0, self.eps),
        )

    @property
    def case_names(self) -> tuple[str, ...]:
        """Each noise with a query from the means of the keys, then the first with one from the keys."""
        names = [noise.name for noise in self.noises]
        return *names, f"{names[0]}, query from the noisy keys"


def bernstein_bound(variance: float, bound: float, draws: int) -> float:
    """Bound on |mean - expectation| over `draws` samples, exceeded with probability 1e-6 at most.

    Bernstein's inequality, for independent samples of this variance within `bound` of their expectation:
    about 5.4 standard errors, and more where a few rare samples dominate.
    """
    log_term = math.log(2 / FAILURE_PROBABILITY)
    linear = bound * log_term / 3
    return (linear + math.sqrt(linear**2 + 2 * log_term * variance * draws)) / draws
