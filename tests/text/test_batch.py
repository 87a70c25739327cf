"""Batches: each row once, within the budget, little padding, an order that a seed decides."""

from dataclasses import fields
from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.text.batch import Batches, Encoded, Resident, few_widths, pad
from regard.text.tokenizer import BEGIN, END, PAD, CharacterTokenizer, TokenizerPair

LENGTH = st.integers(min_value=1, max_value=23)
UNHURRIED = settings(deadline=None, max_examples=50)
DATA = st.lists(st.tuples(LENGTH, LENGTH), min_size=1, max_size=59)


def encoded(lengths: list[tuple[int, int]]) -> Encoded:
    """Rows of the given source and target lengths; every id tells its row."""
    source = [[5 + row] * (n - 1) + [END] for row, (n, _) in enumerate(lengths)]
    return Encoded(source, [[5 + row] * n for row, (_, n) in enumerate(lengths)])


def natural(rows: int = 997, seed: int = 3) -> Encoded:
    """Sentences whose two sides have similar lengths, as in translation."""
    random = torch.Generator().manual_seed(seed)
    source = torch.randint(2, 41, (rows,), generator=random)
    target = (source + torch.randint(-3, 4, (rows,), generator=random)).clamp(min=1)
    return encoded(list(zip(source.tolist(), target.tolist(), strict=True)))


@UNHURRIED
@given(
    lengths=DATA, tokens=st.integers(1, 211), sentences=st.integers(1, 17), epoch=st.integers(0, 5)
)
def test_each_row_once_and_the_budget_kept(lengths, tokens, sentences, epoch):
    data = encoded(lengths)
    batches = Batches(data, tokens, sentences, seed=7)
    for order in ([cut.rows for cut in batches.epoch(epoch)], batches.in_order()):
        assert sorted(row for rows in order for row in rows) == list(range(len(data)))
        for rows in order:
            assert 1 <= len(rows) <= sentences
            batch = data.batch(rows)
            if len(rows) > 1:  # a sentence longer than the budget still has to go somewhere
                assert batch.source.numel() <= tokens
                assert batch.target.numel() <= tokens


def test_the_order_depends_on_seed_and_epoch_alone():
    data = natural()
    one = Batches(data, 503, 31, seed=5)
    torch.manual_seed(99)
    assert one.epoch(3) == Batches(data, 503, 31, seed=5).epoch(3)
    one.epoch(8)
    assert one.epoch(3) == one.epoch(3)
    assert one.epoch(3) != one.epoch(4)
    assert one.epoch(3) != Batches(data, 503, 31, seed=6).epoch(3)


def test_an_epoch_mixes_both_the_batches_and_what_is_in_them():
    data = natural()
    epochs = [Batches(data, 503, 31, seed=5).epoch(number) for number in (0, 1)]
    members = [{frozenset(cut.rows) for cut in epoch} for epoch in epochs]
    assert len(members[0] & members[1]) < len(members[0]) / 2
    longest = [max(len(data.target[row]) for row in cut.rows) for cut in epochs[0]]
    assert longest != sorted(longest)


def test_a_run_resumes_at_its_place():
    data = natural()
    whole = [Batches(data, 503, 31, seed=5).epoch(number) for number in range(2)]
    epoch, index = 1, 13
    resumed = Batches(data, 503, 31, seed=5).epoch(epoch)[index:]
    assert resumed == whole[1][13:]
    assert resumed


@pytest.mark.parametrize("order", ["epoch", "in_order"])
def test_there_is_little_padding(order):
    data = natural()
    batches = Batches(data, 1009, 1000, seed=5)
    cuts = [cut.rows for cut in batches.epoch(0)] if order == "epoch" else batches.in_order()
    made = [data.batch(rows) for rows in cuts]
    real = sum(int(b.source_mask.sum() + b.target_mask.sum()) for b in made)
    room = sum(b.source.numel() + b.target.numel() for b in made)
    assert real / room > 0.85
    at_random = torch.randperm(len(data)).tolist()
    loose = [data.batch(at_random[i : i + 24]) for i in range(0, len(data), 24)]
    assert real / room > 1.3 * (
        sum(b.tokens + int(b.source_mask.sum()) for b in loose)
        / sum(b.source.numel() + b.target.numel() for b in loose)
    )


