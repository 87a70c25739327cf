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
        sides = (
            np.diff(ids.ends).tolist() if isinstance(ids, Ragged) else map(len, ids)
            for ids in (self.target, self.source)
        )
        return list(zip(*sides, strict=True))

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
class Side:
    """One language's ids, end to end in a tensor, so that a device can make batches by itself."""

    values: Int[Tensor, " tokens"]
    starts: Int[Tensor, " rows"]
    lengths: Int[Tensor, " rows"]

    @classmethod
    def of(cls, ids: Ids, filler: list[int], device: torch.device | str) -> "Side":
        """The rows of `ids`, and one more."""
        ragged = ids if isinstance(ids, Ragged) else Ragged.of(ids)
        # A pad behind the last token: an empty row may begin there.
        values = np.concatenate([ragged.values, np.array([*filler, PAD])])
        starts = ragged.ends
        lengths = np.append(np.diff(ragged.ends), len(filler))
        return cls(
            *(torch.from_numpy(x.astype(np.int64)).to(device) for x in (values, starts, lengths))
        )

    def take(
        self, rows: Int[Tensor, " batch"], width: int
    ) -> tuple[Int[Tensor, "batch {width}"], Bool[Tensor, "batch {width}"]]:
        """Rows of ids filled up to `width`, and the mask of what is real."""
        mask = padding_mask(self.lengths[rows], width)
        place = torch.arange(width, device=rows.device)
        index = (self.starts[rows, None] + place).masked_fill(~mask, 0)
        return self.values[index].masked_fill(~mask, PAD), mask


class Resident:
    """A split that lies on a device whole. A batch is made there, from row numbers, without waiting.

    Row `len(data)` is a filler: a source to read, and nothing to predict.
    """

    def __init__(self, data: Encoded, device: torch.device | str) -> None:
        self.count = len(data)
        self.source = Side.of(data.source, [END], device)
        self.target = Side.of(data.target, [], device)

    def batch(self, rows: Int[Tensor, " batch"], source: int, target: int) -> Batch:
        """The pairs at `rows`, the two sides filled up to these widths."""
        words, words_mask = self.source.take(rows, source)
        bare, _ = self.target.take(rows, target)
        ends = self.target.lengths[rows, None]
        real = (rows < self.count)[:, None]
        place = torch.arange(target, device=rows.device)
        begin = torch.full_like(bare[:, :1], BEGIN)
        return Batch(
            words,
            words_mask,
            torch.cat([begin, bare[:, :-1]], dim=1),
            bare.masked_fill((place == ends) & real, END),
            (place <= ends) & real,
        )


@dataclass(frozen=True)
class Cut:
    """Which rows are a batch, and how wide it is."""

    rows: list[int]
    source: int
    target: int


