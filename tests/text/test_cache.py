"""Text is tokenised once; a cache failure of any kind only costs time."""

import multiprocessing
import shutil
from pathlib import Path

import numpy as np
import pytest

from regard import config
from regard.text import cache
from regard.text.batch import BatchSampler, EncodedPairs
from regard.text.tokenizer import TokenizerPair

PAIRS = [("a b c", "A B"), ("a", "A"), ("c b", "C B A")]


def train(table=None) -> TokenizerPair:
    return TokenizerPair.train(table or config.Words(min_frequency=1), PAIRS, ())


def rows(data: EncodedPairs) -> list[list[list[int]]]:
    return [[list(row) for row in side] for side in (data.source, data.target)]


@pytest.fixture
def cache_folder(tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "tokenised"


def fail(*_: object) -> EncodedPairs:
    raise AssertionError("tokenised again")


@pytest.mark.parametrize("table", [config.Words(min_frequency=1), config.Bpe(vocab_size=300)])
def test_a_second_call_is_memory_mapped(cache_folder, table, monkeypatch):
    tokenizers = train(table)
    expected = rows(EncodedPairs.from_pairs(PAIRS, tokenizers))
    first = cache.encode_cached(PAIRS, tokenizers)
    monkeypatch.setattr(EncodedPairs, "from_pairs", fail)
    second = cache.encode_cached(PAIRS, train(table))
    assert rows(first) == rows(second) == expected
    assert isinstance(second.source.values, np.memmap)
    assert not second.source.values.flags.writeable
    assert second.lengths() == first.lengths()
    order = BatchSampler(second, 11, 2, seed=1).epoch(0)
    assert order == BatchSampler(first, 11, 2, seed=1).epoch(0)
    assert all((first.batch(s.rows).labels == second.batch(s.rows).labels).all() for s in order)
    assert [path.name for path in cache_folder.iterdir()] == [cache.cache_key(PAIRS, tokenizers)]


def test_the_key_depends_on_text_and_tokenizers():
    tokenizers = train()
    others = [
        (PAIRS[:2], tokenizers),
        (PAIRS[::-1], tokenizers),
        ([(target, source) for source, target in PAIRS], tokenizers),
        (PAIRS, train(config.Words(min_frequency=2))),
        (PAIRS, train(config.Words(min_frequency=1, lowercase=True))),
        (PAIRS, train(config.Words(min_frequency=1, joint=True))),
        (PAIRS, train(config.Characters())),
        (PAIRS, train(config.Bpe(vocab_size=300))),
    ]
    keys = [cache.cache_key(*other) for other in [(PAIRS, tokenizers), *others]]
    assert len(set(keys)) == len(keys)
    assert cache.cache_key(list(PAIRS), train()) == keys[0]


def test_a_tab_or_a_newline_inside_a_text_is_no_separator():
    tokenizers = train(config.Characters())
    keys = {
        cache.cache_key(pairs, tokenizers)
        for pairs in (
            [("a\tb", "c")],
            [("a", "b\tc")],
            [("a", "b\nc\td")],
            [("a", "b"), ("c", "d")],
        )
    }
    assert len(keys) == 4


@pytest.mark.parametrize("pairs", [[("a", "")], [("", "")]])
def test_empty_rows_are_restored(cache_folder, pairs):
    tokenizers = train()
    expected = rows(cache.encode_cached(pairs, tokenizers))
    assert rows(cache.encode_cached(pairs, tokenizers)) == expected


@pytest.mark.parametrize("where", ["parent is a file", "folder is a file"])
def test_a_cache_that_cannot_be_written_is_ignored(tmp_path, monkeypatch, where):
    (tmp_path / "file").write_text("precious")
    (tmp_path / "tokenised").write_text("precious")
    folder = tmp_path / "file" if where == "parent is a file" else tmp_path
    monkeypatch.setenv("REGARD_CACHE", str(folder))
    for _ in range(2):
        assert rows(cache.encode_cached(PAIRS, train())) == rows(
            EncodedPairs.from_pairs(PAIRS, train())
        )
    assert (tmp_path / "file").read_text() == (tmp_path / "tokenised").read_text() == "precious"


def test_a_full_disk_is_ignored_and_leaves_no_files(cache_folder, monkeypatch):
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "save", full)
    assert rows(cache.encode_cached(PAIRS, train())) == rows(
        EncodedPairs.from_pairs(PAIRS, train())
    )
    assert list(cache_folder.iterdir()) == []


@pytest.mark.parametrize("name", cache.ARRAYS)
@pytest.mark.parametrize("damage", ["remove", "truncate", "empty", "garbage"])
def test_a_damaged_cache_is_rebuilt(cache_folder, name, damage):
    expected = rows(cache.encode_cached(PAIRS, train()))
    file = cache_folder / cache.cache_key(PAIRS, train()) / f"{name}.npy"
    if damage == "remove":
        file.unlink()
    else:
        content = file.read_bytes()
        damaged = {"truncate": content[:-3], "empty": b"", "garbage": b"no array"}
        file.write_bytes(damaged[damage])
    assert rows(cache.encode_cached(PAIRS, train())) == expected


def test_losing_a_race_is_harmless(cache_folder, monkeypatch):
    """Another process finishes between our lookup and our rename."""
    original = EncodedPairs.from_pairs

    def slow(pairs, tokenizers) -> EncodedPairs:
        monkeypatch.setattr(EncodedPairs, "from_pairs", original)
        cache.encode_cached(PAIRS, tokenizers)
        return original(pairs, tokenizers)

    monkeypatch.setattr(EncodedPairs, "from_pairs", slow)
    assert rows(cache.encode_cached(PAIRS, train())) == rows(original(PAIRS, train()))
    assert len(list(cache_folder.iterdir())) == 1
    shutil.rmtree(cache_folder)


def encode_in_process(tokenizers: TokenizerPair, barrier, results) -> None:
    for number in range(40):
        barrier.wait(10)
        pairs = [(f"{source} {number}", target) for source, target in PAIRS]
        expected = rows(EncodedPairs.from_pairs(pairs, tokenizers))
        results.put(rows(cache.encode_cached(pairs, tokenizers)) == expected)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_two_concurrent_processes_are_harmless(cache_folder):
    context = multiprocessing.get_context("fork")
    barrier, results = context.Barrier(2), context.SimpleQueue()
    arguments = train(), barrier, results
    processes = [context.Process(target=encode_in_process, args=arguments) for _ in range(2)]
    for process in processes:
        process.start()
    equal = [results.get() for _ in range(80)]
    for process in processes:
        process.join(20)
    assert [process.exitcode for process in processes] == [0, 0]
    assert all(equal)
    assert len(list(cache_folder.iterdir())) == 40
