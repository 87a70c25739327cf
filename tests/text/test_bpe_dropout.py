"""BPE-dropout: the library's segmentation without it, the right distribution with it, the same shapes."""

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from regard import config, shipped
from regard.errors import UserError
from regard.text.batch import (
    BatchSampler,
    BatchSpec,
    Buckets,
    DeviceDataset,
    EncodedPairs,
    padded_sizes,
)
from regard.text.bpe_dropout import BpeDropout, Merges, Segmentations
from regard.text.tokenizer import BpeTokenizer, TokenizerPair, WordTokenizer
from regard.text.vocabulary import EOS

ROOT = Path(__file__).parents[2]
SYMBOLS = ("<U>", "<L>")
NO_DEADLINE = settings(deadline=None, max_examples=60)
TEXTS = [
    "the lowest tower and the newer, wider river",
    "lower the widest tower; the newest is lower",
    "die Flüsse sind breiter und die Türme höher",
]
PAIRS = [
    (f"<U> {source}", target.upper())
    for source, target in zip(TEXTS, TEXTS[1:] + TEXTS[:1], strict=True)
]


def read_real_text() -> list[str]:
    """Every line of the documentation: words of two languages, code, numbers, tables."""
    paths = [ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").glob("*.md")]
    return [line for path in sorted(paths) for line in path.read_text("utf-8").splitlines()]


def make_tokenizers(max_tokens: int = 256, **options) -> TokenizerPair:
    table = config.Bpe(**({"vocab_size": 320, "max_tokens": max_tokens} | options))
    return TokenizerPair.train(table, PAIRS, SYMBOLS)


TOKENIZERS = make_tokenizers()


def rows(data: EncodedPairs) -> tuple[list[list[int]], list[list[int]]]:
    return list(data.source), list(data.target)


# --- without dropout ------------------------------------------------------------------------------


def test_without_dropout_all_real_words_are_segmented_as_by_the_library() -> None:
    found = shipped.find_run("de-en")
    assert found is not None
    trained = TokenizerPair.load(found / "tokenizer.json")
    lines = read_real_text()
    assert len({word for line in lines for word in line.split(" ")}) > 5000
    pairs = list(zip(lines, lines[::-1], strict=True))
    ours = BpeDropout(pairs, trained, 0.1, seed=1).without_dropout()
    expected = EncodedPairs.from_pairs(pairs, trained)
    assert rows(ours) == rows(expected)


@NO_DEADLINE
@given(
    texts=st.lists(
        st.text() | st.text(" \t\n\r\x0b\x1c\x85\xa0\u2003\u2028,.'sa1é<U>"), min_size=1, max_size=5
    )
)
@example(texts=["a\tb  c"])
@example(texts=["the tower the", "the  tower", " the", "the ", "<U> the tower", "<U>", ""])
def test_without_dropout_any_text_is_segmented_as_by_the_library(texts: list[str]) -> None:
    pairs = list(zip(texts, texts[::-1], strict=True))
    ours = BpeDropout(pairs, TOKENIZERS, 0.3, seed=1)
    assert rows(ours.without_dropout()) == rows(EncodedPairs.from_pairs(pairs, TOKENIZERS))
    for number in range(3):
        data = ours.epoch(number)
        assert [TOKENIZERS.source.decode(ids) for ids in data.source] == texts
        assert [TOKENIZERS.target.decode(ids) for ids in data.target] == texts[::-1]


# --- with dropout ---------------------------------------------------------------------------------

# "abab": ab first; then aba, if the second ab was left out, or abab.
MERGES = [("a", "b"), ("ab", "a"), ("ab", "ab"), ("b", "a")]
TINY = BpeTokenizer(
    ["a", "b", "Ġ", "ab", "aba", "abab", "ba"], (), lowercase=False, strict=False, merges=MERGES
)


def distribution(pieces: tuple[str, ...], p: float) -> Iterator[tuple[tuple[str, ...], float]]:
    """Each way to go on from these pieces, and its probability: the definition of BPE-dropout."""
    rank = {pair: number for number, pair in enumerate(MERGES)}
    pairs = [(rank.get(pair), i) for i, pair in enumerate(pairwise(pieces))]
    candidates = sorted(pair for pair in pairs if pair[0] is not None)
    for better, (_, i) in enumerate(candidates):
        merged = (*pieces[:i], pieces[i] + pieces[i + 1], *pieces[i + 2 :])
        for result, probability in distribution(merged, p):
            yield result, p**better * (1 - p) * probability
    yield pieces, p ** len(candidates)


def name_pieces(row: tuple[int, ...]) -> tuple[str, ...]:
    """The pieces of a row, without what fills it up."""
    return tuple(TINY.vocab[i] for i in row if i < TINY.vocab_size)


@pytest.mark.parametrize("p", [0.1, 0.5])
@pytest.mark.parametrize("word", ["abab", "babaab"])
def test_segmentations_have_the_distribution_of_the_paper(word: str, p: float) -> None:
    expected: Counter[tuple[str, ...]] = Counter()
    for pieces, probability in distribution(tuple(word), p):
        expected[pieces] += probability
    assert sum(expected.values()) == pytest.approx(1.0)
    count = 40_000
    symbols = np.array([[TINY.piece_to_id[letter] for letter in word]], dtype=np.int32)
    random = np.random.default_rng(3)
    drawn, repeats = Merges(TINY).draw(symbols, p, np.array([count]), random)
    assert repeats.tolist() == [count + 1]
    first, *others = map(tuple, drawn.tolist())
    found: Counter[tuple[str, ...]] = Counter()
    for row, times in Counter(others).items():
        found[name_pieces(row)] += times
    assert found.total() == count
    assert found.keys() <= expected.keys()
    for pieces, probability in expected.items():
        assert found[pieces] / count == pytest.approx(probability, abs=0.012), pieces
    assert list(name_pieces(first)) == TINY.tokenize(word)[1:]  # after the space


def test_each_word_has_several_segmentations_and_one_if_nothing_merges() -> None:
    found = Segmentations.draw(["abab", "b", "ab" * 100], TINY, 0.5, np.random.default_rng(3))
    special = 4
    assert found.counts.tolist() == [1] * special + [32, 1, 5]
    for word, index in (("abab", 4), ("b", 5), ("ab" * 100, 6)):
        first, count = int(found.first[index]), int(found.counts[index])
        drawn = [found.rows[first + i] for i in range(count + 1)]
        assert {"".join(TINY.vocab[i] for i in ids) for ids in drawn} == {word}
        assert found.longest[index] == max(map(len, drawn))
        assert len(drawn[0]) == min(map(len, drawn))
    assert [found.rows[int(found.first[i]) + 1] for i in range(special)] == [[0], [1], [2], [3]]


def test_segmentations_are_the_same_on_every_machine() -> None:
    data = BpeDropout([("abab b", "ab")], TokenizerPair(TINY, TINY, 20), 0.5, seed=7)
    sources, targets = zip(*(rows(data.epoch(number)) for number in range(4)), strict=True)
    assert [" ".join(TINY.vocab[i] for i in ids) for [ids] in sources] == [
        "Ġ ab ab Ġ b <end>",
        "Ġ ab ab Ġ b <end>",
        "Ġ abab Ġ b <end>",
        "Ġ ab a b Ġ b <end>",
    ]
    assert [" ".join(TINY.vocab[i] for i in ids) for [ids] in targets] == [
        "Ġ a b",
        *["Ġ ab"] * 3,
    ]


def test_epochs_differ_and_depend_only_on_seed_and_number() -> None:
    data = BpeDropout(PAIRS, TOKENIZERS, 0.3, seed=7)
    epochs = [rows(data.epoch(number)) for number in range(4)]
    assert len({str(epoch) for epoch in epochs}) == 4
    again = BpeDropout(PAIRS, TOKENIZERS, 0.3, seed=7)
    assert [rows(again.epoch(number)) for number in (3, 1)] == [epochs[3], epochs[1]]
    assert rows(BpeDropout(PAIRS, TOKENIZERS, 0.3, seed=8).epoch(0)) != epochs[0]
    mean = np.mean([sum(map(len, source)) for source, _ in epochs])
    plain = sum(len(ids) for ids in data.without_dropout().source)
    assert mean > 1.1 * plain
    assert data.growth == pytest.approx(mean / plain - 1, rel=0.5)


def test_occurrences_of_a_word_are_segmented_independently() -> None:
    word = "lowest"
    pairs = [(" ".join([word] * 40), word)]
    [source] = BpeDropout(pairs, TOKENIZERS, 0.5, seed=7).epoch(0).source
    pieces = " ".join(TOKENIZERS.source.vocab[i] for i in source[:-1])
    segmentations = pieces.split("Ġ")[1:]
    assert len(segmentations) == 40
    assert len(set(segmentations)) > 3


@pytest.mark.parametrize("joint", [True, False])
@pytest.mark.parametrize("source_eos", [True, False])
def test_symbols_and_end_tokens_stay(joint: bool, source_eos: bool) -> None:
    tokenizers = make_tokenizers(joint=joint, source_eos=source_eos, lowercase=True)
    data = BpeDropout(PAIRS, tokenizers, 0.6, seed=7)
    assert rows(data.without_dropout()) == rows(EncodedPairs.from_pairs(PAIRS, tokenizers))
    for number in range(5):
        epoch = data.epoch(number)
        for ids, target, pair in zip(*rows(epoch), PAIRS, strict=True):
            assert tokenizers.source.vocab[ids[0]] == "<U>"
            assert (ids.count(EOS), ids[-1] == EOS) == (source_eos, source_eos)
            assert EOS not in target
            assert tokenizers.source.decode(ids) == "<U> " + pair[0][4:].lower()
            assert tokenizers.target.decode(target) == pair[1].lower()


def test_a_language_model_has_an_empty_source() -> None:
    pairs = [("", target) for _, target in PAIRS]
    epoch = BpeDropout(pairs, TOKENIZERS, 0.5, seed=7).epoch(0)
    assert list(epoch.source) == [[EOS]] * 3


def test_other_vocabularies_are_rejected() -> None:
    words = WordTokenizer.train(TEXTS, (), False, 1)
    with pytest.raises(UserError, match=r"tokenizer\.dropout leaves out merges of BPE.*of words"):
        BpeDropout(PAIRS, TokenizerPair(words, words, 20), 0.1, seed=1)


# --- lengths and shapes ---------------------------------------------------------------------------


@pytest.mark.parametrize("side", ["source", "target"])
def test_a_pair_that_gets_too_long_is_segmented_without_dropout(side: str) -> None:
    """Both sides of it, in that epoch only."""
    short, long = "the tower", " ".join(TEXTS[:2])
    pairs = [(long, short), (short, short)] if side == "source" else [(short, long), (short, short)]
    length = len(TOKENIZERS.source.encode(long))
    data = BpeDropout(pairs, make_tokenizers(length), 0.1, seed=1)
    source, target = rows(data.without_dropout())
    plain = 0
    for number in range(30):
        epoch = rows(data.epoch(number))
        assert max(map(len, epoch[0])) <= length + 1
        assert max(map(len, epoch[1])) <= length
        assert len(epoch[side == "target"][0]) == length + (side == "source")
        assert (epoch[0][0], epoch[1][0]) == (source[0], target[0])
        plain += epoch[0][1] == source[1]
    assert plain < 25  # the other pair goes on


def make_data(count: int = 200) -> BpeDropout:
    random = np.random.default_rng(5)
    vocabulary = " ".join(TEXTS).split(" ")
    texts = [" ".join(random.choice(vocabulary, n)) for n in random.integers(1, 13, 2 * count)]
    pairs = list(zip(texts[:count], texts[count:], strict=True))
    return BpeDropout(pairs, TOKENIZERS, 0.2, seed=3)


def count_padding(spec: BatchSpec) -> int:
    return len(spec.rows) * (spec.source_length + spec.target_length)


def test_batches_have_the_same_shapes_in_every_epoch() -> None:
    """Fewer than pairs, and every pair fits: CUDA graphs are captured once for each shape."""
    data = make_data()
    buckets = Buckets.choose(data.sampled_lengths, 3)
    shapes, padded, best = set(), 0, 0
    for number in range(150):
        epoch = data.epoch(number)
        sampler = BatchSampler(epoch, 400, 16, 1, 3, False, buckets)
        found = []
        for spec in sampler.epoch(number):
            shapes.add((len(spec.rows), spec.source_length, spec.target_length))
            lengths = [sampler.lengths[row] for row in spec.rows if row < len(epoch)]
            assert all(source <= spec.source_length for _, source in lengths)
            assert all(target + 1 <= spec.target_length for target, _ in lengths)
            assert sampler.count_tokens(spec) == sum(target + 1 for target, _ in lengths)
            padded += count_padding(spec)
            found += spec.rows
        assert sorted(row for row in found if row < len(epoch)) == list(range(len(epoch)))
        best += sum(map(count_padding, BatchSampler(epoch, 400, 16, 1, 3).epoch(number)))
    assert len(shapes) == 3
    assert padded < 1.05 * best  # of shapes that are chosen for each epoch


def test_device_data_is_updated_in_place() -> None:
    """CUDA graphs have the addresses of these tensors, so the largest epoch must fit."""
    data = make_data(40)
    dataset = DeviceDataset(data.epoch(0), "cpu", data.capacity)
    sides = dataset.source, dataset.target
    tensors = [tensor for side in sides for tensor in (side.values, side.starts, side.lengths)]
    addresses = [tensor.data_ptr() for tensor in tensors]
    generator = torch.Generator().manual_seed(3)
    for number in (1, 5, 2, *range(50)):
        epoch = data.epoch(number)
        for side, ids in zip(sides, (epoch.source, epoch.target), strict=True):
            assert sum(map(len, ids)) <= len(side.values)
        dataset.update(epoch)
        drawn = torch.randint(0, 40, (7,), generator=generator)
        expected = epoch.batch(drawn.tolist())
        lengths = expected.source.shape[1], expected.target.shape[1]
        actual = dataset.batch(drawn, *lengths)
        for name in vars(expected):
            assert torch.equal(getattr(actual, name), getattr(expected, name)), name
        dummy = dataset.batch(torch.tensor([40]), *lengths)
        assert (dummy.source[0, 0], dummy.source_mask.sum(), dummy.num_tokens) == (EOS, 1, 0)
    same = [tensor for side in sides for tensor in (side.values, side.starts, side.lengths)]
    assert all(one is two for one, two in zip(tensors, same, strict=True))
    assert [tensor.data_ptr() for tensor in same] == addresses


@pytest.mark.parametrize("max_buckets", [1, 3, 8])
def test_pairs_of_other_epochs_fit_into_the_buckets_of_a_sample(max_buckets: int) -> None:
    """In the sample nearly all targets are empty: a longer one needs a larger bucket."""
    sample = [(0, n) for n in range(1, 41)] + [(40, 40)]
    buckets = Buckets.choose(sample, max_buckets)
    every = [(target, source) for target in range(41) for source in range(1, 41)]
    sizes = padded_sizes(every)
    shapes = np.array(buckets.shapes)[buckets.assign(sizes)]
    assert (sizes <= shapes).all()
    assert (buckets.assign(padded_sizes(sample)) == 0).any()
