"""Evaluation of a translator: `likelihood` (perplexity), `metrics` (BLEU, ...), `evaluate`.

And attention ablations: `ablation`.
"""

from regard.evaluation.ablation import ablate
from regard.evaluation.evaluate import evaluate, greedy_bleu
from regard.evaluation.likelihood import Likelihood, aggregate, likelihoods

__all__ = ["Likelihood", "ablate", "aggregate", "evaluate", "greedy_bleu", "likelihoods"]
