"""Speed benchmarks: `timing` (interleaved rounds), then one benchmark per module."""

from regard.benchmarks.data import Data
from regard.benchmarks.decoding import Decoding
from regard.benchmarks.engines import Engines
from regard.benchmarks.large_data import LargeData
from regard.benchmarks.long import Long
from regard.benchmarks.training import Training

BENCHMARKS = {
    "data": Data,
    "decoding": Decoding,
    "engines": Engines,
    "long": Long,
    "training": Training,
}

__all__ = ["BENCHMARKS", "Data", "Decoding", "Engines", "LargeData", "Long", "Training"]
