"""Sentence pairs to padded batches: bucketed by length, in an order that the seed determines."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import chain, islice

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from regard.text.tokenizer import BOS, EOS, PAD, TokenizerPair


@dataclass
class Batch:
    """Ids and masks for teacher forcing: the target is BOS, w1 .. wn, its labels are w1 .. wn, EOS."""

    source: Int[Tensor, "batch source"]
    source_mask: Bool[Tensor, "batch source"]
    target: Int[Tensor, "batch target"]
    labels: Int[Tensor, "batch target"]
    target_mask: Bool[Tensor, "batch target"]

    def to(self, device: torch.device | str) -> "Batch":
        return type(self)(*(getattr(self, f.name).to(device) for f in fields(self)))

    def repeat(self, times: int) -> "Batch":
        """All pairs, then all of them again, and so on."""
        return type(self)(*(getattr(self, f.name).repeat(times, 1) for f in fields(self)))

    @property
    def num_tokens(self) -> int:
        """Number of target tokens to predict: EOS counts, padding does not."""
        return int(self.target_mask.sum())


TokenIds = Sequence[Sequence[int]]
CHUNK = 500  # texts tokenized together: with 10,000, garbage collection takes half of the time


@dataclass(frozen=True)
class RaggedArray(Sequence):
    """Rows of different lengths, concatenated in one array, which may be memory-mapped."""

    values: np.ndarray
    offsets: np.ndarray

    @classmethod
    def from_rows(cls, rows: Iterable[Sequence[int]]) -> "RaggedArray":
        """In chunks: as Python integers, all rows at once would take several times the memory."""
        values, lengths = [np.empty(0, dtype=np.int32)], [np.zeros(1, dtype=np.int64)]
        remaining = iter(rows)
        while chunk := list(islice(remaining, CHUNK)):
            values.append(np.fromiter(chain.from_iterable(chunk), dtype=np.int32))
            lengths.append(np.fromiter(map(len, chunk), dtype=np.int64))
        return cls(np.concatenate(values), np.cumsum(np.concatenate(lengths)))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> list[int]:  # type: ignore[override]
        if not 0 <= row < len(self):
            raise IndexError(row)
        return self.values[self.offsets[row] : self.offsets[row + 1]].tolist()


def in_chunks(
    encode: Callable[[Sequence[str]], list[list[int]]], texts: Sequence[str]
) -> Iterator[list[int]]:
    """The ids of each text, without the intermediate results of all of them at once."""
    for start in range(0, len(texts), CHUNK):
        yield from encode(texts[start : start + CHUNK])


@dataclass(frozen=True)
class EncodedPairs:
    """A split as token ids. Sources end with EOS (`tokenizer.source_eos`); targets have no BOS or EOS."""

    source: TokenIds
    target: TokenIds

    def __len__(self) -> int:
        return len(self.source)

    @classmethod
    def from_pairs(
        cls, pairs: Iterable[tuple[str, str]], tokenizers: TokenizerPair
    ) -> "EncodedPairs":
        source, target = zip(*pairs, strict=True) if (pairs := list(pairs)) else ((), ())
        return cls(
            RaggedArray.from_rows(in_chunks(tokenizers.encode_sources, source)),
            RaggedArray.from_rows(in_chunks(tokenizers.target.encode_all, target)),
        )

    def lengths(self) -> list[tuple[int, int]]:
        """(target length, source length) of each pair, in tokens."""
        sides = (
            np.diff(ids.offsets).tolist() if isinstance(ids, RaggedArray) else map(len, ids)
            for ids in (self.target, self.source)
        )
        return list(zip(*sides, strict=True))

    def sizes(self) -> Int[np.ndarray, "pairs sides"]:
        """(target length, source length) of each pair, in tokens."""
        sides = (self.target, self.source)
        if all(isinstance(ids, RaggedArray) for ids in sides):
            return np.stack([np.diff(ids.offsets) for ids in sides], axis=1)  # type: ignore[attr-defined]
        return np.array(self.lengths(), dtype=np.int64).reshape(-1, 2)

    def batch(self, rows: Sequence[int]) -> Batch:
        """The pairs at indices `rows`, padded to the longest."""
        source, source_mask = pad([self.source[row] for row in rows])
        target, target_mask = pad([[BOS, *self.target[row]] for row in rows])
        labels, _ = pad([[*self.target[row], EOS] for row in rows])
        return Batch(source, source_mask, target, labels, target_mask)


def pad(
    rows: TokenIds, multiple: int = 1
) -> tuple[Int[Tensor, "batch length"], Bool[Tensor, "batch length"]]:
    """Rows padded to a common length, a multiple of a number, and the mask: False for padding."""
    lengths = torch.tensor([len(row) for row in rows])
    length = -(-int(lengths.max()) // multiple) * multiple
    ids = np.full((len(rows), length), PAD, dtype=np.int64)
    for row, values in zip(ids, rows, strict=True):
        row[: len(values)] = values
    return torch.from_numpy(ids), torch.arange(length) < lengths[:, None]


def concatenate_rows(
    rows: TokenIds, dummy: list[int]
) -> tuple[Int[np.ndarray, " tokens"], Int[np.ndarray, " rows"], Int[np.ndarray, " rows"]]:
    """(the tokens of all rows and of the row `dummy` after them, where each row starts, its length)"""
    ragged = rows if isinstance(rows, RaggedArray) else RaggedArray.from_rows(rows)
    # PAD after the last token: an empty last row starts there, and its index must exist.
    values = np.concatenate([ragged.values, np.array([*dummy, PAD], dtype=np.int32)])
    lengths = np.append(np.diff(ragged.offsets), len(dummy))
    starts, lengths = (array.astype(np.int64) for array in (ragged.offsets, lengths))
    return values.astype(np.int32, copy=False), starts, lengths


@dataclass(frozen=True)
class RaggedTensor:
    """Rows of different lengths, concatenated in one tensor, so that batches are gathered on the device."""

    values: Int[Tensor, " tokens"]
    starts: Int[Tensor, " rows"]
    lengths: Int[Tensor, " rows"]

    @classmethod
    def from_rows(
        cls, rows: TokenIds, dummy: list[int], device: torch.device | str, capacity: int = 0
    ) -> "RaggedTensor":
        """The given rows, followed by the row `dummy`; `update` may give them up to `capacity` tokens."""
        values, starts, lengths = concatenate_rows(rows, dummy)
        unused = max(capacity + len(dummy) + 1 - len(values), 0)
        arrays = np.pad(values, (0, unused), constant_values=PAD), starts, lengths
        return cls(*(torch.from_numpy(array).to(device) for array in arrays))

    def update(self, rows: TokenIds, dummy: list[int]) -> None:
        """Other rows, as many as before, in the same memory: CUDA graphs have its addresses."""
        tensors = self.values, self.starts, self.lengths
        for tensor, array in zip(tensors, concatenate_rows(rows, dummy), strict=True):
            tensor[: len(array)].copy_(torch.from_numpy(array))

    def gather(
        self, rows: Int[Tensor, " batch"], length: int
    ) -> tuple[Int[Tensor, "batch {length}"], Bool[Tensor, "batch {length}"]]:
        """The given rows padded to `length`, and the mask: True for tokens, False for padding."""
        position = torch.arange(length, device=rows.device)
        mask = position < self.lengths[rows, None]
        index = (self.starts[rows, None] + position).masked_fill(~mask, 0)
        return self.values[index].long().masked_fill(~mask, PAD), mask


@dataclass(frozen=True)
class BatchSpec:
    """The rows of a batch and the lengths its two sides are padded to."""

    rows: list[int]
    source_length: int
    target_length: int
    window: int = 0
    """Of text on disk: which part of it these are rows of. See `regard.text.windows`."""


class DeviceDataset:
    """A split held entirely on a device, where batches are gathered without a host synchronisation.

    Row `len(data)` is a dummy pair that fills up a batch: a source to encode, no labels.
    """

    def __init__(
        self,
        data: EncodedPairs,
        device: torch.device | str,
        capacity: tuple[int, int] = (0, 0),
    ) -> None:
        """`capacity`: how many tokens sources and targets may have after an `update`."""
        self.num_pairs = len(data)
        source, target = capacity
        self.source = RaggedTensor.from_rows(data.source, [EOS], device, source)
        self.target = RaggedTensor.from_rows(data.target, [], device, target)

    def update(self, data: EncodedPairs) -> None:
        """The same pairs with other ids, in the same memory."""
        assert len(data) == self.num_pairs
        self.source.update(data.source, [EOS])
        self.target.update(data.target, [])

    def load(self, batch: BatchSpec) -> None:
        """Have the pairs of a batch on the device: all are."""

    def batch(self, rows: Int[Tensor, " batch"], source_length: int, target_length: int) -> Batch:
        """The pairs at indices `rows`, each side padded to the given length."""
        source, source_mask = self.source.gather(rows, source_length)
        target, _ = self.target.gather(rows, target_length)
        lengths = self.target.lengths[rows, None]
        is_pair = (rows < self.num_pairs)[:, None]
        position = torch.arange(target_length, device=rows.device)
        bos = torch.full_like(target[:, :1], BOS)
        return Batch(
            source,
            source_mask,
            torch.cat([bos, target[:, :-1]], dim=1),
            target.masked_fill((position == lengths) & is_pair, EOS),
            (position <= lengths) & is_pair,
        )


@dataclass(frozen=True)
class BatchSampler:
    """Batches of pairs of similar length within a token budget, reshuffled every epoch.

    The order of an epoch depends only on the seed and the epoch number, so a resumed run needs only
    (epoch, index). With `bucket_shapes`, batches have at most that many different shapes, so that one
    CUDA graph per shape can be replayed. With `random`, a batch has pairs of any length and is padded to
    its longest.
    """

    data: EncodedPairs
    max_tokens: int
    max_sentences: int
    seed: int
    bucket_shapes: int | None = None
    random: bool = False
    fixed_buckets: "Buckets | None" = None
    """Instead of those with the least padding for `data`: of several epochs, whose lengths differ."""

    @cached_property
    def lengths(self) -> Int[np.ndarray, "pairs sides"]:
        """(target, source) lengths."""
        return self.data.sizes()

    @cached_property
    def buckets(self) -> "Buckets":
        return self.fixed_buckets or Buckets.choose(self.lengths, self.bucket_shapes or 1)

    def count_tokens(self, spec: BatchSpec) -> int:
        """Number of target tokens to predict: EOS counts, padding does not."""
        rows = np.array(spec.rows)
        return int((self.lengths[rows[rows < len(self.data)], 0] + 1).sum())

    def epoch(self, number: int) -> list[BatchSpec]:
        """The batches of an epoch, in order."""
        return self.draw(np.random.Generator(np.random.PCG64([self.seed, number])))

    def draw(self, generator: np.random.Generator) -> list[BatchSpec]:
        """Every pair once, in batches of similar length, all in an order that the generator decides."""
        shuffled = generator.permutation(len(self.data))
        if self.bucket_shapes and not self.random:
            specs = list(self._fill_buckets(shuffled))
        else:
            ordered = shuffled if self.random else self._sort(shuffled)
            specs = [self._exact_spec(rows.tolist()) for rows in self._split(ordered)]
        return [specs[index] for index in generator.permutation(len(specs))]

    def in_order(self) -> list[list[int]]:
        """The rows of each batch for evaluation: shortest first, not shuffled."""
        return [rows.tolist() for rows in self._split(self._sort(np.arange(len(self.data))))]

    def _sort(self, rows: Int[np.ndarray, " pairs"]) -> Int[np.ndarray, " pairs"]:
        """By target length, then by source length; equal ones stay in order."""
        target, source = self.lengths[rows].T
        return rows[np.lexsort((source, target))]

    def _exact_spec(self, rows: list[int]) -> BatchSpec:
        """These rows, padded to the longest."""
        target, source = self.lengths[rows].max(0).tolist()
        return BatchSpec(rows, source, target + 1)

    def _split(self, ordered: Int[np.ndarray, " pairs"]) -> Iterator[Int[np.ndarray, " batch"]]:
        """Consecutive rows, as many per batch as the budget allows."""
        sizes = padded_sizes(self.lengths).max(1)[ordered]
        start = 0
        while start < len(ordered):
            at_most = min(self.max_sentences, self.max_tokens // max(int(sizes[start]), 1))
            longest = np.maximum.accumulate(sizes[start : start + max(at_most, 1)])
            # More rows never need less room: those that fit come first.
            count = (longest * np.arange(1, len(longest) + 1) <= self.max_tokens).sum()
            yield ordered[start : start + max(int(count), 1)]
            start += max(int(count), 1)

    def _fill_buckets(self, shuffled: Int[np.ndarray, " pairs"]) -> Iterator[BatchSpec]:
        """Full batches of each bucket shape.

        Leftover rows go to the next larger bucket; the last batch of all is filled up with dummy rows.
        """
        bucket_of = self.buckets.assign(padded_sizes(self.lengths))[shuffled]
        leftover: list[int] = []
        for number, shape in enumerate(self.buckets.shapes, 1):
            size = max(1, min(self.max_sentences, self.max_tokens // max(shape)))
            rows = leftover + shuffled[bucket_of == number - 1].tolist()
            full = len(rows) // size * size
            for start in range(0, full, size):
                yield BatchSpec(rows[start : start + size], *shape)
            leftover = rows[full:]
            if leftover and number == len(self.buckets.shapes):
                dummies = [len(self.data)] * (size - len(leftover))
                yield BatchSpec(leftover + dummies, *shape)


# (source, target) lengths of a bucket relative to a common size: the pair with the least padding is used.
SIDE_RATIOS = ((1.0, 1.0), (1.0, 0.75), (1.0, 0.5), (1.0, 0.35), (0.75, 1.0), (0.5, 1.0))


@dataclass(frozen=True)
class Buckets:
    """(source length, target length) of each bucket, both increasing.

    A pair's size is max(source / ratios[0], target / ratios[1]); buckets are intervals of that size up to
    each of `limits`.
    """

    shapes: list[tuple[int, int]]
    limits: list[int]
    ratios: tuple[float, float]

    @classmethod
    def choose(cls, lengths: Sequence[tuple[int, int]] | np.ndarray, max_buckets: int) -> "Buckets":
        """At most `max_buckets`, with the least padding over SIDE_RATIOS, for (target, source) lengths."""
        sizes = padded_sizes(lengths)
        candidates = (choose_buckets(sizes, ratios, max_buckets) for ratios in SIDE_RATIOS)
        return min(candidates, key=lambda buckets: buckets.count_padded_tokens(sizes))

    def count_padded_tokens(self, sizes: Int[np.ndarray, "pairs sides"]) -> int:
        """Total number of tokens, padding included."""
        return int(np.array(self.shapes).sum(1)[self.assign(sizes)].sum())

    def assign(self, sizes: Int[np.ndarray, "pairs sides"]) -> Int[np.ndarray, " pairs"]:
        """The bucket of each pair: that of its size, or the next in which both of its sides fit."""
        bucket_of = np.searchsorted(self.limits, pair_sizes(sizes, self.ratios))
        for side, longest in zip(sizes.T, zip(*self.shapes, strict=True), strict=True):
            bucket_of = np.maximum(bucket_of, np.searchsorted(longest, side))
        return bucket_of


def padded_sizes(
    lengths: Sequence[tuple[int, int]] | np.ndarray,
) -> Int[np.ndarray, "pairs sides"]:
    """(source, target) lengths in a batch, of (target, source) lengths in tokens."""
    return np.asarray(lengths, dtype=np.int64).reshape(-1, 2)[:, ::-1] + np.array([0, 1])


def pair_sizes(
    sizes: Int[np.ndarray, "pairs sides"], ratios: tuple[float, float]
) -> Int[np.ndarray, " pairs"]:
    return np.ceil((sizes / np.array(ratios)).max(1)).astype(int)


def choose_buckets(
    sizes: Int[np.ndarray, "pairs sides"],
    ratios: tuple[float, float],
    max_buckets: int,
    multiple: int = 4,
) -> Buckets:
    """At most `max_buckets` buckets for pairs of the given (source, target) lengths.

    Each side of a bucket is only as long as its longest member.
    """
    size = pair_sizes(sizes, ratios)
    limits = choose_lengths(np.bincount(size), max_buckets, multiple)
    bucket_of = np.searchsorted(limits, size)
    longest = np.array([sizes[bucket_of <= bucket].max(0) for bucket in range(len(limits))])
    # GPUs are faster with multiples; but a length beyond every text may exceed a position table.
    rounded = np.where(longest > multiple, -(-longest // multiple) * multiple, longest)
    shapes = np.minimum(rounded, sizes.max(0))
    return Buckets([(int(source), int(target)) for source, target in shapes], limits, ratios)


def choose_lengths(counts: np.ndarray, max_lengths: int, multiple: int = 4) -> list[int]:
    """At most `max_lengths` padded lengths that minimise padding, where `counts[n]` rows have length n.

    Dynamic programming over the multiples of `multiple` and the longest length.
    """
    longest = len(counts) - 1
    candidates = np.unique([*range(0, longest, multiple), longest])
    rows_up_to = np.cumsum(counts)[candidates]
    # cost[j]: least padded size of all rows up to candidates[j]; each round allows one more length.
    cost = np.where(candidates == 0, 0, np.inf)
    previous: list[np.ndarray] = []
    for _ in range(max_lengths):
        # totals[i, j]: the last length is candidates[j], the one before it candidates[i].
        added = (rows_up_to[None, :] - rows_up_to[:, None]) * candidates[None, :]
        totals = cost[:, None] + added
        totals[candidates[:, None] >= candidates[None, :]] = np.inf
        previous.append(totals.argmin(0))
        cost = np.minimum(totals.min(0), cost)
        previous[-1] = np.where(totals.min(0) <= cost, previous[-1], -1)
    lengths: list[int] = []
    index = len(candidates) - 1
    for before in reversed(previous):
        if index and before[index] >= 0:
            lengths.append(int(candidates[index]))
            index = int(before[index])
    return lengths[::-1]
