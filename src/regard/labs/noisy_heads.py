"""One head and two among scattered keys: what they bring back when measured, and by the closed form."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Generator, Tensor

from regard.attention import SCORES, MultiHead
from regard.labs.averaging import query
from regard.labs.noise import MAX_DEVIATIONS, Noise, NoiseParameters, Setup
from regard.labs.single_query import closed_form_output

BINS = torch.linspace(-0.25, 1.25, 32, dtype=torch.float64)  # from v_b at 0 to v_a at 1


def queries(
    means: Float[Tensor, "key width"], a: int, b: int, beta: float
) -> Float[Tensor, "heads width"]:
    """Beta mu_a for the one head, beta mu_b for the other"""
    return beta * means[[a, b]]


@torch.no_grad()
def average_heads(
    asked: Float[Tensor, "heads width"],
    keys: Float[Tensor, "draw key width"],
    values: Float[Tensor, "key width"],
) -> Float[Tensor, "draw width"]:
    """(a_1 + .. + a_h) / h, with head i asking for row i.

    A layer's W_q makes such queries of the token (1, 0, ..), its W_o is [I/h .. I/h], and all heads share
    the keys and values.
    """
    (heads, width), (draws, count) = asked.shape, keys.shape[:2]
    layer = MultiHead(width, heads, width, SCORES["dot"](width, width), kv_heads=1).double()
    layer.query.weight.zero_()[:, 0] = asked.flatten()
    layer.output.weight.copy_(torch.eye(width, dtype=torch.float64).repeat(1, heads) / heads)
    token = torch.eye(1, width, dtype=torch.float64).expand(draws, 1, width)
    at = torch.zeros(draws, count, dtype=torch.long)
    shared = values.expand(draws, 1, count, width)
    return layer(token, keys[:, None], shared, None, at[:, :1], at)[0][:, 0]


@dataclass(frozen=True)
class HeadOutputs:
    """What one head and two bring back among scattered keys: many outcomes, each with its probability."""

    scores: Float[Tensor, "outcome 2"]  # of k_a in the first of two heads, of k_b in the second
    one_head: Float[Tensor, "outcome width"]
    two_heads: Float[Tensor, "outcome width"]
    probabilities: Float[Tensor, " outcome"]

    def squared_deviations(self, about: "HeadOutputs") -> list[Float[Tensor, " outcome"]]:
        """Square distances, of one head and of two, from what is expected: their mean is the variance."""
        pairs = (
            (self.one_head, about.probabilities @ about.one_head),
            (self.two_heads, about.probabilities @ about.two_heads),
        )
        return [(output - centre).square().sum(1) for output, centre in pairs]

    def distances(self, middle: Float[Tensor, " width"]) -> list[Float[Tensor, " outcome"]]:
        """Distances, of one head and of two, from the middle of the two values."""
        return [(output - middle).norm(dim=1) for output in (self.one_head, self.two_heads)]

    def histograms(
        self, start: Float[Tensor, " width"], end: Float[Tensor, " width"]
    ) -> list[list[float]]:
        """How often one head and two bring back what lies in each bin on the way from start to end."""
        way = (end - start) / (end - start).square().sum()
        along = [
            ((output - start) @ way).clamp(*BINS[[0, -1]])
            for output in (self.one_head, self.two_heads)
        ]
        return [torch.histogram(x, BINS, weight=self.probabilities).hist.tolist() for x in along]


def measure_outputs(
    noise: Noise, params: NoiseParameters, scene: Setup, generator: Generator
) -> HeadOutputs:
    """By the library's layer, among keys that are drawn."""
    means, values, a, b = scene
    keys = noise.sample_keys(means, a, params.draws, generator)
    return HeadOutputs(
        params.beta * (keys * means).sum(-1)[:, [a, b]],
        average_heads(query(means, a, b, params.beta)[None], keys, values),
        average_heads(queries(means, a, b, params.beta), keys, values),
        torch.full((params.draws,), 1 / params.draws, dtype=torch.float64),
    )


def closed_form_outputs(params: NoiseParameters, scene: Setup) -> HeadOutputs:
    """By the closed form, over a grid of lambda_a and lambda_b, where every key is scaled."""
    _, values, a, b = scene
    counts = 397, 401  # not the same, so that their differences take many values
    grids = [
        torch.linspace(-MAX_DEVIATIONS, MAX_DEVIATIONS, n, dtype=torch.float64) for n in counts
    ]
    z = torch.cartesian_prod(*grids)
    z = z[z.norm(dim=1) <= MAX_DEVIATIONS]
    scores = params.beta * (1 + params.sigma * z)
    one, two = (
        closed_form_output(scores, values, [a, b]),
        closed_form_two_heads(scores, values, a, b),
    )
    return HeadOutputs(scores, one, two, (-z.square().sum(1) / 2).softmax(0))


def closed_form_two_heads(
    scores: Float[Tensor, "draw 2"], values: Float[Tensor, "key width"], a: int, b: int
) -> Float[Tensor, "draw width"]:
    """The closed form of (a_1 + a_2) / 2"""
    first, second = scores.split(1, dim=1)
    return (closed_form_output(first, values, [a]) + closed_form_output(second, values, [b])) / 2
