"""Text is tokenised once; a cache failure of any kind only costs time."""

import multiprocessing
import os
import shutil
import time
from pathlib import Path

import numpy as np
import pytest

from regard import config
from regard.errors import UserError
from regard.text import cache, code_version
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
    name = f"{cache.cache_key(PAIRS, tokenizers)}.ids"
    assert [path.name for path in cache_folder.iterdir()] == [name]


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

    monkeypatch.setattr(os, "fsync", full)
    assert rows(cache.encode_cached(PAIRS, train())) == rows(
        EncodedPairs.from_pairs(PAIRS, train())
    )
    assert list(cache_folder.iterdir()) == []


def write_entry(path: Path, count: int, *content: int) -> None:
    """An entry whose checksum is right, whatever it holds."""
    array = np.array(content, np.int32)
    header = cache.HEADER.pack(cache.MAGIC, count, cache.hash_content(count, array))
    path.write_bytes(header + array.tobytes())


ENTRIES = {
    "too many pairs": (9, 1, 1, 5, 5),
    "pairs without end": (2**63, 1, 1, 5, 5),
    "too few ids": (1, 1, 2, 5, 5),
    "too many ids": (1, 1, 1, 5, 5, 5),
    "a negative length": (2, 3, -1, 1, 1, 5, 5, 5, 5),
    "a negative id": (1, 1, 1, 5, -1),
    "an id outside the vocabulary": (1, 1, 1, 5, 10**6),
}
CHANGES = {
    "truncated": lambda content: content[:-4],
    "half a number": lambda content: content[:-3],
    "no ids": lambda content: content[: cache.HEADER.size],
    "half a header": lambda content: content[:9],
    "empty": lambda content: b"",
    "garbage": lambda content: b"no entry" * 20,
    "another version": lambda content: content[:7] + b"\xff" + content[8:],
    **{
        f"byte {position} changed": lambda content, position=position: (
            content[:position] + bytes([content[position] ^ 1]) + content[position + 1 :]
        )
        for position in (0, 8, 20, cache.HEADER.size)
    },
    "the last id changed": lambda content: content[:-4] + b"\5" + content[-3:],
}


@pytest.mark.parametrize("damage", [*CHANGES, *ENTRIES])
def test_a_damaged_entry_is_replaced(cache_folder, monkeypatch, damage):
    expected = rows(cache.encode_cached(PAIRS, train()))
    file = cache_folder / f"{cache.cache_key(PAIRS, train())}.ids"
    content = file.read_bytes()
    if damage in ENTRIES:
        write_entry(file, *ENTRIES[damage])
    else:
        file.write_bytes(CHANGES[damage](content))
    assert file.read_bytes() != content
    assert rows(cache.encode_cached(PAIRS, train())) == expected
    assert file.read_bytes() == content
    monkeypatch.setattr(EncodedPairs, "from_pairs", fail)
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


def test_the_key_depends_on_the_code(monkeypatch):
    """New code may split the same text into other tokens."""
    keys = {cache.cache_key(PAIRS, train())}
    original = Path.read_bytes
    for change in (
        (Path, "read_bytes", lambda path: original(path) + b"#" * (path.name == "tokenizer.py")),
        (code_version.tokenizers_package, "__version__", "0"),
        (code_version.unicodedata, "unidata_version", "0"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(*change)
            cache.code_version.cache_clear()
            keys.add(cache.cache_key(PAIRS, train()))
    cache.code_version.cache_clear()
    assert len(keys) == 4
    assert cache.cache_key(PAIRS, train()) in keys


# --- size -----------------------------------------------------------------------------------------


def test_least_recently_used_entries_are_deleted(cache_folder, monkeypatch):
    def encode(number: int) -> EncodedPairs:
        return cache.encode_cached([(f"a {number}", "A")] * 5, train())

    def age(by: float) -> None:
        for path in cache_folder.iterdir():
            os.utime(path, (path.stat().st_mtime - by,) * 2)

    for number in (1, 2, 3):
        encode(number)
        age(10)
    first, *_ = cache.entries()
    mapped = encode(1)  # now the most recently used
    assert isinstance(mapped.source.values, np.memmap)
    sizes = cache.entries()
    assert list(sizes)[-1] == first
    expected = rows(mapped)
    (cache_folder / "tmpold").mkdir()  # as an earlier version left them
    (cache_folder / "tmpold" / "source.ids").write_bytes(b"x" * 99)
    (cache_folder / ".regard-killed.ids").write_bytes(b"x")
    assert sum(cache.entries().values()) == sum(sizes.values()) + 99
    age(10)
    os.utime(cache_folder / "tmpold", (1, 1))
    monkeypatch.setenv(cache.LIMIT, str(2.5 * sizes[first] / cache.GIB))
    encode(4)
    assert next(iter(cache.entries())) == first
    assert len(list(cache_folder.iterdir())) == 2
    cache.evict(0)
    assert list(cache_folder.iterdir()) == []
    assert rows(mapped) == expected  # though its file is deleted
    monkeypatch.setenv(cache.LIMIT, "0")
    assert rows(encode(1)) == expected
    assert cache.entries() == {}


@pytest.mark.parametrize("text", ["much", "", "inf", "nan"])
def test_a_limit_that_is_no_number(cache_folder, monkeypatch, text):
    monkeypatch.setenv(cache.LIMIT, text)
    with pytest.raises(UserError, match=f'REGARD_CACHE_LIMIT is a number of GiB.*got "{text}"'):
        cache.encode_cached(PAIRS, train())


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


def test_what_killed_processes_left_in_the_cache_is_deleted(cache_folder):
    """Temporary files and folders at once; a download that nobody went on with after a week."""
    root = cache_folder.parent
    orphans = [
        "tokenised/.regard-0-0123456789abcdef.ids",
        ".regard-int8-0123456789abcdef.json",
        "ctranslate2/.regard-model-0123456789abcdef/model/model.bin",
        "hub/models--me--it/0/.regard-card-0123456789abcdef.json",
    ]
    kept = ["tatoeba/deu-eng.zip", "tatoeba/new.part", "hub/models--me--it/0/model.safetensors"]
    for name in (*orphans, *kept, "tatoeba/old.part"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("half")
    week_ago = time.time() - cache.ABANDONED - 60
    os.utime(root / "tatoeba/old.part", (week_ago, week_ago))
    os.utime(root / kept[0], (week_ago, week_ago))
    cache.encode_cached(PAIRS, train())
    left = {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}
    assert left == {*kept, f"tokenised/{cache.cache_key(PAIRS, train())}.ids"}
    assert not list(root.rglob(".regard-*"))
