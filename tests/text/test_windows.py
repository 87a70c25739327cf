"""Text on disk: each pair once an epoch, the same order from the same seed, in bounded memory."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from regard import config
from regard.config import FileData
from regard.errors import UserError
from regard.text import corpus, shard_writer, shards, stream, windows
from regard.text.batch import EncodedPairs
from regard.text.shard_writer import write_shards
from regard.text.stream import open_stream
from regard.text.tokenizer import CharacterTokenizer, TokenizerPair
from regard.text.windows import ShardedPairs, WindowDataset, WindowSampler

WORDS = ["ein", "zwei", "drei", "vier", "fünf", "sechs", "acht"]
SHARD = 11  # pairs
DISK_IS_FULL = """
import sys
for _ in sys.stdin.buffer:
    print('"the disk is full"', flush=True)
"""


def make_pairs(count: int) -> list[tuple[str, str]]:
    """Different pairs of different lengths: the words of a pair say which it is."""
    draw = np.random.default_rng(3)
    sizes = draw.integers(1, 9, (count, 2)).tolist()
    return [
        (" ".join([f"s{row}", *WORDS[: a - 1]]), " ".join([f"t{row}", *WORDS[: b - 1]]))
        for row, (a, b) in enumerate(sizes)
    ]


PAIRS = make_pairs(157)
TOKENIZERS = TokenizerPair.train(config.Words(min_frequency=1), PAIRS, ())


@pytest.fixture(autouse=True)
def small_shards(tmp_path, monkeypatch):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(shards, "PAIRS", SHARD)
    monkeypatch.setattr(shard_writer, "count_cores", lambda: 1)


def data_of(folder: Path, pairs=PAIRS, **options) -> FileData:
    path = folder / "train.tsv"
    path.write_text("".join(f"{source}\t{target}\n" for source, target in pairs), "utf-8")
    return FileData(train=str(path), val=str(path), storage="disk", **options)


def shard(folder: Path, tokenizers=TOKENIZERS, **options) -> ShardedPairs:
    return ShardedPairs(
        write_shards(open_stream(data_of(folder, **options)), tokenizers), tokenizers
    )


def read_pairs(dataset: WindowDataset, spec) -> list[tuple[str, ...]]:
    """The texts of a batch, without its dummy rows."""
    dataset.load(spec)
    batch = dataset.batch(torch.tensor(spec.rows), spec.source_length, spec.target_length)
    real = batch.target_mask.any(1)
    sides = (TOKENIZERS.source, batch.source[real]), (TOKENIZERS.target, batch.labels[real])
    texts = [[tokenizer.decode(ids.tolist()) for ids in rows] for tokenizer, rows in sides]
    return list(zip(*texts, strict=True))


# --- shards ---------------------------------------------------------------------------------------


def test_shards_hold_what_memory_holds(tmp_path):
    data = shard(tmp_path)
    expected = EncodedPairs.from_pairs(PAIRS, TOKENIZERS)
    found = data.read(range(len(data.paths)))
    assert (len(data.paths), len(data), data.skipped) == (15, 157, 0)
    assert list(found.source) == list(expected.source)
    assert list(found.target) == list(expected.target)
    assert data.read_lengths([2]).lengths() == expected.lengths()[2 * SHARD : 3 * SHARD]


@pytest.mark.parametrize(("size", "bytes_"), [(70_000, 4), (65_536, 2)])
def test_ids_of_a_large_vocabulary_need_four_bytes(size, bytes_, tmp_path):
    letters = [chr(0x10000 + n) for n in range(size - 4)]
    tokenizer = CharacterTokenizer(letters, (), lowercase=False, strict=True)
    tokenizers = TokenizerPair(tokenizer, tokenizer, 9)
    assert shards.id_type(tokenizers).itemsize == bytes_
    shards.write(tmp_path / "x", [(each, each) for each in letters[-5:]], tokenizers)
    found = shards.read(tmp_path / "x", tokenizers)
    assert found.target.tolist() == [size - 5 + n for n in range(5)]


def test_pairs_over_the_limit_are_not_in_a_shard(tmp_path):
    short = TokenizerPair(TOKENIZERS.source, TOKENIZERS.target, max_tokens=5)
    data = shard(tmp_path, short)
    expected = [p for p in PAIRS if max(len(side.split()) for side in p) <= 5]
    assert (len(data), data.skipped) == (len(expected), len(PAIRS) - len(expected))
    found = data.read(range(len(data.paths)))
    assert list(found.target) == list(EncodedPairs.from_pairs(expected, short).target)


def test_an_interrupted_run_goes_on_and_makes_nothing_twice(tmp_path, monkeypatch):
    written, write = [], shards.write

    def fail_at_five(path, *arguments):
        if len(written) == 5:
            raise KeyboardInterrupt
        written.append(path.name)
        write(path, *arguments)

    monkeypatch.setattr(shards, "write", fail_at_five)
    with pytest.raises(KeyboardInterrupt):
        shard(tmp_path)
    monkeypatch.setattr(
        shards, "write", lambda path, *a: (written.append(path.name), write(path, *a))
    )
    paths = shard(tmp_path).paths
    assert Counter(written) == Counter(path.name for path in paths)
    shard(tmp_path)
    assert len(written) == len(paths)  # the second run finds them
    content = paths[3].read_bytes()
    paths[3].write_bytes(content[:-1])
    paths[4].write_bytes(content[:-2] + bytes([content[-2] ^ 1]) + content[-1:])
    shard(tmp_path)
    assert written[len(paths) :] == [paths[3].name, paths[4].name]  # damaged
    monkeypatch.setattr(stream, "scan", None)  # nor is the text read again
    shard(tmp_path)


def test_other_text_settings_or_vocabularies_have_other_shards(tmp_path):
    folders = {shard(tmp_path).paths[0].parent}
    folders.add(shard(tmp_path, pairs=PAIRS[1:]).paths[0].parent)
    folders.add(shard(tmp_path, swap=True).paths[0].parent)
    folders.add(
        shard(tmp_path, TokenizerPair(TOKENIZERS.source, TOKENIZERS.target, 9)).paths[0].parent
    )
    assert len(folders) == 4


def test_several_processes_write_the_same_shards(tmp_path, monkeypatch):
    alone = [path.read_bytes() for path in shard(tmp_path).paths]
    for path in shard(tmp_path).paths:
        path.unlink()
    monkeypatch.setattr(shard_writer, "count_cores", lambda: 2)
    assert [path.read_bytes() for path in shard(tmp_path).paths] == alone


@pytest.mark.parametrize("worker", ["import sys; sys.exit(7)", DISK_IS_FULL])
def test_a_process_that_fails_is_one_sentence(worker, tmp_path, monkeypatch):
    monkeypatch.setattr(shard_writer, "count_cores", lambda: 2)
    monkeypatch.setattr(shard_writer, "WORKER", (shard_writer.WORKER[0], "-c", worker))
    message = (
        r"process that tokenises has ended with exit code 7, .* it goes on with|the disk is full"
    )
    with pytest.raises(UserError, match=message):
        shard(tmp_path)


def test_a_shard_that_is_lost_in_training_is_named(tmp_path):
    data = shard(tmp_path)
    len(data)
    data.paths[4].unlink()
    with pytest.raises(
        UserError, match=r"000004\.ids, a part of the training data, cannot be read: "
    ):
        data.read([4])


# --- the stream -----------------------------------------------------------------------------------


def test_a_stream_has_the_pairs_and_the_checksum_of_memory(tmp_path):
    data = data_of(tmp_path, swap=True)
    in_memory, on_disk = corpus.load(data), corpus.load(data, on_disk=True)
    assert list(on_disk.stream) == in_memory["train"] == on_disk["train"]
    assert on_disk.checksums() == in_memory.checksums()
    assert on_disk.num_train == in_memory.num_train == len(PAIRS)
    assert list(on_disk.splits) == list(in_memory.splits)


def test_the_sample_is_bounded_and_evenly_spread(tmp_path, monkeypatch):
    monkeypatch.setattr(stream, "SAMPLE", 20)
    found = corpus.load(data_of(tmp_path), on_disk=True)
    assert found["train"] == PAIRS[::8]
    assert found.messages[0] == (
        "train: 157 pairs stay on disk (data.storage); checks and a new tokenizer see 20 of them, evenly "
        "spread"
    )


def test_fractions_are_nested(tmp_path):
    parts = [set(open_stream(data_of(tmp_path, fraction=f))) for f in (0.2, 0.5, 1)]
    assert parts[0] < parts[1] < parts[2]
    assert 0.1 < len(parts[0]) / len(PAIRS) < 0.3
    with pytest.raises(
        UserError, match=r"data\.fraction is 1e-06, and leaves none of 157 training pairs"
    ):
        open_stream(data_of(tmp_path, fraction=1e-6))


def test_bad_lines_are_errors_or_counted(tmp_path):
    data = data_of(tmp_path)
    Path(data.train).write_text("a\tb\nno tab\nc\td\n")
    with pytest.raises(UserError, match=r"data\.train: .*line 2 has no tab"):
        open_stream(data)
    found = corpus.load(data.model_copy(update={"on_error": "skip"}), ("train",), on_disk=True)
    assert found.messages == ("train: kept 2 pairs, skipped 1 (1 malformed)",)
    with pytest.raises(UserError, match=r"data\.train: .*none\.tsv cannot be read: No such file"):
        open_stream(data.model_copy(update={"train": "none.tsv"}))


def test_a_damaged_scan_is_made_again(tmp_path):
    first = open_stream(data_of(tmp_path))
    path = first.folder / stream.SCAN
    path.write_bytes(path.read_bytes().replace(b'"count": 157', b'"count": 158'))
    assert open_stream(data_of(tmp_path)) == first


def test_files_that_change_while_they_are_read_are_an_error(tmp_path):
    opened = open_stream(data_of(tmp_path))
    data_of(tmp_path, pairs=PAIRS[:20])
    with pytest.raises(UserError, match=r"data\.train have changed while they were read"):
        write_shards(opened, TOKENIZERS)


# --- batches --------------------------------------------------------------------------------------


@settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    tokens=st.integers(1, 97),
    sentences=st.integers(1, 13),
    epoch=st.integers(0, 3),
    buffer=st.sampled_from([1, 2 * SHARD, 5 * SHARD, 1000]),
    shapes=st.sampled_from([None, 3]),
    random=st.booleans(),
)
def test_each_pair_occurs_once_within_the_budget(
    tmp_path, tokens, sentences, epoch, buffer, shapes, random
):
    sampler = WindowSampler(shard(tmp_path), tokens, sentences, 5, shapes, random, buffer)
    dataset = WindowDataset(sampler, "cpu")
    batches = sampler.epoch(epoch)
    found = [pair for spec in batches for pair in read_pairs(dataset, spec)]
    assert sorted(found) == sorted(PAIRS)
    assert sum(map(sampler.count_tokens, batches)) == sum(
        len(target.split()) + 1 for _, target in PAIRS
    )
    for spec in batches:
        longest = max(spec.source_length, spec.target_length)
        assert len(spec.rows) <= sentences
        assert len(spec.rows) == 1 or len(spec.rows) * longest <= tokens
    if shapes and not random:
        assert len({(spec.source_length, spec.target_length) for spec in batches}) <= shapes


def test_the_order_depends_only_on_seed_and_epoch(tmp_path):
    data = shard(tmp_path)

    def make(seed: int) -> WindowSampler:
        return WindowSampler(data, 60, 8, seed, buffer=3 * SHARD)

    one, two = make(5), make(5)
    two.epoch(2)
    assert list(one.epoch(1)) == list(two.epoch(1))
    assert list(one.epoch(1)) != list(one.epoch(2))
    assert list(one.epoch(1)) != list(make(6).epoch(1))
    whole = list(one.epoch(1))
    assert make(5).epoch(1)[7:13] == whole[7:13]  # a resumed run, or another process
    assert make(5).epoch(1)[len(whole) - 1] == whole[-1]
    with pytest.raises(IndexError):
        one.epoch(1)[len(whole)]


def test_a_window_has_shards_from_everywhere_and_mixes_them(tmp_path):
    sampler = WindowSampler(shard(tmp_path), 10**6, 5, 5, buffer=5 * SHARD)
    assert sampler.num_windows == 3
    numbers = [sampler.shards_of(window) for window in range(3)]
    assert sorted(n for each in numbers for n in each) == list(range(15))
    assert all(max(each) - min(each) > 5 for each in numbers)
    assert [sampler.shards_of(window) for window in range(3, 6)] != numbers  # the next epoch
    dataset = WindowDataset(sampler, "cpu")
    rows = [
        [int(s.split()[0][1:]) // SHARD for s, _ in read_pairs(dataset, b)]
        for b in sampler.epoch(0)
    ]
    assert np.mean([len(set(each)) for each in rows if len(each) == 5]) > 2


def test_only_a_window_is_in_memory(tmp_path):
    sampler = WindowSampler(shard(tmp_path), 60, 8, 5, buffer=2 * SHARD)
    dataset = WindowDataset(sampler, "cpu")
    assert dataset.num_pairs == 2 * SHARD
    memory = [tensor.data_ptr() for tensor in (dataset.source.values, dataset.target.starts)]
    for spec in sampler.epoch(0):
        dataset.load(spec)
    assert memory == [t.data_ptr() for t in (dataset.source.values, dataset.target.starts)]


def test_lengths_that_decide_on_buckets_are_sampled(tmp_path, monkeypatch):
    data = shard(tmp_path)
    monkeypatch.setattr(windows, "SAMPLED_LENGTHS", 40)
    sampled = data.sample_lengths()
    everything = EncodedPairs.from_pairs(PAIRS, TOKENIZERS).sizes()
    assert 30 < len(sampled) < 50 + 15
    assert sampled.max(0).tolist() == everything.max(0).tolist()
