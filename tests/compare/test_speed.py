"""Decoding speed: the first run of each system, interleaved rounds, the best round."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from regard.compare import speed
from regard.translator import Translator


def test_rounds_are_interleaved_and_the_best_one_counts(finished_runs, tmp_path, monkeypatch):
    clock, searched = [0.0], []
    seconds = iter([4.0, 5.0, 2.0, 7.0, 3.0, 6.0])

    def search(translator: Translator, encoded: object) -> None:
        searched.append((translator.config.model.cell, translator.config.seed))
        clock[0] += next(seconds)

    monkeypatch.setattr(speed, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    monkeypatch.setattr(Translator, "search", search)
    speeds = speed.measure_speed(finished_runs, "test", "cpu")
    assert searched == [("gru", 1), ("rnn", 1)] * speed.ROUNDS
    assert speeds == {"cell gru": pytest.approx(13 / 2), "cell rnn": pytest.approx(13 / 5)}


def test_a_failed_run_is_replaced_by_the_next_seed(finished_runs, tmp_path):
    runs = [replace(finished_runs[0], folder=tmp_path), *finished_runs[1:]]
    assert speed.measure_speed(runs, "test", "cpu").keys() == {"cell gru", "cell rnn"}
    assert speed.measure_speed(runs[:1], "test", "cpu") == {}
