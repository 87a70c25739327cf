"""How much of a text a recurrent decoder knows, and how learning reaches it: what `bottleneck` measures."""

import random
from collections.abc import Sequence
from itertools import pairwise
from string import ascii_lowercase

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from regard.models import Model
from regard.text.batch import Batch, Encoded
from regard.text.tasks import TASKS
from regard.text.tokenizer import TokenizerPair

Pair = tuple[str, str]


def sample_pairs(count: int, lengths: range, letters: int, chance: random.Random) -> list[Pair]:
    """Pairs of the case task. Letters come by chance: none can be guessed from the others."""
    alphabet = ascii_lowercase[:letters] + ascii_lowercase[:letters].upper()
    drawn = chance.choices(lengths, k=count)
    texts = ["".join(chance.choices(alphabet, k=length)) for length in drawn]
    return [TASKS["case"].pair(text, chance) for text in texts]


def accuracy_by_length(
    model: Model, tokenizers: TokenizerPair, pairs: list[Pair], edges: Sequence[int]
) -> list[float]:
    """Share of target tokens that are right, each after the right ones, for lengths between edges."""
    from regard.evaluation import aggregate, likelihoods

    found = likelihoods(model, Encoded.of(pairs, tokenizers))
    lengths = [len(target) for _, target in pairs]
    return [
        aggregate(
            one for one, n in zip(found, lengths, strict=True) if low <= n < high
        ).token_accuracy
        for low, high in pairwise(edges)
    ]


def gradient_norms(model: Model, batch: Batch, output: int) -> list[float]:
    """How large the gradient of one output's loss is at each place of the source, on average."""
    embedded: list[Tensor] = []
    embedding = next(part for part in model.modules() if isinstance(part, torch.nn.Embedding))
    hook = embedding.register_forward_hook(lambda *seen: embedded.append(seen[2]))
    logits = model(batch.source, batch.source_mask, batch.target)[:, output]
    hook.remove()
    loss = cross_entropy(logits, batch.wanted[:, output], reduction="sum")
    gradient = torch.autograd.grad(loss, embedded[0])[0]
    return gradient.double().norm(dim=-1).mean(0).tolist()  # squares of 1e-30 need the room


def expected_accuracy(held: float, length: float, letters: int) -> float:
    """(K + (n + 1 - K) / a) / (n + 1): K of n letters and the end are known, the others guessed"""
    known = min(held, length + 1)
    return (known + (length + 1 - known) / letters) / (length + 1)


def fit_capacity(
    lengths: Sequence[float], accuracies: Sequence[float], letters: int
) -> tuple[float, float]:
    """(K, its standard error) by least squares."""
    grid = np.arange(0, max(lengths) + 1, 0.01)
    curves = np.array([[expected_accuracy(held, n, letters) for n in lengths] for held in grid])
    misses = ((curves - np.array(accuracies)) ** 2).sum(1)
    held = grid[misses.argmin()]
    slopes = sum(((1 - 1 / letters) / (n + 1)) ** 2 for n in lengths if n + 1 > held)
    variance = misses.min() / max(len(lengths) - 1, 1) / max(slopes, 1e-9)
    return float(held), float(np.sqrt(variance))
