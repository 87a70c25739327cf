"""Batches: each row once, within the budget, little padding, an order that the seed determines."""

from dataclasses import fields
from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.text.batch import BatchSampler, DeviceDataset, EncodedPairs, choose_lengths, pad
from regard.text.tokenizer import BOS, EOS, PAD, CharacterTokenizer, TokenizerPair

LENGTH = st.integers(min_value=1, max_value=23)
NO_DEADLINE = settings(deadline=None, max_examples=50)
DATA = st.lists(st.tuples(LENGTH, LENGTH), min_size=1, max_size=59)


def make_data(lengths: list[tuple[int, int]]) -> EncodedPairs:
    """Rows of the given source and target lengths; each id identifies its row."""
    source = [[5 + row] * (n - 1) + [EOS] for row, (n, _) in enumerate(lengths)]
    return EncodedPairs(source, [[5 + row] * n for row, (_, n) in enumerate(lengths)])


def make_natural_data(rows: int = 997, seed: int = 3) -> EncodedPairs:
    """Sentences whose two sides have similar lengths, as in translation."""
    random = torch.Generator().manual_seed(seed)
    source = torch.randint(2, 41, (rows,), generator=random)
    target = (source + torch.randint(-3, 4, (rows,), generator=random)).clamp(min=1)
    return make_data(list(zip(source.tolist(), target.tolist(), strict=True)))


@NO_DEADLINE
@given(
    lengths=DATA,
    tokens=st.integers(1, 211),
    sentences=st.integers(1, 17),
    epoch=st.integers(0, 5),
    random=st.booleans(),
)
def test_each_row_occurs_once_within_the_budget(lengths, tokens, sentences, epoch, random):
    data = make_data(lengths)
    sampler = BatchSampler(data, tokens, sentences, seed=7, random=random)
    for order in ([spec.rows for spec in sampler.epoch(epoch)], sampler.in_order()):
        assert sorted(row for rows in order for row in rows) == list(range(len(data)))
        for rows in order:
            assert 1 <= len(rows) <= sentences
            batch = data.batch(rows)
            if len(rows) > 1:  # a sentence longer than the budget gets a batch of its own
                assert batch.source.numel() <= tokens
                assert batch.target.numel() <= tokens


