"""NoPE: a causal mask alone lets attention encode the position of each token."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from jaxtyping import Float
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from pydantic import Field
from torch import Generator, Tensor

from regard.attention import POSITIONS, SCORES, MultiHead, causal_mask
from regard.diagrams.themes import Theme
from regard.labs.lab import Check, Exercise, Findings, Lab, Parameters, Result, ResultTable
from regard.labs.plotting import add_legend, add_subplots, draw_heatmap
from regard.labs.single_query import ROUNDING

LENGTHS = (1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 233)


class NopeParameters(Parameters):
    length: int = Field(12, ge=2, le=256)
    """T, number of tokens; the first is the BOS token."""
    d_model: int = Field(8, ge=2, le=64)
    """d, embedding dimension; columns 1 and 2 matter."""
    trials: int = Field(10, ge=1, le=100)
    """Number of random W_Q, with random other columns, to test at each length."""


def keys_values(d_model: int) -> tuple[Float[Tensor, "dim dim"], Float[Tensor, "dim dim"]]:
    """(W_K, W_V): W_K has ones in row 1, W_V a one at (2, 1); all other entries are 0."""
    w_k, w_v = torch.zeros(2, d_model, d_model, dtype=torch.float64)
    w_k[0] = 1
    w_v[1, 0] = 1
    return w_k, w_v


def sample_embeddings(
    length: int, d_model: int, generator: Generator
) -> Float[Tensor, "length dim"]:
    """Columns 1 and 2 are (1, 1) for the BOS token and (1, 0) for the others; the rest is random."""
    tokens = torch.randn(length, d_model, dtype=torch.float64, generator=generator)
    tokens[:, 0] = 1
    tokens[:, 1] = 0
    tokens[0, 1] = 1
    return tokens


class Attended(NamedTuple):
    """Outputs of the fused path, and outputs and attention weights of the path that returns weights."""

    fused: Float[Tensor, "length dim"]
    output: Float[Tensor, "length dim"]
    weights: Float[Tensor, "length length"]


@torch.no_grad()
def run_attention(
    tokens: Float[Tensor, "length dim"],
    w_q: Float[Tensor, "dim dim"],
    w_k: Float[Tensor, "dim dim"],
    w_v: Float[Tensor, "dim dim"],
    *,
    causal: bool,
) -> Attended:
    """The library's single-head attention without positions. nn.Linear computes x W^T, we write x W."""
    length, d_model = tokens.shape
    score, position = SCORES["scaled-dot"](d_model, d_model), POSITIONS["none"](d_model, 1, d_model)
    layer = MultiHead(d_model, 1, d_model, score, position=position).double()
    layer.query.weight.copy_(w_q.mT)
    layer.key_value.weight.copy_(torch.cat([w_k.mT, w_v.mT]))
    layer.output.weight.copy_(torch.eye(d_model))
    position_ids = torch.arange(length)[None]
    mask = causal_mask(position_ids, position_ids) if causal else None
    inputs = tokens[None], *layer.keys_values(tokens[None], position_ids), mask
    fused, _ = layer(*inputs, position_ids, position_ids)
    output, weights = layer(*inputs, position_ids, position_ids, need_weights=True)
    assert weights is not None
    return Attended(fused[0], output[0], weights[0, 0])


def random_query(d_model: int, generator: Generator) -> Float[Tensor, "dim dim"]:
    """A random W_Q, with entries of scale 1 to 1000."""
    normal = torch.randn(d_model, d_model, dtype=torch.float64, generator=generator)
    return normal * 1000 ** torch.rand((), dtype=torch.float64, generator=generator)


def closed_form(length: int, d_model: int) -> Float[Tensor, "length dim"]:
    """(1/t, 0, ..) for token t"""
    outputs = torch.zeros(length, d_model, dtype=torch.float64)
    outputs[:, 0] = 1 / torch.arange(1, length + 1, dtype=torch.float64)
    return outputs


def max_errors(length: int, d_model: int, trials: int, generator: Generator) -> Float[Tensor, "3"]:
    """Largest error of the first component, with weights and fused, and of the others, over random inputs."""
    largest = torch.zeros(3, dtype=torch.float64)
    for _ in range(trials):
        tokens, w_q = (
            sample_embeddings(length, d_model, generator),
            random_query(d_model, generator),
        )
        attended = run_attention(tokens, w_q, *keys_values(d_model), causal=True)
        outputs = torch.stack([attended.output, attended.fused])
        errors = (outputs - closed_form(length, d_model)).abs()
        parts = [*errors[:, :, 0].amax(1), errors[:, :, 1:].max()]
        largest = torch.maximum(largest, torch.stack(parts))
    return largest


