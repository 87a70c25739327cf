"""Bottleneck: what one state cannot hold of a long text, attention looks up."""

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
from regard.text.batch import Encoded
from regard.text.corpus import Corpus
from regard.text.tasks import TASKS

SHORTEST, BINS = 4, 5
TESTED, PROBED = 1000, 64  # texts that are tested, and that gradients are measured on


class BottleneckParameters(Parameters):
    cell: Literal["gru", "lstm", "rnn"] = "gru"
    """What encoder and decoder are made of; rnn is the discussion sheet's, and erratic."""
    letters: int = Field(6, ge=2, le=26)
    """How many different letters there are."""
    longest: int = Field(24, ge=10, le=64)
    """The longest text, in letters; the shortest has 4."""
    width: int = Field(32, ge=2, le=256)
    """How many numbers the state holds that is all the decoder sees without attention."""
    texts: int = Field(8000, ge=100, le=200_000)
    """Texts to learn from."""
    epochs: float = Field(5.0, gt=0, le=100)
    """How often each is read."""
    seeds: int = Field(3, ge=1, le=20)
    """Models of each kind, each drawn and trained anew."""


LOOKS: dict[str, Any] = {"kind": "single-head", "kq_dim": 16}
KINDS: dict[str, dict[str, Any]] = {
    "no attention": {"attention": "none"},
    "attention": {"attention": LOOKS},
    "attention + positions": {"attention": LOOKS, "encoder": {"position": "sinusoidal"}},
}


def experiment(kind: str, params: BottleneckParameters, seed: int) -> Config:
    """One model. The encoder reads one way: its last state is all that there is without attention."""
    table = {
        "kind": "recurrent",
        "cell": params.cell,
        "hidden_dim": params.width,
        "embedding_dim": 16,
    }
    own = KINDS[kind]
    encoder = {"bidirectional": False, **own.get("encoder", {})}
    budget = {
        "epochs": params.epochs,
        "batch_sentences": 32,
        "learning_rate": 0.01,
        "warmup_steps": 50,
    }
    return Config.model_validate(
        {
            "seed": seed,
            "model": {**table, **own, "encoder": encoder},
            "training": {**budget, "validate_every": 10**9},
        }
    )


# --- the exercise ---------------------------------------------------------------------------------


def context(
    state: Float[Tensor, " width"],
    states: Float[Tensor, "source width"],
    mask: Bool[Tensor, " source"],
) -> Float[Tensor, " width"]:
    """Sum_j alpha_j h_j, alpha = softmax of d . h_j over the places that the mask allows"""
    scores = (states @ state).masked_fill(~mask, float("-inf"))
    return scores.softmax(0) @ states


def grade(answer: Callable[..., Tensor]) -> Iterator[Check]:
    """The library looks the same state up; and padding changes nothing."""
    generator = torch.Generator().manual_seed(0)
    for source, width, padding, scale in ((5, 3, 0, 1.0), (7, 5, 2, 1.0), (11, 3, 4, 4000.0)):
        state = scale * torch.randn(width, dtype=torch.float64, generator=generator)
        states = torch.randn(source, width, dtype=torch.float64, generator=generator)
        mask = torch.arange(source) < source - padding
        given = f"{source} places of which the last {padding} are padding, width {width}"
        scores = SCORES["dot"](width, width)(state[None], states)
        right = attend(scores, states, mask[None])[0][0]
        got = answer(state.clone(), states.clone(), mask.clone())
        largest = f", scores up to {float(scores.abs().max()):.0f}"
        yield Check(
            f"largest difference from the look-up ({given}{largest})",
            float((got - right).abs().max()),
            "<=",
            0,
            1e-9,
            hint="The weights are e^(d . h_j), divided by their sum over the real places; the context is "
            "the sum of the states with these weights. Large scores overflow e^x: softmax subtracts the "
            "largest first.",
        )
        other = states.clone()
        other[~mask] = 1e3
        yield Check(
            f"change when the padding changes ({given})",
            float((answer(state.clone(), other, mask.clone()) - got).abs().max()),
            "<=",
            0,
            1e-9,
            hint="A masked place has weight 0: its score must be minus infinity before the softmax, not "
            "0, and not a weight that is cut off after the others were divided by the sum.",
        )


