"""Pairs to padded batches: bucketed by length, in an order that a seed decides."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from regard.attention.masks import padding_mask
from regard.text.tokenizer import BEGIN, END, PAD, TokenizerPair


@dataclass
class Batch:
    """Ids and masks. The target is read as begin, w1 .. wn and asked for as w1 .. wn, end."""

    source: Int[Tensor, "batch source"]
    source_mask: Bool[Tensor, "batch source"]
    target: Int[Tensor, "batch target"]
    wanted: Int[Tensor, "batch target"]
    target_mask: Bool[Tensor, "batch target"]

    def to(self, device: torch.device | str) -> "Batch":
        return type(self)(*(getattr(self, f.name).to(device) for f in fields(self)))

    @property
    def tokens(self) -> int:
        """Target tokens to predict: the end counts, padding does not."""
        return int(self.target_mask.sum())


Ids = Sequence[Sequence[int]]


@dataclass(frozen=True)
class Ragged(Sequence):
    """Rows of ids of different lengths, end to end in one array, which may lie on disk."""

    values: np.ndarray
    ends: np.ndarray

    @classmethod
    def of(cls, rows: Iterable[Sequence[int]]) -> "Ragged":
        rows = list(rows)
        values = np.fromiter((i for row in rows for i in row), dtype=np.int32)
        return cls(values, np.cumsum([0, *map(len, rows)]))

    def __len__(self) -> int:
        return len(self.ends) - 1

    def __getitem__(self, row: int) -> list[int]:  # type: ignore[override]
        if not 0 <= row < len(self):
            raise IndexError(row)
        return self.values[self.ends[row] : self.ends[row + 1]].tolist()


@dataclass(frozen=True)
class Encoded:
    """A split as ids. A source carries its end token; a target is bare."""

    source: Ids
    target: Ids

    def __len__(self) -> int:
        return len(self.source)

    @classmethod
    def of(cls, pairs: Iterable[tuple[str, str]], tokenizers: TokenizerPair) -> "Encoded":
        pairs = list(pairs)
        source = Ragged.of([*tokenizers.source.encode(text), END] for text, _ in pairs)
        return cls(source, Ragged.of(tokenizers.target.encode(text) for _, text in pairs))

    def lengths(self) -> list[tuple[int, int]]:
        """(target, source) tokens of each pair."""
        return [(len(t), len(s)) for t, s in zip(self.target, self.source, strict=True)]

    def batch(self, rows: Sequence[int]) -> Batch:
        """The pairs at `rows`, padded to the longest among them."""
        source, source_mask = pad([self.source[row] for row in rows])
        target, target_mask = pad([[BEGIN, *self.target[row]] for row in rows])
        wanted, _ = pad([[*self.target[row], END] for row in rows])
        return Batch(source, source_mask, target, wanted, target_mask)


def pad(rows: Ids) -> tuple[Int[Tensor, "batch length"], Bool[Tensor, "batch length"]]:
    """Rows of ids, filled up to the longest, and the mask of what is real."""
    lengths = torch.tensor([len(row) for row in rows])
    width = int(lengths.max())
    ids = np.full((len(rows), width), PAD, dtype=np.int64)
    for row, values in zip(ids, rows, strict=True):
        row[: len(values)] = values
    return torch.from_numpy(ids), padding_mask(lengths, width)


@dataclass(frozen=True)
class Batches:
    """Batches of nearly equal lengths within a budget, shuffled anew every epoch.

    The order of an epoch depends on the seed and the epoch's number alone, so (epoch, index) is all
    that a resumed run needs to know.
    """

    data: Encoded
    tokens: int
    sentences: int
    seed: int

    @cached_property
    def lengths(self) -> list[tuple[int, int]]:
        return self.data.lengths()

    def epoch(self, number: int) -> list[list[int]]:
        """The rows of each batch of an epoch, in order."""
        random = np.random.Generator(np.random.PCG64([self.seed, number]))
        shuffled = random.permutation(len(self.data)).tolist()
        batches = list(self._cut(sorted(shuffled, key=self.lengths.__getitem__)))
        return [batches[index] for index in random.permutation(len(batches))]

    def in_order(self) -> list[list[int]]:
        """The same, for evaluation: shortest first, nothing shuffled."""
        return list(self._cut(sorted(range(len(self.data)), key=self.lengths.__getitem__)))

    def _cut(self, ordered: list[int]) -> Iterator[list[int]]:
        batch: list[int] = []
        longest = 0
        for row in ordered:
            target, source = self.lengths[row]
            longest = max(longest, target + 1, source)
            if batch and (len(batch) == self.sentences or longest * (len(batch) + 1) > self.tokens):
                yield batch
                batch, longest = [], max(target + 1, source)
            batch.append(row)
        if batch:
            yield batch