@pytest.mark.parametrize("bucket_shapes", [None, 4])
def test_random_batches_have_pairs_of_any_length_and_their_own_padding(bucket_shapes):
    """On a GPU, too: what the encoder reads of the padding must not depend on the device."""
    data = make_natural_data()
    sampler = BatchSampler(data, 10**6, 31, seed=5, bucket_shapes=bucket_shapes, random=True)
    batches = sampler.epoch(3)
    assert sorted(len(batch.rows) for batch in batches) == [997 % 31, *[31] * (997 // 31)]
    for batch in batches:
        targets, sources = zip(*(sampler.lengths[row] for row in batch.rows), strict=True)
        assert (batch.source_length, batch.target_length) == (max(sources), max(targets) + 1)
    lengths = np.array([source for _, source in sampler.lengths])
    within = np.mean([lengths[batch.rows].std() for batch in batches if len(batch.rows) == 31])
    assert within == pytest.approx(lengths.std(), rel=0.05)  # batches of similar length: 0.3
    assert batches == BatchSampler(data, 10**6, 31, seed=5, random=True).epoch(3)
    assert batches != sampler.epoch(4)


def test_order_depends_only_on_seed_and_epoch():
    data = make_natural_data()
    sampler = BatchSampler(data, 503, 31, seed=5)
    torch.manual_seed(99)
    assert sampler.epoch(3) == BatchSampler(data, 503, 31, seed=5).epoch(3)
    sampler.epoch(8)
    assert sampler.epoch(3) == sampler.epoch(3)
    assert sampler.epoch(3) != sampler.epoch(4)
    assert sampler.epoch(3) != BatchSampler(data, 503, 31, seed=6).epoch(3)


def test_an_epoch_shuffles_batches_and_their_members():
    data = make_natural_data()
    epochs = [BatchSampler(data, 503, 31, seed=5).epoch(number) for number in (0, 1)]
    members = [{frozenset(spec.rows) for spec in epoch} for epoch in epochs]
    assert len(members[0] & members[1]) < len(members[0]) / 2
    longest = [max(len(data.target[row]) for row in spec.rows) for spec in epochs[0]]
    assert longest != sorted(longest)


def test_an_epoch_resumes_at_an_index():
    data = make_natural_data()
    epochs = [BatchSampler(data, 503, 31, seed=5).epoch(number) for number in range(2)]
    epoch, index = 1, 13
    resumed = BatchSampler(data, 503, 31, seed=5).epoch(epoch)[index:]
    assert resumed == epochs[1][13:]
    assert resumed


@pytest.mark.parametrize("order", ["epoch", "in_order"])
def test_padding_is_small(order):
    data = make_natural_data()
    sampler = BatchSampler(data, 1009, 1000, seed=5)
    rows = [spec.rows for spec in sampler.epoch(0)] if order == "epoch" else sampler.in_order()
    batches = [data.batch(each) for each in rows]
    real = sum(int(b.source_mask.sum() + b.target_mask.sum()) for b in batches)
    padded = sum(b.source.numel() + b.target.numel() for b in batches)
    assert real / padded > 0.85
    shuffled = torch.randperm(len(data)).tolist()
    unsorted = [data.batch(shuffled[i : i + 24]) for i in range(0, len(data), 24)]
    assert real / padded > 1.3 * (
        sum(b.num_tokens + int(b.source_mask.sum()) for b in unsorted)
        / sum(b.source.numel() + b.target.numel() for b in unsorted)
    )


def test_batches_fill_the_budget():
    sizes = [
        len(rows) for rows in BatchSampler(make_data([(5, 4)] * 30), 35, 128, seed=1).in_order()
    ]
    assert sizes == [7, 7, 7, 7, 2]
    sizes = [
        len(rows) for rows in BatchSampler(make_data([(5, 4)] * 7), 1000, 3, seed=1).in_order()
    ]
    assert sizes == [3, 3, 1]


def test_in_order_is_shortest_first():
    sampler = BatchSampler(make_data([(3, 5), (9, 2), (2, 5), (1, 1)]), 20, 2, seed=1)
    assert sampler.in_order() == [[3, 1], [2, 0]]


def test_no_data_gives_no_batches():
    assert BatchSampler(EncodedPairs([], []), 10, 3, seed=1).epoch(0) == []


def test_targets_start_with_bos_and_labels_end_with_eos():
    data = EncodedPairs([[7, 8, 9, EOS], [7, EOS]], [[11], [12, 13]])
    batch = data.batch([1, 0])
    assert batch.source.tolist() == [[7, EOS, PAD, PAD], [7, 8, 9, EOS]]
    assert batch.source_mask.tolist() == [[True, True, False, False], [True] * 4]
    assert batch.target.tolist() == [[BOS, 12, 13], [BOS, 11, PAD]]
    assert batch.labels.tolist() == [[12, 13, EOS], [11, EOS, PAD]]
    assert batch.target_mask.tolist() == [[True] * 3, [True, True, False]]
    assert batch.num_tokens == 5


def test_an_empty_target_has_eos_as_its_only_label():
    batch = EncodedPairs([[EOS]], [[]]).batch([0])
    assert (batch.target.tolist(), batch.labels.tolist(), batch.num_tokens) == ([[BOS]], [[EOS]], 1)


def test_to_moves_every_tensor():
    moved = EncodedPairs([[7, EOS]], [[11]]).batch([0]).to("meta")
    assert {getattr(moved, name).device.type for name in vars(moved)} == {"meta"}


def test_encoding_adds_eos_to_sources_only():
    tokenizer = CharacterTokenizer("ab", (), lowercase=False, strict=True)
    encoded = EncodedPairs.from_pairs(
        iter([("ab", "b"), ("", "")]), TokenizerPair(tokenizer, tokenizer, 9)
    )
    assert list(encoded.source) == [[4, 5, EOS], [EOS]]
    assert list(encoded.target) == [[5], []]


@NO_DEADLINE
@given(rows=st.lists(st.lists(st.integers(1, 30), max_size=11), min_size=1, max_size=7))
def test_pad_adds_padding_and_nothing_else(rows):
    ids, mask = pad(rows)
    assert ids.shape == mask.shape == (len(rows), max(map(len, rows)))
    assert [row[real].tolist() for row, real in zip(ids, mask, strict=True)] == rows
    assert (ids[~mask] == PAD).all()


# --- batches gathered on the device, with a fixed number of shapes ---------------------------------


@NO_DEADLINE
@given(lengths=DATA, data=st.data())
def test_a_device_batch_equals_the_host_batch(lengths, data):
    encoded = make_data(lengths)
    rows = data.draw(st.lists(st.integers(0, len(lengths) - 1), min_size=1, max_size=13))
    expected = encoded.batch(rows)
    lengths = (expected.source.shape[1], expected.target.shape[1])
    actual = DeviceDataset(encoded, "cpu").batch(torch.tensor(rows), *lengths)
    for field in fields(expected):
        assert torch.equal(getattr(actual, field.name), getattr(expected, field.name)), field.name


def test_extra_length_is_padding_and_a_dummy_row_has_no_labels():
    data = EncodedPairs([[7, 8, EOS], [7, EOS]], [[11], []])
    batch = DeviceDataset(data, "cpu").batch(torch.tensor([1, 2, 0]), 4, 3)
    assert batch.source.tolist() == [[7, EOS, PAD, PAD], [EOS, PAD, PAD, PAD], [7, 8, EOS, PAD]]
    assert batch.source_mask.sum(1).tolist() == [
        2,
        1,
        3,
    ]  # a dummy row has a source token to attend to
    assert batch.target.tolist() == [[BOS, PAD, PAD], [BOS, PAD, PAD], [BOS, 11, PAD]]
    assert batch.labels.tolist() == [[EOS, PAD, PAD], [PAD, PAD, PAD], [11, EOS, PAD]]
    assert batch.target_mask.tolist() == [[True, False, False], [False] * 3, [True, True, False]]
    assert batch.num_tokens == 3


@NO_DEADLINE
@given(
    lengths=DATA,
    tokens=st.integers(1, 211),
    sentences=st.integers(1, 17),
    bucket_shapes=st.integers(1, 5),
    epoch=st.integers(0, 3),
)
def test_buckets_hold_each_row_once(lengths, tokens, sentences, bucket_shapes, epoch):
    data = make_data(lengths)
    sampler = BatchSampler(data, tokens, sentences, seed=7, bucket_shapes=bucket_shapes)
    order = sampler.epoch(epoch)
    rows = [row for spec in order for row in spec.rows]
    assert sorted(row for row in rows if row < len(data)) == list(range(len(data)))
    assert {row for row in rows if row >= len(data)} <= {len(data)}
    assert (
        len({(len(spec.rows), spec.source_length, spec.target_length) for spec in order})
        <= bucket_shapes
    )
    for spec in order:
        real = [sampler.lengths[row] for row in spec.rows if row < len(data)]
        assert real  # no batch has only dummy rows
        assert all(
            target + 1 <= spec.target_length and source <= spec.source_length
            for target, source in real
        )
        assert len(spec.rows) <= sentences
        assert len(spec.rows) == 1 or len(spec.rows) * spec.target_length <= tokens
        assert sampler.count_tokens(spec) == sum(target + 1 for target, _ in real)


def test_buckets_depend_only_on_seed_and_epoch():
    data = make_natural_data()
    sampler = BatchSampler(data, 503, 31, seed=5, bucket_shapes=4)
    assert (
        sampler.epoch(3)
        == BatchSampler(data, 503, 31, seed=5, bucket_shapes=4).epoch(3)
        != sampler.epoch(4)
    )
    assert sampler.epoch(3) != BatchSampler(data, 503, 31, seed=6, bucket_shapes=4).epoch(3)


@pytest.mark.parametrize(
    ("source", "target", "max_overhead"),
    [
        (lambda n: 0, lambda n: n, 1.2),  # a language model: an empty source
        (
            lambda n: 14 + 2 * n,
            lambda n: n,
            1.2,
        ),  # a prompt, and a language with many tokens per word
        (lambda n: n, lambda n: 3 * n, 1.25),
        (lambda n: n, lambda n: n, 1.3),
    ],
)
def test_each_side_has_its_own_bucket_length(source, target, max_overhead):
    """Padding is small even if the sides differ in length; a common length would double some."""
    sizes = [n for n in range(1, 41) for _ in range(41 - n)]
    data = make_data([(source(n) + 1, target(n)) for n in sizes])
    sampler = BatchSampler(data, 10**6, 1, seed=7, bucket_shapes=6)
    real = sum(target + 1 + source for target, source in sampler.lengths)
    assert (
        real
        <= sum(spec.source_length + spec.target_length for spec in sampler.epoch(0))
        < max_overhead * real
    )


@NO_DEADLINE
@given(lengths=st.lists(st.integers(1, 19), min_size=1, max_size=40), max_lengths=st.integers(1, 4))
def test_chosen_lengths_minimise_padding(lengths, max_lengths):
    chosen = choose_lengths(np.bincount(lengths), max_lengths, multiple=2)
    assert chosen == sorted(set(chosen))
    assert chosen[-1] == max(lengths)

    def padded_size(chosen):
        return sum(min(padded for padded in chosen if padded >= length) for length in lengths)

    inner = [length for length in range(2, max(lengths)) if length % 2 == 0]
    subsets = (subset for count in range(max_lengths) for subset in combinations(inner, count))
    assert len(chosen) <= max_lengths
    assert padded_size(chosen) == min(padded_size((*subset, max(lengths))) for subset in subsets)
