"""Extrapolation: trained on short sequences, tested on long ones, one curve per kind of position."""

import random
from collections.abc import Callable, Iterator
from statistics import fmean
from typing import Any, ClassVar, Self

import torch
from jaxtyping import Float, Int
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pydantic import Field, model_validator
from torch import Generator, Tensor

from regard.attention import POSITIONS
from regard.config import Config
from regard.diagrams.themes import Theme
from regard.errors import join_names, suggest
from regard.labs.lab import Check, Exercise, Findings, Lab, Parameters, Result, Value
from regard.labs.measurements.extrapolation_summary import BINS, CHECKED, LawMeasurement, summarise
from regard.labs.measurements.recall_task import LETTERS, accuracy_by_position, sample_pairs
from regard.labs.measurements.training import init_model, train
from regard.labs.plotting import add_legend, add_subplots
from regard.models import Model
from regard.text.corpus import Corpus
from regard.text.tokenizer import TokenizerPair

TEST_SIZE = 200  # long sequences

# Positions to train with; the rotary model is also tested with scaled frequencies.
TRAINED: dict[str, dict[str, Any]] = {
    "none": {"kind": "none"},
    "sinusoidal": {"kind": "sinusoidal"},
    "learned": {"kind": "learned"},
    "relative-bias": {"kind": "relative", "form": "bias"},
    "relative-query": {"kind": "relative", "form": "query"},
    "alibi": {"kind": "alibi"},
    "rotary": {"kind": "rotary"},
    "interleaved": {"kind": "interleaved", "nope_interval": 2},
}
SCALED = ("linear", "ntk", "yarn", "dynamic-ntk")


class ExtrapolationParameters(Parameters):
    train_length: int = Field(24, ge=18, le=120, multiple_of=6)
    """Longest training sequence, in characters; the shortest is half as long."""
    factor: int = Field(3, ge=2, le=8)
    """Length of the test sequences, as a multiple of train_length."""
    train_size: int = Field(6000, ge=100, le=200_000)
    """Number of training sequences."""
    epochs: float = Field(4.0, gt=0, le=100)
    """Passes over the training data."""
    seeds: int = Field(3, ge=1, le=20)
    """Training runs per kind of position, each with its own seed."""
    positions: str = "all"
    """Kinds of position to train, separated by commas."""

    @model_validator(mode="after")
    def _check_positions(self) -> Self:
        for kind in self.selected:
            if kind not in TRAINED:
                known = f"Kinds are {join_names(TRAINED)}."
                raise ValueError(f'no kind of position "{kind}".{suggest(kind, TRAINED)} {known}')
        if not set(self.selected) & set(CHECKED):
            raise ValueError(f"no claim is made about {self.positions}: add {join_names(CHECKED)}")
        return self

    @property
    def selected(self) -> list[str]:
        if self.positions == "all":
            return list(TRAINED)
        return [kind.strip() for kind in self.positions.split(",")]

    @property
    def test_length(self) -> int:
        return self.train_length * self.factor


