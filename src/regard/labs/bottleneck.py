"""Bottleneck: a fixed-size encoder state forgets long sequences; attention looks each letter up."""

import random
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from jaxtyping import Bool, Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from pydantic import Field
from torch import Generator, Tensor

from regard.attention import SCORES, attend
from regard.config import Config
from regard.diagrams.themes import Theme
from regard.labs.lab import Check, Exercise, Findings, Lab, Result, Value
from regard.labs.measurements.bottleneck_metrics import (
    expected_accuracy,
    gradient_norms,
    hidden_states_change,
    path_difference,
)
from regard.labs.measurements.bottleneck_summary import (
    ATTENTION,
    BASELINE,
    POSITIONS,
    Measurement,
    summarise,
)
from regard.labs.measurements.case_task import (
    ACCURACIES,
    MIN_LENGTH,
    SINGLE_HEAD,
    CaseParameters,
    accuracy_by_length,
    make_config,
    sample_corpus,
    sample_pairs,
)
from regard.labs.measurements.training import init_model, train
from regard.labs.plotting import add_legend, add_subplots
from regard.text.batch import EncodedPairs

BINS = 5
STAGES = {"before": "untrained", "after": "trained"}
TEST_SIZE, PROBE_SIZE = 1000, 64  # sequences for accuracy, and for gradient norms


class BottleneckParameters(CaseParameters):
    cell: Literal["gru", "lstm", "rnn"] = "gru"
    """Recurrent cell of encoder and decoder; the discussion sheet uses rnn, which trains erratically."""
    seeds: int = Field(3, ge=1, le=20)
    """Training runs per model, each with its own seed."""


MODELS: dict[str, dict[str, Any]] = {
    BASELINE: {},
    ATTENTION: {"attention": SINGLE_HEAD},
    POSITIONS: {"attention": SINGLE_HEAD, "position": "sinusoidal"},
}


def make_model_config(name: str, params: BottleneckParameters, seed: int) -> Config:
    return make_config(params, seed, params.cell, **MODELS[name])


# --- the exercise ---------------------------------------------------------------------------------


def context(
    decoder_state: Float[Tensor, " dim"],
    encoder_states: Float[Tensor, "source dim"],
    mask: Bool[Tensor, " source"],
) -> Float[Tensor, " dim"]:
    """Sum_j alpha_j h_j with alpha = softmax over j of d . h_j, masked positions excluded"""
    scores = (encoder_states @ decoder_state).masked_fill(~mask, float("-inf"))
    return scores.softmax(0) @ encoder_states


def grade(answer: Callable[..., Tensor]) -> Iterator[Check]:
    """Compare with the library's dot-product attention, and check that padding has no effect."""
    generator = torch.Generator().manual_seed(0)
    for source, dim, padding, scale in ((5, 3, 0, 1.0), (7, 5, 2, 1.0), (11, 3, 4, 4000.0)):
        state = scale * torch.randn(dim, dtype=torch.float64, generator=generator)
        states = torch.randn(source, dim, dtype=torch.float64, generator=generator)
        mask = torch.arange(source) < source - padding
        case = f"{source} source positions, the last {padding} of them padding, dimension {dim}"
        scores = SCORES["dot"](dim, dim)(state[None], states)
        expected_context = attend(scores, states, mask[None])[0][0]
        output = answer(state.clone(), states.clone(), mask.clone())
        largest = f", scores up to {float(scores.abs().max()):.0f}"
        yield Check(
            f"largest difference from the attention context ({case}{largest})",
            float((output - expected_context).abs().max()),
            "<=",
            0,
            1e-9,
            hint="The weights are e^(d . h_j), divided by their sum over the unmasked positions; the "
            "context is the weighted sum of the encoder states. Large scores overflow e^x: softmax subtracts "
            "the maximum first.",
        )
        repadded = states.clone()
        repadded[~mask] = 1e3
        yield Check(
            f"change when the padding changes ({case})",
            float((answer(state.clone(), repadded, mask.clone()) - output).abs().max()),
            "<=",
            0,
            1e-9,
            hint="A masked position has weight 0: set its score to minus infinity before the softmax. A "
            "score of 0, or zeroing its weight after normalisation, is not enough.",
        )


