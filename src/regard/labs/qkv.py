"""Queries, keys, values: a small self-attention worked by hand in integers."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from pydantic import Field
from torch import Generator, Tensor

from regard.attention import NORMALISERS, SCORES, MultiHead
from regard.diagrams.themes import Theme
from regard.labs.lab import Check, Exercise, Findings, Lab, Parameters, Result, ResultTable, Value
from regard.labs.measurements.qkv_by_hand import (
    STATES,
    W_K,
    W_Q,
    W_V,
    by_hand,
    softmax_jacobian,
    softmax_output,
)
from regard.labs.measurements.single_query import ROUNDING
from regard.labs.plotting import add_legend, add_subplots, draw_heatmap

TEMPERATURES = [10 ** (step / 8) for step in range(33)]  # 1 to 10 000


class QkvParameters(Parameters):
    query: int = Field(2, ge=1, le=3)
    """Index of the query, 1 to 3."""
    temperature: float = Field(1.0, ge=1, le=10_000)
    """Temperature: the scores are divided by it before the softmax."""


def argmax_jacobian(scores: Sequence[float], temperature: float) -> list[list[float]]:
    """The library's d alpha_i / d e_j: of argmax, by automatic differentiation, at the scores e / T"""
    divided = torch.tensor([scores], dtype=torch.float64) / temperature
    jacobian = torch.autograd.functional.jacobian(NORMALISERS["argmax"], divided)
    assert isinstance(jacobian, Tensor)
    return jacobian[0, :, 0].tolist()


def attention(
    states: Float[Tensor, "length dim"],
    w_q: Float[Tensor, "kq_dim dim"],
    w_k: Float[Tensor, "kq_dim dim"],
    w_v: Float[Tensor, "depth dim"],
) -> Float[Tensor, "length depth"]:
    """v_j for every query, where j is the key with the highest score: q = W_q h, k = W_k h, v = W_v h"""
    scores = (states @ w_q.T) @ (states @ w_k.T).T
    return (states @ w_v.T)[scores.argmax(1)]


def make_layer(normalise: str, temperature: float = 1) -> MultiHead:
    """The library's self-attention with these weights, which act on columns as in nn.Linear: W x."""
    layer = MultiHead(2, 1, 2, SCORES["dot"](2, 2), NORMALISERS[normalise]).double()
    with torch.no_grad():
        layer.query.weight.copy_(torch.tensor(W_Q, dtype=torch.float64) / temperature)
        layer.key_value.weight.copy_(torch.tensor([*W_K, *W_V]))
        layer.output.weight.copy_(torch.eye(2))
    return layer


@torch.no_grad()
def run_layer(layer: MultiHead) -> tuple[Tensor, Tensor, Tensor]:
    """(scores, weights, output) for all three queries"""
    states, position_ids = torch.tensor([STATES], dtype=torch.float64), torch.arange(3)[None]
    keys, values = layer.keys_values(states, position_ids)
    output, weights = layer(
        states, keys, values, None, position_ids, position_ids, need_weights=True
    )
    assert weights is not None
    return layer.score(layer.query(states), keys[:, 0])[0], weights[0, 0], output[0]


def grade(answer: Callable[..., Tensor]) -> Iterator[Check]:
    """Every output must be the value of the key with the highest score."""
    other_example = (
        ((1, 0, 2), (0, 1, -1), (3, 1, 0), (-1, 2, 1), (1, -2, 0)),
        ((1, 0, 1), (0, 1, 0)),
        ((0, 1, 1), (2, 0, 1)),
        ((1, 2, 0), (0, 1, 1), (3, 0, 1), (1, 1, 1), (0, 0, 2)),
    )
    for name, inputs in (
        ("states and weights of the lab", (STATES, W_Q, W_K, W_V)),
        ("five states of dimension 3", other_example),
    ):
        scores, values = by_hand(*inputs)
        outputs = answer(*(torch.tensor(part, dtype=torch.float64) for part in inputs))
        for i, row in enumerate(scores):
            j = row.index(max(row))
            yield Check(
                f"distance of output {i + 1} from v_{j + 1} ({name})",
                float((outputs[i] - torch.tensor(values[j])).norm()),
                "=",
                0,
                1e-6,
                hint=f"The scores of query {i + 1} are {row}: key {j + 1} has the highest, and its value "
                f"is {values[j]}. W acts on columns, q = W_q h; with states in rows, states @ w_q.T.",
            )


