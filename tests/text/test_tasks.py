"""Synthetic data: sentences of given lengths, tasks, and splits without a common sentence."""

import os
import random
import subprocess
import sys
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.errors import UserError
from regard.text.sentences import (
    MAX_SENTENCE_LENGTH,
    MIN_LENGTH,
    build_grammar,
    generate_sentences,
)
from regard.text.tasks import TASKS, generate_splits

SIZES = {"train": 300, "val": 31, "test": 47}


def remove_symbol(source: str) -> str:
    """The sentence of a source, without its task symbol."""
    for task in TASKS.values():
        for symbol in task.symbols:
            source = source.removeprefix(symbol + " ")
    return source


# Sentences


@settings(max_examples=12, deadline=None)
@given(st.integers(8, 60), st.integers(0, 170), st.integers(0, 2**70))
def test_sentences_have_the_given_lengths_and_are_distinct_in_lower_case(shortest, range_, seed):
    texts = generate_sentences(37, shortest, shortest + range_, seed)
    assert len({text.lower() for text in texts}) == 37
    assert all(shortest <= len(text) <= shortest + range_ for text in texts)


def test_every_length_can_be_generated():
    assert all(build_grammar(MAX_SENTENCE_LENGTH).counts[MIN_LENGTH:])
    for length in (3, 4, 5, 90, 91, 92, 116, 200, 1000):
        assert [len(text) for text in generate_sentences(2, length, length, seed=5)] == [length] * 2


def test_lengths_are_uniform():
    counts = Counter(map(len, generate_sentences(4000, 20, 219, seed=1)))
    assert len(counts) == 200
    assert max(counts.values()) < 50  # 20 expected


def test_exhausted_lengths_are_replaced_by_all_others():
    counts = Counter(map(len, generate_sentences(6000, 3, 22, seed=1)))
    assert counts[3] < 100
    longer = [counts[length] for length in range(13, 23)]
    assert max(longer) < 1.4 * min(longer)
    assert max(counts, key=lambda length: counts[length]) > 10


def test_the_last_full_stop_is_often_but_not_always_present():
    texts = generate_sentences(3000, 4, 32, seed=3)
    without = sum(text[-1] not in ".?!" for text in texts) / len(texts)
    assert 0.2 < without < 0.6


def test_sentences_follow_english_spelling():
    texts = generate_sentences(3000, 3, 150, seed=3)
    for text in texts:
        assert text.isascii()
        assert not text[0].islower()
        assert text[-1] in ".?!" or text[-1].isalnum()
        assert "  " not in text
        assert not set("{}|_") & set(text)
        words = text.lower().split()
        for article, noun in pairwise(words):
            assert article != "a" or noun[0] not in "aeiou", text
            assert article != "an" or noun[0] in "aeiou", text
    letters = set("".join(texts))
    assert set("abcdefghijklmnopqrstuvwxyz0123456789,.?!' ABCDEFGHIJKLMNOPRSTUVWYZ") <= letters


def test_the_same_seed_gives_the_same_pairs_in_another_process():
    code = (
        "from regard.text.tasks import TASKS, generate_splits as generate; import hashlib;"
        "print(hashlib.sha256(repr(generate(TASKS['case'], sizes={'train': 300, 'val': 31, 'test': 47},"
        "min_length=4, max_length=130, seed=7)).encode()).hexdigest())"
    )

    def digest(hash_seed: str) -> str:
        environment = os.environ | {
            "PYTHONHASHSEED": hash_seed,
            "PYTHONPATH": os.pathsep.join(sys.path),
        }
        return subprocess.check_output([sys.executable, "-c", code], env=environment, text=True)

    assert digest("1") == digest("2")


def test_another_seed_gives_other_sentences():
    assert generate_sentences(20, 20, 40, seed=1) != generate_sentences(20, 20, 40, seed=2)


def test_zero_sentences_are_allowed():
    assert generate_sentences(0, 3, 5, seed=0) == []


