"""What is measured, against whom: `timing` (turn by turn), then one benchmark a file."""

from regard.benchmarks.decoding import Decoding
from regard.benchmarks.training import Training

BENCHMARKS = {"decoding": Decoding, "training": Training}

__all__ = ["BENCHMARKS", "Decoding", "Training"]
