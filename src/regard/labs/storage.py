"""Storage: which part of a model holds what in the case task, and what training and inference change."""

import random
from collections.abc import Callable, Iterator
from typing import ClassVar

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pydantic import Field
from torch import Generator, Tensor

from regard.diagrams.themes import Theme
from regard.labs.lab import Check, Exercise, Findings, Lab, Result, Value
from regard.labs.measurements.case_task import (
    MIN_LENGTH,
    SINGLE_HEAD,
    CaseParameters,
    make_config,
    sample_corpus,
    sample_pairs,
)
from regard.labs.measurements.storage_metrics import measure_probes, probe
from regard.labs.measurements.storage_summary import measure_model, name_owner, summarise
from regard.labs.measurements.training import init_model, train
from regard.labs.plotting import add_legend, add_subplots

PROBE_SIZE = 400  # sentences for probes, of all lengths
EXCHANGE_SIZE = 200  # sentences that exchange states, of one length


class StorageParameters(CaseParameters):
    max_length: int = Field(16, ge=10, le=64)
    """Longest sequence, in letters; the shortest has 4."""
    hidden_dim: int = Field(32, ge=2, le=256)
    """Size of the hidden state of encoder and decoder."""
    epochs: float = Field(4.0, gt=0, le=100)
    """Passes over the training data."""


# --- the exercise ---------------------------------------------------------------------------------


def make_clusters(
    classes: int, dim: int, per_class: int, generator: Generator
) -> tuple[Tensor, Tensor]:
    """Clusters of different sizes around random centres, far from the origin."""
    centres = 5 + 2 * torch.randn(classes, dim, dtype=torch.float64, generator=generator)
    labels = torch.arange(classes).repeat_interleave(torch.arange(1, classes + 1) * per_class)
    noise = torch.randn(len(labels), dim, dtype=torch.float64, generator=generator)
    return centres[labels] + noise * torch.arange(1, dim + 1), labels


