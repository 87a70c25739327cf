"""Scaling: what time and memory a layer takes as texts grow."""

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
from regard.labs.lab import Check, Exercise, Findings, Lab, Parameters, Result, ResultTable, Value
from regard.labs.plotting import add_legend, add_subplots
from regard.labs.profiling import PowerLaw, peak_memory, retain_freed_memory, thread_seconds
from regard.models.cells import CELLS, Cell
from regard.models.state_space import StateSpace

# Exponents of length that each layer should have: (time, memory)
LAWS = {
    "RNN": (1, 1),
    "naive attention": (2, 2),
    "fused attention": (2, 1),
    "state space": (1, 1),
}
ROOM = {"time": 0.35, "memory": 0.1}
SURE, MORE_ROUNDS = 0.35, 4  # an interval to be content with, and how often to try again


class ScalingParameters(Parameters):
    shortest: int = Field(768, ge=64, le=4096)
    """The shortest text, in tokens; in short ones you see what does not grow, or not as fast, ..."""
    longest: int = Field(1792, ge=128, le=8192)
    """... and the longest."""
    lengths: int = Field(7, ge=4, le=20)
    """How many lengths to measure."""
    width: int = Field(16, ge=2, le=128)
    """How wide a token is; the one head of attention is 4 times as wide, the state space 8 times."""
    rounds: int = Field(7, ge=1, le=100)
    """How often the clock runs for each length; the least time counts."""

    @model_validator(mode="after")
    def _grows(self) -> Self:
        if self.longest < 2 * self.shortest:
            raise ValueError(
                f"to see growth, longest must be twice shortest or more: {2 * self.shortest}, not "
                f"{self.longest}"
            )
        return self

    @property
    def measured(self) -> list[int]:
        grows = (self.longest / self.shortest) ** (1 / (self.lengths - 1))
        return [round(self.shortest * grows**i) for i in range(self.lengths)]


Layers = dict[str, Callable[[Tensor], Any]]


def layers(width: int) -> Layers:
    """The library's own: a recurrent cell, one attention computed in two ways, a state space.

    Wide inside and narrow outside, so that what grows with the text is most of the work, however short.
    """
    inner = 4 * width
    attention = MultiHead(width, 1, inner, SCORES["scaled-dot"](inner, inner))

    def look(x: Tensor, explain: bool) -> Any:
        at = torch.arange(x.shape[1])[None]
        return attention(x, *attention.keys_values(x, at), None, at, at, explain)

    return {
        "RNN": Cell(CELLS["gru"], width, width),
        "naive attention": partial(look, explain=True),
        "fused attention": partial(look, explain=False),
        "state space": StateSpace(width, expand=8),
    }


def clock(made: Layers, texts: list[Tensor], rounds: int, best: dict[str, list[float]]) -> None:
    """Lower the least times: every layer and length in turn, so that a slow moment spoils none."""
    for _ in range(rounds):
        for place, x in enumerate(texts):
            for name, layer in made.items():
                spent = thread_seconds(lambda layer=layer, x=x: layer(x))
                best[name][place] = min(best[name][place], spent)


# --- the exercise ---------------------------------------------------------------------------------


def fold(
    largest: float, total: float, gathered: Tensor, scores: Tensor, values: Tensor
) -> tuple[float, float, Tensor]:
    """(max, sum of e^(s - max), sum of e^(s - max) v) of what was read before and these"""
    new = max(largest, float(scores.max()))
    shrink = float(torch.tensor(largest - new, dtype=torch.float64).exp())
    weights = (scores - new).exp()
    return new, total * shrink + float(weights.sum()), gathered * shrink + weights @ values


def grade(answer: Callable[..., tuple[float, float, Tensor]]) -> Iterator[Check]:
    """However the keys are cut, gathered / total is what attention gives over all of them."""
    generator = torch.Generator().manual_seed(0)
    cases = (
        ((3, 4), 1.0, "two blocks"),
        ((5, 1, 2, 7), 3.0, "blocks of 5, 1, 2 and 7, scores rising"),
        ((2, 3, 5), 900.0, "scores in the thousands"),
    )
    for sizes, scale, given in cases:
        scores = scale * torch.randn(sum(sizes), dtype=torch.float64, generator=generator)
        scores = scores.sort().values if "rising" in given else scores
        values = torch.randn(sum(sizes), 3, dtype=torch.float64, generator=generator)
        right = attend(scores[None], values)[0][0]
        (first, *blocks), (seen, *more) = scores.split(sizes), values.split(sizes)
        weights = (first - first.max()).exp()
        state = (float(first.max()), float(weights.sum()), weights @ seen)
        for some, theirs in zip(blocks, more, strict=True):
            state = answer(*state, some.clone(), theirs.clone())
        yield Check(
            f"largest difference of gathered / total from attention over all keys ({given})",
            float((state[2] / state[1] - right).abs().max()),
            "<=",
            0,
            1e-9,
            hint="Old sums were taken with e^(s - old largest). If the largest changes, multiply them by "
            "e^(old - new) before adding e^(s - new) and e^(s - new) v of the new block. Without taking the "
            "largest off, e^s overflows.",
        )


