"""Attention of one head and of two over noisy keys: measured, and in closed form."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from regard.attention import MultiHead
from regard.labs.measurements.noise import MAX_DEVIATIONS, NoiseParameters, Setup
from regard.labs.measurements.single_query import closed_form_output, make_score

BINS = torch.linspace(-0.25, 1.25, 32, dtype=torch.float64)  # from v_b at 0 to v_a at 1


def queries(
    means: Float[Tensor, "key width"], a: int, b: int, beta: float
) -> Float[Tensor, "heads width"]:
    """Beta mu_a for the first head, beta mu_b for the second"""
    return beta * means[[a, b]]


@torch.no_grad()
def average_heads(
    queries: Float[Tensor, "#draw heads width"],
    keys: Float[Tensor, "draw key width"],
    values: Float[Tensor, "key width"],
    scaled: bool = False,
) -> Float[Tensor, "draw width"]:
    """(a_1 + .. + a_h) / h, where a_i is the attention output for query i.

    Computed by one multi-query layer: the token is the queries in a row, W_q = I, and W_o = [I/h .. I/h].
    """
    (heads, width), (draws, count) = queries.shape[1:], keys.shape[:2]
    score = make_score(width, scaled)
    layer = MultiHead(heads * width, heads, width, score, kv_heads=1).double()
    identity = torch.eye(width, dtype=torch.float64)
    layer.query.weight.copy_(torch.eye(heads * width))
    layer.output.weight.zero_()[:width] = identity.repeat(1, heads) / heads
    token = queries.flatten(1).expand(draws, -1)[:, None]
    position_ids = torch.zeros(draws, count, dtype=torch.long)
    shared_values = values.expand(draws, 1, count, width)
    output, _ = layer(token, keys[:, None], shared_values, None, position_ids[:, :1], position_ids)
    return output[:, 0, :width]


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
    keys: Float[Tensor, "draw key width"],
    params: NoiseParameters,
    setup: Setup,
    from_keys: bool = False,
) -> HeadOutputs:
    """Outputs of the library's layer, with queries from the means of the keys or from the keys themselves."""
    means, values, a, b = setup
    targets = keys[:, [a, b]]
    head_queries = params.beta * targets if from_keys else queries(means, a, b, params.beta)[None]
    return HeadOutputs(
        params.score_scale(params.keys) * (head_queries * targets).sum(-1),
        average_heads(head_queries.sum(1, keepdim=True), keys, values, params.scaled),
        average_heads(head_queries, keys, values, params.scaled),
        torch.full((params.draws,), 1 / params.draws, dtype=torch.float64),
    )


def closed_form_outputs(params: NoiseParameters, setup: Setup, power: int = 1) -> HeadOutputs:
    """Outputs in closed form, over a grid of lambda_a and lambda_b, for the noise that scales every key.

    The scores are beta lambda^power: power 2 for queries from the noisy keys.
    """
    _, values, a, b = setup
    counts = 397, 401  # different, so that lambda_a - lambda_b takes many values
    grids = [
        torch.linspace(-MAX_DEVIATIONS, MAX_DEVIATIONS, n, dtype=torch.float64) for n in counts
    ]
    z = torch.cartesian_prod(*grids)
    z = z[z.norm(dim=1) <= MAX_DEVIATIONS]
    scores = params.mean_score * (1 + params.sigma * z) ** power
    one_head = closed_form_output(scores, values, [a, b])
    two_heads = closed_form_two_heads(scores, values, a, b)
    return HeadOutputs(scores, one_head, two_heads, (-z.square().sum(1) / 2).softmax(0))


def closed_form_two_heads(
    scores: Float[Tensor, "draw 2"], values: Float[Tensor, "key width"], a: int, b: int
) -> Float[Tensor, "draw width"]:
    """(a_1 + a_2) / 2 in closed form"""
    first, second = scores.split(1, dim=1)
    return (closed_form_output(first, values, [a]) + closed_form_output(second, values, [b])) / 2
