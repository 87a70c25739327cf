"""Queries, keys, values: one small self-attention, worked by hand in whole numbers."""

import math
from collections.abc import Callable, Iterator, Sequence

import torch
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from pydantic import Field
from torch import Generator, Tensor

from regard.attention import NORMALISERS, SCORES, MultiHead
from regard.diagrams.themes import Theme
from regard.labs.lab import Check, Exercise, Findings, Lab, Parameters, Result, ResultTable
from regard.labs.plotting import add_legend, add_subplots, draw_heatmap
from regard.labs.single_query import ROUNDING

Matrix = Sequence[Sequence[float]]

STATES = ((5, 1), (4, 3), (-2, 6))
W_Q = ((1, 0), (2, 9))
W_K = ((0, 1), (6, 0))
W_V = ((4, 3), (9, 1))
TEMPERATURES = [10 ** (step / 8) for step in range(33)]  # 1 to 10 000


class QkvParameters(Parameters):
    query: int = Field(2, ge=1, le=3)
    """Which of the three states asks."""
    temperature: float = Field(1.0, ge=1, le=10_000)
    """What the scores are divided by before the softmax."""


def by_hand(
    states: Matrix, w_q: Matrix, w_k: Matrix, w_v: Matrix
) -> tuple[list[list[float]], list[list[float]]]:
    """All scores q_i . k_j, and the values, in plain Python. (scores, values)"""
    made = [[[dot(row, state) for row in w] for state in states] for w in (w_q, w_k, w_v)]
    queries, keys, values = made
    return [[dot(query, key) for key in keys] for query in queries], values


def dot(x: Sequence[float], y: Sequence[float]) -> float:
    return sum(a * b for a, b in zip(x, y, strict=True))


def softened(scores: Sequence[float], values: Matrix, temperature: float) -> list[float]:
    """The output by softmax, in plain Python."""
    odds = [math.exp((score - max(scores)) / temperature) for score in scores]
    return [dot(odds, column) / sum(odds) for column in zip(*values, strict=True)]


def attention(
    states: Float[Tensor, "length width"],
    w_q: Float[Tensor, "inner width"],
    w_k: Float[Tensor, "inner width"],
    w_v: Float[Tensor, "depth width"],
) -> Float[Tensor, "length depth"]:
    """v_j for every query, j its best key: q = W_q h, k = W_k h, v = W_v h"""
    scores = (states @ w_q.T) @ (states @ w_k.T).T
    return (states @ w_v.T)[scores.argmax(1)]


def layer(normalise: str, temperature: float = 1) -> MultiHead:
    """The library's self-attention with these weights. Its maps are W x, as here: on columns."""
    made = MultiHead(2, 1, 2, SCORES["dot"](2, 2), NORMALISERS[normalise]).double()
    with torch.no_grad():
        made.query.weight.copy_(torch.tensor(W_Q, dtype=torch.float64) / temperature)
        made.key_value.weight.copy_(torch.tensor([*W_K, *W_V]))
        made.output.weight.copy_(torch.eye(2))
    return made


@torch.no_grad()
def run(attending: MultiHead) -> tuple[Tensor, Tensor, Tensor]:
    """(scores, weights, output) of all three queries"""
    states, at = torch.tensor([STATES], dtype=torch.float64), torch.arange(3)[None]
    keys, values = attending.keys_values(states, at)
    output, weights = attending(states, keys, values, None, at, at, explain=True)
    assert weights is not None
    return attending.score(attending.query(states), keys[:, 0])[0], weights[0, 0], output[0]


def grade(answer: Callable[..., Tensor]) -> Iterator[Check]:
    """Every output must be the value of the key with the highest score."""
    others = (
        ((1, 0, 2), (0, 1, -1), (3, 1, 0), (-1, 2, 1), (1, -2, 0)),
        ((1, 0, 1), (0, 1, 0)),
        ((0, 1, 1), (2, 0, 1)),
        ((1, 2, 0), (0, 1, 1), (3, 0, 1), (1, 1, 1), (0, 0, 2)),
    )
    for name, given in (
        ("the lab's own states and weights", (STATES, W_Q, W_K, W_V)),
        ("five states of width 3", others),
    ):
        scores, values = by_hand(*given)
        outputs = answer(*(torch.tensor(part, dtype=torch.float64) for part in given))
        for i, row in enumerate(scores):
            j = row.index(max(row))
            yield Check(
                f"distance of output {i + 1} from v_{j + 1} ({name})",
                float((outputs[i] - torch.tensor(values[j])).norm()),
                "=",
                0,
                1e-6,
                hint=f"The scores of query {i + 1} are {row}: the highest is that of key {j + 1}, whose "
                f"value is {values[j]}. W acts on columns, q = W_q h; with states in rows, states @ w_q.T.",
            )


