"""The verdict of `extrapolation`: exact statements about positions, and accuracies beyond training."""

import math
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Literal, TypeVar

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from regard.attention.positions import Learned, Position, Relative, Rotary
from regard.labs.lab import Check, Findings, ResultTable
from regard.models import Model
from regard.text.batch import EncodedPairs
from regard.text.tokenizer import TokenizerPair

BINS = 6  # for each multiple of the training length
CHECKED = ("sinusoidal", "learned", "relative-query", "rotary")  # the others are only reported
ABSOLUTE = ("sinusoidal", "learned")
EXTRAPOLATING = (
    "linear",
    "yarn",
)  # scalings for which it held; ntk and dynamic-ntk vary with the seed

LEARNED, FORGOTTEN = 0.75, 0.5  # accuracy of a kind that works, and of one that fails
GAINED, HELPED = 0.3, 0.1  # accuracy that scaling gains, and that counts as help at all
ROUNDING = 1e-4  # of logits, in float32
PARALLEL = 1e-5  # 1 - cosine of two rows, in float32
OVERHEAD = 2  # tokens before the first character: the end of the (empty) source, and BOS

NOT_TRAINED = "Not trained: not even sequences of the training length are answered. Train longer."

P = TypeVar("P", bound=Position)
Curves = dict[str, list[list[float]]]  # accuracy by position, for each seed


def positions_of(model: Model, kind: type[P]) -> list[P]:
    return [part for part in model.modules() if isinstance(part, kind)]


# --- the law --------------------------------------------------------------------------------------


@dataclass
class LawMeasurement:
    """Differences that must be 0, from every trained model."""

    train_length: int
    factor: int
    answers: list[float] = field(default_factory=list)
    unseen_rows: list[float] = field(default_factory=list)
    clipped: list[float] = field(default_factory=list)
    slowest: list[float] = field(default_factory=list)

    def add_model(self, kind: str, model: Model, untrained: Model) -> None:
        """The rows of a learned table that training has not reached; a bias beyond its distance."""
        tables = zip(positions_of(model, Learned), positions_of(untrained, Learned), strict=True)
        for trained, initial in tables:
            unseen = slice(self.train_length + OVERHEAD, None)
            rows = trained.table[unseen].detach(), initial.table[unseen].detach()
            self.unseen_rows += (1 - cosine_similarity(*rows, dim=1)).tolist()
        for position in positions_of(model, Relative):
            self.clipped.append(float(beyond_clipping(position).abs().max()))

    def add_answers(
        self, model: Model, tokenizers: TokenizerPair, pairs: list[tuple[str, str]]
    ) -> None:
        """Logits up to the training length: of a long sequence, and of one that ends there."""
        short = [(source, target[: self.train_length]) for source, target in pairs]
        with torch.inference_mode():
            long_logits, short_logits = (
                read(model, tokenizers, texts)[:, : self.train_length] for texts in (pairs, short)
            )
        self.answers.append(float((long_logits - short_logits).abs().max()))

    def add_scaled(self, original: Model, scaled: Model) -> None:
        """Angle of the slowest pair over s T positions, relative to that over T before: s omega' / omega."""
        pairs = zip(positions_of(original, Rotary), positions_of(scaled, Rotary), strict=True)
        before, after = self.train_length, self.factor * self.train_length
        self.slowest += [
            self.factor * slowest_frequency(new, after) / slowest_frequency(old, before)
            for old, new in pairs
        ]

    def checks(self) -> list[Check]:
        """One for each statement that concerns a selected kind."""
        checks = [
            Check.worst(
                "logits up to the training length: change when the sequence goes on, all kinds",
                self.answers,
                "<=",
                ROUNDING,
            )
        ]
        if self.unseen_rows:
            name = (
                "learned: 1 - cosine of a row beyond the training length, before and after training"
            )
            checks.append(Check.worst(name, self.unseen_rows, "<=", PARALLEL))
        if self.clipped:
            name = "relative: change of the bias beyond the clipped distance"
            checks.append(Check.worst(name, self.clipped, "=", 0))
        if self.slowest:
            name = "rotary, scaled: angle of the slowest pair over s T, relative to T before"
            checks.append(Check.worst(name, self.slowest, "<=", 1, 1e-6))
        return checks


def slowest_frequency(position: Rotary, keys: int) -> float:
    """The angle between two neighbours in the last pair, for a query with this many keys."""
    unit, one = torch.zeros(1, 1, 1, 2 * len(position.omega)), torch.ones(1, 1, dtype=torch.long)
    unit[..., -2] = 1
    rotated = position.rotate(unit, one)
    for _, rotate_further in position.further_rotations(keys)[-1:]:
        rotated = rotate_further(rotated, one)
    cosine, sine = rotated.flatten()[-2:].tolist()
    return math.atan2(sine, cosine)