def test_the_budget_is_used():
    sizes = [len(rows) for rows in Batches(encoded([(5, 4)] * 30), 35, 128, seed=1).in_order()]
    assert sizes == [7, 7, 7, 7, 2]
    sizes = [len(rows) for rows in Batches(encoded([(5, 4)] * 7), 1000, 3, seed=1).in_order()]
    assert sizes == [3, 3, 1]


def test_in_order_is_shortest_first():
    batches = Batches(encoded([(3, 5), (9, 2), (2, 5), (1, 1)]), 20, 2, seed=1)
    assert batches.in_order() == [[3, 1], [2, 0]]


def test_no_data_no_batches():
    assert Batches(Encoded([], []), 10, 3, seed=1).epoch(0) == []


def test_a_batch_reads_begin_and_asks_for_end():
    data = Encoded([[7, 8, 9, END], [7, END]], [[11], [12, 13]])
    batch = data.batch([1, 0])
    assert batch.source.tolist() == [[7, END, PAD, PAD], [7, 8, 9, END]]
    assert batch.source_mask.tolist() == [[True, True, False, False], [True] * 4]
    assert batch.target.tolist() == [[BEGIN, 12, 13], [BEGIN, 11, PAD]]
    assert batch.wanted.tolist() == [[12, 13, END], [11, END, PAD]]
    assert batch.target_mask.tolist() == [[True] * 3, [True, True, False]]
    assert batch.tokens == 5


def test_an_empty_target_is_an_end_to_predict():
    batch = Encoded([[END]], [[]]).batch([0])
    assert (batch.target.tolist(), batch.wanted.tolist(), batch.tokens) == ([[BEGIN]], [[END]], 1)


def test_a_batch_moves_whole():
    moved = Encoded([[7, END]], [[11]]).batch([0]).to("meta")
    assert {getattr(moved, name).device.type for name in vars(moved)} == {"meta"}


def test_encoding_ends_sources_and_leaves_targets_bare():
    tokenizer = CharacterTokenizer("ab", (), lower=False, strict=True)
    found = Encoded.of(iter([("ab", "b"), ("", "")]), TokenizerPair(tokenizer, tokenizer, 9))
    assert list(found.source) == [[4, 5, END], [END]]
    assert list(found.target) == [[5], []]


@UNHURRIED
@given(rows=st.lists(st.lists(st.integers(1, 30), max_size=11), min_size=1, max_size=7))
def test_pad_adds_padding_and_nothing_else(rows):
    ids, mask = pad(rows)
    assert ids.shape == mask.shape == (len(rows), max(map(len, rows)))
    assert [row[real].tolist() for row, real in zip(ids, mask, strict=True)] == rows
    assert (ids[~mask] == PAD).all()


# --- batches made on the device, in few shapes ----------------------------------------------------


@UNHURRIED
@given(lengths=DATA, data=st.data())
def test_a_resident_batch_is_the_same_batch(lengths, data):
    encoded_ = encoded(lengths)
    rows = data.draw(st.lists(st.integers(0, len(lengths) - 1), min_size=1, max_size=13))
    wanted = encoded_.batch(rows)
    sizes = (wanted.source.shape[1], wanted.target.shape[1])
    found = Resident(encoded_, "cpu").batch(torch.tensor(rows), *sizes)
    for field in fields(wanted):
        assert torch.equal(getattr(found, field.name), getattr(wanted, field.name)), field.name


