"""Speed benchmarks: `timing` (interleaved rounds), then one benchmark per module."""

from regard.benchmarks.decoding import Decoding
from regard.benchmarks.training import Training

BENCHMARKS = {"decoding": Decoding, "training": Training}

__all__ = ["BENCHMARKS", "Decoding", "Training"]
