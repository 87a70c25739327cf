"""Bottleneck: a fixed-size encoder state forgets long sequences; attention looks each letter up."""

import random
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from jaxtyping import Bool, Float
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from pydantic import Field
from torch import Generator, Tensor

from regard.attention import SCORES, attend
from regard.config import Config
from regard.diagrams.themes import Theme
from regard.labs.bottleneck_metrics import (
    accuracy_by_length,
    expected_accuracy,
    fit_capacity,
    gradient_norms,
    sample_pairs,
)
from regard.labs.lab import Check, Exercise, Findings, Lab, Parameters, Result, ResultTable, Value
from regard.labs.plotting import add_legend, add_subplots
from regard.labs.training import init_model, train
from regard.text.batch import EncodedPairs
from regard.text.corpus import Corpus
from regard.text.tasks import TASKS

MIN_LENGTH, BINS = 4, 5
TEST_SIZE, PROBE_SIZE = 1000, 64  # sequences for accuracy, and for gradient norms


class BottleneckParameters(Parameters):
    cell: Literal["gru", "lstm", "rnn"] = "gru"
    """Recurrent cell of encoder and decoder; the discussion sheet uses rnn, which trains erratically."""
    letters: int = Field(6, ge=2, le=26)
    """Size of the alphabet."""
    max_length: int = Field(24, ge=10, le=64)
    """Longest sequence, in letters; the shortest has 4."""
    hidden_dim: int = Field(32, ge=2, le=256)
    """Size of the hidden state, which is all that the decoder gets without attention."""
    train_size: int = Field(8000, ge=100, le=200_000)
    """Number of training sequences."""
    epochs: float = Field(5.0, gt=0, le=100)
    """Passes over the training data."""
    seeds: int = Field(3, ge=1, le=20)
    """Training runs per model, each with its own seed."""


ATTENTION: dict[str, Any] = {"kind": "single-head", "kq_dim": 16}
MODELS: dict[str, dict[str, Any]] = {
    "no attention": {"attention": "none"},
    "attention": {"attention": ATTENTION},
    "attention + positions": {"attention": ATTENTION, "encoder": {"position": "sinusoidal"}},
}


def make_config(name: str, params: BottleneckParameters, seed: int) -> Config:
    """One model. Its encoder is unidirectional: without attention the decoder gets only its last state."""
    base = {
        "kind": "recurrent",
        "cell": params.cell,
        "hidden_dim": params.hidden_dim,
        "embedding_dim": 16,
    }
    overrides = MODELS[name]
    encoder = {"bidirectional": False, **overrides.get("encoder", {})}
    budget = {
        "epochs": params.epochs,
        "batch_sentences": 32,
        "learning_rate": 0.01,
        "warmup_steps": 50,
    }
    return Config.model_validate(
        {
            "seed": seed,
            "model": {**base, **overrides, "encoder": encoder},
            "training": {**budget, "validate_every": 10**9},
        }
    )


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
from an alphabet of size a, so a letter that is not cache_bytes can only be guessed. Without attention, all
that the decoder gets is the encoder's last state, d numbers. If that state stores K letters, then of n
letters and the end-of-sequence token a fraction

    accuracy(n) = (K + (n + 1 - K) / a) / (n + 1)          for n + 1 > K

is correct: it falls as sequences grow, and K is fitted to the measurement. With attention, each letter is
looked up at its source position, and the states need to encode only where that is. Whether a positional
encoding of the source helps is reported, but not checked. All models have the same hidden size, training
data and number of steps; the attention projections come on top.

Training must find this out through gradients. From output i to source position j of n, the path through the
recurrence has i + n - j steps. Each multiplies the gradient by the cell's Jacobian, which at initialisation
shrinks it: |g| ~ r^(i + n - j) with r < 1. Attention adds a path of a single step, times alpha_ij. So before
any training the first letter gets almost no gradient without attention, and a fraction alpha_ij of it with
attention.

For gru and lstm we check that accuracy falls as sequences grow. A plain rnn, whose gradient vanishes fastest,
has nothing to forget: it does not learn to store a single letter, and guesses at every length. Its accuracy
then falls or rises depending on how well it guesses the end of the sequence, so for rnn we check that K < 1.

