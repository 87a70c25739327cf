"""Batches of pairs that are on disk: shuffled, and bucketed by length, a window of them at a time.

An epoch takes the shards in random order. As many as have `data.shuffle_buffer` pairs are a window: its
pairs are in memory, where they are shuffled and put into batches as those of a small corpus. So every pair
occurs once in an epoch, and memory does not depend on how many there are.

The order depends only on the seed, the epoch and the number of the window: any process can compute any part
of it, and a resumed run needs only (epoch, index).
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import accumulate
from pathlib import Path
from typing import overload

import numpy as np
import torch
from jaxtyping import Int

from regard.errors import UserError
from regard.text import shards
from regard.text.batch import (
    BatchSampler,
    BatchSpec,
    Buckets,
    DeviceDataset,
    EncodedPairs,
    RaggedArray,
)
from regard.text.shards import Shard
from regard.text.tokenizer import TokenizerPair

SAMPLED_LENGTHS = 500_000
"""At most so many pairs decide on the lengths of buckets."""


@dataclass(frozen=True)
class ShardedPairs:
    """The training pairs as token ids, in shards."""

    paths: list[Path]
    tokenizers: TokenizerPair

    @cached_property
    def sizes(self) -> Int[np.ndarray, "shards counts"]:
        """Of each shard: pairs, source and target tokens, longest source and target, skipped pairs."""
        return np.array([self.measure(self.open(number)) for number in range(len(self.paths))])

    @staticmethod
    def measure(shard: Shard) -> list[int]:
        longest = shard.source_lengths.max(initial=0), shard.target_lengths.max(initial=0)
        counts = (len(shard), len(shard.source), len(shard.target), *longest, shard.too_long)
        return [int(count) for count in counts]

    def __len__(self) -> int:
        return int(self.sizes[:, 0].sum())

    @property
    def skipped(self) -> int:
        """How many pairs were longer than the tokenizer's limit."""
        return int(self.sizes[:, 5].sum())

    def open(self, number: int) -> Shard:
        path = self.paths[number]
        try:
            return shards.read(path, self.tokenizers, verify=False)
        except (OSError, ValueError) as error:
            raise UserError(
                f"{path}, a part of the training data, cannot be read: {error}. Continue the run with "
                "--resume: the data is tokenised again where it is missing"
            ) from None

    def read(self, numbers: Sequence[int]) -> EncodedPairs:
        """The pairs of these shards, in memory."""
        opened = [self.open(number) for number in numbers]
        return EncodedPairs(
            concatenate([(shard.source_lengths, shard.source) for shard in opened]),
            concatenate([(shard.target_lengths, shard.target) for shard in opened]),
        )

    def read_lengths(self, numbers: Sequence[int]) -> EncodedPairs:
        """The pairs of these shards without their ids."""
        no_ids = np.zeros(0, dtype=np.int32)
        opened = [self.open(number) for number in numbers]
        return EncodedPairs(
            concatenate([(shard.source_lengths, no_ids) for shard in opened]),
            concatenate([(shard.target_lengths, no_ids) for shard in opened]),
        )

    def sample_lengths(self) -> Int[np.ndarray, "pairs sides"]:
        """(target, source) lengths of some pairs, evenly spread, and a pair as long as the longest sides."""
        step = -(-len(self) // SAMPLED_LENGTHS)
        rows = [self.read_lengths([number]).sizes()[::step] for number in range(len(self.paths))]
        longest = self.sizes[:, [4, 3]].max(0, keepdims=True)
        return np.concatenate([*rows, longest])


def concatenate(parts: Sequence[tuple[np.ndarray, np.ndarray]]) -> RaggedArray:
    """Rows with the given lengths and values, part after part."""
    offsets = np.concatenate([[0], *(lengths for lengths, _ in parts)]).cumsum(dtype=np.int64)
    values = [np.zeros(0, dtype=np.int32), *(values for _, values in parts)]
    return RaggedArray(np.concatenate(values, dtype=np.int32, casting="unsafe"), offsets)


@dataclass(frozen=True)
class Window:
    """A part of an epoch: the lengths of its pairs, and its batches in order."""

    sampler: BatchSampler
    batches: list[BatchSpec]


class WindowSampler:
    """The batches of an epoch, window by window; settings as those of `BatchSampler`.

    `buffer`: how many pairs a window has, about.
    """

    def __init__(
        self,
        data: ShardedPairs,
        max_tokens: int,
        max_sentences: int,
        seed: int,
        bucket_shapes: int | None = None,
        random: bool = False,
        buffer: int = 2**18,
    ) -> None:
        self.data, self.seed = data, seed
        self.num_windows = -(-len(data.paths) // max(1, buffer // shards.PAIRS))
        # The same buckets in all windows: there is a CUDA graph for each.
        buckets = None
        if bucket_shapes and not random:
            buckets = Buckets.choose(data.sample_lengths(), bucket_shapes)
        nothing = data.read_lengths([])
        settings = (max_tokens, max_sentences, seed, bucket_shapes, random, buckets)
        self.sampler = BatchSampler(nothing, *settings)
        # The windows and epochs used last: an optimizer step may have batches of two.
        self.window = lru_cache(2)(self.plan_window)
        self.epoch = lru_cache(2)(self.plan_epoch)

    @cached_property
    def capacity(self) -> tuple[int, int, int]:
        """The most pairs, source tokens and target tokens that a window can have."""
        most = -(-len(self.data.paths) // self.num_windows)
        largest = np.sort(self.data.sizes[:, :3], axis=0)[-most:]
        pairs, source, target = largest.sum(0).tolist()
        return pairs, source, target

    def plan_epoch(self, number: int) -> "EpochBatches":
        """The batches of an epoch, in order."""
        return EpochBatches(self, number)

    def plan_window(self, number: int) -> Window:
        """The batches of a window; windows are counted through all epochs."""
        data = self.data.read_lengths(self.shards_of(number))
        sampler = replace(self.sampler, data=data)
        generator = self.generator(*divmod(number, self.num_windows))
        batches = [self.number_rows(spec, number, len(data)) for spec in sampler.draw(generator)]
        return Window(sampler, batches)

    def number_rows(self, spec: BatchSpec, window: int, dummy: int) -> BatchSpec:
        """A batch of a window of `dummy` pairs, whose dummy row comes after the largest window's pairs."""
        rows = spec.rows
        if rows[-1] == dummy:
            rows = [self.capacity[0] if row == dummy else row for row in rows]
        return replace(spec, rows=rows, window=window)

    def shards_of(self, window: int) -> list[int]:
        """The shards of a window, in the order of its pairs."""
        epoch, part = divmod(window, self.num_windows)
        order = self.generator(epoch).permutation(len(self.data.paths))
        return np.array_split(order, self.num_windows)[part].tolist()

    def generator(self, epoch: int, *window: int) -> np.random.Generator:
        return np.random.Generator(np.random.PCG64([self.seed, epoch, *window]))

    def count_tokens(self, spec: BatchSpec) -> int:
        """Number of target tokens to predict: EOS counts, padding does not."""
        return self.window(spec.window).sampler.count_tokens(spec)


class EpochBatches(Sequence[BatchSpec]):
    """The batches of an epoch, of which those of one window are in memory."""

    def __init__(self, sampler: WindowSampler, epoch: int) -> None:
        self.sampler, self.first = sampler, epoch * sampler.num_windows
        windows = range(self.first, self.first + sampler.num_windows)
        self.ends = list(accumulate(len(sampler.window(number).batches) for number in windows))

    def __len__(self) -> int:
        return self.ends[-1]

    @overload
    def __getitem__(self, index: int) -> BatchSpec: ...
    @overload
    def __getitem__(self, index: slice) -> list[BatchSpec]: ...
    def __getitem__(self, index: int | slice) -> BatchSpec | list[BatchSpec]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        if not 0 <= index < len(self):
            raise IndexError(index)
        window = bisect_right(self.ends, index)
        start = self.ends[window - 1] if window else 0
        return self.sampler.window(self.first + window).batches[index - start]


class WindowDataset(DeviceDataset):
    """One window on a device; `load` exchanges it. The memory is that of the largest, and stays the same,
    so CUDA graphs can be replayed.
    """

    def __init__(self, sampler: WindowSampler, device: torch.device | str) -> None:
        self.sampler, self.window = sampler, -1
        pairs, source, target = sampler.capacity
        empty = pad_rows(sampler.data.read_lengths([]), pairs)
        super().__init__(empty, device, (source, target))

    def load(self, batch: BatchSpec) -> None:
        if batch.window != self.window:
            data = self.sampler.data.read(self.sampler.shards_of(batch.window))
            self.update(pad_rows(data, self.num_pairs))
            self.window = batch.window


def pad_rows(data: EncodedPairs, count: int) -> EncodedPairs:
    """The pairs, and after them empty ones: `count` together."""
    sides = []
    for rows in (data.source, data.target):
        assert isinstance(rows, RaggedArray)
        sides.append(RaggedArray(rows.values, np.pad(rows.offsets, (0, count - len(rows)), "edge")))
    return EncodedPairs(*sides)
