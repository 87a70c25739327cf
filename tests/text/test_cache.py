"""Text is tokenised once; a cache that fails in any way is only slower."""

import multiprocessing
import shutil
from pathlib import Path

import numpy as np
import pytest

from regard import config
from regard.text import cache
from regard.text.batch import Batches, Encoded
from regard.text.tokenizer import TokenizerPair

PAIRS = [("a b c", "A B"), ("a", "A"), ("c b", "C B A")]


def learn(table=None) -> TokenizerPair:
    return TokenizerPair.learn(table or config.Words(min_frequency=1), PAIRS, ())


def rows(data: Encoded) -> list[list[list[int]]]:
    return [[list(row) for row in side] for side in (data.source, data.target)]


@pytest.fixture
def place(tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "tokenised"


def never(*_: object) -> Encoded:
    raise AssertionError("tokenised again")


@pytest.mark.parametrize("table", [config.Words(min_frequency=1), config.Bpe(vocab_size=300)])
def test_the_second_time_it_is_mapped_from_disk(place, table, monkeypatch):
    tokenizers = learn(table)
    wanted = rows(Encoded.of(PAIRS, tokenizers))
    first = cache.encoded(PAIRS, tokenizers)
    monkeypatch.setattr(Encoded, "of", never)
    second = cache.encoded(PAIRS, learn(table))
    assert rows(first) == rows(second) == wanted
    assert isinstance(second.source.values, np.memmap)
    assert not second.source.values.flags.writeable
    assert second.lengths() == first.lengths()
    order = Batches(second, 11, 2, seed=1).epoch(0)
    assert order == Batches(first, 11, 2, seed=1).epoch(0)
    assert all((first.batch(c.rows).wanted == second.batch(c.rows).wanted).all() for c in order)
    assert [path.name for path in place.iterdir()] == [cache.key(PAIRS, tokenizers)]


def test_the_key_tells_texts_and_tokenizers_apart():
    plain = learn()
    others = [
        (PAIRS[:2], plain),
        (PAIRS[::-1], plain),
        ([(target, source) for source, target in PAIRS], plain),
        (PAIRS, learn(config.Words(min_frequency=2))),
        (PAIRS, learn(config.Words(min_frequency=1, lowercase=True))),
        (PAIRS, learn(config.Words(min_frequency=1, joint=True))),
        (PAIRS, learn(config.Characters())),
        (PAIRS, learn(config.Bpe(vocab_size=300))),
    ]
    keys = [cache.key(*other) for other in [(PAIRS, plain), *others]]
    assert len(set(keys)) == len(keys)
    assert cache.key(list(PAIRS), learn()) == keys[0]


def test_a_tab_or_a_new_line_inside_a_text_is_no_border():
    plain = learn(config.Characters())
    keys = {
        cache.key(pairs, plain)
        for pairs in (
            [("a\tb", "c")],
            [("a", "b\tc")],
            [("a", "b\nc\td")],
            [("a", "b"), ("c", "d")],
        )
    }
    assert len(keys) == 4


@pytest.mark.parametrize("pairs", [[("a", "")], [("", "")]])
def test_empty_rows_come_back(place, pairs):
    tokenizers = learn()
    wanted = rows(cache.encoded(pairs, tokenizers))
    assert rows(cache.encoded(pairs, tokenizers)) == wanted


@pytest.mark.parametrize("where", ["inside a file", "a file in the way"])
def test_a_cache_that_cannot_be_written_is_harmless(tmp_path, monkeypatch, where):
    (tmp_path / "file").write_text("precious")
    (tmp_path / "tokenised").write_text("precious")
    chosen = tmp_path / "file" if where == "inside a file" else tmp_path
    monkeypatch.setenv("REGARD_CACHE", str(chosen))
    for _ in range(2):
        assert rows(cache.encoded(PAIRS, learn())) == rows(Encoded.of(PAIRS, learn()))
    assert (tmp_path / "file").read_text() == (tmp_path / "tokenised").read_text() == "precious"


def test_a_full_disk_is_harmless_and_leaves_nothing(place, monkeypatch):
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "save", full)
    assert rows(cache.encoded(PAIRS, learn())) == rows(Encoded.of(PAIRS, learn()))
    assert list(place.iterdir()) == []


@pytest.mark.parametrize("name", cache.PARTS)
@pytest.mark.parametrize("harm", ["remove", "shorten", "empty", "garbage"])
def test_a_damaged_cache_is_as_good_as_none(place, name, harm):
    wanted = rows(cache.encoded(PAIRS, learn()))
    file = place / cache.key(PAIRS, learn()) / f"{name}.npy"
    if harm == "remove":
        file.unlink()
    else:
        whole = file.read_bytes()
        file.write_bytes({"shorten": whole[:-3], "empty": b"", "garbage": b"no array"}[harm])
    assert rows(cache.encoded(PAIRS, learn())) == wanted


def test_one_who_comes_second_is_harmless(place, monkeypatch):
    """Another process finishes between our look and our move."""
    plain = Encoded.of

    def slow(pairs, tokenizers) -> Encoded:
        monkeypatch.setattr(Encoded, "of", plain)
        cache.encoded(PAIRS, tokenizers)
        return plain(pairs, tokenizers)

    monkeypatch.setattr(Encoded, "of", slow)
    assert rows(cache.encoded(PAIRS, learn())) == rows(plain(PAIRS, learn()))
    assert len(list(place.iterdir())) == 1
    shutil.rmtree(place)


def work(tokenizers: TokenizerPair, barrier, found) -> None:
    for number in range(40):
        barrier.wait(10)
        pairs = [(f"{source} {number}", target) for source, target in PAIRS]
        found.put(rows(cache.encoded(pairs, tokenizers)) == rows(Encoded.of(pairs, tokenizers)))


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_two_processes_at_once_are_harmless(place):
    forks = multiprocessing.get_context("fork")
    barrier, found = forks.Barrier(2), forks.SimpleQueue()
    both = [forks.Process(target=work, args=(learn(), barrier, found)) for _ in range(2)]
    for process in both:
        process.start()
    answers = [found.get() for _ in range(80)]
    for process in both:
        process.join(20)
    assert [process.exitcode for process in both] == [0, 0]
    assert all(answers)
    assert len(list(place.iterdir())) == 40
