"""Metrics on what the translator says: `likelihood` (perplexity), `metrics` (BLEU, ...), `evaluate`."""

from regard.evaluation.evaluate import evaluate
from regard.evaluation.likelihood import Likelihood, likelihoods, total

__all__ = ["Likelihood", "evaluate", "likelihoods", "total"]
