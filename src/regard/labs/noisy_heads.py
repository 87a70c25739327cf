"""Attention of one head and of two over noisy keys: measured, and in closed form."""

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
    """Beta mu_a for the first head, beta mu_b for the second"""
    return beta * means[[a, b]]


@torch.no_grad()
def average_heads(
    queries: Float[Tensor, "heads width"],
    keys: Float[Tensor, "draw key width"],
    values: Float[Tensor, "key width"],
) -> Float[Tensor, "draw width"]:
    """(a_1 + .. + a_h) / h, where a_i is the attention output for query i.

    Computed by one multi-query layer: W_q maps the token (1, 0, ..) to the queries, W_o is [I/h .. I/h].
    """
    (heads, width), (draws, count) = queries.shape, keys.shape[:2]
    layer = MultiHead(width, heads, width, SCORES["dot"](width, width), kv_heads=1).double()
    layer.query.weight.zero_()[:, 0] = queries.flatten()
    layer.output.weight.copy_(torch.eye(width, dtype=torch.float64).repeat(1, heads) / heads)
    token = torch.eye(1, width, dtype=torch.float64).expand(draws, 1, width)
    position_ids = torch.zeros(draws, count, dtype=torch.long)
    shared_values = values.expand(draws, 1, count, width)
    return layer(token, keys[:, None], shared_values, None, position_ids[:, :1], position_ids)[0][
        :, 0
    ]


@dataclass(frozen=True)
class HeadOutputs:
    """Outputs of one head and of two averaged heads, for many draws of the keys with their probabilities."""

    scores: Float[Tensor, "draw 2"]  # of k_a in the first of two heads, of k_b in the second
    one_head: Float[Tensor, "draw width"]
    two_heads: Float[Tensor, "draw width"]
    probabilities: Float[Tensor, " draw"]

    def squared_deviations(self, reference: "HeadOutputs") -> list[Float[Tensor, " draw"]]:
        """Squared distances, for one head and for two, from the mean of `reference`."""
        pairs = (
            (self.one_head, reference.probabilities @ reference.one_head),
            (self.two_heads, reference.probabilities @ reference.two_heads),
        )
        return [(output - centre).square().sum(1) for output, centre in pairs]

    def distances(self, target: Float[Tensor, " width"]) -> list[Float[Tensor, " draw"]]:
        """Distances, for one head and for two, from a target."""
        return [(output - target).norm(dim=1) for output in (self.one_head, self.two_heads)]

    def histograms(
        self, start: Float[Tensor, " width"], end: Float[Tensor, " width"]
    ) -> list[list[float]]:
        """For one head and for two, the probability of each bin along the line from start to end."""
        direction = (end - start) / (end - start).square().sum()
        projected = [
            ((output - start) @ direction).clamp(*BINS[[0, -1]])
            for output in (self.one_head, self.two_heads)
        ]
        return [
            torch.histogram(x, BINS, weight=self.probabilities).hist.tolist() for x in projected
        ]


def measure_outputs(
    noise: Noise, params: NoiseParameters, setup: Setup, generator: Generator
) -> HeadOutputs:
    """Outputs of the library's layer over sampled keys."""
    means, values, a, b = setup
    keys = noise.sample_keys(means, a, params.draws, generator)
    return HeadOutputs(
        params.beta * (keys * means).sum(-1)[:, [a, b]],
        average_heads(query(means, a, b, params.beta)[None], keys, values),
        average_heads(queries(means, a, b, params.beta), keys, values),
        torch.full((params.draws,), 1 / params.draws, dtype=torch.float64),
    )


def closed_form_outputs(params: NoiseParameters, setup: Setup) -> HeadOutputs:
    """Outputs in closed form, over a grid of lambda_a and lambda_b, for the noise that scales every key."""
    _, values, a, b = setup
    counts = 397, 401  # different, so that lambda_a - lambda_b takes many values
    grids = [
        torch.linspace(-MAX_DEVIATIONS, MAX_DEVIATIONS, n, dtype=torch.float64) for n in counts
    ]
    z = torch.cartesian_prod(*grids)
    z = z[z.norm(dim=1) <= MAX_DEVIATIONS]
    scores = params.beta * (1 + params.sigma * z)
    one_head = closed_form_output(scores, values, [a, b])
    two_heads = closed_form_two_heads(scores, values, a, b)
    return HeadOutputs(scores, one_head, two_heads, (-z.square().sum(1) / 2).softmax(0))


def closed_form_two_heads(
    scores: Float[Tensor, "draw 2"], values: Float[Tensor, "key width"], a: int, b: int
) -> Float[Tensor, "draw width"]:
    """(a_1 + a_2) / 2 in closed form"""
    first, second = scores.split(1, dim=1)
    return (closed_form_output(first, values, [a]) + closed_form_output(second, values, [b])) / 2
