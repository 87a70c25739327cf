"""What is measured, against whom: `timing` (turn by turn), then one benchmark a file."""

from regard.benchmarks.decoding import Decoding

BENCHMARKS = {"decoding": Decoding}

__all__ = ["BENCHMARKS", "Decoding"]
