"""What `storage` measured, and its verdict: the law, the effect, the table and the notes."""

from collections.abc import Sequence
from dataclasses import astuple, dataclass

import torch
from torch import Generator

from regard.labs.lab import Check, Findings, ResultTable
from regard.labs.measurements.case_task import Pair
from regard.labs.measurements.storage_metrics import (
    ProbeResult,
    Sentences,
    Shares,
    activation_changes,
    compare,
    count_unshifted,
    input_gradients,
    measure_probes,
    own_output_differences,
    part_gradients,
    weight_digests,
)
from regard.models import Model
from regard.models.recurrent import Recurrent
from regard.search import greedy
from regard.text.batch import EncodedPairs
from regard.text.tokenizer import TokenizerPair

SAME, OTHER = "same case", "other case"
# (start state, encoder states): whose they are
EXCHANGES = (
    ("own", "own"),
    ("zeros", "own"),
    (SAME, "own"),
    (OTHER, "own"),
    ("own", SAME),
    ("own", OTHER),
    (OTHER, OTHER),
)

FOLLOWED = 0.9  # share of letters above which the output follows the part that they are read from
LEARNED = 0.2  # accuracy of a probe above that before training
SCORE_ERROR = 1e-3  # nats of a whole output, in float32
CHANGED = 1e-6  # an activation above rounding
REACHED = 1e-30  # a gradient that is not exactly 0

Probes = dict[str, ProbeResult]


@dataclass(frozen=True)
class Measurement:
    shares: dict[tuple[str, str], Shares]
    not_the_donors: int
    probes: Probes
    changed_weights: list[str]
    weights: int
    changes: dict[str, float]
    unshifted: int
    gradients_after: list[float]
    gradients_before: list[float]
    part_gradients: dict[str, float]
    score_differences: list[float]