def read(model: Model, tokenizers: TokenizerPair, pairs: list[tuple[str, str]]) -> Tensor:
    """The logits of a batch, teacher-forced."""
    batch = EncodedPairs.from_pairs(pairs, tokenizers).batch(range(len(pairs)))
    return model(batch.source, batch.source_mask, batch.target)


def beyond_clipping(position: Relative) -> Tensor:
    """The bias at larger and larger distances, minus that at the distance where clipping begins."""
    columns = position.table.shape[1]
    heads, depth = (columns, 3) if position.form == "bias" else (1, columns)
    query = torch.ones(1, heads, 1, depth)
    far = 3 * position.max_distance
    keys = torch.arange(far - position.max_distance, -1, -1)[None]
    with torch.inference_mode():
        bias = position.bias(query, torch.tensor([[far]]), keys)
    return bias - bias[..., :1]


# --- the effect -----------------------------------------------------------------------------------


def summarise(curves: Curves, positions: list[float], factor: int, law: list[Check]) -> Findings:
    """Mean accuracies within, beyond and far beyond the training length, and their checks."""
    from regard.statistics import Summary

    ranges = {"within": (0, 1), "beyond": (1, factor), "far": (min(2, factor - 1), factor)}
    means = {
        name: {
            kind: [fmean(run[low * BINS : high * BINS]) for run in runs]
            for kind, runs in curves.items()
        }
        for name, (low, high) in ranges.items()
    }
    summaries = {kind: Summary.of(values) for kind, values in means["beyond"].items()}
    rows = [
        [
            kind,
            *(fmean(part[kind]) for part in means.values()),
            format_interval(summaries[kind].mean, summaries[kind].interval),
        ]
        for kind in curves
    ]
    return Findings(
        figures={
            "kinds": list(curves),
            "positions": positions,
            "accuracies": list(curves.values()),
            **{name: list(part.values()) for name, part in means.items()},
            "beyond_mean": [summary.mean for summary in summaries.values()],
            "beyond_interval": [s.interval for s in summaries.values() if s.interval],
        },
        law=law,
        effect=judge_effect(**means),
        table=ResultTable(["position", *means, "beyond, 95 % over seeds"], rows),
        notes=note_interleaving(means["beyond"]),
    )


Means = dict[str, list[float]]  # by kind, one for each seed


def judge_effect(within: Means, beyond: Means, far: Means) -> list[Check]:
    """Each part of the claim, by what held for every seed that we tried."""
    checks = [
        Check.worst(
            f"{kind}, up to the training length: worst seed",
            within[kind],
            ">=",
            LEARNED,
            hint=NOT_TRAINED,
        )
        for kind in CHECKED
        if kind in within
    ]
    for kind in [kind for kind in ABSOLUTE if kind in beyond] or [" or ".join(ABSOLUTE)]:
        checks.append(judge_kind(f"{kind}, beyond it: best seed", kind, beyond, "<=", FORGOTTEN))
    name, kind = "relative-query, beyond it: worst seed", "relative-query"
    checks.append(judge_kind(name, kind, beyond, ">=", LEARNED))
    for scaling in EXTRAPOLATING:
        kind = f"rotary, {scaling}"
        checks.append(judge_kind(f"{kind}, far beyond it: worst seed", kind, far, ">=", LEARNED))
        if "rotary" in far:
            gains = [new - old for new, old in zip(far[kind], far["rotary"], strict=True)]
            name = f"accuracy gained by {scaling} over rotary, far beyond it: worst seed"
            checks.append(Check.worst(name, gains, ">=", GAINED))
    return checks


def judge_kind(
    name: str, kind: str, means: Means, relation: Literal["<=", ">="], expected: float
) -> Check:
    """The worst seed of a kind. A part of the claim that has no model is not measured, so absent."""
    check = Check.worst(name, means.get(kind, ()), relation, expected)
    hint = f"Not measured: add {kind.split(',')[0]} to positions."
    return check if kind in means else replace(check, hint=hint)


def note_interleaving(beyond: Means) -> list[str]:
    """Does interleaving help, as the discussion sheet has it? What these seeds say."""
    if not {"interleaved", "rotary"} <= beyond.keys():
        return []
    gains = [new - old for new, old in zip(beyond["interleaved"], beyond["rotary"], strict=True)]
    helped = sum(gain >= HELPED for gain in gains)
    verdict = "is mixed" if helped else "contradicts this: it did not help"
    verdict = "agrees" if helped == len(gains) else verdict
    return [
        "The discussion sheet lists interleaving (rotary in some layers, no positions in the others) among "
        f"the means for long contexts. Our measurement {verdict}. Beyond the training length, interleaved "
        f"minus rotary is {fmean(gains):+.3f} on average, and at least {HELPED} in {helped} of {len(gains)} "
        "seeds. (This task needs the nearest of many keys, and the models have two layers.)"
    ]


def format_interval(mean: float, interval: float | None) -> str:
    """A mean with its confidence interval, which needs more than one seed."""
    return f"{mean:.3f}" if interval is None else f"{mean:.3f} ± {interval:.3f}"
