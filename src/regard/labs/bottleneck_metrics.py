"""Measurements for `bottleneck`: accuracy by length, gradient norms by position, a fit of memory capacity."""

import random
from collections.abc import Sequence
from itertools import pairwise
from string import ascii_lowercase

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from regard.models import Model
from regard.text.batch import Batch, EncodedPairs
from regard.text.tasks import TASKS
from regard.text.tokenizer import TokenizerPair

Pair = tuple[str, str]


def sample_pairs(count: int, lengths: range, letters: int, rng: random.Random) -> list[Pair]:
    """Pairs of the case task with independent, uniform letters: none can be predicted from the others."""
    alphabet = ascii_lowercase[:letters] + ascii_lowercase[:letters].upper()
    sampled = rng.choices(lengths, k=count)
    texts = ["".join(rng.choices(alphabet, k=length)) for length in sampled]
    return [TASKS["case"].make_pair(text, rng) for text in texts]


def accuracy_by_length(
    model: Model, tokenizers: TokenizerPair, pairs: list[Pair], edges: Sequence[int]
) -> list[float]:
    """Teacher-forced token accuracy, for target lengths low <= n < high between consecutive edges."""
    from regard.evaluation import aggregate, likelihoods

    scored = likelihoods(model, EncodedPairs.from_pairs(pairs, tokenizers))
    lengths = [len(target) for _, target in pairs]
    return [
        aggregate(x for x, n in zip(scored, lengths, strict=True) if low <= n < high).token_accuracy
        for low, high in pairwise(edges)
    ]


def gradient_norms(model: Model, batch: Batch, output: int) -> list[float]:
    """Mean norm, at each source position, of the gradient of one output's loss w.r.t. the embedding."""
    embedded: list[Tensor] = []
    embedding = next(part for part in model.modules() if isinstance(part, torch.nn.Embedding))
    hook = embedding.register_forward_hook(lambda *args: embedded.append(args[2]))
    logits = model(batch.source, batch.source_mask, batch.target)[:, output]
    hook.remove()
    loss = cross_entropy(logits, batch.labels[:, output], reduction="sum")
    gradient = torch.autograd.grad(loss, embedded[0])[0]
    return (
        gradient.double().norm(dim=-1).mean(0).tolist()
    )  # float64: squares of 1e-30 underflow in float32


def expected_accuracy(capacity: float, length: float, letters: int) -> float:
    """(K + (n + 1 - K) / a) / (n + 1): K of n letters and the end token are known, the others guessed"""
    known = min(capacity, length + 1)
    return (known + (length + 1 - known) / letters) / (length + 1)


def fit_capacity(
    lengths: Sequence[float], accuracies: Sequence[float], letters: int
) -> tuple[float, float]:
    """(K, its standard error) by least squares."""
    grid = np.arange(0, max(lengths) + 1, 0.01)
    curves = np.array([[expected_accuracy(k, n, letters) for n in lengths] for k in grid])
    errors = ((curves - np.array(accuracies)) ** 2).sum(1)
    capacity = grid[errors.argmin()]
    slopes = sum(((1 - 1 / letters) / (n + 1)) ** 2 for n in lengths if n + 1 > capacity)
    variance = errors.min() / max(len(lengths) - 1, 1) / max(slopes, 1e-9)
    return float(capacity), float(np.sqrt(variance))
