"""BPE-dropout (Provilkov et al., 2020): in training, a word has several segmentations.

Byte-pair encoding merges the best pair of a word's symbols until there is none. With dropout, each pair is
left out of each of these choices with probability p, and a word is done when no pair is left.

Each word of the training text gets a few such segmentations once, all words at the same time. In an epoch,
each occurrence of a word takes one of them, so an epoch costs only gathers. Both depend on the run's seed
alone: `tokenizers` has BPE-dropout, too, but without a seed.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Bool, Float, Int

from regard.errors import UserError
from regard.text.batch import EncodedPairs, RaggedArray
from regard.text.tokenizer import BpeTokenizer, Tokenizer, TokenizerPair, split_words
from regard.text.vocabulary import EOS, SPECIAL_TOKENS

SEGMENTATIONS, FEWEST = 32, 4
"""With dropout, of each word of at most 32 bytes; a longer word has fewer, down to 4."""
BLOCK = 2**16
"""Symbols that are segmented together: what fits into a CPU's cache."""
SAMPLED_PAIRS = 100_000
"""At least so many pairs, in four epochs or more, decide on the lengths of batches."""
# Third numbers of seeds, of source and target; the order of batches has a seed of two numbers.
WORDS, OCCURRENCES = (1, 2), (3, 4)


class Merges:
    """The merges of a vocabulary as sorted arrays: which pair of ids is merged, how early, into which id."""

    def __init__(self, tokenizer: BpeTokenizer) -> None:
        ids = tokenizer.piece_to_id
        self.pad = tokenizer.vocab_size  # after the last symbol of a row
        self.never = len(tokenizer.merges)  # the rank of a pair that is not merged
        pairs = [(ids[left], ids[right]) for left, right in tokenizer.merges]
        rank_of = {self.key(left, right): rank for rank, (left, right) in enumerate(pairs)}
        keys = sorted(rank_of)
        # A last key that no pair has: a search may end after all others.
        self.keys = np.array([*keys, np.iinfo(np.int64).max], dtype=np.int64)
        self.ranks = np.array([*(rank_of[key] for key in keys), self.never], dtype=np.int32)
        merged = [ids[left + right] for left, right in tokenizer.merges]
        self.merged = np.array(merged, dtype=np.int32)

    def key(self, left, right):
        """A number for a pair of ids, or an array of them."""
        return left * (self.pad + 1) + right

    def rank(self, left: Int[np.ndarray, "*any"], right: Int[np.ndarray, "*any"]):
        """The rank of each pair: a smaller one is merged earlier; `never` if it is not merged."""
        keys = self.key(left.astype(np.int64), right)
        index = np.searchsorted(self.keys, keys)
        return np.where(self.keys[index] == keys, self.ranks[index], np.int32(self.never))

    def draw(
        self,
        symbols: Int[np.ndarray, "words width"],
        dropout: float,
        copies: Int[np.ndarray, " words"],
        generator: np.random.Generator,
    ) -> tuple[Int[np.ndarray, "rows width"], Int[np.ndarray, " words"]]:
        """(segmentations of each word of a block, the first without dropout; how many of each word)"""
        ranks = self.rank(symbols[:, :-1], symbols[:, 1:])
        has_merges = (ranks < self.never).any(1)  # others have one segmentation
        repeats = np.where(has_merges, copies, 1) + 1
        probability = np.full(repeats.sum(), dropout)
        probability[repeats.cumsum() - repeats] = 0.0
        symbols, ranks = (np.repeat(each, repeats, axis=0) for each in (symbols, ranks))
        return self.segment(symbols, ranks, probability, generator), repeats

    def segment(
        self,
        symbols: Int[np.ndarray, "rows width"],
        ranks: Int[np.ndarray, "rows pairs"],
        dropout: Float[np.ndarray, " rows"],
        generator: np.random.Generator,
    ) -> Int[np.ndarray, "rows width"]:
        """The pieces of each row of symbols, where its dropout is the probability that a merge is skipped."""
        result = np.full_like(symbols, self.pad)
        active = np.arange(len(symbols))
        while ranks.size:
            dropped = generator.random(ranks.shape, dtype=np.float32) < dropout[:, None]
            candidates = np.where(dropped, np.int32(self.never), ranks)
            at = candidates.argmin(1)  # the leftmost of the best
            best = np.take_along_axis(candidates, at[:, None], 1)[:, 0]
            goes_on = best < self.never
            result[active[~goes_on], : symbols.shape[1]] = symbols[~goes_on]
            rest = (x[goes_on] for x in (active, dropout, symbols, ranks, at, best))
            active, dropout, symbols, ranks, at, best = rest
            symbols, ranks = self.merge(symbols, ranks, at, best)
        result[active, : symbols.shape[1]] = symbols
        return result

    def merge(
        self,
        symbols: Int[np.ndarray, "rows width"],
        ranks: Int[np.ndarray, "rows pairs"],
        at: Int[np.ndarray, " rows"],
        best: Int[np.ndarray, " rows"],
    ) -> tuple[Int[np.ndarray, "rows pairs"], Int[np.ndarray, "rows fewer"]]:
        """One symbol less in each row: those at index `at` and after it become one, by the merge `best`."""
        is_after = np.arange(symbols.shape[1] - 1) > at[:, None]
        symbols = np.where(is_after, symbols[:, 1:], symbols[:, :-1])
        ranks = np.where(is_after[:, :-1], ranks[:, 1:], ranks[:, :-1])
        rows = np.arange(len(at))
        symbols[rows, at] = self.merged[best]
        for left in (at - 1, at):  # the new symbol's pairs
            exists = (left >= 0) & (left < ranks.shape[1])
            row, column = rows[exists], left[exists]
            ranks[row, column] = self.rank(symbols[row, column], symbols[row, column + 1])
        return symbols, ranks