class Qkv(Lab):
    """Three states of dimension 2: every score and output can be computed by hand."""

    name = "qkv"
    claim = (
        "Worked by hand and by the library alike, the largest score takes all the weight: softmax equals "
        "argmax"
    )
    derivation = """
Three states h1 = (5, 1), h2 = (4, 3), h3 = (-2, 6), and weights that act on columns: q = W_q h, k = W_k h,
v = W_v h, with

    W_q = [[1, 0], [2, 9]]        W_k = [[0, 1], [6, 0]]        W_v = [[4, 3], [9, 1]]

The second query is (4, 2*4 + 9*3) = (4, 35). The keys are (1, 30), (3, 24) and (6, -12), so its scores are

    4*1 + 35*30 = 1054        4*3 + 35*24 = 852        4*6 - 35*12 = -396

Argmax selects the value of the first, (4*5 + 3*1, 9*5 + 1*1) = (23, 46). Softmax gives the second key e^-202
times the weight of the first: the same output, to 80 digits. Only at a temperature T of some hundred does it
become a mixture. (Scores divided by sqrt(d) = sqrt(2), as in scaled dot-product attention, are T = sqrt(2).)

Argmax is constant between ties, so its own gradient is 0. The library's argmax passes the gradient of softmax
instead (straight-through): with p = softmax(e),

    d alpha_i / d e_j = p_i (1 if i = j else 0) - p_i p_j        that is, J = diag(p) - p p^T
"""
    parameters = QkvParameters
    absent: ClassVar[dict[str, Value]] = {"temperature": 400}
    exercise = Exercise(
        starter='''
def attention(states, w_q, w_k, w_v):
    """Self-attention with argmax instead of softmax: a query selects the value of its highest-scoring key.

    states: a tensor [n, d], one row per state; w_q, w_k: tensors [c, d]; w_v: a tensor [e, d]. The weights
    act on columns: q = W_q h, k = W_k h, v = W_v h. Scores are unscaled dot products.
    Return a tensor [n, e]: the output for each query.
    """
    raise NotImplementedError
''',
        solution=attention,
        grade=grade,
    )

    def measure(self, params: QkvParameters, generator: Generator) -> Findings:
        i = params.query - 1
        scores, weights, outputs = run_layer(make_layer("argmax"))
        _, soft_weights, soft_outputs = run_layer(make_layer("softmax", params.temperature))
        hand, values = by_hand(STATES, W_Q, W_K, W_V)
        best = hand[i].index(max(hand[i]))
        path, argmax_path = (
            [run_layer(make_layer(name, t))[2][i].tolist() for t in TEMPERATURES]
            for name in ("softmax", "argmax")
        )
        expected_path = [softmax_output(hand[i], values, t) for t in TEMPERATURES]
        jacobian_gaps = [
            x - y
            for row in hand
            for t in TEMPERATURES
            for measured, derived in zip(
                argmax_jacobian(row, t), softmax_jacobian(row, t), strict=True
            )
            for x, y in zip(measured, derived, strict=True)
        ]
        jacobian = argmax_jacobian(hand[i], params.temperature)
        gradients = [jacobian[j][j] for j in range(len(STATES))]
        selected = f"v_{best + 1} = {tuple(values[best])}"
        return Findings(
            figures={
                "scores": scores[i].tolist(),
                "output": outputs[i].tolist(),
                "weights": weights[i].tolist(),
                "softmax_output": soft_outputs[i].tolist(),
                "softmax_weights": soft_weights[i].tolist(),
                "gradients": gradients,
                "all_scores": scores.tolist(),
                "all_weights": soft_weights.tolist(),
                "values": values,
                "temperatures": TEMPERATURES,
                "path": path,
                "expected_path": expected_path,
            },
            law=[
                Check.worst(
                    "largest difference of the nine scores from those computed by hand",
                    (scores - torch.tensor(hand)).flatten().tolist(),
                    "=",
                    0,
                ),
                Check.worst(
                    f"largest distance of the argmax output from {selected}, all temperatures",
                    (math.dist(output, values[best]) for output in argmax_path),
                    "=",
                    0,
                ),
                Check.worst(
                    "largest distance of the softmax output from that computed by hand, all temperatures",
                    map(math.dist, path, expected_path),
                    "<=",
                    0,
                    ROUNDING,
                ),
                Check.worst(
                    "largest difference of argmax's gradient from diag(p) - p p^T, all temperatures",
                    jacobian_gaps,
                    "=",
                    0,
                    ROUNDING,
                    hint="Argmax should pass the gradient of softmax (straight-through).",
                ),
            ],
            effect=[
                Check(
                    f"distance of the softmax output from {selected}",
                    math.dist(soft_outputs[i].tolist(), values[best]),
                    "<=",
                    0,
                    ROUNDING,
                    hint=f"The largest score takes only {float(soft_weights[i, best]):.2%} of the weight: "
                    "the output is a mixture.",
                )
            ],
            table=ResultTable(
                [
                    *("key", "score", "argmax", f"softmax, temperature {params.temperature:g}"),
                    *("gradient of argmax", "value"),
                ],
                [
                    [
                        f"k{j + 1}",
                        float(scores[i, j]),
                        float(weights[i, j]),
                        float(soft_weights[i, j]),
                        gradients[j],
                        f"({', '.join(f'{x:g}' for x in values[j])})",
                    ]
                    for j in range(len(STATES))
                ],
            ),
        )

    def draw(self, result: Result, figure: Figure, colours: Theme) -> None:
        data, i = result.figures, int(result.parameters["query"]) - 1
        left, right = add_subplots(figure, colours, columns=2)
        self._draw_scores(left, data, i, colours)
        path, expected = (list(zip(*data[name], strict=True)) for name in ("path", "expected_path"))
        right.plot(*expected, label="softmax by hand")
        right.plot(*path, "o", ms=4, label="softmax, temperature T")
        right.plot(*data["output"], "*", ms=16, label="argmax")
        for j, ((x, y), side) in enumerate(zip(data["values"], (-1, 1, -1), strict=True)):
            right.plot(x, y, "o", ms=9, mfc="none", mec=colours.dimmed)
            self._label(right, f"$v_{j + 1}$ = ({x:g}, {y:g})", (x, y), (0, -16 * side), colours)
        for step in (24, 32):
            label = f"T = {data['temperatures'][step]:.0f}"
            self._label(right, label, data["path"][step], (-30, 0), colours)
        right.set(
            xlabel="first component of the output",
            ylabel="second component",
            title=f"output of $q_{i + 1}$",
        )
        right.margins(0.25)
        add_legend(right, colours, loc="lower right")

    def _draw_scores(self, panel: Axes, data: dict[str, Any], row: int, colours: Theme) -> None:
        """The scores as numbers, on the colours of their softmax weights."""
        queries, keys = ([f"${letter}_{n}$" for n in (1, 2, 3)] for letter in "qk")
        draw_heatmap(panel, data["all_weights"], colours, queries, keys)
        brightest = max(weight for weights in data["all_weights"] for weight in weights)
        for i, scores in enumerate(data["all_scores"]):
            for j, score in enumerate(scores):
                is_bright = data["all_weights"][i][j] > 0.6 * brightest
                panel.text(
                    j + 1,
                    i + 1,
                    f"{score:.0f}".replace("-", "\N{MINUS SIGN}"),
                    ha="center",
                    va="center",
                    size=12,
                    color="black" if is_bright else "white",
                    weight="bold" if score == max(scores) else "normal",
                )
        frame = (0.51, row + 0.51), 2.98, 0.98
        panel.add_patch(Rectangle(*frame, fill=False, lw=3, edgecolor=colours.series[1]))
        panel.set(xlabel="keys", ylabel="queries", title="scores; brighter: more softmax weight")

    def _label(
        self,
        panel: Axes,
        text: str,
        xy: tuple[float, float],
        offset: tuple[float, float],
        colours: Theme,
    ) -> None:
        style = {"ha": "center", "va": "center", "color": colours.text, "size": 9}
        panel.annotate(text, xy, offset, textcoords="offset points", **style)