def make_config(position: dict[str, Any], params: ExtrapolationParameters, seed: int) -> Config:
    """A small decoder-only Transformer."""
    if position["kind"] == "relative":  # the clipped distance must occur in training, too
        position = {**position, "max_distance": params.train_length // 2}
    sizes = {"d_model": 32, "d_ff": 64, "dropout": 0.0, "decoder": {"layers": 2}}
    budget = {
        "epochs": params.epochs,
        "batch_sentences": 32,
        "learning_rate": 0.01,
        "warmup_steps": 30,
    }
    return Config.model_validate(
        {
            "seed": seed,
            "tokenizer": {"kind": "characters", "max_tokens": 2 * params.test_length},
            "model": {"kind": "decoder-only", **sizes, "position": position},
            "training": {**budget, "validate_every": 10**9},
        }
    )


# --- the exercise ---------------------------------------------------------------------------------


def bias(
    query_position_ids: Int[Tensor, " query"], key_position_ids: Int[Tensor, " key"], heads: int
) -> Float[Tensor, "heads query key"]:
    """-2^(-8 h / H) |j - i|, h = 1 .. H"""
    slopes = 2.0 ** (-8 * torch.arange(1, heads + 1, dtype=torch.float64) / heads)
    distances = (key_position_ids[None, :] - query_position_ids[:, None]).abs()
    return -slopes[:, None, None] * distances


def grade(answer: Callable[..., Tensor]) -> Iterator[Check]:
    """Compare with the library's ALiBi at near and far positions; as under a causal mask, keys come first."""
    for heads, queries, keys, start in ((1, 3, 2, 0), (2, 5, 3, 7), (8, 3, 5, 100_000)):
        query_ids, key_ids = torch.arange(queries) + start + keys, torch.arange(keys) + start
        case = f"heads = {heads}, queries from position {start + keys}, keys from position {start}"
        output = answer(query_ids, key_ids, heads)
        alibi = POSITIONS["alibi"](heads * 2, heads, 2)
        zeros = torch.zeros(1, heads, queries, 2, dtype=torch.float64)
        expected = alibi.bias(zeros, query_ids[None], key_ids[None])
        assert expected is not None
        yield Check(
            f"change when all positions shift by 7 ({case})",
            float((answer(query_ids + 7, key_ids + 7, heads) - output).abs().max()),
            "<=",
            0,
            1e-9,
            hint="Only the distance between key and query may count. A function of the absolute position "
            "is undefined at positions that did not occur in training.",
        )
        yield Check(
            f"bias of a key at the position of its query ({case})",
            float(answer(query_ids, query_ids, heads).diagonal(dim1=1, dim2=2).abs().max()),
            "<=",
            0,
            1e-9,
            hint="At distance 0 the bias is 0.",
        )
        yield Check(
            f"largest difference from -slope x distance ({case})",
            float((output - expected[0]).abs().max()),
            "<=",
            0,
            1e-9,
            hint="Head h of H, counted from 1, subtracts 2^(-8 h / H) for each position between key and "
            "query: the first head has the steepest slope. The result is [heads, queries, keys].",
        )


class Extrapolation(Lab):
    """Which kinds of position still work beyond the training length."""

    name = "extrapolation"
    claim = (
        "Trained on short sequences, absolute positions fail on long ones; relative positions extrapolate, "
        "and rotary does once its frequencies are scaled"
    )
    derivation = """
A small decoder-only Transformer learns to answer each question with the latest capital before it: after
`B.;?bC,D.?` comes `d`. It must find capitals by content, and the latest one by position. Training sequences
have at most T characters; we then ask questions at positions up to s T, s = 3 by default.

    learned, sinusoidal   x + P[t]: beyond T, P[t] did not occur in training, so the output is undefined
    relative, alibi       e_ij + b(j - i): near keys look the same at every position; distances beyond those
                          of training are clipped to a known one, or penalised in proportion
    rotary                <R_i q, R_j k> depends on j - i only, but keys further away than T are rotated by
                          angles that did not occur in training, and may get more weight than the near ones
    rotary, scaled        omega / s (linear), or only for slow pairs (ntk, yarn; dynamic-ntk only beyond T
                          keys): s T positions rotate no further than T did. The trained weights are kept;
                          only the frequencies change.
    none, interleaved     a causal mask only; rotary in every other layer

The law is what of this can be checked exactly, in any model: questions up to T are answered as in a sequence
that ends there (the models are causal); training leaves the rows of the learned table beyond T as they were,
but for a common factor (weight decay); beyond the clipped distance a relative bias does not change; the
slowest rotary pair rotates no further over s T positions, once scaled, than over T before.

The effect is what follows for accuracy. How far a position extrapolates depends on the task: here near keys
must win over far ones. All curves of all seeds are reported; only what held for every seed that we tried is
checked.
"""
    parameters = ExtrapolationParameters
    absent: ClassVar[dict[str, Value]] = {"train_size": 100, "epochs": 1.0}  # 4 steps: not trained
    quick: ClassVar[dict[str, Value]] = {"train_size": 2500, "epochs": 3.0, "seeds": 1}
    exercise = Exercise(
        starter='''
def bias(query_position_ids, key_position_ids, heads):
    """Return the bias that ALiBi adds to the scores of each head.

    query_position_ids: an integer tensor [n]. key_position_ids: an integer tensor [m].
    heads: H, the number of heads; head h = 1 .. H has the slope 2^(-8 h / H).
    Return a tensor [H, n, m]: for each head, minus its slope times the distance between key and query.
    """
    raise NotImplementedError
''',
        solution=bias,
        grade=grade,
        background="""
A position bias adds a number b_h(i, j) to the score of head h for the query at i and the key at j, before the
softmax. To work at positions that did not occur in training, it may depend on the distance only. ALiBi has no
learned parameters: a score decreases by the same amount for every position between query and key, and heads
differ in the slope.
""",
    )

    def measure(self, params: ExtrapolationParameters, generator: Generator) -> Findings:
        first_seed = int(torch.randint(2**31, (), generator=generator))
        rng, train_length = random.Random(first_seed), params.train_length
        splits = {"train": sample_pairs(params.train_size, train_length // 2, train_length, rng)}
        splits["val"] = sample_pairs(64, train_length // 2, train_length, rng)
        data = Corpus(splits, is_synthetic=True)
        tests = sample_pairs(TEST_SIZE, params.test_length, params.test_length, rng)
        bin_width = train_length // BINS
        curves: dict[str, list[list[float]]] = {}
        law = LawMeasurement(params.train_length, params.factor)
        for seed in range(first_seed, first_seed + params.seeds):
            for kind in params.selected:
                config = make_config(TRAINED[kind], params, seed)
                model, tokenizers = train(config, data)
                law.add_model(kind, model, init_model(config, tokenizers))
                models = {kind: model}
                if kind == "rotary":
                    models |= scale_rotary(model, tokenizers, params)
                for name, tested in models.items():
                    curve = accuracy_by_position(tested, tokenizers, tests, bin_width)
                    curves.setdefault(name, []).append(curve)
                    law.add_answers(tested, tokenizers, tests)
                    if name.startswith("rotary, "):
                        law.add_scaled(model, tested)
        centres = [bin_width * (i + 0.5) for i in range(params.test_length // bin_width)]
        return summarise(curves, centres, params.factor, law.checks())

    def draw(self, result: Result, figure: Figure, colours: Theme) -> None:
        data, params = result.figures, ExtrapolationParameters.model_validate(result.parameters)
        curves = dict(zip(data["kinds"], data["accuracies"], strict=True))
        rotary = [kind for kind in curves if kind.startswith(("rotary", "interleaved"))]
        others = [kind for kind in curves if kind not in rotary]
        panels = [kinds for kinds in (others, rotary) if kinds]
        for panel, kinds in zip(
            add_subplots(figure, colours, columns=len(panels)), panels, strict=True
        ):
            for i, kind in enumerate(kinds):
                draw_curve(panel, data["positions"], curves[kind], kind, colours.series[i])
            panel.axvline(params.train_length, color=colours.dimmed, linewidth=1)
            panel.text(
                params.train_length,
                1.035,
                "training length ",
                ha="right",
                size=9,
                color=colours.text,
            )
            chance = 1 / len(LETTERS)
            panel.axhline(chance, ls=":", color=colours.dimmed, linewidth=1)
            panel.text(0, chance + 0.01, "chance", size=9, color=colours.text)
            panel.set(
                xlabel="position of the question (characters)", ylabel="accuracy", ylim=(0, 1.09)
            )
            add_legend(panel, colours, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=3)


def scale_rotary(
    model: Model, tokenizers: TokenizerPair, params: ExtrapolationParameters
) -> dict[str, Model]:
    """The same weights with scaled frequencies: rotary has no weights of its own to load."""
    models = {}
    for scaling in SCALED:
        position = {"kind": "rotary", "scaling": scaling, "factor": params.factor}
        config = make_config({**position, "original_length": params.train_length}, params, seed=0)
        models[f"rotary, {scaling}"] = init_model(config, tokenizers)
        models[f"rotary, {scaling}"].load_state_dict(model.state_dict())
    return models


def draw_curve(
    panel: Axes, positions: list[float], runs: list[list[float]], kind: str, colour: str
) -> None:
    """A thin line for every seed, a thick one for their mean."""
    for run in runs if len(runs) > 1 else ():
        panel.plot(positions, run, color=colour, linewidth=0.6, alpha=0.5)
    means = [fmean(values) for values in zip(*runs, strict=True)]
    panel.plot(positions, means, "o-", ms=3, color=colour, label=kind)