def measure_model(
    model: Model,
    tokenizers: TokenizerPair,
    exchange: Sequence[Pair],
    probed: Sequence[Pair],
    generator: Generator,
) -> Measurement:
    """All measurements of one model; its weights are hashed before the first and after the last inference."""
    assert isinstance(model, Recurrent)
    digests = weight_digests(model)
    sentences = Sentences.encode(exchange, model, tokenizers)
    outputs = {parts: sentences.generate(*parts) for parts in EXCHANGES}
    own, donors = outputs["own", "own"], sentences.donors[OTHER].tolist()
    donor_outputs = [own[row] for row in donors]
    transplanted = outputs[OTHER, OTHER]
    shares = {
        parts: compare(sentences, ids, OTHER if OTHER in parts else SAME)
        for parts, ids in outputs.items()
    }
    batch = EncodedPairs.from_pairs(exchange, tokenizers).batch(range(len(exchange)))
    length = len(exchange[0][1])
    limits = torch.full((len(exchange),), length + 1)
    found = greedy(model, sentences.memory, limits)
    probes = measure_probes(model, tokenizers, probed, generator)
    changes = activation_changes(model, batch, 1 + length // 2)
    after = weight_digests(model)
    gradients = input_gradients(model, batch, length // 2)
    return Measurement(
        shares=shares,
        not_the_donors=sum(a != b for a, b in zip(transplanted, donor_outputs, strict=True)),
        probes=probes,
        changed_weights=[name for name in digests if digests[name] != after[name]],
        weights=len(digests),
        changes=changes,
        unshifted=count_unshifted(batch),
        gradients_after=gradients[length // 2 + 1 :],
        gradients_before=gradients[: length // 2 + 1],
        part_gradients=part_gradients(model, batch),
        score_differences=own_output_differences(model, batch, found),
    )


def summarise(measured: Measurement, untrained: Probes) -> Findings:
    """Judge the law and the effect; where the case is read from is only reported."""
    probes = measured.probes
    return Findings(
        figures={
            "exchanges": [list(parts) for parts in measured.shares],
            "shares": [list(astuple(shares)) for shares in measured.shares.values()],
            "case_from_start_state": measured.shares[OTHER, "own"].other_case,
            "probed": list(probes),
            "probes": [result.accuracy for result in probes.values()],
            "probes_shuffled": [result.shuffled for result in probes.values()],
            "probes_untrained": [untrained[name].accuracy for name in probes],
            "activations": list(measured.changes),
            "activation_changes": list(measured.changes.values()),
            "weights": measured.weights,
            "weights_changed": len(measured.changed_weights),
            "parts": list(measured.part_gradients),
            "part_gradients": list(measured.part_gradients.values()),
        },
        law=judge_law(measured),
        effect=judge_effect(measured, untrained),
        table=ResultTable(
            [
                "start state of",
                "encoder states of",
                "own letters",
                "the other's letters",
                "own case",
                "other case",
            ],
            [
                [*map(name_owner, parts), *astuple(shares)]
                for parts, shares in measured.shares.items()
            ],
        ),
        notes=make_notes(measured, untrained),
    )


def name_owner(owner: str) -> str:
    """Whose state it is, in words."""
    return owner if owner in ("own", "zeros") else f"another, {owner}"


def judge_law(measured: Measurement) -> list[Check]:
    """What holds for any weights."""
    changes = dict(measured.changes)
    before = changes.pop("encoder states before it")
    return [
        Check(
            "outputs that are not the other sentence's, with its start state and its encoder states",
            measured.not_the_donors,
            "=",
            0,
            hint="Something besides these two reaches the decoder.",
        ),
        Check(
            f"weights changed by inference, of {measured.weights} (SHA-256)",
            len(measured.changed_weights),
            "=",
            0,
            hint=f"Changed: {', '.join(measured.changed_weights)}",
        ),
        Check("change of the encoder states before a letter that changes", before, "=", 0),
        Check.worst(
            "change of the other activations when a letter changes, smallest of "
            f"{', '.join(changes)}",
            changes.values(),
            ">=",
            CHANGED,
        ),
        Check("inputs in training that are not the label before", measured.unshifted, "=", 0),
        Check.worst(
            "gradient of a loss at the inputs after it",
            measured.gradients_after,
            "=",
            0,
            hint="An output sees its own label, or later ones.",
        ),
        Check.worst(
            "gradient of a loss at the inputs up to it, smallest",
            measured.gradients_before,
            ">=",
            REACHED,
            hint="An input does not reach the output.",
        ),
        Check.worst(
            "log-probability of an output with itself as input, minus that of the search",
            measured.score_differences,
            "=",
            0,
            SCORE_ERROR,
        ),
    ]


def judge_effect(measured: Measurement, untrained: Probes) -> list[Check]:
    """What the claim says of a trained model; a state shows its last letter before training, too."""
    hint = "Not trained, or the letters are read from elsewhere."
    position = "encoder state: position"
    return [
        Check("own letters", measured.shares["own", "own"].own_letters, ">=", FOLLOWED, hint=hint),
        Check(
            "own letters with the start state of another sentence",
            measured.shares[SAME, "own"].own_letters,
            ">=",
            FOLLOWED,
            hint=hint,
        ),
        Check(
            "letters of the other sentence with its encoder states",
            measured.shares["own", SAME].donor_letters,
            ">=",
            FOLLOWED,
            hint=hint,
        ),
        Check(
            f"accuracy of a probe, trained minus before training, {position}",
            measured.probes[position].accuracy - untrained[position].accuracy,
            ">=",
            LEARNED,
            hint=hint,
        ),
    ]


def make_notes(measured: Measurement, untrained: Probes) -> list[str]:
    """Probes, the case, zeros, and gradients: reported, not judged."""
    probes = "; ".join(
        f"{name} {result.accuracy:.2f} ({untrained[name].accuracy:.2f}, {result.shuffled:.2f})"
        for name, result in measured.probes.items()
    )
    norms = ", ".join(f"{name} {norm:.2g}" for name, norm in measured.part_gradients.items())
    zeros, swapped, moved = (measured.shares[start, "own"] for start in ("zeros", SAME, OTHER))
    return [
        f"probes, accuracy (before training, with shuffled labels): {probes}.",
        f"case: with the start state of a sentence that asks for the other case, {moved.other_case:.0%} of "
        f"the letters have that case, {moved.own_case:.0%} the own one. Where the case is read from is "
        "reported, not judged: run other seeds.",
        f"start state 0: {zeros.own_letters:.0%} of the letters are right (start state of another sentence: "
        f"{swapped.own_letters:.0%}). Letters lost with zeros cut against 'not from the start state'. A "
        "state of zeros does not occur in training; what is lost is reported, not explained.",
        f"gradient of the training loss by part: {norms}.",
    ]
