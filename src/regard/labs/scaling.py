"""Scaling: time and memory of a layer against sequence length."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, ClassVar, Self

import torch
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, LogLocator
from pydantic import Field, model_validator
from torch import Generator, Tensor

from regard.attention import SCORES, MultiHead, attend
from regard.diagrams.themes import Theme
from regard.labs.lab import Check, Exercise, Findings, Lab, Parameters, Result, Value
from regard.labs.measurements.attention_costs import count_flops
from regard.labs.measurements.profiling import peak_memory, retain_freed_memory, thread_seconds
from regard.labs.measurements.scaling_summary import (
    FITS,
    derived_macs,
    fit_times,
    judge_law,
    summarise,
)
from regard.labs.plotting import add_legend, add_subplots
from regard.models.cells import CELLS, Cell
from regard.models.state_space import StateSpace

MAX_INTERVAL, EXTRA_ROUNDS = 0.35, 20  # repeat the timing while a confidence interval is wider


class ScalingParameters(Parameters):
    min_length: int = Field(768, ge=64, le=4096)
    """Shortest sequence, in tokens; for short ones, lower-order terms dominate."""
    max_length: int = Field(1792, ge=128, le=8192)
    """Longest sequence, in tokens; at least twice min_length."""
    lengths: int = Field(7, ge=4, le=20)
    """Number of lengths to measure."""
    d_model: int = Field(16, ge=2, le=128)
    """Model dimension; head_dim is 4 times that, the inner dimension of the state space 8 times."""
    repeats: int = Field(7, ge=1, le=100)
    """Timings per length; the minimum counts."""

    @model_validator(mode="after")
    def _check_lengths(self) -> Self:
        if self.max_length < 2 * self.min_length:
            raise ValueError(
                f"to measure growth, max_length must be at least twice min_length: {2 * self.min_length}, "
                f"not {self.max_length}"
            )
        return self

    @property
    def measured_lengths(self) -> list[int]:
        ratio = (self.max_length / self.min_length) ** (1 / (self.lengths - 1))
        return [round(self.min_length * ratio**i) for i in range(self.lengths)]


Layers = dict[str, Callable[[Tensor], Any]]


def make_layers(d_model: int) -> Layers:
    """The library's recurrent cell, attention with and without the fused kernel, and state space.

    The inner dimensions are large and d_model is small, so that the terms that grow with length dominate.
    """
    head_dim = 4 * d_model
    attention = MultiHead(d_model, 1, head_dim, SCORES["scaled-dot"](head_dim, head_dim))

    def attend_self(x: Tensor, need_weights: bool) -> Any:
        position_ids = torch.arange(x.shape[1])[None]
        keys_values = attention.keys_values(x, position_ids)
        return attention(x, *keys_values, None, position_ids, position_ids, need_weights)

    return {
        "RNN": Cell(CELLS["gru"], d_model, d_model),
        "naive attention": partial(attend_self, need_weights=True),
        "fused attention": partial(attend_self, need_weights=False),
        "state space": StateSpace(d_model, expand=8),
    }


def update_times(
    layers: Layers, inputs: list[Tensor], repeats: int, best: dict[str, list[float]]
) -> None:
    """Update the minimum times. Runs are interleaved, so that a slow phase affects all layers and lengths."""
    for _ in range(repeats):
        for i, x in enumerate(inputs):
            for name, layer in layers.items():
                seconds = thread_seconds(lambda layer=layer, x=x: layer(x))
                best[name][i] = min(best[name][i], seconds)


# --- the exercise ---------------------------------------------------------------------------------


def fold(
    running_max: float, denominator: float, numerator: Tensor, scores: Tensor, values: Tensor
) -> tuple[float, float, Tensor]:
    """(max, sum of e^(s - max), sum of e^(s - max) v) over all keys so far and the new block"""
    new_max = max(running_max, float(scores.max()))
    correction = float(torch.tensor(running_max - new_max, dtype=torch.float64).exp())
    weights = (scores - new_max).exp()
    new_denominator = denominator * correction + float(weights.sum())
    return new_max, new_denominator, numerator * correction + weights @ values


def grade(answer: Callable[..., tuple[float, float, Tensor]]) -> Iterator[Check]:
    """However the keys are split into blocks, the quotient must equal attention over all of them."""
    generator = torch.Generator().manual_seed(0)
    cases = (
        ((3, 4), 1.0, "two blocks"),
        ((5, 1, 2, 7), 3.0, "blocks of 5, 1, 2 and 7, increasing scores"),
        ((2, 3, 5), 900.0, "scores in the thousands"),
    )
    for sizes, scale, case in cases:
        scores = scale * torch.randn(sum(sizes), dtype=torch.float64, generator=generator)
        scores = scores.sort().values if "increasing" in case else scores
        values = torch.randn(sum(sizes), 3, dtype=torch.float64, generator=generator)
        expected = attend(scores[None], values)[0][0]
        first_scores, *score_blocks = scores.split(sizes)
        first_values, *value_blocks = values.split(sizes)
        weights = (first_scores - first_scores.max()).exp()
        state = (float(first_scores.max()), float(weights.sum()), weights @ first_values)
        for block_scores, block_values in zip(score_blocks, value_blocks, strict=True):
            state = answer(*state, block_scores.clone(), block_values.clone())
        yield Check(
            f"largest difference of numerator / denominator from attention over all keys ({case})",
            float((state[2] / state[1] - expected).abs().max()),
            "<=",
            0,
            1e-9,
            hint="The old sums use e^(s - old max). If the maximum changes, multiply them by "
            "e^(old max - new max) before adding e^(s - new max) and e^(s - new max) v of the new block. "
            "Without subtracting the maximum, e^s overflows.",
        )


class Scaling(Lab):
    """Exponents of time and memory in the sequence length."""

    name = "scaling"
    claim = (
        "The time of attention is quadratic in the length, its memory only if the weights are stored; "
        "an RNN and a state space are linear in both"
    )
    derivation = """
