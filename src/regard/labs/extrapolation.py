"""Extrapolation: trained on short texts, tested on long ones, one curve for each kind of position."""

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
from regard.labs.lab import Check, Exercise, Findings, Lab, Parameters, Result, ResultTable, Value
from regard.labs.plotting import add_legend, add_subplots
from regard.labs.recall_task import LETTERS, accuracy_by_position, sample_pairs
from regard.labs.training import init_model, train
from regard.models import Model
from regard.text.corpus import Corpus
from regard.text.tokenizer import TokenizerPair

TESTED = 200  # long texts
BINS = 6  # for each trained length

# What a model is trained with; a rotary one is then also tested with its frequencies scaled.
KINDS: dict[str, dict[str, Any]] = {
    "none": {"kind": "none"},
    "sinusoidal": {"kind": "sinusoidal"},
    "learned": {"kind": "learned"},
    "relative-bias": {"kind": "relative", "form": "bias"},
    "relative-query": {"kind": "relative", "form": "query"},
    "alibi": {"kind": "alibi"},
    "rotary": {"kind": "rotary"},
    "interleaved": {"kind": "interleaved", "nope_interval": 2},
}
SCALED = ("linear", "ntk", "yarn")
JUDGED = ("sinusoidal", "learned", "relative-query", "rotary")  # the others are reported


class ExtrapolationParameters(Parameters):
    trained: int = Field(24, ge=18, le=120, multiple_of=6)
    """The longest text in training, in characters; the shortest is half as long."""
    factor: int = Field(3, ge=2, le=8)
    """How many times longer the texts are that it is tested on."""
    texts: int = Field(6000, ge=100, le=200_000)
    """Texts to learn from."""
    epochs: float = Field(4.0, gt=0, le=100)
    """How often each is read."""
    seeds: int = Field(3, ge=1, le=20)
    """Models of each kind, each drawn and trained anew."""
    kinds: str = "all"
    """Which kinds of position, separated by commas."""

    @model_validator(mode="after")
    def _known(self) -> Self:
        for kind in self.chosen:
            if kind not in KINDS:
                known = f"Kinds are {join_names(KINDS)}."
                raise ValueError(f'no kind of position "{kind}".{suggest(kind, KINDS)} {known}')
        if not set(self.chosen) & set(JUDGED):
            raise ValueError(f"nothing is claimed of {self.kinds} alone: add {join_names(JUDGED)}")
        return self

    @property
    def chosen(self) -> list[str]:
        return list(KINDS) if self.kinds == "all" else [k.strip() for k in self.kinds.split(",")]

    @property
    def longest(self) -> int:
        return self.trained * self.factor


def experiment(position: dict[str, Any], params: ExtrapolationParameters, seed: int) -> Config:
    """One small decoder-only Transformer."""
    if position["kind"] == "relative":  # the furthest distance must be met in training, too
        position = {**position, "max_distance": params.trained // 2}
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
            "tokenizer": {"kind": "characters", "max_tokens": 2 * params.longest},
            "model": {"kind": "decoder-only", **sizes, "position": position},
            "training": {**budget, "validate_every": 10**9},
        }
    )


# --- the exercise ---------------------------------------------------------------------------------


def bias(
    query_at: Int[Tensor, " query"], key_at: Int[Tensor, " key"], heads: int
) -> Float[Tensor, "heads query key"]:
    """-2^(-8 h / H) |j - i|, h = 1 .. H"""
    slopes = 2.0 ** (-8 * torch.arange(1, heads + 1, dtype=torch.float64) / heads)
    away = (key_at[None, :] - query_at[:, None]).abs()
    return -slopes[:, None, None] * away