class Scaling(Lab):
    """Exponents of length, of time and of memory."""

    name = "scaling"
    claim = (
        "Attention's time grows as the square of the length, its memory only if the weights are kept; "
        "an RNN's and a state space's grow in proportion"
    )
    derivation = """
A text of L tokens of width d:

    RNN                one step after another, O(d^2) each            time L      memory L
    naive attention    all L^2 scores and weights, kept               time L^2    memory L^2
    fused attention    the same products, block by block: of a block
                       only the largest score, the sum of the weights
                       and the weighted sum of the values stay        time L^2    memory L
    state space        a scan over a state of constant size           time L      memory L

We fit a + c L^p, a line through the logarithms once a is taken off, and give p with its 95 % interval.
Smaller terms (projections, L d^2) bend the line a little: hence the room. Time is what one thread works,
the least of several turns: whatever else a machine does only adds to it; a is what a single token takes.
Memory is the most that PyTorch holds at once, its kernels' own buffers included, as its profiler tells: the
same on every run, and so exact that a, buffers that do not grow, can be fitted, too.

The fused kernel saves memory only while no L x L matrix is made for it: a mask or a bias of that size is
one. In time, an RNN's steps must wait for each other; attention's products need not, which is why on
parallel hardware the square may still be quicker.
"""
    parameters = ScalingParameters
    quick: ClassVar[dict[str, Value]] = {"lengths": 5, "rounds": 3}
    exercise = Exercise(
        starter='''
def fold(largest, total, gathered, scores, values):
    """Attention of one query, after one more block of keys.

    Of the keys read so far is left: largest, the largest score; total, the sum of e^(s - largest) over their
    scores s; gathered, a tensor [d], the sum of e^(s - largest) v over their scores and values.
    scores: a tensor [n], those of the next n keys. values: a tensor [n, d].
    Return the new (largest, total, gathered): gathered / total is then attention over all keys so far.
    """
    raise NotImplementedError
''',
        solution=fold,
        grade=grade,
        background="""
softmax(s) v = sum_j e^(s_j) v_j / sum_j e^(s_j). Both sums can be taken key by key, and then no more than the
sums need be kept, however long the text. But e^s overflows for large s; taking the largest score off all
of them changes nothing in the quotient. The largest of those still to come is not known in advance.
""",
    )

    def measure(self, params: ScalingParameters, generator: Generator) -> Findings:
        made, sizes = layers(params.width), params.measured
        texts = [torch.randn(1, size, params.width, generator=generator) for size in (1, *sizes)]
        times = {name: [float("inf")] * len(texts) for name in made}
        retain_freed_memory()
        with torch.inference_mode():
            clock(made, texts, 1, {name: [0.0] * len(texts) for name in made})  # warms up
            for _ in range(1 + MORE_ROUNDS):
                clock(made, texts, params.rounds, times)
                if all(timed(sizes, spent).interval <= SURE for spent in times.values()):
                    break
            memory = {
                name: [peak_memory(partial(layer, x)) for x in texts[1:]]
                for name, layer in made.items()
            }
        return found(sizes, times, memory)

    def draw(self, result: Result, figure: Figure, colours: Theme) -> None:
        found = result.figures
        sizes = found["lengths"]
        panels = add_subplots(figure, colours, columns=2)
        for panel, what, unit in zip(panels, ("time", "memory"), ("s", "B"), strict=True):
            rows = zip(found["layers"], found[what], found[f"{what}_exponents"], strict=True)
            for i, (name, values, exponent) in enumerate(rows):
                fit, tint = FITS[what](sizes, values), colours.series[i]
                values = values[-len(sizes) :]  # not the one token's
                room = found[f"{what}_intervals"][i]
                label = f"{name}: $L^{{{exponent:.2f} \\pm {room:.2f}}}$"
                panel.plot(sizes, [fit.predict(size) for size in sizes], color=tint, label=label)
                panel.plot(sizes, values, "o", ms=5, color=tint)
            panel.set(
                xscale="log",
                yscale="log",
                xlabel="$L$, length of the text (tokens)",
                ylabel={"time": "time of one thread", "memory": "most memory at once"}[what],
            )
            panel.minorticks_off()
            shown = sizes[:: max(1, len(sizes) // 3)]
            panel.set_xticks(shown, map(str, shown))
            panel.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            panel.yaxis.set_major_formatter(EngFormatter(unit))
            add_legend(panel, colours, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2)


def timed(sizes: list[int], spent: list[float]) -> PowerLaw:
    """How time grows beside what a call takes for a single token, which is the first of `spent`."""
    return PowerLaw.fit(sizes, spent[1:], offset=spent[0])


FITS = {"time": timed, "memory": PowerLaw.fit_with_offset}


def found(
    sizes: list[int], times: dict[str, list[float]], memory: dict[str, list[int]]
) -> Findings:
    """The fits, and what their exponents must be."""
    measured = {"time": times, "memory": memory}
    fits = {
        what: [fit(sizes, values) for values in measured[what].values()]
        for what, fit in FITS.items()
    }
    checks = [
        Check(f"{what}, {name}: exponent of length", fit.exponent, "=", law[i], ROOM[what])
        for i, what in enumerate(fits)
        for (name, law), fit in zip(LAWS.items(), fits[what], strict=True)
    ]
    longest = f"at {sizes[-1]} tokens"
    return Findings(
        figures={
            "layers": list(LAWS),
            "lengths": sizes,
            "time": list(times.values()),
            "memory": list(memory.values()),
            **{f"{what}_exponents": [fit.exponent for fit in made] for what, made in fits.items()},
            **{f"{what}_intervals": [fit.interval for fit in made] for what, made in fits.items()},
        },
        checks=checks,
        table=ResultTable(
            ["layer", "time ~", f"ms {longest}", "memory ~", f"MiB {longest}"],
            [
                [name, told(clocked), times[name][-1] * 1e3, told(held), memory[name][-1] / 2**20]
                for name, clocked, held in zip(LAWS, *fits.values(), strict=True)
            ],
        ),
    )


def told(fit: PowerLaw) -> str:
    """The exponent with its interval."""
    return f"L^{fit.exponent:.2f} ± {fit.interval:.2f}"
