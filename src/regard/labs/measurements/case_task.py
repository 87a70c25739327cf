"""The case task for the labs that train on it: data, models and accuracy, teacher-forced and free-running.

`<U> aBc` gives `ABC`, `<L> aBc` gives `abc`. Letters are independent and uniform, so that none can be
predicted from the others.
"""

import random
from collections.abc import Sequence
from itertools import pairwise
from string import ascii_lowercase
from typing import Any

import torch
from pydantic import Field

from regard.config import Config
from regard.labs.lab import Parameters
from regard.models import Model
from regard.search import greedy
from regard.text.batch import EncodedPairs, pad
from regard.text.corpus import Corpus
from regard.text.tasks import TASKS
from regard.text.tokenizer import EOS, TokenizerPair

Pair = tuple[str, str]
MIN_LENGTH = 4
SINGLE_HEAD: dict[str, Any] = {"kind": "single-head", "kq_dim": 16}


class CaseParameters(Parameters):
    letters: int = Field(6, ge=2, le=26)
    """Size of the alphabet."""
    max_length: int = Field(24, ge=10, le=64)
    """Longest sequence, in letters; the shortest has 4."""
    hidden_dim: int = Field(32, ge=2, le=256)
    """Size of the hidden state, which is all that the decoder gets without attention."""
    train_size: int = Field(8000, ge=100, le=200_000)
    """Number of training sequences."""
    epochs: float = Field(5.0, gt=0, le=100)
    """Passes over the training data."""

    @property
    def lengths(self) -> range:
        return range(MIN_LENGTH, self.max_length + 1)


def sample_pairs(count: int, lengths: range, letters: int, rng: random.Random) -> list[Pair]:
    """Pairs of the case task with independent, uniform letters of both cases."""
    alphabet = ascii_lowercase[:letters] + ascii_lowercase[:letters].upper()
    sampled = rng.choices(lengths, k=count)
    texts = ["".join(rng.choices(alphabet, k=length)) for length in sampled]
    return [TASKS["case"].make_pair(text, rng) for text in texts]


def sample_corpus(params: CaseParameters, test_size: int, rng: random.Random) -> Corpus:
    """Training, validation and test pairs."""
    sizes = {"train": params.train_size, "val": 64, "test": test_size}
    splits = {
        name: sample_pairs(size, params.lengths, params.letters, rng)
        for name, size in sizes.items()
    }
    return Corpus(splits, TASKS["case"].symbols, is_synthetic=True)


def make_config(
    params: CaseParameters, seed: int, cell: str = "gru", attention: Any = "none", **encoder: Any
) -> Config:
    """A recurrent model. Its encoder is unidirectional: without attention the decoder gets its last state."""
    model = {
        "kind": "recurrent",
        "cell": cell,
        "hidden_dim": params.hidden_dim,
        "embedding_dim": 16,
        "attention": attention,
        "encoder": {"bidirectional": False, **encoder},
    }
    training = {
        "epochs": params.epochs,
        "batch_sentences": 32,
        "learning_rate": 0.01,
        "warmup_steps": 50,
        "validate_every": 10**9,
    }
    return Config.model_validate({"seed": seed, "model": model, "training": training})


# --- accuracy -------------------------------------------------------------------------------------

Count = tuple[int, int]  # (correct tokens, tokens of the reference, the end token included)


def count_teacher_forced(model: Model, data: EncodedPairs) -> list[Count]:
    """For each pair: tokens predicted correctly after the correct prefix."""
    from regard.evaluation import likelihoods

    return [(scored.correct, scored.tokens) for scored in likelihoods(model, data)]


def count_free_running(model: Model, data: EncodedPairs) -> list[Count]:
    """For each pair: tokens of a greedy output equal to the reference's at the same position.

    An output that ends early lacks the other tokens: they count as wrong. One that does not end in time is
    wrong where the reference ends, and what follows does not count.
    """
    source, mask = pad([data.source[row] for row in range(len(data))])
    references = [[*data.target[row], EOS] for row in range(len(data))]
    limits = torch.tensor([len(reference) for reference in references])
    with torch.inference_mode():
        outputs = greedy(model, model.encode(source, mask), limits)
    return [
        (sum(a == b for a, b in zip(output.ids, reference, strict=False)), len(reference))
        for output, reference in zip(outputs, references, strict=True)
    ]


ACCURACIES = {"teacher-forced": count_teacher_forced, "free-running": count_free_running}


def accuracy_by_length(
    model: Model, tokenizers: TokenizerPair, pairs: list[Pair], edges: Sequence[int], kind: str
) -> list[float]:
    """Token accuracy for target lengths low <= n < high between consecutive edges."""
    counts = ACCURACIES[kind](model, EncodedPairs.from_pairs(pairs, tokenizers))
    lengths = [len(target) for _, target in pairs]
    bins = (
        [count for count, n in zip(counts, lengths, strict=True) if low <= n < high]
        for low, high in pairwise(edges)
    )
    sums = (map(sum, zip(*group, strict=True)) for group in bins)
    return [correct / tokens for correct, tokens in sums]