def grade(answer: Callable[..., Tensor]) -> Iterator[Check]:
    """The library's own bias, at places near and far; under a causal mask, so no key behind its query."""
    for heads, queries, keys, start in ((1, 3, 2, 0), (2, 5, 3, 7), (8, 3, 5, 100_000)):
        query_at, key_at = torch.arange(queries) + start + keys, torch.arange(keys) + start
        given = f"heads = {heads}, queries at {start + keys} and on, keys at {start} and on"
        got = answer(query_at, key_at, heads)
        alibi = POSITIONS["alibi"](heads * 2, heads, 2)
        empty = torch.zeros(1, heads, queries, 2, dtype=torch.float64)
        right = alibi.bias(empty, query_at[None], key_at[None])
        assert right is not None
        yield Check(
            f"change when everything moves by 7 places ({given})",
            float((answer(query_at + 7, key_at + 7, heads) - got).abs().max()),
            "<=",
            0,
            1e-9,
            hint="Only the distance of key and query may count. What depends on the place itself means "
            "nothing at a place that training never met.",
        )
        yield Check(
            f"bias of a head at its own place ({given})",
            float(answer(query_at, query_at, heads).diagonal(dim1=1, dim2=2).abs().max()),
            "<=",
            0,
            1e-9,
            hint="At distance 0 nothing is taken off.",
        )
        yield Check(
            f"largest difference from -slope x distance ({given})",
            float((got - right[0]).abs().max()),
            "<=",
            0,
            1e-9,
            hint="Head h of H, counted from 1, loses 2^(-8 h / H) with each place between key and query: "
            "the first head forgets fastest. The result is [heads, queries, keys].",
        )


