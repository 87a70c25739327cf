"""Decoding speed of each system of a comparison, measured while no other run uses the device."""

import time
from collections.abc import Sequence

from regard.compare.plan import Run
from regard.loading import load
from regard.text import corpus
from regard.text.batch import EncodedPairs

ROUNDS = 3


def measure_speed(runs: Sequence[Run], split: str, device: str) -> dict[str, float]:
    """Sentences per second of greedy search, by system: its first run, the best of several rounds.

    Rounds are interleaved over the systems, so that a slowdown of the machine affects all of them.
    """
    first: dict[str, Run] = {}
    for run in runs:
        if (run.folder / f"evaluation-{split}.json").is_file():
            first.setdefault(run.system.label, run)
    translators = {label: load(run.folder, device) for label, run in first.items()}
    pairs = {
        data: corpus.load_split(data, split) for data in {run.config.data for run in first.values()}
    }
    encoded = {
        label: EncodedPairs.from_pairs(pairs[run.config.data], translators[label].tokenizers)
        for label, run in first.items()
    }
    best = dict.fromkeys(first, 0.0)
    for _ in range(ROUNDS):
        for label, translator in translators.items():
            started = time.perf_counter()
            translator.search(encoded[label])
            seconds = time.perf_counter() - started
            best[label] = max(best[label], len(encoded[label]) / seconds)
    return best