class Bottleneck(Lab):
    """Accuracy against length: without attention, with it, and with positional encodings as well."""

    name = "bottleneck"
    claim = "Without attention the decoder forgets long sequences; with attention it looks each letter up"
    derivation = """
The case task: `<U> aBc` gives `ABC`, `<L> aBc` gives `abc`, letter by letter. Letters are drawn uniformly
from an alphabet of size a, so a letter that is not stored can only be guessed. Without attention, all that
the decoder gets is the encoder's last state, d numbers. If that state stores K letters, and a guess is right
with probability c <= 1 / a, then of n letters and the end-of-sequence token a fraction

    accuracy(n) = (K + (n + 1 - K) c) / (n + 1)            for n + 1 > K

is correct: it falls as sequences grow, and K and c are fitted to the measurement. With attention, each letter
is looked up at its source position, and the states need to encode only where that is. Whether a positional
encoding of the source helps is reported, but not checked. All models have the same hidden size, training
data and number of steps; the attention projections come on top.

Training must find this out through gradients. From output i to source position j of n, the path through the
recurrence and the start state has i + n - j steps. Each multiplies the gradient by the cell's Jacobian, which
at initialisation shrinks it: |g| ~ r^(i + n - j) with r < 1. Attention adds a path of a single step, times
alpha_ij, and the gradient is the sum of both. So before any training the first letter gets almost no gradient
without attention, and a fraction alpha_ij of it with attention.

The law is about any model, trained or not: how the gradient shrinks, and that it has no other path than
these two. The effect needs training: a model with K < 2 knows at most where a sequence ends, and counts as
not trained. A plain rnn without attention, whose gradient vanishes fastest, often ends there. The closed form
of accuracy idealises (a letter is stored wholly or not at all, and as many of a long sequence as of a short
one), so its residual is reported, not judged.
"""
    parameters = BottleneckParameters
    absent: ClassVar[dict[str, Value]] = {"train_size": 100, "epochs": 1.0}  # 4 steps: not trained
    quick: ClassVar[dict[str, Value]] = {
        "letters": 5,
        "max_length": 16,
        "train_size": 4000,
        "epochs": 4.0,
        "seeds": 1,
    }
    exercise = Exercise(
        starter='''
def context(decoder_state, encoder_states, mask):
    """Return the attention context for one decoder state: a weighted sum of the encoder states.

    decoder_state: a tensor [d]. encoder_states: a tensor [n, d], one row for each source position.
    mask: a boolean tensor [n], True for real positions and False for padding.
    The score of a position is the dot product of its state and the decoder state. Return a tensor [d].
    """
    raise NotImplementedError
''',
        solution=context,
        grade=grade,
        background="""
Attention normalises scores to positive weights that sum to one, alpha_j = e^(s_j) / sum_k e^(s_k), and
returns the weighted sum of the encoder states. The sequences of a batch have different lengths, and padding
must have no effect: a masked position has a score of minus infinity.
""",
    )

    def measure(self, params: BottleneckParameters, generator: Generator) -> Findings:
        first_seed = int(torch.randint(2**31, (), generator=generator))
        rng = random.Random(first_seed)
        data, longest = sample_corpus(params, TEST_SIZE, rng), params.max_length
        probes = sample_pairs(PROBE_SIZE, range(longest, longest + 1), params.letters, rng)
        edges = np.linspace(MIN_LENGTH, longest + 1, BINS + 1).round().astype(int).tolist()
        lengths = [(low + high - 1) / 2 for low, high in pairwise(edges)]
        measured = Measurement(params.letters, lengths)
        for seed in range(first_seed, first_seed + params.seeds):
            for name in MODELS:
                config = make_model_config(name, params, seed)
                model, tokenizers = train(config, data)
                measured.parameter_counts[name] = model.parameter_count
                for kind in ACCURACIES:
                    accuracies = accuracy_by_length(model, tokenizers, data["test"], edges, kind)
                    measured.accuracies[kind][name].append(accuracies)
                if seed > first_seed:
                    continue
                batch = EncodedPairs.from_pairs(probes, tokenizers).batch(range(PROBE_SIZE))
                stages = {"before": init_model(config, tokenizers), "after": model}
                for stage, probed in stages.items():
                    norms = gradient_norms(probed, batch, longest - 1)
                    measured.gradient_norms[f"{name}, {stage}"] = norms
                    difference = path_difference(probed, batch, longest - 1)
                    measured.path_differences.append(difference)
                    if name == BASELINE:
                        measured.start_state_only.append(hidden_states_change(probed, batch))
        return summarise(measured)

    def draw(self, result: Result, figure: Figure, colours: Theme) -> None:
        left, right = add_subplots(figure, colours, columns=2)
        draw_accuracies(left, result.figures, colours)
        draw_gradients(right, result.figures, colours)


def draw_accuracies(panel: Axes, data: dict[str, Any], colours: Theme) -> None:
    """Accuracy against length: the mean and each seed, free-running as dashes, and the closed form."""
    rows = zip(data["models"], data["accuracies"], data["free_running"], strict=True)
    for (name, runs, free_runs), colour in zip(rows, colours.series, strict=False):
        panel.plot(data["lengths"], np.mean(runs, axis=0), color=colour, label=name)
        panel.plot(data["lengths"], np.mean(free_runs, axis=0), "--", lw=1, color=colour)
        for run in runs:
            panel.plot(data["lengths"], run, "o", ms=4, color=colour)
    grid = np.linspace(data["lengths"][0], data["lengths"][-1], 100)
    curve = [expected_accuracy(data["capacity"], n, data["guess"]) for n in grid]
    label = f"fit: {data['capacity']:.1f} ± {data['capacity_error']:.1f} letters stored"
    panel.plot(grid, curve, ":", color=colours.text, label=label)
    panel.plot([], [], "o-", ms=4, color=colours.dimmed, label="teacher-forced")
    panel.plot([], [], "--", lw=1, color=colours.dimmed, label="free-running")
    panel.set(xlabel="sequence length (letters)", ylabel="token accuracy", ylim=(0, 1.03))
    add_legend(panel, colours, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2)


def draw_gradients(panel: Axes, data: dict[str, Any], colours: Theme) -> None:
    """Gradient norm against source position, before and after training."""
    line_colours = dict(zip(data["models"], colours.series, strict=False))
    for label, norms in zip(data["gradients"], data["gradient_norms"], strict=True):
        name, stage = label.rsplit(", ", 1)
        if name != POSITIONS:
            style = {"before": "-", "after": "--"}[stage]
            panel.plot(norms, style, color=line_colours[name], label=f"{name}, {STAGES[stage]}")
    panel.set(
        xlabel="source position (0 is <U> or <L>)",
        ylabel="gradient norm of the last letter's loss",
        yscale="log",
    )
    panel.xaxis.set_major_locator(MaxNLocator(integer=True))
    add_legend(panel, colours, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2)