def test_more_room_is_padding_and_a_filler_predicts_nothing():
    data = Encoded([[7, 8, END], [7, END]], [[11], []])
    batch = Resident(data, "cpu").batch(torch.tensor([1, 2, 0]), 4, 3)
    assert batch.source.tolist() == [[7, END, PAD, PAD], [END, PAD, PAD, PAD], [7, 8, END, PAD]]
    assert batch.source_mask.sum(1).tolist() == [2, 1, 3]  # a filler, too, has a word to look at
    assert batch.target.tolist() == [[BEGIN, PAD, PAD], [BEGIN, PAD, PAD], [BEGIN, 11, PAD]]
    assert batch.wanted.tolist() == [[END, PAD, PAD], [PAD, PAD, PAD], [11, END, PAD]]
    assert batch.target_mask.tolist() == [[True, False, False], [False] * 3, [True, True, False]]
    assert batch.tokens == 3


@UNHURRIED
@given(
    lengths=DATA,
    tokens=st.integers(1, 211),
    sentences=st.integers(1, 17),
    shapes=st.integers(1, 5),
    epoch=st.integers(0, 3),
)
def test_few_shapes_hold_each_row_once(lengths, tokens, sentences, shapes, epoch):
    data = encoded(lengths)
    batches = Batches(data, tokens, sentences, seed=7, shapes=shapes)
    order = batches.epoch(epoch)
    rows = [row for cut in order for row in cut.rows]
    assert sorted(row for row in rows if row < len(data)) == list(range(len(data)))
    assert {row for row in rows if row >= len(data)} <= {len(data)}
    assert len({(len(cut.rows), cut.source, cut.target) for cut in order}) <= shapes
    for cut in order:
        real = [batches.lengths[row] for row in cut.rows if row < len(data)]
        assert real  # no batch is all filler
        assert all(target + 1 <= cut.target and source <= cut.source for target, source in real)
        assert len(cut.rows) <= sentences
        assert len(cut.rows) == 1 or len(cut.rows) * cut.target <= tokens
        assert batches.tokens_in(cut) == sum(target + 1 for target, _ in real)


def test_few_shapes_depend_on_seed_and_epoch_alone():
    data = natural()
    one = Batches(data, 503, 31, seed=5, shapes=4)
    assert one.epoch(3) == Batches(data, 503, 31, seed=5, shapes=4).epoch(3) != one.epoch(4)
    assert one.epoch(3) != Batches(data, 503, 31, seed=6, shapes=4).epoch(3)


@pytest.mark.parametrize(
    ("source", "target", "least"),
    [
        (lambda n: 0, lambda n: n, 1.2),  # a language model: nothing to read
        (lambda n: 14 + 2 * n, lambda n: n, 1.2),  # a prompt, and a language cut into small pieces
        (lambda n: n, lambda n: 3 * n, 1.25),
        (lambda n: n, lambda n: n, 1.3),
    ],
)
def test_each_side_has_a_width_of_its_own(source, target, least):
    """Padding is little, however unlike the two sides are; a common width would double some."""
    sizes = [n for n in range(1, 41) for _ in range(41 - n)]
    data = encoded([(source(n) + 1, target(n)) for n in sizes])
    batches = Batches(data, 10**6, 1, seed=7, shapes=6)
    real = sum(target + 1 + source for target, source in batches.lengths)
    assert real <= sum(cut.source + cut.target for cut in batches.epoch(0)) < least * real


@UNHURRIED
@given(lengths=st.lists(st.integers(1, 19), min_size=1, max_size=40), most=st.integers(1, 4))
def test_few_widths_have_the_least_padding(lengths, most):
    counts = np.bincount(lengths)
    widths = few_widths(counts, most, multiple=2)
    assert widths == sorted(set(widths))
    assert widths[-1] == max(lengths)

    def room(chosen):
        return sum(min(width for width in chosen if width >= length) for length in lengths)

    inner = [width for width in range(2, max(lengths)) if width % 2 == 0]
    choices = ((*few, max(lengths)) for count in range(most) for few in combinations(inner, count))
    assert len(widths) <= most
    assert room(widths) == min(map(room, choices))