class Extrapolation(Lab):
    """Which kinds of position still work beyond the trained length."""

    name = "extrapolation"
    claim = (
        "Trained on short texts, absolute positions fail on long ones; distances carry on, and rotary "
        "does once its frequencies are scaled"
    )
    derivation = """
A small decoder-only Transformer learns to answer questions by the latest capital before them: after
`B.;?bC,D.?` comes `d`. It must find capitals by what they are, and the latest by where it stands. Training
shows texts of at most T characters; then we ask at places up to s T, s = 3 by default.

    learned, sinusoidal   x + P[t]: beyond T stands what no weight has learned from, so nothing is known
    relative, alibi       e_ij + b(j - i): near keys look the same at every place; distances beyond the
                          trained ones are clipped to one that is known, or cost in proportion
    rotary                <R_i q, R_j k> depends on j - i only, but keys further away than T turn by angles
                          never met, and may win over the near ones
    rotary, scaled        omega / s (linear), or so for slow pairs only (ntk, yarn): s T places turn no
                          further than T did. The trained weights are kept; only frequencies change.
    none, interleaved     a causal mask alone; rotary in every other layer

How far a kind carries depends on the task: here near must win over far. All curves are reported, every
seed's; judged is what held for every seed we tried.
"""
    parameters = ExtrapolationParameters
    quick: ClassVar[dict[str, Value]] = {"texts": 2500, "epochs": 3.0, "seeds": 1}
    exercise = Exercise(
        starter='''
def bias(query_at, key_at, heads):
    """What ALiBi adds to the scores of each head.

    query_at: a tensor [n] of whole numbers, where the queries stand. key_at: a tensor [m], where the keys do.
    heads: H, how many heads there are; head h = 1 .. H has the slope 2^(-8 h / H).
    Return a tensor [H, n, m]: for each head, minus its slope times the distance of key and query.
    """
    raise NotImplementedError
''',
        solution=bias,
        grade=grade,
        background="""
A position that speaks in the score adds a number b_h(i, j) to what head h makes of the query at i and the key
at j, before the softmax. To work at places that training never met, it may depend on the distance alone.
ALiBi learns nothing: a score falls by the same amount with every place between query and key, and heads
differ in how fast.
""",
    )

    def measure(self, params: ExtrapolationParameters, generator: Generator) -> Findings:
        first = int(torch.randint(2**31, (), generator=generator))
        chance, short = random.Random(first), params.trained
        splits = {"train": sample_pairs(params.texts, short // 2, short, chance)}
        splits["val"] = sample_pairs(64, short // 2, short, chance)
        data = Corpus(splits, made=True)
        tests = sample_pairs(TESTED, params.longest, params.longest, chance)
        width = short // BINS
        curves: dict[str, list[list[float]]] = {}
        for seed in range(first, first + params.seeds):
            for kind in params.chosen:
                model, tokenizers = train(experiment(KINDS[kind], params, seed), data)
                tested = {kind: model} | (
                    scaled(model, tokenizers, params) if kind == "rotary" else {}
                )
                for name, one in tested.items():
                    curve = accuracy_by_position(one, tokenizers, tests, width)
                    curves.setdefault(name, []).append(curve)
        return found(curves, params, [width * (i + 0.5) for i in range(params.longest // width)])

    def draw(self, result: Result, figure: Figure, colours: Theme) -> None:
        found, params = result.figures, ExtrapolationParameters.model_validate(result.parameters)
        curves = dict(zip(found["kinds"], found["accuracies"], strict=True))
        turned = [kind for kind in curves if kind.startswith(("rotary", "interleaved"))]
        others = [kind for kind in curves if kind not in turned]
        panels = [kinds for kinds in (others, turned) if kinds]
        for panel, kinds in zip(
            add_subplots(figure, colours, columns=len(panels)), panels, strict=True
        ):
            for i, kind in enumerate(kinds):
                draw_curve(panel, found["places"], curves[kind], kind, colours.series[i])
            panel.axvline(params.trained, color=colours.dimmed, linewidth=1)
            panel.text(
                params.trained, 1.035, "trained up to here ", ha="right", size=9, color=colours.text
            )
            chance, told = 1 / len(LETTERS), "a guess"
            panel.axhline(chance, ls=":", color=colours.dimmed, linewidth=1)
            panel.text(0, chance + 0.01, told, size=9, color=colours.text)
            panel.set(
                xlabel="place of the question (characters)",
                ylabel="share of right answers",
                ylim=(0, 1.09),
            )
            add_legend(panel, colours, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=3)


def scaled(
    model: Model, tokenizers: TokenizerPair, params: ExtrapolationParameters
) -> dict[str, Model]:
    """The same weights with slower frequencies; there is nothing of a rotary position to load."""
    made = {}
    for scaling in SCALED:
        table = {"kind": "rotary", "scaling": scaling, "factor": params.factor}
        wanted = experiment({**table, "original_length": params.trained}, params, seed=0)
        made[f"rotary, {scaling}"] = init_model(wanted, tokenizers)
        made[f"rotary, {scaling}"].load_state_dict(model.state_dict())
    return made


def found(
    curves: dict[str, list[list[float]]], params: ExtrapolationParameters, places: list[float]
) -> Findings:
    """Means within, beyond and far beyond the trained length, and what must hold of them."""
    from regard.statistics import Summary

    ranges = {"within": (0, 1), "beyond": (1, params.factor), "far": (2, params.factor)}
    if params.factor == 2:
        ranges["far"] = ranges["beyond"]
    means = {
        name: {
            kind: [fmean(run[low * BINS : high * BINS]) for run in runs]
            for kind, runs in curves.items()
        }
        for name, (low, high) in ranges.items()
    }
    within, beyond, far = means.values()
    checks = []
    for kind in ("sinusoidal", "learned"):
        if kind in curves:
            name = f"{kind}, up to the trained length: worst seed"
            checks.append(Check(name, min(within[kind]), ">=", 0.75))
            checks.append(Check(f"{kind}, beyond it: best seed", max(beyond[kind]), "<=", 0.5))
    if "relative-query" in curves:
        worst = min(beyond["relative-query"])
        checks.append(Check("relative-query, beyond it: worst seed", worst, ">=", 0.75))
    if "rotary" in curves:
        gains = [new - old for new, old in zip(far["rotary, yarn"], far["rotary"], strict=True)]
        name = "what yarn's scaling gains rotary, farthest out: worst seed"
        checks.append(Check(name, min(gains), ">=", 0.3))
    summaries = {kind: Summary.of(values) for kind, values in beyond.items()}
    rows = [
        [
            kind,
            *(fmean(part[kind]) for part in means.values()),
            told(summaries[kind].mean, summaries[kind].interval),
        ]
        for kind in curves
    ]
    return Findings(
        figures={
            "kinds": list(curves),
            "places": places,
            "accuracies": list(curves.values()),
            **{name: list(part.values()) for name, part in means.items()},
            "beyond_mean": [one.mean for one in summaries.values()],
            "beyond_interval": [one.interval for one in summaries.values() if one.interval],
        },
        checks=checks,
        table=ResultTable(["position", *means, "beyond, 95 % over seeds"], rows),
    )


def told(mean: float, interval: float | None) -> str:
    """A mean with its interval, if there is more than one seed."""
    room = "" if interval is None else f" ± {interval:.3f}"
    return f"{mean:.3f}{room}"


def draw_curve(
    panel: Axes, places: list[float], runs: list[list[float]], kind: str, tint: str
) -> None:
    """Every seed thin, their mean thick."""
    for run in runs if len(runs) > 1 else ():
        panel.plot(places, run, color=tint, linewidth=0.6, alpha=0.5)
    means = [fmean(values) for values in zip(*runs, strict=True)]
    panel.plot(places, means, "o-", ms=3, color=tint, label=kind)