@dataclass(frozen=True)
class Batches:
    """Batches of nearly equal lengths within a budget, shuffled anew every epoch.

    The order of an epoch depends on the seed and the epoch's number alone, so (epoch, index) is all
    that a resumed run needs to know. With `shapes`, batches come in at most so many shapes: a GPU
    can then replay what it did for the last batch of the same shape.
    """

    data: Encoded
    tokens: int
    sentences: int
    seed: int
    shapes: int | None = None

    @cached_property
    def lengths(self) -> list[tuple[int, int]]:
        return self.data.lengths()

    @cached_property
    def shaped(self) -> "Shaped":
        """The few shapes, and which of them each pair is given."""
        sizes = np.array([(source, target + 1) for target, source in self.lengths])
        found = (few_shapes(sizes, sides, self.shapes or 1) for sides in SIDES)
        return min(found, key=lambda one: one.room)

    def tokens_in(self, cut: Cut) -> int:
        """Target tokens to predict: the end counts, padding does not."""
        return sum(self.lengths[row][0] + 1 for row in cut.rows if row < len(self.data))

    def epoch(self, number: int) -> list[Cut]:
        """The batches of an epoch, in order."""
        random = np.random.Generator(np.random.PCG64([self.seed, number]))
        shuffled = random.permutation(len(self.data)).tolist()
        if self.shapes:
            batches = list(self._fill(shuffled))
        else:
            ordered = sorted(shuffled, key=self.lengths.__getitem__)
            batches = [self._exact(rows) for rows in self._cut(ordered)]
        return [batches[index] for index in random.permutation(len(batches))]

    def in_order(self) -> list[list[int]]:
        """The rows of each batch for evaluation: shortest first, nothing shuffled."""
        return list(self._cut(sorted(range(len(self.data)), key=self.lengths.__getitem__)))

    def _exact(self, rows: list[int]) -> Cut:
        targets, sources = zip(*(self.lengths[row] for row in rows), strict=True)
        return Cut(rows, max(sources), max(targets) + 1)

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

    def _fill(self, shuffled: list[int]) -> Iterator[Cut]:
        """Full batches of each shape. What is left over goes to the next shape, at last to a filler."""
        bins: list[list[int]] = [[] for _ in self.shaped.widths]
        places = self.shaped.places.tolist()
        for row in shuffled:
            bins[places[row]].append(row)
        left: list[int] = []
        for number, (widths, rows) in enumerate(zip(self.shaped.widths, bins, strict=True), 1):
            size = max(1, min(self.sentences, self.tokens // max(widths)))
            rows = left + rows
            whole = len(rows) // size * size
            for start in range(0, whole, size):
                yield Cut(rows[start : start + size], *widths)
            left = rows[whole:]
            if left and number == len(bins):
                yield Cut(left + [len(self.data)] * (size - len(left)), *widths)


# Of source and target: what share of a common measure each is wide.
SIDES = ((1.0, 1.0), (1.0, 0.75), (1.0, 0.5), (1.0, 0.35), (0.75, 1.0), (0.5, 1.0))


@dataclass(frozen=True)
class Shaped:
    """Widths of source and target, both rising, and which of these each pair is given."""

    widths: list[tuple[int, int]]
    places: Int[np.ndarray, " pairs"]

    @property
    def room(self) -> int:
        """Tokens in all, padding included."""
        return int(np.array(self.widths).sum(1)[self.places].sum())


def few_shapes(
    sizes: Int[np.ndarray, "pairs sides"],
    sides: tuple[float, float],
    most: int,
    multiple: int = 4,
) -> Shaped:
    """At most `most` shapes, by a measure of which each side takes its share, and no wider than need be."""
    measure = np.ceil((sizes / np.array(sides)).max(1)).astype(int)
    marks = few_widths(np.bincount(measure), most, multiple)
    places = np.searchsorted(marks, measure)
    widest = np.array([sizes[places <= place].max(0) for place in range(len(marks))])
    # A GPU likes even widths; but what is wider than every text may have no place in a table.
    rounded = np.where(widest > multiple, -(-widest // multiple) * multiple, widest)
    widths = np.minimum(rounded, sizes.max(0))
    return Shaped([(int(source), int(target)) for source, target in widths], places)


def few_widths(counts: np.ndarray, most: int, multiple: int = 4) -> list[int]:
    """At most `most` widths for rows of given lengths (`counts[n]` rows of n), with least padding."""
    last = len(counts) - 1
    edges = np.unique([*range(0, last, multiple), last])
    below = np.cumsum(counts)[edges]
    # cost[j]: the least padded size of all rows up to edges[j]; one more width in each round.
    cost = np.where(edges == 0, 0, np.inf)
    chosen: list[np.ndarray] = []
    for _ in range(most):
        # To a last width edges[j], with the one before it at edges[i].
        sizes = cost[:, None] + (below[None, :] - below[:, None]) * edges[None, :]
        sizes[edges[:, None] >= edges[None, :]] = np.inf
        chosen.append(sizes.argmin(0))
        cost = np.minimum(sizes.min(0), cost)
        chosen[-1] = np.where(sizes.min(0) <= cost, chosen[-1], -1)
    widths: list[int] = []
    place = len(edges) - 1
    for before in reversed(chosen):
        if place and before[place] >= 0:
            widths.append(int(edges[place]))
            place = int(before[place])
    return widths[::-1]