def test_too_many_sentences_for_the_length():
    with pytest.raises(
        UserError, match=r"100000 .* 3 to 3 .* about \d\d can be generated.*max_length"
    ):
        generate_sentences(100_000, 3, 3, seed=0)


@pytest.mark.parametrize(("shortest", "longest"), [(2, 9), (0, 0), (9, 8), (-3, 5)])
def test_lengths_out_of_range(shortest, longest):
    with pytest.raises(UserError, match=f"3 <= .*min_length={shortest}, max_length={longest}"):
        generate_sentences(1, shortest, longest, seed=0)


def test_a_negative_count():
    with pytest.raises(UserError, match="0 or more sentences; got -1"):
        generate_sentences(-1, 4, 9, seed=0)


# Tasks


@given(st.text(), st.integers())
def test_case_symbol_determines_the_case(sentence, seed):
    source, target = TASKS["case"].make_pair(sentence, random.Random(seed))
    expected = {f"<U> {sentence}": sentence.upper(), f"<L> {sentence}": sentence.lower()}
    assert expected[source] == target


def test_case_symbols_are_equally_likely():
    generator = random.Random(0)
    upper = sum(TASKS["case"].make_pair("a", generator)[1] == "A" for _ in range(2000))
    assert 900 < upper < 1100


@given(st.text(), st.integers())
def test_reverse_twice_and_copy_once_change_nothing(sentence, seed):
    generator = random.Random(seed)
    source, target = TASKS["reverse"].make_pair(sentence, generator)
    assert source == sentence
    assert TASKS["reverse"].make_pair(target, generator) == (target, sentence)
    assert TASKS["copy"].make_pair(sentence, generator) == (sentence, sentence)


@pytest.fixture(scope="module", params=TASKS)
def splits(request):
    return generate_splits(TASKS[request.param], sizes=SIZES, min_length=4, max_length=23, seed=11)


def test_splits_have_their_sizes_and_lengths(splits):
    assert {split: len(pairs) for split, pairs in splits.items()} == SIZES
    sources = [remove_symbol(source) for pairs in splits.values() for source, _ in pairs]
    assert all(4 <= len(source) <= 23 for source in sources)


def test_splits_share_no_sentence_in_any_case(splits):
    lower = [remove_symbol(source).lower() for pairs in splits.values() for source, _ in pairs]
    assert len(set(lower)) == len(lower)


@pytest.mark.parametrize("name", TASKS)
def test_a_task_has_a_description_and_its_sources_start_with_its_symbols(name):
    task = TASKS[name]
    assert task.description
    assert "\n" not in task.description
    source, _ = task.make_pair("I am a student", random.Random(0))
    assert source in {f"{symbol} I am a student" for symbol in task.symbols} or not task.symbols


def test_no_split_depends_on_the_size_of_another_or_on_the_order():
    sizes = {"test": 47, "val": 31, "train": 900}
    small = generate_splits(TASKS["case"], sizes=SIZES, min_length=4, max_length=23, seed=11)
    large = generate_splits(TASKS["case"], sizes=sizes, min_length=4, max_length=23, seed=11)
    assert large["test"] == small["test"]
    assert large["val"] == small["val"]
    assert large["train"][:300] == small["train"]


def test_short_sentences_occur_in_every_split():
    sizes = {"train": 3000, "val": 300, "test": 300}
    splits = generate_splits(TASKS["copy"], sizes=sizes, min_length=3, max_length=20, seed=0)
    assert all(any(len(target) < 6 for _, target in pairs) for pairs in splits.values())


def test_an_impossible_split_raises_an_error():
    with pytest.raises(
        UserError, match=r"split 'test' .*train, test.*only about \d+ can be generated"
    ):
        generate_splits(
            TASKS["copy"],
            sizes={"train": 3, "test": 5000},
            min_length=3,
            max_length=5,
            seed=0,
        )


def test_a_negative_size():
    with pytest.raises(UserError, match="split 'val'; got -2"):
        generate_splits(TASKS["copy"], sizes={"val": -2}, min_length=3, max_length=5, seed=0)