At inference only activations and outputs change from sequence to sequence, never the weights.
"""
    parameters = BottleneckParameters
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
        sizes = {"train": params.train_size, "val": 64, "test": TEST_SIZE}
        longest = params.max_length
        splits = {
            name: sample_pairs(size, range(MIN_LENGTH, longest + 1), params.letters, rng)
            for name, size in sizes.items()
        }
        data = Corpus(splits, TASKS["case"].symbols, is_synthetic=True)
        probes = sample_pairs(PROBE_SIZE, range(longest, longest + 1), params.letters, rng)
        edges = np.linspace(MIN_LENGTH, longest + 1, BINS + 1).round().astype(int).tolist()
        lengths = [(low + high - 1) / 2 for low, high in pairwise(edges)]

        accuracies: dict[str, list[list[float]]] = {name: [] for name in MODELS}
        norms_by_model: dict[str, list[float]] = {}
        parameter_counts = {}
        for seed in range(first_seed, first_seed + params.seeds):
            for name in MODELS:
                config = make_config(name, params, seed)
                model, tokenizers = train(config, data)
                accuracies[name].append(accuracy_by_length(model, tokenizers, data["test"], edges))
                parameter_counts[name] = model.parameter_count
                if seed == first_seed:
                    batch = EncodedPairs.from_pairs(probes, tokenizers).batch(range(len(probes)))
                    stages = {"before": init_model(config, tokenizers), "after": model}
                    for stage, probed in stages.items():
                        norms_by_model[f"{name}, {stage}"] = gradient_norms(
                            probed, batch, longest - 1
                        )
        return summarise(params, lengths, accuracies, norms_by_model, parameter_counts)

    def draw(self, result: Result, figure: Figure, colours: Theme) -> None:
        data, params = result.figures, BottleneckParameters.model_validate(result.parameters)
        left, right = add_subplots(figure, colours, columns=2)
        line_colours = dict(zip(data["models"], colours.series, strict=False))
        for name, runs in zip(data["models"], data["accuracies"], strict=True):
            left.plot(data["lengths"], np.mean(runs, axis=0), color=line_colours[name], label=name)
            for run in runs:
                left.plot(data["lengths"], run, "o", ms=4, color=line_colours[name])
        capacity, error = data["capacity"], data["capacity_error"]
        grid = np.linspace(data["lengths"][0], data["lengths"][-1], 100)
        curve = [expected_accuracy(capacity, n, params.letters) for n in grid]
        label = f"{capacity:.1f} ± {error:.1f} letters stored, the rest guessed"
        left.plot(grid, curve, ":", color=colours.text, label=label)
        left.set(xlabel="sequence length (letters)", ylabel="token accuracy", ylim=(0, 1.03))
        add_legend(left, colours, loc="lower left")
        for label, norms in zip(data["gradients"], data["gradient_norms"], strict=True):
            name, stage = label.rsplit(", ", 1)
            if name == "attention + positions":
                continue
            style = {"before": "-", "after": "--"}[stage]
            right.plot(norms, style, color=line_colours[name], label=f"{name}, {stage} training")
        right.set(
            xlabel="source position (0 is <U> or <L>)",
            ylabel="gradient norm of the last letter's loss",
            yscale="log",
        )
        right.xaxis.set_major_locator(MaxNLocator(integer=True))
        add_legend(right, colours, loc="center left")


def summarise(
    params: BottleneckParameters,
    lengths: list[float],
    accuracies: dict[str, list[list[float]]],
    norms_by_model: dict[str, list[float]],
    parameter_counts: dict[str, int],
) -> Findings:
    """Check the accuracy gap and the gradients; report the capacity K and the effect of positions."""
    from regard.statistics import Summary

    baseline, attention, positions = (np.array(accuracies[name]) for name in MODELS)
    gaps = (attention - baseline)[:, -1].tolist()
    capacity, error = fit_capacity(
        lengths * params.seeds, baseline.flatten().tolist(), params.letters
    )
    first_letter = 1  # source position 0 is <U> or <L>
    before = {name: norms_by_model[f"{name}, before"][first_letter] for name in MODELS}
    means = [np.mean(accuracies[name], axis=0).tolist() for name in MODELS]
    return Findings(
        figures={
            "gap": float(np.mean(gaps)),
            "gap_interval": [Summary.of(gaps).interval] if params.seeds > 1 else [],
            "positions_gain": float((positions - attention)[:, -1].mean()),
            "capacity": capacity,
            "capacity_error": error,
            "lengths": lengths,
            "models": list(MODELS),
            "accuracies": [accuracies[name] for name in MODELS],
            "parameters": [parameter_counts[name] for name in MODELS],
            "gradients": list(norms_by_model),
            "gradient_norms": list(norms_by_model.values()),
        },
        effect=[],
        law=[
            Check(
                "accuracy gained by attention on the longest sequences, minimum over seeds",
                min(gaps),
                ">=",
                0.25,
            ),
            check_baseline(params, lengths, baseline),
            Check(
                "gradient of the last loss at the first letter, init_model: ratio with / without attention",
                before["attention"] / max(before["no attention"], 1e-45),
                ">=",
                100,
            ),
        ],
        table=ResultTable(
            ["letters", *MODELS, "fit, no attention"],
            [
                [n, *row, expected_accuracy(capacity, n, params.letters)]
                for n, *row in zip(lengths, *means, strict=True)
            ],
        ),
    )


def check_baseline(params: BottleneckParameters, lengths: list[float], runs: np.ndarray) -> Check:
    """Without attention, a gated cell stores some letters and forgets the rest; a plain RNN stores none."""
    if params.cell == "rnn":
        capacities = [fit_capacity(lengths, run, params.letters)[0] for run in runs.tolist()]
        return Check(
            "letters stored by an rnn without attention, maximum over seeds",
            max(capacities),
            "<=",
            1,
        )
    return Check(
        "accuracy lost without attention from the shortest to the longest sequences, minimum over seeds",
        float((runs[:, 0] - runs[:, -1]).min()),
        ">=",
        0.05,
    )
