"""Denoising data: how many words are masked, deleted and moved, determined by the seed."""

import re
from itertools import pairwise
from random import Random

import pytest

from regard import config, presets
from regard.errors import UserError
from regard.text import corpus
from regard.text.noise import MASK, corrupt, corrupt_pairs, mask_spans, shuffle_words

NO_NOISE = config.Noise(mask_ratio=0, delete_ratio=0, shuffle_distance=0)
WORDS = [f"w{number}" for number in range(20_011)]


def only(**options) -> config.Noise:
    return NO_NOISE.model_copy(update=options)


def test_no_noise_changes_nothing():
    assert corrupt(" ".join(WORDS), NO_NOISE, Random(1)) == " ".join(WORDS)


@pytest.mark.parametrize(
    ("mask_ratio", "span_length"), [(0.3, 3.0), (0.5, 1.0), (0.7, 5.0), (0.05, 2.0)]
)
def test_mask_ratio_and_mean_span_length(mask_ratio, span_length):
    left = list(mask_spans(WORDS, mask_ratio, span_length, Random(2)))
    spans, masked = left.count(MASK), len(WORDS) - len(set(left) - {MASK})
    # A span's standard deviation is about its mean: with m spans, that of the mean is mean / sqrt(m).
    assert masked / spans == pytest.approx(span_length, rel=4 / spans**0.5)
    assert masked / len(WORDS) == pytest.approx(mask_ratio, rel=4 / spans**0.5)


def test_every_position_is_masked_equally_often():
    random = Random(3)
    draws = [list(mask_spans(WORDS[:7], 0.3, 3.0, random)) for _ in range(4001)]
    for word in WORDS[:7]:
        masked = sum(word not in left for left in draws) / len(draws)
        assert masked == pytest.approx(0.3, abs=4 * (0.3 * 0.7 / len(draws)) ** 0.5)


def test_unmasked_words_stay_in_order_with_one_mask_per_span():
    words = WORDS[:499]
    left = list(mask_spans(words, 0.4, 2.0, Random(4)))
    assert all({first, second} != {MASK} for first, second in pairwise(left))
    pattern = "".join(r"(?: w\d+)+" if word == MASK else f" {word}" for word in left)
    assert re.fullmatch(pattern, " " + " ".join(words))


def test_deleted_words_leave_no_mask():
    left = corrupt(" ".join(WORDS), only(delete_ratio=0.2), Random(5)).split()
    assert MASK not in left
    assert left == sorted(left, key=lambda word: int(word[1:]))
    assert len(left) / len(WORDS) == pytest.approx(0.8, abs=4 * (0.16 / len(WORDS)) ** 0.5)


@pytest.mark.parametrize("max_distance", [0, 1, 2, 5])
def test_the_largest_move_is_the_maximum_distance(max_distance):
    left = shuffle_words(WORDS, max_distance, Random(6))
    assert sorted(left) == sorted(WORDS)
    assert max(abs(int(word[1:]) - index) for index, word in enumerate(left)) == max_distance


def test_a_corrupted_text_is_never_empty():
    noise = config.Noise(mask_ratio=0, delete_ratio=0.99)
    assert {corrupt("one two", noise, Random(seed)) for seed in range(50)} >= {MASK}
    assert all(corrupt("one", config.Noise(), Random(seed)) for seed in range(50))


def test_noise_depends_on_the_seed_and_copies_differ():
    pairs = [("", "a small dog runs through the high grass") for _ in range(11)]
    noisy = corrupt_pairs(pairs, config.Noise(), 3, "train")
    assert len(noisy) == 33
    assert {target for _, target in noisy} == {pairs[0][1]}
    assert len({source for source, _ in noisy}) > 11
    assert noisy == corrupt_pairs(pairs, config.Noise(), 3, "train")
    assert noisy != corrupt_pairs(pairs, config.Noise(seed=2), 3, "train")
    assert noisy[:11] != corrupt_pairs(pairs, config.Noise(), 1, "val")


def test_noise_is_added_after_the_fraction_is_taken(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lines = [f"sentence number {number} of many more\n" for number in range(40)]
    (tmp_path / "a.txt").write_text("".join(lines))
    options = {"kind": "text", "train": "a.txt", "val": "a.txt", "fraction": 0.25}
    plain = corpus.load(presets.validate({"data": options}, "test").data)
    settings = presets.validate({"data": options | {"noise": {"copies": 3}}}, "test")
    data = corpus.load(settings.data)
    assert not settings.is_language_model
    assert [target for _, target in data["train"]] == 3 * [text for _, text in plain["train"]]
    assert [target for _, target in data["val"]] == [text for _, text in plain["val"]]
    assert all(source and source != target for source, target in data["train"][:2])
    assert data.checksums() == corpus.load(settings.data).checksums()


def test_an_impossible_mask_ratio_is_rejected():
    with pytest.raises(
        UserError, match=r"data.noise.mask_ratio is 0.8, .* mask 0.75 at most: lower mask_ratio"
    ):
        presets.load("captions-denoising", ["data.noise.mask_ratio=0.8"])
