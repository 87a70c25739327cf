"""The benchmark of own data at a tiny size, through the command line."""

import io
import json
from collections import Counter

import pytest
from rich.console import Console

from regard.benchmarks.data import ONE_STEP, measure_start, write_pairs
from regard.benchmarks.large_data import STAGES, LargeData
from regard.cli.benchmarks import tabulate_stages
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


def test_data_on_disk_tiny():
    result = run_command("bench", "data", "--pairs", "700", "--storage", "disk", "--json")
    assert result.code == 0, result.err
    document = json.loads(result.out)
    assert [row["stage"] for row in document["rows"]] == list(STAGES)
    assert all(row["seconds"] > 0 and row["peak_mib"] > 50 for row in document["rows"])
    assert 0.02 < document["disk_mib"] < 0.2
    table = Console(width=100, file=io.StringIO())
    table.print(tabulate_stages(document))
    assert "tokenising" in table.file.getvalue()
    wrong = run_command("bench", "data", "--storage", "disc")
    assert wrong.code == 2
    assert 'takes memory or disk: got "disc". Did you mean "disk"?' in wrong.err


def test_a_failed_stage_is_no_measurement(tmp_path):
    with pytest.raises(RuntimeError, match="exit code 1"):
        LargeData(3, 1, str(tmp_path / "none.tsv")).run()