def grade(answer: Callable[..., tuple[Tensor, Tensor]]) -> Iterator[Check]:
    """Accept any W_K and W_V with which causal attention returns (1/t, 0, ..)."""
    generator = torch.Generator().manual_seed(0)
    for d_model, length in ((2, 3), (5, 7), (11, 13)):
        weights = answer(d_model)
        tokens, w_q = (
            sample_embeddings(length, d_model, generator),
            random_query(d_model, generator),
        )
        output = run_attention(tokens, w_q, *weights, causal=True).output
        errors = (output - closed_form(length, d_model)).abs()
        t = int(errors[:, 0].argmax())
        case = f"d_model = {d_model}, {length} tokens, a random W_Q"
        yield Check(
            f"first component of the output of token {t + 1} ({case})",
            float(output[t, 0]),
            "=",
            1 / (t + 1),
            1e-6,
            hint="Token t should give equal weights to all tokens up to t, whatever its query is: so all "
            "keys must be equal, and only column 1 is the same for all tokens. The first component of a "
            "value must be 1 for the BOS token and 0 for the others, like column 2.",
        )
        yield Check(
            f"largest of the other components ({case})",
            float(errors[:, 1:].max()),
            "=",
            0,
            1e-6,
            hint="Only column 1 of W_V may be nonzero, or the other components are nonzero too.",
        )


class Nope(Lab):
    """Causal attention encodes the position: 1, 1/2, 1/3, .."""

    name = "nope"
    claim = "A causal mask alone lets attention encode the position of each token"
    derivation = """
Rows are tokens, and weights act from the right: Q = X W_Q, K = X W_K, V = X W_V. Let columns 1 and 2 of the
embedding be (1, 1) for the BOS token and (1, 0) for every other token, with anything in the other columns.
W_K has ones in row 1 and is 0 elsewhere: every key is (1, .., 1). W_V has a single one at (2, 1): the value
of the BOS token is (1, 0, ..), all other values are 0. Now, whatever W_Q is, token t gives the same score to
every token that it attends to. Under the causal mask these are t tokens, so

    alpha = 1/t for each        a_t = (1/t) (1, 0, ..) + 0 + .. + 0 = (1/t, 0, ..)

from which a later layer can decode t. Without the mask, each of the T tokens gets (1/T, 0, ..), which does
not depend on its position.
"""
    parameters = NopeParameters
    exercise = Exercise(
        starter='''
def keys_values(d_model):
    """Return (W_K, W_V) with which causal attention returns (1/t, 0, .., 0) for token t = 1, 2, ..

    Rows are tokens: K = X W_K, V = X W_V. In X, columns 1 and 2 are (1, 1) for the BOS token, which comes
    first, and (1, 0) for every other token; the other columns and W_Q are arbitrary.
    d_model: the number of columns, 2 or more. Return two tensors [d_model, d_model].
    """
    raise NotImplementedError
''',
        solution=keys_values,
        grade=grade,
    )

    def measure(self, params: NopeParameters, generator: Generator) -> Findings:
        length, d_model = params.length, params.d_model
        lengths = [*(n for n in LENGTHS if n < length), length]
        errors = torch.stack([max_errors(n, d_model, params.trials, generator) for n in lengths])
        tokens = sample_embeddings(length, d_model, generator)
        weights = random_query(d_model, generator), *keys_values(d_model)
        causal = run_attention(tokens, *weights, causal=True)
        unmasked = run_attention(tokens, *weights, causal=False).output[:, 0]
        expected = closed_form(length, d_model)[:, 0]
        with_weights, fused, others = errors.amax(0).tolist()
        return Findings(
            figures={
                "outputs": causal.output[:, 0].tolist(),
                "closed_form": expected.tolist(),
                "without_mask": unmasked.tolist(),
                "weights": causal.weights.tolist(),
                "lengths": lengths,
                "errors_by_length": errors[:, :2].amax(1).tolist(),
                "other_components_by_length": errors[:, 2].tolist(),
            },
            effect=[],
            law=[
                Check(
                    f"largest difference of the first component from 1/t, up to {length} tokens, {path}",
                    error,
                    "<=",
                    0,
                    ROUNDING,
                )
                for path, error in (("with weights", with_weights), ("fused", fused))
            ]
            + [
                Check("largest of all other components", others, "<=", 0, ROUNDING),
                Check(
                    "without the mask: largest difference from 1/t, which is 1 - 1/T at the first token",
                    float((unmasked - expected).abs().max()),
                    "=",
                    1 - 1 / length,
                    ROUNDING,
                ),
                Check(
                    "without the mask: largest minus smallest first component",
                    float(unmasked.max() - unmasked.min()),
                    "<=",
                    0,
                    ROUNDING,
                ),
            ],
            table=ResultTable(
                ["token", "first component", "1/t", "without the mask"],
                [
                    [t + 1, float(causal.output[t, 0]), float(expected[t]), float(unmasked[t])]
                    for t in range(min(6, length))
                ],
            ),
        )

    def draw(self, result: Result, figure: Figure, colours: Theme) -> None:
        data = result.figures
        left, right = add_subplots(figure, colours, columns=2)
        positions = range(1, len(data["outputs"]) + 1)
        left.plot(positions, data["closed_form"], label="$1/t$")
        left.plot(positions, data["outputs"], "o", ms=5, label="causal mask, measured")
        left.plot(positions, data["without_mask"], "s", ms=4, label="no mask, measured")
        left.set(
            xlabel="$t$, position of the token",
            ylabel="first component of its output",
            ylim=(0, 1.05),
        )
        left.xaxis.set_major_locator(MaxNLocator(integer=True))
        add_legend(left, colours)
        draw_heatmap(right, data["weights"], colours)
        right.set(
            xlabel="key position",
            ylabel="$t$, query position",
            title=r"attention weights: $1/t$ on every token up to $t$",
        )