@dataclass(frozen=True)
class Segmentations:
    """Those of each word: row first[w] without dropout, then counts[w] rows with dropout."""

    rows: RaggedArray
    first: Int[np.ndarray, " words"]
    counts: Int[np.ndarray, " words"]

    @classmethod
    def draw(
        cls,
        words: Sequence[str],
        tokenizer: BpeTokenizer,
        dropout: float,
        generator: np.random.Generator,
    ) -> "Segmentations":
        """Of these words in the byte-level alphabet. Before them, each special token and symbol is a word."""
        merges, ids = Merges(tokenizer), tokenizer.piece_to_id
        spelled = [[ids[letter] for letter in word if letter in ids] for word in words]
        lengths = np.array([len(word) for word in spelled], dtype=np.int64)
        copies = np.clip(SEGMENTATIONS**2 // np.maximum(lengths, 1), FEWEST, SEGMENTATIONS)
        special = np.arange(len(SPECIAL_TOKENS) + len(tokenizer.symbols))
        drawn = [(np.repeat(special, 2)[:, None], np.full_like(special, 2))]
        longest_first = np.argsort(-lengths, kind="stable")
        start = 0
        while start < len(words):
            width = max(int(lengths[longest_first[start]]), 1)
            block = longest_first[start : start + max(1, BLOCK // (width * SEGMENTATIONS))]
            symbols = np.full((len(block), width), merges.pad, dtype=np.int32)
            for row, index in zip(symbols, block, strict=True):
                row[: lengths[index]] = spelled[index]
            drawn.append(merges.draw(symbols, dropout, copies[block], generator))
            start += len(block)
        values = [pieces[pieces != merges.pad] for pieces, _ in drawn]
        sizes = [(pieces != merges.pad).sum(1) for pieces, _ in drawn]
        offsets = np.concatenate([[0], np.concatenate(sizes).cumsum()])
        repeats = np.concatenate([count for _, count in drawn])
        order = np.concatenate([special, len(special) + longest_first])
        first, counts = np.empty((2, len(order)), dtype=np.int64)
        first[order], counts[order] = repeats.cumsum() - repeats, repeats - 1
        rows = RaggedArray(np.concatenate(values, dtype=np.int32, casting="same_kind"), offsets)
        return cls(rows, first, counts)

    @cached_property
    def sizes(self) -> Int[np.ndarray, " rows"]:
        """The number of pieces of each segmentation."""
        return np.diff(self.rows.offsets)

    @cached_property
    def longest(self) -> Int[np.ndarray, " words"]:
        """The largest number of pieces of each word."""
        order = np.argsort(self.first)
        longest = np.empty_like(self.first)
        longest[order] = np.maximum.reduceat(self.sizes, self.first[order])
        return longest


class Side:
    """The texts of one side as rows of words, and the segmentations of its words."""

    def __init__(
        self,
        texts: Sequence[str],
        tokenizer: BpeTokenizer,
        with_eos: bool,
        dropout: float,
        generator: np.random.Generator,
    ) -> None:
        indices: dict[str, int] = {}
        words = index_words(texts, tokenizer, with_eos, indices)
        self.words = RaggedArray.from_rows(words)
        self.num_words = len(indices)
        self.segmentations = Segmentations.draw(list(indices), tokenizer, dropout, generator)
        self.without_dropout = self.segmentations.first[self.words.values]

    def draw(self, generator: np.random.Generator) -> Int[np.ndarray, " occurrences"]:
        """A segmentation of each occurrence of a word, with dropout."""
        counts = self.segmentations.counts[self.words.values]
        draws = (generator.random(len(counts)) * counts).astype(np.int64)
        return self.without_dropout + 1 + draws

    def lengths(self, rows: Int[np.ndarray, " occurrences"]) -> Int[np.ndarray, " texts"]:
        """The number of tokens of each text, whose words have these segmentations."""
        return self.sum_by_text(self.segmentations.sizes[rows])

    def max_lengths(self) -> Int[np.ndarray, " texts"]:
        """What no draw exceeds."""
        return self.sum_by_text(self.segmentations.longest[self.words.values])

    def sum_by_text(self, values: Int[np.ndarray, " occurrences"]) -> Int[np.ndarray, " texts"]:
        return np.diff(np.concatenate([[0], values.cumsum()])[self.words.offsets])

    def replace(
        self, rows: Int[np.ndarray, " occurrences"], is_replaced: Bool[np.ndarray, " texts"]
    ) -> Int[np.ndarray, " occurrences"]:
        """The segmentations without dropout in some of the texts, these rows in the others."""
        by_word = np.repeat(is_replaced, np.diff(self.words.offsets))
        return np.where(by_word, self.without_dropout, rows)

    def encode(self, rows: Int[np.ndarray, " occurrences"]) -> RaggedArray:
        """The ids of each text."""
        pieces, sizes = self.segmentations.rows, self.segmentations.sizes[rows]
        ends = np.concatenate([[0], sizes.cumsum()])
        index = np.repeat(pieces.offsets[rows] - ends[:-1], sizes) + np.arange(ends[-1])
        return RaggedArray(pieces.values[index], ends[self.words.offsets])


def check_kind(tokenizer: Tokenizer) -> BpeTokenizer:
    if not isinstance(tokenizer, BpeTokenizer):
        raise UserError(
            f"tokenizer.dropout leaves out merges of BPE, and this vocabulary is of {tokenizer.kind}: "
            "set tokenizer.dropout=0"
        )
    return tokenizer


def index_words(
    texts: Sequence[str], tokenizer: BpeTokenizer, with_eos: bool, indices: dict[str, int]
) -> Iterator[list[int]]:
    """The words of each text as numbers; `indices` gets each word that no merge crosses, in order.

    Special tokens and symbols have the numbers of their ids, and words the numbers after them.
    """
    special = len(SPECIAL_TOKENS) + len(tokenizer.symbols)
    known: dict[str, list[int]] = {}
    for text in texts:
        row, rest = tokenizer.split_symbol(text)
        for word in split_words(rest):
            if word not in known:
                parts = tokenizer.split_word(word)
                known[word] = [special + indices.setdefault(p, len(indices)) for p in parts]
            row.extend(known[word])
        yield row + [EOS] * with_eos


class BpeDropout:
    """The training pairs, segmented anew in each epoch.

    A pair that dropout makes longer than `limits` (source, target) is segmented without dropout in that
    epoch. These are `max_tokens`, or the longest side in a sample of epochs if that is shorter: then batches
    have the same shapes in every epoch.
    """

    def __init__(
        self,
        pairs: Sequence[tuple[str, str]],
        tokenizers: TokenizerPair,
        dropout: float,
        seed: int,
    ) -> None:
        self.seed, self.dropout, self.num_pairs = seed, dropout, len(pairs)
        options = zip(
            (tokenizers.source, tokenizers.target),
            (tokenizers.source_eos, False),
            WORDS,
            strict=True,
        )
        self.sides = [
            Side(texts, check_kind(tokenizer), with_eos, dropout, self.generator(0, stream))
            for texts, (tokenizer, with_eos, stream) in zip(
                zip(*pairs, strict=True), options, strict=True
            )
        ]
        longest = tokenizers.max_tokens
        self.limits = (longest + tokenizers.source_eos, longest)
        self.sampled_lengths = self.sample_lengths()
        targets, sources = zip(*self.sampled_lengths, strict=True)
        self.limits = (max(sources), max(targets))

    @property
    def words(self) -> int:
        """How many different words the two sides have."""
        return sum(side.num_words for side in self.sides)

    @property
    def growth(self) -> float:
        """The mean fraction by which dropout makes a pair longer."""
        totals = np.array(self.sampled_lengths).reshape(-1, self.num_pairs, 2).sum((1, 2))
        return float(totals[1:].mean() / max(totals[0], 1) - 1)

    def generator(self, epoch: int, stream: int) -> np.random.Generator:
        return np.random.Generator(np.random.PCG64([self.seed, epoch, stream]))

    def epoch(self, number: int) -> EncodedPairs:
        """The pairs with the segmentations of an epoch, which depend only on the seed and its number."""
        streams = zip(self.sides, OCCURRENCES, strict=True)
        drawn = [side.draw(self.generator(number, stream)) for side, stream in streams]
        by_side = list(zip(self.sides, drawn, self.limits, strict=True))
        too_long = np.any([side.lengths(rows) > limit for side, rows, limit in by_side], axis=0)
        source, target = (side.encode(side.replace(rows, too_long)) for side, rows, _ in by_side)
        return EncodedPairs(source, target)

    def without_dropout(self) -> EncodedPairs:
        return EncodedPairs(*(side.encode(side.without_dropout) for side in self.sides))

    def sample_lengths(self) -> list[tuple[int, int]]:
        """(target, source) lengths of the pairs without dropout and in the first epochs."""
        plain = self.without_dropout().lengths()
        epochs = max(4, min(64, SAMPLED_PAIRS // self.num_pairs))
        return plain + [pair for number in range(epochs) for pair in self.epoch(number).lengths()]

    @property
    def capacity(self) -> tuple[int, int]:
        """At least as many tokens as the sources and the targets of an epoch have."""
        lengths = zip(self.sides, self.limits, strict=True)
        source, target = (np.minimum(side.max_lengths(), limit).sum() for side, limit in lengths)
        return int(source), int(target)
