"""NoPE: a causal mask alone lets attention encode the position of each token."""

from collections.abc import Callable, Iterator
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Float
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from pydantic import Field
from torch import Generator, Tensor

from regard.attention import POSITIONS, SCORES, MultiHead, causal_mask
from regard.diagrams.themes import Theme
from regard.labs.lab import Check, Exercise, Findings, Lab, Parameters, Result, ResultTable, Value
from regard.labs.measurements.single_query import ROUNDING
from regard.labs.plotting import add_legend, add_subplots, draw_masked_weights

DECODABLE = 0.5  # a decoded position must round to the right integer
DENSE = 40  # tokens from which the plot has smaller dots and logarithmic axes
LENGTHS = (1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 233)


class NopeParameters(Parameters):
    length: int = Field(12, ge=2, le=256)
    """T, number of tokens; the first is the BOS token."""
    d_model: int = Field(8, ge=2, le=64)
    """d, embedding dimension; columns 1 and 2 matter."""
    trials: int = Field(10, ge=1, le=100)
    """Number of random W_Q, with random other columns, to test at each length."""
    causal: bool = True
    """Mask later tokens; without the mask, the output is 1/T at every position."""


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


def closed_form(length: int, d_model: int, causal: bool = True) -> Float[Tensor, "length dim"]:
    """(1/t, 0, ..) for token t, which attends to t tokens; (1/T, 0, ..) if it attends to all"""
    outputs = torch.zeros(length, d_model, dtype=torch.float64)
    attended = torch.arange(1, length + 1, dtype=torch.float64)
    outputs[:, 0] = 1 / (attended if causal else torch.full_like(attended, length))
    return outputs


def max_errors(length: int, params: NopeParameters, generator: Generator) -> Float[Tensor, "3"]:
    """Largest error of the first component, with weights and fused, and of the others, over random inputs."""
    d_model, causal = params.d_model, params.causal
    largest = torch.zeros(3, dtype=torch.float64)
    for _ in range(params.trials):
        tokens, w_q = (
            sample_embeddings(length, d_model, generator),
            random_query(d_model, generator),
        )
        attended = run_attention(tokens, w_q, *keys_values(d_model), causal=causal)
        outputs = torch.stack([attended.output, attended.fused])
        errors = (outputs - closed_form(length, d_model, causal)).abs()
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

from which a later layer can decode t, as 1 over the first component. Without the mask, each of the T tokens
gets (1/T, 0, ..), which does not depend on its position.
"""
    parameters = NopeParameters
    absent: ClassVar[dict[str, Value]] = {"causal": False}
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
        errors = torch.stack([max_errors(n, params, generator) for n in lengths])
        tokens = sample_embeddings(length, d_model, generator)
        weights = random_query(d_model, generator), *keys_values(d_model)
        attended = run_attention(tokens, *weights, causal=params.causal)
        outputs = attended.output[:, 0]
        unmasked = run_attention(tokens, *weights, causal=False).output[:, 0]
        expected = closed_form(length, d_model, params.causal)[:, 0]
        decoded = 1 / outputs
        return Findings(
            figures={
                "outputs": outputs.tolist(),
                "closed_form": expected.tolist(),
                "decoded": decoded.tolist(),
                "without_mask": unmasked.tolist(),
                "weights": attended.weights.tolist(),
                "lengths": lengths,
                "errors_by_length": errors[:, :2].amax(1).tolist(),
                "other_components_by_length": errors[:, 2].tolist(),
            },
            law=self._check_law(params, errors, unmasked),
            effect=[
                Check.worst(
                    "largest difference of the decoded position, 1 / the first component, from t",
                    (decoded - torch.arange(1, length + 1)).tolist(),
                    "=",
                    0,
                    DECODABLE,
                    hint="Two positions have (almost) the same output.",
                )
            ],
            table=ResultTable(
                ["token", "first component", "closed form", "decoded position", "without the mask"],
                [
                    [t + 1, *(float(x[t]) for x in (outputs, expected, decoded, unmasked))]
                    for t in range(min(6, length))
                ],
            ),
        )

    @staticmethod
    def _check_law(
        params: NopeParameters,
        errors: Float[Tensor, "lengths 3"],
        unmasked: Float[Tensor, " length"],
    ) -> list[Check]:
        """1/t with the mask, 1/T without it, and 0 in all other components."""
        form = "1/t" if params.causal else "1/T"
        first = (
            f"largest difference of the first component from {form}, up to {params.length} tokens"
        )
        names = f"{first}, with weights", f"{first}, fused", "largest of all other components"
        return [
            *(
                Check.worst(name, column.tolist(), "<=", 0, ROUNDING)
                for name, column in zip(names, errors.unbind(1), strict=True)
            ),
            Check.worst(
                "without the mask: largest difference from 1/T",
                (unmasked - 1 / params.length).tolist(),
                "=",
                0,
                ROUNDING,
            ),
        ]

    def draw(self, result: Result, figure: Figure, colours: Theme) -> None:
        data = result.figures
        left, right = add_subplots(figure, colours, columns=2)
        length, causal = len(data["outputs"]), result.parameters["causal"]
        positions = range(1, length + 1)
        name, form = ("causal mask", "$1/t$") if causal else ("no mask", "$1/T$")
        size = 5 if length <= DENSE else 2.5
        left.plot(positions, data["closed_form"], label=f"{form}, derived")
        left.plot(positions, data["outputs"], "o", ms=size, label=f"{name}, measured")
        if causal:
            left.plot(
                positions, data["without_mask"], "s", ms=0.8 * size, label="no mask, measured"
            )
        left.set(xlabel="$t$, position of the token", ylabel="first component of its output")
        # On a logarithmic axis 1/t is as readable at the last of 200 tokens as at the first.
        left.set(**{"yscale": "log", "xscale": "log"} if length > DENSE else {"ylim": (0, 1.05)})
        if length <= DENSE:
            left.xaxis.set_major_locator(MaxNLocator(integer=True))
        add_legend(left, colours)
        draw_masked_weights(right, data["weights"], colours, 1 / length)
        right.set(xlabel="key position", ylabel="$t$, query position")
        right.set_title(f"{form} on every token that $t$ attends to", size=10)
