"""Keys that scatter about orthonormal means: what noisy-keys and multi-head look up among."""

import math
from dataclasses import dataclass
from typing import NamedTuple, Self

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Generator, Tensor

from regard.labs.lab import Parameters
from regard.labs.single_query import orthonormal_keys, sample_two

FAILURE_PROBABILITY = 1e-6  # how often an honest measurement may fail its check
MAX_DEVIATIONS = (
    7  # standard deviations: in all draws together, none lies further out but as rarely
)


@dataclass(frozen=True)
class Noise:
    """k_i = lambda_i mu_i + sqrt(eps) xi_i: lambda_i is normal about 1, xi_i in every direction alike.

    So the covariance of key i is eps I + s_i^2 mu_i mu_i^T, with s_i the deviation of lambda_i: `std_a` for
    key a, `std_others` for every other one.
    """

    name: str
    std_a: float
    std_others: float
    eps: float

    def sample_keys(
        self, means: Float[Tensor, "key width"], a: int, draws: int, generator: Generator
    ) -> Float[Tensor, "draw key width"]:
        """Keys drawn anew, so many times."""
        deviations = means.new_full((len(means),), self.std_others)
        deviations[a] = self.std_a
        normal = {"dtype": means.dtype, "generator": generator}
        lengths = 1 + deviations * torch.randn(draws, len(means), **normal)
        keys = lengths[..., None] * means
        return keys + math.sqrt(self.eps) * torch.randn(keys.shape, **normal) if self.eps else keys

    def score_variances(self, pointed: int) -> tuple[float, float]:
        """Those of q . k_a and q . k_b, where q is the sum of so many means, mu_a or mu_b among them."""
        return self.std_a**2 + pointed * self.eps, self.std_others**2 + pointed * self.eps


class Setup(NamedTuple):
    """Means, the values behind them, and which two are asked for."""

    means: Float[Tensor, "key width"]
    values: Float[Tensor, "key width"]
    a: int
    b: int

    @classmethod
    def sample(cls, count: int, generator: Generator) -> Self:
        means = orthonormal_keys(count, count, generator)
        values = torch.randn(count, count, dtype=torch.float64, generator=generator)
        return cls(means, values, *sample_two(count, generator))


class NoiseParameters(Parameters):
    beta: float = Field(12.0, ge=1, le=50)
    """How strongly a query points at its keys."""
    keys: int = Field(10, ge=3, le=32)
    """m, how many keys there are, in as many dimensions."""
    sigma: float = Field(0.3, ge=0.01, le=1)
    """Standard deviation of lambda, where every key is scaled."""
    eps: float = Field(1e-6, gt=0, le=0.1)
    """Variance in every direction, where the noise is Gaussian."""
    draws: int = Field(10_000, ge=1000, le=20_000)
    """How often the keys are drawn."""

    @property
    def noises(self) -> tuple[Noise, Noise, Noise]:
        return (
            Noise("every key scaled", self.sigma, self.sigma, 0),
            Noise("every key Gaussian", 0, 0, self.eps),
            Noise("key a stretched", math.sqrt(0.5), 0, self.eps),
        )


def bernstein_bound(variance: float, bound: float, draws: int) -> float:
    """How far the mean of `draws` numbers strays from its expectation, but once in a million runs.

    Bernstein's inequality, for independent numbers of that variance, none further than `bound` from the
    expectation: some 5.4 standard errors, and more where a few rare draws decide.
    """
    rarity = math.log(2 / FAILURE_PROBABILITY)
    skew = bound * rarity / 3
    return (skew + math.sqrt(skew**2 + 2 * rarity * variance * draws)) / draws
