"""The benchmark of own data at a tiny size, through the command line."""

import json
from collections import Counter

import pytest

from regard.benchmarks.data import ONE_STEP, measure_start, write_pairs
from tests.stories.conftest import run_command


def test_data_tiny(monkeypatch):
    monkeypatch.setattr("regard.benchmarks.data.ONE_STEP", (*ONE_STEP, "model.hidden_dim=8"))
    result = run_command("bench", "data", "--pairs", "700", "--json")
    assert result.code == 0, result.err
    document = json.loads(result.out)
    assert document["pairs"] == 700
    assert [row["cached_ids"] for row in document["rows"]] == [False, True]
    assert all(row["seconds"] > 0.1 and row["peak_mib"] > 50 for row in document["rows"])


def test_words_have_natural_frequencies(tmp_path):
    write_pairs(tmp_path / "pairs.tsv", 2000, seed=1)
    lines = (tmp_path / "pairs.tsv").read_text("utf-8").splitlines()
    counts = Counter(word for line in lines for word in line.split("\t")[0].split())
    [(_, first), (_, second)] = counts.most_common(2)
    assert 1.5 < first / second < 2.5  # 1 / (1/2)


def test_a_training_that_fails_is_no_measurement(tmp_path):
    (tmp_path / "mine.toml").write_text("nothing = 1")
    with pytest.raises(RuntimeError, match="exit code 2"):
        measure_start(tmp_path, "run")
