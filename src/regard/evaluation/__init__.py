"""Evaluation of a translator: `likelihood` (perplexity), `metrics` (BLEU, ...), `evaluate`.

Of other systems by their outputs, with paired tests: `systems`. And attention ablations: `ablation`.
"""

from regard.evaluation.ablation import ablate
from regard.evaluation.evaluate import evaluate, evaluate_outputs, greedy_bleu
from regard.evaluation.likelihood import Likelihood, aggregate, likelihoods
from regard.evaluation.systems import compare_systems, evaluate_systems

__all__ = [
    "Likelihood",
    "ablate",
    "aggregate",
    "compare_systems",
    "evaluate",
    "evaluate_outputs",
    "evaluate_systems",
    "greedy_bleu",
    "likelihoods",
]
