"""Decoding speed: the first run of each system, in turn, the best round."""

from dataclasses import replace

import pytest

from regard.compare import speed
from regard.translator import Translator


def test_systems_take_turns_and_the_best_round_counts(done, tmp_path, monkeypatch):
    clock, asked = [0.0], []
    seconds = iter([4.0, 5.0, 2.0, 7.0, 3.0, 6.0])

    def search(translator: Translator, encoded: object) -> None:
        asked.append((translator.config.model.cell, translator.config.seed))
        clock[0] += next(seconds)

    monkeypatch.setattr(speed.time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(Translator, "search", search)
    found = speed.sentences_per_second(done, "test", "cpu")
    assert asked == [("gru", 1), ("rnn", 1)] * speed.ROUNDS
    assert found == {"cell gru": pytest.approx(13 / 2), "cell rnn": pytest.approx(13 / 5)}


def test_a_run_that_failed_is_left_to_the_next_seed(done, tmp_path):
    runs = [replace(done[0], folder=tmp_path), *done[1:]]
    assert speed.sentences_per_second(runs, "test", "cpu").keys() == {"cell gru", "cell rnn"}
    assert speed.sentences_per_second(runs[:1], "test", "cpu") == {}
