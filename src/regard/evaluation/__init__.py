"""Metrics on what the translator says: `likelihood` (perplexity), `metrics` (BLEU, ...), `evaluate`.

And on what it would say without a part of its attention: `ablation`.
"""

from regard.evaluation.ablation import ablate
from regard.evaluation.evaluate import evaluate, greedy_bleu
from regard.evaluation.likelihood import Likelihood, likelihoods, total

__all__ = ["Likelihood", "ablate", "evaluate", "greedy_bleu", "likelihoods", "total"]