class Bottleneck(Lab):
    """Accuracy against length: without attention, with it, and with positions as well."""

    name = "bottleneck"
    claim = (
        "Without attention the decoder forgets long texts; with attention it looks each letter up"
    )
    derivation = """
The case task: `<U> aBc` gives `ABC`, `<L> aBc` gives `abc`, letter by letter. Letters are drawn by chance
from a, so what is not remembered can only be guessed. Without attention all that the decoder knows is the
encoder's last state, d numbers. If that holds K letters, then of n letters and the end of the text

    accuracy(n) = (K + (n + 1 - K) / a) / (n + 1)          for n + 1 > K

are right: it falls as texts grow, and K is fitted to what we measure. With attention each letter is looked
up where it stands, and the states need hold no more than where that is. A positional encoding of the
source can help there or not: what it did is reported, and nothing is asked of it. All have states of one
width, the same texts and as many steps; attention's own maps come on top.

Learning must find that out through gradients. From output i to source place j of n the way through the
recurrence takes i + n - j steps. Each multiplies the gradient by the cell's Jacobian, which at first
shrinks it: |g| ~ r^(i + n - j) with r < 1. Attention adds a way of a single step, times alpha_ij. So before
any training the first letter gets next to no gradient without attention, and its share with it.

For a gru or an lstm we ask that accuracy falls as texts grow. A plain rnn, whose gradient dies soonest, has
nothing to forget: it does not learn to hold a single letter, and guesses at every length. Its accuracy then
falls or rises with the luck of guessing where a text ends, so of an rnn we ask instead that K < 1.

At inference only activations and output change from text to text, never the weights.
"""
    parameters = BottleneckParameters
    quick: ClassVar[dict[str, Value]] = {
        "letters": 5,
        "longest": 16,
        "texts": 4000,
        "epochs": 4.0,
        "seeds": 1,
    }
    exercise = Exercise(
        starter='''
def context(state, states, mask):
    """What attention brings to the decoder in one state: a sum of the encoder's states.

    state: a tensor [d], the decoder's state. states: a tensor [n, d], the encoder's state at each place.
    mask: a tensor [n] of truth values, True for real places and False for padding.
    The score of a place is the plain dot product of its state with the decoder's. Return a tensor [d].
    """
    raise NotImplementedError
''',
        solution=context,
        grade=grade,
        background="""
Attention turns scores into weights that are positive and sum to one, alpha_j = e^(s_j) / sum_k e^(s_k), and
returns the states' sum with these weights. Texts of one batch have different lengths, and what fills up the
shorter ones must not count: a place that may not be looked at has a score of minus infinity.
""",
    )

    def measure(self, params: BottleneckParameters, generator: Generator) -> Findings:
        first = int(torch.randint(2**31, (), generator=generator))
        chance = random.Random(first)
        sizes = {"train": params.texts, "val": 64, "test": TESTED}
        every, last = range(SHORTEST, params.longest + 1), range(params.longest, params.longest + 1)
        splits = {
            name: sample_pairs(size, every, params.letters, chance) for name, size in sizes.items()
        }
        data = Corpus(splits, TASKS["case"].symbols, made=True)
        probes = sample_pairs(PROBED, last, params.letters, chance)
        edges = np.linspace(SHORTEST, params.longest + 1, BINS + 1).round().astype(int).tolist()
        lengths = [(low + high - 1) / 2 for low, high in pairwise(edges)]

        accuracies: dict[str, list[list[float]]] = {kind: [] for kind in KINDS}
        reached: dict[str, list[float]] = {}
        parameter_counts = {}
        for seed in range(first, first + params.seeds):
            for kind in KINDS:
                config = experiment(kind, params, seed)
                model, tokenizers = train(config, data)
                accuracies[kind].append(accuracy_by_length(model, tokenizers, data["test"], edges))
                parameter_counts[kind] = model.parameter_count
                if seed == first:
                    batch = Encoded.of(probes, tokenizers).batch(range(len(probes)))
                    stages = {"before": init_model(config, tokenizers), "after": model}
                    for stage, one in stages.items():
                        reached[f"{kind}, {stage}"] = gradient_norms(one, batch, params.longest - 1)
        return findings(params, lengths, accuracies, reached, parameter_counts)

    def draw(self, result: Result, figure: Figure, colours: Theme) -> None:
        found, params = result.figures, BottleneckParameters.model_validate(result.parameters)
        left, right = add_subplots(figure, colours, columns=2)
        tints = dict(zip(found["kinds"], colours.series, strict=False))
        for kind, runs in zip(found["kinds"], found["accuracies"], strict=True):
            left.plot(found["lengths"], np.mean(runs, axis=0), color=tints[kind], label=kind)
            for run in runs:
                left.plot(found["lengths"], run, "o", ms=4, color=tints[kind])
        held, error = found["letters_held"], found["letters_held_error"]
        finer = np.linspace(found["lengths"][0], found["lengths"][-1], 100)
        curve = [expected_accuracy(held, n, params.letters) for n in finer]
        name = f"{held:.1f} ± {error:.1f} letters held, the rest guessed"
        left.plot(finer, curve, ":", color=colours.text, label=name)
        left.set(xlabel="length of the text (letters)", ylabel="share right", ylim=(0, 1.03))
        add_legend(left, colours, loc="lower left")
        for name, norms in zip(found["gradients"], found["gradient_norms"], strict=True):
            kind, stage = name.rsplit(", ", 1)
            if kind == "attention + positions":
                continue
            style = {"before": "-", "after": "--"}[stage]
            right.plot(norms, style, color=tints[kind], label=f"{kind}, {stage} training")
        right.set(
            xlabel="place in the source (0 is <U> or <L>)",
            ylabel="gradient norm of the last letter's loss",
            yscale="log",
        )
        right.xaxis.set_major_locator(MaxNLocator(integer=True))
        add_legend(right, colours, loc="center left")


