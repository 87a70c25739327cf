"""What `bottleneck` measured, and its verdict: the law, the effect, the table, and models not trained."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from regard.labs.lab import Check, Findings, ResultTable
from regard.labs.measurements.bottleneck_metrics import CapacityFit, GeometricDecay, fit_capacity
from regard.labs.measurements.case_task import ACCURACIES

FORCED, FREE = ACCURACIES
BASELINE, ATTENTION, POSITIONS = "no attention", "attention", "attention + positions"
NAMES = (BASELINE, ATTENTION, POSITIONS)

GEOMETRIC = 0.95  # share of the variance of ln |g| that a constant factor per step explains
PATHS_ERROR = 1e-4  # float32 sums of gradients
LEARNED = 2  # K of a model that knows the end token and at least one letter
GAINED, LOST = 0.25, 0.05  # accuracy gained by attention, and lost without it as sequences grow
GRADIENT_RATIO = 100

NOT_TRAINED = (
    "Not trained: this model knows no letter, at any length, so that the effect of attention on it cannot be "
    "judged. Train longer (epochs, train_size), or, if the cell is rnn, use gru."
)
NO_GRADIENT = (
    "the gradient is 0 (as with a start state whose ReLUs are all dead): its decay is not judged."
)


@dataclass
class Measurement:
    """Accuracies by kind and model (a row for each seed), gradients and exact differences by model."""

    letters: int
    lengths: list[float]
    accuracies: dict[str, dict[str, list[list[float]]]] = field(
        default_factory=lambda: {kind: {name: [] for name in NAMES} for kind in ACCURACIES}
    )
    gradient_norms: dict[str, list[float]] = field(default_factory=dict)  # "attention, before"
    path_differences: list[float] = field(default_factory=list)
    start_state_only: list[float] = field(default_factory=list)
    parameter_counts: dict[str, int] = field(default_factory=dict)

    def fit(self, runs: Sequence[Sequence[float]]) -> CapacityFit:
        """The closed form fitted to the accuracies of some runs together."""
        accuracies = [accuracy for run in runs for accuracy in run]
        return fit_capacity(self.lengths * len(runs), accuracies, self.letters)

    def capacities(self, name: str) -> list[float]:
        """K of each run of a model."""
        return [self.fit([run]).capacity for run in self.accuracies[FORCED][name]]

    def gaps(self, kind: str) -> list[float]:
        """Accuracy gained by attention on the longest sequences, for each seed."""
        runs = (np.array(self.accuracies[kind][name])[:, -1] for name in (ATTENTION, BASELINE))
        return np.subtract(*runs).tolist()

    def gradient_ratio(self) -> float:
        """Gradient at the first letter at initialisation, with attention / without."""
        first_letter = 1  # source position 0 is <U> or <L>
        with_attention, without = (
            self.gradient_norms[f"{name}, before"][first_letter] for name in (ATTENTION, BASELINE)
        )
        if with_attention == without == 0:
            return math.nan
        return with_attention / without if without else math.inf


def summarise(measured: Measurement) -> Findings:
    """Judge the law and the effect; the effect of positions is only reported."""
    from regard.statistics import Summary

    baseline = measured.fit(measured.accuracies[FORCED][BASELINE])
    gaps = measured.gaps(FORCED)
    decay = GeometricDecay.fit(measured.gradient_norms[f"{BASELINE}, before"])
    with_positions, without = (
        np.array(measured.accuracies[FORCED][name])[:, -1] for name in (POSITIONS, ATTENTION)
    )
    untrained = [name for name in NAMES if any(k < LEARNED for k in measured.capacities(name))]
    return Findings(
        figures={
            "gap": float(np.mean(gaps)),
            "gap_free_running": float(np.mean(measured.gaps(FREE))),
            "gap_interval": [Summary.of(gaps).interval] if len(gaps) > 1 else [],
            "positions_gain": float((with_positions - without).mean()),
            "capacity": baseline.capacity,
            "capacity_error": baseline.error,
            "guess": baseline.guess,
            "fit_residual": baseline.residual,
            "decay_per_step": [decay.factor] if decay else [],
            "not_trained": untrained,
            "lengths": measured.lengths,
            "models": list(NAMES),
            "accuracies": list(measured.accuracies[FORCED].values()),
            "free_running": list(measured.accuracies[FREE].values()),
            "parameters": [measured.parameter_counts[name] for name in NAMES],
            "gradients": list(measured.gradient_norms),
            "gradient_norms": list(measured.gradient_norms.values()),
        },
        law=judge_law(measured, decay),
        effect=judge_effect(measured),
        table=make_table(measured, baseline),
        notes=[
            "teacher-forced: each token is predicted after the correct prefix. free-running: greedy search, "
            "each token compared with the reference's at the same position; tokens missing from an output "
            "that ends early count as wrong, those after the reference's end do not count.",
            f"without attention: {baseline.capacity:.2f} ± {baseline.error:.2f} tokens known, "
            f"{baseline.guess:.0%} of the others guessed; the fit is {baseline.residual:.3f} (RMS) from the "
            "measured accuracies.",
            "without attention, at initialisation: "
            + (
                f"each step multiplies the gradient by {decay.factor:.3g}."
                if decay
                else NO_GRADIENT
            ),
            *(
                f"Not trained: {name} (K < {LEARNED} in at least one seed: not a letter is known)"
                for name in untrained
            ),
        ],
    )


def judge_law(measured: Measurement, decay: GeometricDecay | None) -> list[Check]:
    """What the derivation says of any model, trained or not; a gradient of 0 cannot decay."""
    geometric = (
        Check(
            "without attention, at initialisation: share of the variance of ln |g| explained by "
            "r^(i + n - j)",
            each.explained,
            ">=",
            GEOMETRIC,
        )
        for each in [decay]
        if each
    )
    return [
        Check.worst(
            "without attention: largest change of a logit when noise replaces all encoder states but the "
            "last",
            measured.start_state_only,
            "=",
            0,
            hint="Without attention, the start state must be all that reaches the decoder.",
        ),
        Check.worst(
            "gradient minus its parts through the start state and through attention, relative",
            measured.path_differences,
            "<=",
            PATHS_ERROR,
            hint="Something else carries the gradient to the encoder.",
        ),
        *geometric,
    ]


def judge_effect(measured: Measurement) -> list[Check]:
    """What the claim says: something is learned, forgotten without attention, and found with it."""
    forgetting = np.array(measured.accuracies[FORCED][BASELINE])
    known = (
        Check.worst(
            f"{name}: tokens known, K, worst seed",
            measured.capacities(name),
            ">=",
            LEARNED,
            hint=NOT_TRAINED,
        )
        for name in (BASELINE, ATTENTION)
    )
    gained = (
        Check.worst(
            f"accuracy gained by attention on the longest sequences, {kind}, worst seed",
            measured.gaps(kind),
            ">=",
            GAINED,
        )
        for kind in ACCURACIES
    )
    return [
        *known,
        *gained,
        Check.worst(
            "accuracy lost without attention from the shortest to the longest sequences, worst seed",
            forgetting[:, 0] - forgetting[:, -1],
            ">=",
            LOST,
        ),
        Check(
            "gradient of the last loss at the first letter, at initialisation: ratio with / without "
            "attention",
            measured.gradient_ratio(),
            ">=",
            GRADIENT_RATIO,
        ),
    ]


def make_table(measured: Measurement, baseline: CapacityFit) -> ResultTable:
    """Mean accuracies over seeds by length, both kinds."""
    means = {
        kind: [np.mean(runs, axis=0) for runs in by_model.values()]
        for kind, by_model in measured.accuracies.items()
    }
    return ResultTable(
        ["letters", "accuracy", *NAMES, f"fit, {BASELINE}"],
        [
            [n, kind, *(float(mean[i]) for mean in means[kind]), fitted]
            for i, n in enumerate(measured.lengths)
            for kind, fitted in ((FORCED, baseline.predict(n)), (FREE, ""))
        ],
    )
