"""One head and two among scattered keys: what they bring back when measured, and by the closed form."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Generator, Tensor

from regard.attention import SCORES, MultiHead
from regard.labs.averaging import query
from regard.labs.lookup import brought_back
from regard.labs.noise import FARTHEST, Noise, NoiseKnobs, Scene

BINS = torch.linspace(-0.25, 1.25, 32, dtype=torch.float64)  # from v_b at 0 to v_a at 1


def queries(
    means: Float[Tensor, "key width"], a: int, b: int, beta: float
) -> Float[Tensor, "heads width"]:
    """Beta mu_a for the one head, beta mu_b for the other"""
    return beta * means[[a, b]]


@torch.no_grad()
def mean_of_heads(
    asked: Float[Tensor, "heads width"],
    keys: Float[Tensor, "draw key width"],
    values: Float[Tensor, "key width"],
) -> Float[Tensor, "draw width"]:
    """(a_1 + .. + a_h) / h, with head i asking for row i.

    A layer's W_q makes such queries of the token (1, 0, ..), its W_o is [I/h .. I/h], and all heads share
    the keys and values.
    """
    (heads, width), (draws, count) = asked.shape, keys.shape[:2]
    layer = MultiHead(width, heads, width, SCORES["dot"](width, width), key_value_heads=1).double()
    layer.query.weight.zero_()[:, 0] = asked.flatten()
    layer.output.weight.copy_(torch.eye(width, dtype=torch.float64).repeat(1, heads) / heads)
    token = torch.eye(1, width, dtype=torch.float64).expand(draws, 1, width)
    at = torch.zeros(draws, count, dtype=torch.long)
    shared = values.expand(draws, 1, count, width)
    return layer(token, keys[:, None], shared, None, at[:, :1], at)[0][:, 0]


@dataclass(frozen=True)
class Outcomes:
    """What one head and two bring back among scattered keys: many outcomes, each with its probability."""

    scores: Float[Tensor, "outcome 2"]  # of k_a in the first of two heads, of k_b in the second
    one: Float[Tensor, "outcome width"]
    two: Float[Tensor, "outcome width"]
    likely: Float[Tensor, " outcome"]

    def strays(self, about: "Outcomes") -> list[Float[Tensor, " outcome"]]:
        """Square distances, of one head and of two, from what is expected: their mean is the variance."""
        pairs = (self.one, about.likely @ about.one), (self.two, about.likely @ about.two)
        return [(output - centre).square().sum(1) for output, centre in pairs]

    def misses(self, middle: Float[Tensor, " width"]) -> list[Float[Tensor, " outcome"]]:
        """Distances, of one head and of two, from the middle of the two values."""
        return [(output - middle).norm(dim=1) for output in (self.one, self.two)]

    def shares(
        self, start: Float[Tensor, " width"], end: Float[Tensor, " width"]
    ) -> list[list[float]]:
        """How often one head and two bring back what lies in each bin on the way from start to end."""
        way = (end - start) / (end - start).square().sum()
        along = [((output - start) @ way).clamp(*BINS[[0, -1]]) for output in (self.one, self.two)]
        return [torch.histogram(x, BINS, weight=self.likely).hist.tolist() for x in along]


def measured(noise: Noise, knobs: NoiseKnobs, scene: Scene, generator: Generator) -> Outcomes:
    """By the library's layer, among keys that are drawn."""
    means, values, a, b = scene
    keys = noise.keys(means, a, knobs.draws, generator)
    return Outcomes(
        knobs.beta * (keys * means).sum(-1)[:, [a, b]],
        mean_of_heads(query(means, a, b, knobs.beta)[None], keys, values),
        mean_of_heads(queries(means, a, b, knobs.beta), keys, values),
        torch.full((knobs.draws,), 1 / knobs.draws, dtype=torch.float64),
    )


def expected(knobs: NoiseKnobs, scene: Scene) -> Outcomes:
    """By the closed form, over a grid of lambda_a and lambda_b, where every key is scaled."""
    _, values, a, b = scene
    counts = 397, 401  # not the same, so that their differences take many values
    grids = [torch.linspace(-FARTHEST, FARTHEST, n, dtype=torch.float64) for n in counts]
    z = torch.cartesian_prod(*grids)
    z = z[z.norm(dim=1) <= FARTHEST]
    scores = knobs.beta * (1 + knobs.sigma * z)
    one, two = brought_back(scores, values, [a, b]), two_heads(scores, values, a, b)
    return Outcomes(scores, one, two, (-z.square().sum(1) / 2).softmax(0))


def two_heads(
    scores: Float[Tensor, "draw 2"], values: Float[Tensor, "key width"], a: int, b: int
) -> Float[Tensor, "draw width"]:
    """The closed form of (a_1 + a_2) / 2"""
    first, second = scores.split(1, dim=1)
    return (brought_back(first, values, [a]) + brought_back(second, values, [b])) / 2