def findings(
    params: BottleneckParameters,
    lengths: list[float],
    accuracies: dict[str, list[list[float]]],
    reached: dict[str, list[float]],
    parameter_counts: dict[str, int],
) -> Findings:
    """The gap and the gradients, which are judged; what is held, and what positions did, which is not."""
    from regard.statistics import Summary

    none, looking, placed = (np.array(accuracies[kind]) for kind in KINDS)
    gaps = (looking - none)[:, -1].tolist()
    flat = none.flatten().tolist()
    held, error = fit_capacity(lengths * params.seeds, flat, params.letters)
    first_letter = 1  # behind the symbol
    before = {kind: reached[f"{kind}, before"][first_letter] for kind in KINDS}
    means = [np.mean(accuracies[kind], axis=0).tolist() for kind in KINDS]
    return Findings(
        figures={
            "gap": float(np.mean(gaps)),
            "gap_interval": [Summary.of(gaps).interval] if params.seeds > 1 else [],
            "positions_gain": float((placed - looking)[:, -1].mean()),
            "letters_held": held,
            "letters_held_error": error,
            "lengths": lengths,
            "kinds": list(KINDS),
            "accuracies": [accuracies[kind] for kind in KINDS],
            "parameters": [parameter_counts[kind] for kind in KINDS],
            "gradients": list(reached),
            "gradient_norms": list(reached.values()),
        },
        checks=[
            Check(
                "attention's gain on the longest texts, least of all seeds",
                min(gaps),
                ">=",
                0.25,
            ),
            without_attention(params, lengths, none),
            Check(
                "how many times more gradient the first letter gets from the last, before training",
                before["attention"] / max(before["no attention"], 1e-45),
                ">=",
                100,
            ),
        ],
        table=ResultTable(
            ["letters", *KINDS, "fit, no attention"],
            [
                [n, *row, expected_accuracy(held, n, params.letters)]
                for n, *row in zip(lengths, *means, strict=True)
            ],
        ),
    )


def without_attention(
    params: BottleneckParameters, lengths: list[float], runs: np.ndarray
) -> Check:
    """A gated cell holds some letters and forgets the others; a plain one never learns to hold any."""
    if params.cell == "rnn":
        held = [fit_capacity(lengths, run, params.letters)[0] for run in runs.tolist()]
        return Check(
            "letters that an rnn holds without attention, most of all seeds", max(held), "<=", 1
        )
    return Check(
        "what no attention loses from the shortest texts to the longest, least of all seeds",
        float((runs[:, 0] - runs[:, -1]).min()),
        ">=",
        0.05,
    )