A sequence of L tokens of dimension d:

    RNN                one step after another, O(d^2) each            time L      memory L
    naive attention    all L^2 scores and weights, stored             time L^2    memory L^2
    fused attention    the same MACs, block by block: of each block
                       only the maximum score, the sum of the weights
                       and the weighted sum of the values are kept    time L^2    memory L
    state space        a scan over a state of constant size           time L      memory L

The law counts: MACs by formula, and what must be stored. With d_h = 4 d (one head) and i = 8 d channels of s
= 16 states, a convolution over 4 tokens, and rank r = ceil(d / 16), the layers of this lab take

    RNN                6 d^2 L                                    three gates, two matrices each
    naive attention    4 d d_h L + 2 d_h L^2                      projections; scores and weighted sums
    state space        (2 d i + (r + 2 s) i + r i + 4 i + s i + i d) L

MACs, and naive attention stores at least scores and weights: 2 x 4 L^2 bytes. (PyTorch does not count the
MACs of the fused CPU kernel.) The effect is what of this shows on the clock and in memory at these lengths:
if they are short, or d is large, the terms of order L dominate, and attention looks linear.

We fit a + c L^p, a straight line in log-log coordinates after subtracting a, and report p with its 95 %
confidence interval. Lower-order terms (projections, L d^2) bend the line slightly: hence the tolerance. Time
is CPU time of one thread, the minimum of several repeats, because other processes only add to it; a is the
time of a single token. Memory is the peak allocation of PyTorch, its kernels' buffers included, as reported
by its profiler: it is deterministic, and so exact that a, the buffers of constant size, can be fitted, too.

The fused kernel saves memory only if no L x L matrix is passed to it, such as a mask or a bias of that size.
As for time, the steps of an RNN are sequential; the matrix multiplications of attention are not, which is why
the quadratic cost may still be faster on parallel hardware.
"""
    parameters = ScalingParameters
    absent: ClassVar[dict[str, Value]] = {"d_model": 128, "min_length": 64, "max_length": 128}
    quick: ClassVar[dict[str, Value]] = {"lengths": 5, "repeats": 3}
    exercise = Exercise(
        starter='''
def fold(running_max, denominator, numerator, scores, values):
    """Return the state of online softmax attention for one query, after one more block of keys.

    The state of the keys so far: running_max, the maximum score; denominator, the sum of e^(s - running_max)
    over their scores s; numerator, a tensor [d], the sum of e^(s - running_max) v.
    scores: a tensor [n], those of the next n keys. values: a tensor [n, d].
    Return the new (running_max, denominator, numerator): numerator / denominator is attention over all keys
    so far.
    """
    raise NotImplementedError
''',
        solution=fold,
        grade=grade,
        background="""
softmax(s) v = sum_j e^(s_j) v_j / sum_j e^(s_j). Both sums can be accumulated block by block, so only the
sums need to be stored, however long the sequence. But e^s overflows for large s; subtracting the maximum from
all scores leaves the quotient unchanged. The maximum over all later blocks is not known in advance.
""",
    )

    def measure(self, params: ScalingParameters, generator: Generator) -> Findings:
        layers, lengths = make_layers(params.d_model), params.measured_lengths
        inputs = [torch.randn(1, n, params.d_model, generator=generator) for n in (1, *lengths)]
        times = {name: [float("inf")] * len(inputs) for name in layers}
        retain_freed_memory()
        with torch.inference_mode():
            update_times(
                layers, inputs, 1, {name: [0.0] * len(inputs) for name in layers}
            )  # warm-up
            for _ in range(1 + EXTRA_ROUNDS):
                update_times(layers, inputs, params.repeats, times)
                fits = [fit_times(lengths, seconds) for seconds in times.values()]
                if all(fit.interval <= MAX_INTERVAL for fit in fits):
                    break
            memory = {
                name: [peak_memory(partial(layer, x)) for x in inputs[1:]]
                for name, layer in layers.items()
            }
            flops = {
                name: [count_flops(partial(layers[name], x)) for x in inputs[1:]]
                for name in derived_macs(params.d_model, 1)
            }
        law = judge_law(params.d_model, lengths, flops, memory["naive attention"])
        return summarise(lengths, times, memory, law)

    def draw(self, result: Result, figure: Figure, colours: Theme) -> None:
        data = result.figures
        lengths = data["lengths"]
        panels = add_subplots(figure, colours, columns=2)
        for panel, quantity, unit in zip(panels, ("time", "memory"), ("s", "B"), strict=True):
            rows = zip(data["layers"], data[quantity], data[f"{quantity}_exponents"], strict=True)
            for i, (name, values, exponent) in enumerate(rows):
                fit, colour = FITS[quantity](lengths, values), colours.series[i]
                values = values[-len(lengths) :]  # without that of a single token
                interval = data[f"{quantity}_intervals"][i]
                label = f"{name}: $L^{{{exponent:.2f} \\pm {interval:.2f}}}$"
                panel.plot(lengths, [fit.predict(n) for n in lengths], color=colour, label=label)
                panel.plot(lengths, values, "o", ms=5, color=colour)
            panel.set(
                xscale="log",
                yscale="log",
                xlabel="$L$, sequence length (tokens)",
                ylabel={"time": "CPU time of one thread", "memory": "peak memory"}[quantity],
            )
            panel.minorticks_off()
            ticks = lengths[:: max(1, len(lengths) // 3)]
            panel.set_xticks(ticks, map(str, ticks))
            panel.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            panel.yaxis.set_major_formatter(EngFormatter(unit))
            add_legend(panel, colours, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2)