class Qkv(Lab):
    """Three states of two numbers each: every score and every output can be worked by hand."""

    name = "qkv"
    claim = (
        "Queries, keys and values worked by hand are what the library computes, to the last digit"
    )
    derivation = """
Three states h1 = (5, 1), h2 = (4, 3), h3 = (-2, 6), and weights that act on columns: q = W_q h, k = W_k h,
v = W_v h, with

    W_q = [[1, 0], [2, 9]]        W_k = [[0, 1], [6, 0]]        W_v = [[4, 3], [9, 1]]

The second query is (4, 2*4 + 9*3) = (4, 35). The keys are (1, 30), (3, 24) and (6, -12), so its scores are

    4*1 + 35*30 = 1054        4*3 + 35*24 = 852        4*6 - 35*12 = -396

Argmax takes the value of the first, (4*5 + 3*1, 9*5 + 1*1) = (23, 46). Softmax gives the second key e^-202
times the first one's weight: the same output, to 80 digits. Only when the scores are divided by some
hundred does it become a mixture.
"""
    parameters = QkvParameters
    exercise = Exercise(
        starter='''
def attention(states, w_q, w_k, w_v):
    """Self-attention in which every query takes the value of its best key (argmax in place of softmax).

    states: a tensor [n, d], a row a state; w_q, w_k: tensors [c, d]; w_v: a tensor [e, d]. The weights act
    on columns: q = W_q h, k = W_k h, v = W_v h. Scores are plain dot products.
    Return a tensor [n, e]: the output of each query.
    """
    raise NotImplementedError
''',
        solution=attention,
        grade=grade,
    )

    def measure(self, params: QkvParameters, generator: Generator) -> Findings:
        i = params.query - 1
        scores, weights, outputs = run(layer("argmax"))
        _, soft_weights, soft_outputs = run(layer("softmax", params.temperature))
        hand, values = by_hand(STATES, W_Q, W_K, W_V)
        best = hand[i].index(max(hand[i]))
        path = [run(layer("softmax", temperature))[2][i].tolist() for temperature in TEMPERATURES]
        path_laws = [softened(hand[i], values, temperature) for temperature in TEMPERATURES]
        return Findings(
            figures={
                "scores": scores[i].tolist(),
                "output": outputs[i].tolist(),
                "weights": weights[i].tolist(),
                "softmax_output": soft_outputs[i].tolist(),
                "softmax_weights": soft_weights[i].tolist(),
                "all_scores": scores.tolist(),
                "values": values,
                "temperatures": TEMPERATURES,
                "path": path,
                "path_laws": path_laws,
            },
            checks=[
                Check(
                    "largest difference of the nine scores from those by hand",
                    float((scores - torch.tensor(hand)).abs().max()),
                    "=",
                    0,
                ),
                Check(
                    f"distance of the output by argmax from v_{best + 1} = {tuple(values[best])}",
                    math.dist(outputs[i].tolist(), values[best]),
                    "=",
                    0,
                ),
                Check(
                    "largest distance of the output by softmax from that by hand, for all temperatures",
                    max(map(math.dist, path, path_laws)),
                    "<=",
                    0,
                    ROUNDING,
                ),
            ],
            table=ResultTable(
                ["key", "score", "argmax", f"softmax at {params.temperature:g}", "value"],
                [
                    [
                        f"k{j + 1}",
                        float(scores[i, j]),
                        float(weights[i, j]),
                        float(soft_weights[i, j]),
                        f"({', '.join(f'{x:g}' for x in values[j])})",
                    ]
                    for j in range(len(STATES))
                ],
            ),
        )

    def draw(self, result: Result, figure: Figure, colours: Theme) -> None:
        found, i = result.figures, int(result.parameters["query"]) - 1
        left, right = add_subplots(figure, colours, columns=2)
        draw_heatmap(
            left,
            found["all_scores"],
            colours,
            ["$q_1$", "$q_2$", "$q_3$"],
            ["$k_1$", "$k_2$", "$k_3$"],
            "{:.0f}",
        )
        frame = Rectangle((0.51, i + 0.51), 2.98, 0.98, fill=False, lw=3, edgecolor=colours.accent)
        left.add_patch(frame)
        left.set(xlabel="keys", ylabel="queries", title="scores")
        path, laws = (list(zip(*found[name], strict=True)) for name in ("path", "path_laws"))
        right.plot(*laws, label="softmax by hand")
        right.plot(*path, "o", ms=4, label="softmax, scores divided")
        right.plot(*found["output"], "*", ms=16, label="argmax")
        for j, ((x, y), below) in enumerate(zip(found["values"], (-1, 1, -1), strict=True)):
            right.plot(x, y, "o", ms=9, mfc="none", mec=colours.dimmed)
            self._label(right, f"$v_{j + 1}$ = ({x:g}, {y:g})", (x, y), (0, -16 * below), colours)
        for place in (24, 32):
            divided = f"÷ {found['temperatures'][place]:.0f}"
            self._label(right, divided, found["path"][place], (-24, 0), colours)
        right.set(
            xlabel="first number of the output",
            ylabel="second number",
            title=f"output of $q_{i + 1}$",
        )
        right.margins(0.25)
        add_legend(right, colours, loc="lower right")

    def _label(
        self,
        panel: Axes,
        text: str,
        at: tuple[float, float],
        shift: tuple[float, float],
        colours: Theme,
    ) -> None:
        style = {"ha": "center", "va": "center", "color": colours.text, "size": 9}
        panel.annotate(text, at, shift, textcoords="offset points", **style)