def grade(answer: Callable[..., Tensor]) -> Iterator[Check]:
    """The predicted classes must be those of least squares on one-hot labels, all of them."""
    generator = torch.Generator().manual_seed(0)
    for classes, dim, per_class in ((2, 3, 20), (5, 3, 11), (3, 7, 30)):
        states, labels = make_clusters(classes, dim, per_class, generator)
        order = torch.randperm(len(labels), generator=generator)
        half = order[: len(order) // 2], order[len(order) // 2 :]
        train, test = (states[half[0]], labels[half[0]]), states[half[1]]
        output = answer(*(x.clone() for x in (*train, test)))
        yield Check(
            f"predictions that differ from the least-squares probe's ({classes} classes, dimension {dim}, "
            f"{len(test)} states)",
            int((output != probe(*train, test)).sum())
            if output.shape == half[1].shape
            else len(test),
            "=",
            0,
            hint="Minimise |W h + b - one_hot(label)|^2 over the training states (append a 1 to each state "
            "for b), and predict the class with the largest output. A regression on the class number, or the "
            "nearest class mean, is another probe.",
        )


class Storage(Lab):
    """Exchange the decoder's start state and the encoder states between sentences, and probe them."""

    name = "storage"
    claim = (
        "With attention the letters of the output come from the encoder states, not from the start state; "
        "inference changes no weight"
    )
    derivation = """
A GRU with attention learns the case task (`<U> aBc` gives `ABC`). From the source, its decoder gets two
things: the start state d_0 = ReLU(W h_n + b), and the encoder states h_1 .. h_n, which attention reads. So

    output(start state of x, encoder states of x) = output(x)

and where each part comes from another sentence, the output shows which part it uses for what:

    start state of y                 if the letters stay those of x, no letter is read from the start state
    encoder states of y              if the letters become those of y, they are read from there
    y asks for the other case        the case of the output shows where the case is read from
    start state 0                    what is lost depends on the start state

That a state *holds* something is another question than whether it is *used*. A linear probe, the
least-squares fit of W h + b to one-hot labels on half of the sentences, tells on the other half whether
position, letter and case can be read off a state. We compare with shuffled labels, and with the same model
before training: a recurrent state always holds its last input, trained or not.

Training: the target is used twice. Shifted by one it is the decoder's input (teacher forcing), and unshifted
it is the label of each output. The gradient of output i's loss reaches the inputs up to i, and every weight.
Inference: the output is the next input, so that a teacher-forced pass over an output gives the same
probabilities as the search that found it. A letter of the source that changes leaves the encoder states
before it as they are (this encoder reads forward), and changes those after it, the start state, the decoder
states, the context and the output. No weight changes.
"""
    parameters = StorageParameters
    absent: ClassVar[dict[str, Value]] = {"train_size": 100, "epochs": 1.0}  # 4 steps: not trained
    quick: ClassVar[dict[str, Value]] = {"letters": 4, "max_length": 10, "train_size": 3000}
    exercise = Exercise(
        starter='''
def probe(train_states, train_labels, states):
    """Return the class that a linear probe predicts for each state.

    train_states: a tensor [n, d], float64. train_labels: an integer tensor [n], classes 0 .. c - 1.
    states: a tensor [m, d]. Fit W and b by least squares, so that W h + b is near the one-hot vector of the
    label for the training states h. Return an integer tensor [m]: the class with the largest W h + b.
    """
    raise NotImplementedError
''',
        solution=probe,
        grade=grade,
        background="""
A probe asks whether something can be read off a state. It is kept linear so that it reads what the state
shows, instead of computing it; and it is tested on states that it was not fitted to. Least squares has a
closed form: for a matrix A of training states with a column of ones, and one-hot labels Y, the weights are
pinv(A) Y.
""",
    )

    def measure(self, params: StorageParameters, generator: Generator) -> Findings:
        seed = int(torch.randint(2**31, (), generator=generator))
        rng = random.Random(seed)
        data = sample_corpus(params, PROBE_SIZE, rng)
        length = (MIN_LENGTH + params.max_length) // 2
        exchange = sample_pairs(EXCHANGE_SIZE, range(length, length + 1), params.letters, rng)
        config = make_config(params, seed, attention=SINGLE_HEAD)
        model, tokenizers = train(config, data)
        untrained = init_model(config, tokenizers)
        return summarise(
            measure_model(model, tokenizers, exchange, data["test"], generator),
            measure_probes(untrained, tokenizers, data["test"], generator),
        )

    def draw(self, result: Result, figure: Figure, colours: Theme) -> None:
        left, right = add_subplots(figure, colours, columns=2)
        data = result.figures
        rows = [
            f"start: {name_owner(start)}\nstates: {name_owner(states)}"
            for start, states in data["exchanges"]
        ]
        series = {
            "own letters": [row[0] for row in data["shares"]],
            "the other's letters": [row[1] for row in data["shares"]],
            "own case": [row[2] for row in data["shares"]],
        }
        draw_bars(left, rows, series, colours)
        left.set(xlabel="share of the letters of the output")
        series = {
            "trained": data["probes"],
            "before training": data["probes_untrained"],
            "shuffled labels": data["probes_shuffled"],
        }
        draw_bars(right, [name.replace(": ", ":\n") for name in data["probed"]], series, colours)
        right.set(xlabel="accuracy of a linear probe")


def draw_bars(panel: Axes, rows: list[str], series: dict[str, list[float]], colours: Theme) -> None:
    """Horizontal bars in groups, one group for each row, the first on top."""
    height = 0.8 / len(series)
    for i, (name, values) in enumerate(series.items()):
        centres = [row + (i - (len(series) - 1) / 2) * height for row in range(len(rows))]
        panel.barh(centres, values, height * 0.9, color=colours.series[i], label=name)
    panel.set_yticks(range(len(rows)), rows, fontsize=8)
    panel.invert_yaxis()
    panel.set_xlim(0, 1.03)
    panel.grid(visible=False, axis="y")
    panel.grid(axis="x", color=colours.dimmed, alpha=0.25, linewidth=0.6)
    add_legend(panel, colours, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=3)
