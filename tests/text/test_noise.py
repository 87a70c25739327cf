"""Spoiled sentences: how much is hidden, lost and moved, and that a seed decides which."""

import re
from itertools import pairwise
from random import Random

import pytest

from regard import config, presets
from regard.errors import UserError
from regard.text import corpus
from regard.text.noise import MARK, hidden, moved, noisy, spoil

NONE = config.Noise(mask_ratio=0, delete_ratio=0, shuffle_distance=0)
WORDS = [f"w{number}" for number in range(20_011)]


def only(**choices) -> config.Noise:
    return NONE.model_copy(update=choices)


def test_no_noise_spoils_nothing():
    assert spoil(" ".join(WORDS), NONE, Random(1)) == " ".join(WORDS)


@pytest.mark.parametrize(("share", "span"), [(0.3, 3.0), (0.5, 1.0), (0.7, 5.0), (0.05, 2.0)])
def test_the_share_of_hidden_words_and_the_mean_run(share, span):
    left = list(hidden(WORDS, share, span, Random(2)))
    marks, lost = left.count(MARK), len(WORDS) - len(set(left) - {MARK})
    # Runs vary by about their own length: with m of them, the means by span / sqrt(m).
    assert lost / marks == pytest.approx(span, rel=4 / marks**0.5)
    assert lost / len(WORDS) == pytest.approx(share, rel=4 / marks**0.5)


def test_a_word_is_as_often_hidden_at_the_start_as_anywhere():
    random = Random(3)
    draws = [list(hidden(WORDS[:7], 0.3, 3.0, random)) for _ in range(4001)]
    for word in WORDS[:7]:
        gone = sum(word not in left for left in draws) / len(draws)
        assert gone == pytest.approx(0.3, abs=4 * (0.3 * 0.7 / len(draws)) ** 0.5)


def test_what_is_not_hidden_stays_in_order_with_one_mark_a_run():
    words = WORDS[:499]
    left = list(hidden(words, 0.4, 2.0, Random(4)))
    assert all({one, two} != {MARK} for one, two in pairwise(left))
    pattern = "".join(r"(?: w\d+)+" if word == MARK else f" {word}" for word in left)
    assert re.fullmatch(pattern, " " + " ".join(words))


def test_lost_words_leave_no_mark():
    left = spoil(" ".join(WORDS), only(delete=0.2), Random(5)).split()
    assert MARK not in left
    assert left == sorted(left, key=lambda word: int(word[1:]))
    assert len(left) / len(WORDS) == pytest.approx(0.8, abs=4 * (0.16 / len(WORDS)) ** 0.5)


@pytest.mark.parametrize("most", [0, 1, 2, 5])
def test_no_word_moves_further_than_it_may_and_some_move_so_far(most):
    left = moved(WORDS, most, Random(6))
    assert sorted(left) == sorted(WORDS)
    assert max(abs(int(word[1:]) - place) for place, word in enumerate(left)) == most


def test_something_is_always_left_to_read():
    noise = config.Noise(mask=0, delete=0.99)
    assert {spoil("one two", noise, Random(seed)) for seed in range(50)} >= {MARK}
    assert all(spoil("one", config.Noise(), Random(seed)) for seed in range(50))


def test_a_seed_decides_and_copies_differ():
    pairs = [("", "a small dog runs through the high grass") for _ in range(11)]
    made = noisy(pairs, config.Noise(), 3, "train")
    assert len(made) == 33
    assert {target for _, target in made} == {pairs[0][1]}
    assert len({source for source, _ in made}) > 11
    assert made == noisy(pairs, config.Noise(), 3, "train")
    assert made != noisy(pairs, config.Noise(seed=2), 3, "train")
    assert made[:11] != noisy(pairs, config.Noise(), 1, "val")


def test_a_corpus_is_spoiled_after_its_share_is_taken(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lines = [f"sentence number {number} of many more\n" for number in range(40)]
    (tmp_path / "a.txt").write_text("".join(lines))
    choices = {"kind": "text", "train": "a.txt", "val": "a.txt", "fraction": 0.25}
    plain = corpus.load(presets.validate({"data": choices}, "test").data)
    settings = presets.validate({"data": choices | {"noise": {"copies": 3}}}, "test")
    data = corpus.load(settings.data)
    assert not settings.is_language_model
    assert [target for _, target in data["train"]] == 3 * [text for _, text in plain["train"]]
    assert [target for _, target in data["val"]] == [text for _, text in plain["val"]]
    assert all(source and source != target for source, target in data["train"][:2])
    assert data.checksums() == corpus.load(settings.data).checksums()


def test_runs_that_could_not_be_apart_are_refused():
    with pytest.raises(
        UserError, match=r"data.noise.mask_ratio is 0.8, .* mask 0.75 at most: lower mask_ratio"
    ):
        presets.load("captions-denoising", ["data.noise.mask_ratio=0.8"])
