"""The benchmark of long sequences at a tiny size; no test asserts a time."""

import json

import pytest
import torch
from typer.testing import CliRunner

from regard.attention import MaskRule
from regard.benchmarks import long
from regard.benchmarks.long import (
    BASELINE,
    POSITIONS,
    WITH_MATRIX,
    PlainCausal,
    attend_causally,
    build_layer,
)
from regard.cli import app
from regard.errors import UserError

TINY = ["bench", "long", "--device", "cpu", "--rounds", "1", "--lengths", "8,64"]


@pytest.fixture(autouse=True)
def _tiny(monkeypatch):
    monkeypatch.setattr(long, "D_MODEL", 16)
    monkeypatch.setattr(long, "HEADS", 2)
    monkeypatch.setattr(long, "WINDOW", 5)
    monkeypatch.setattr(long, "MATRIX_LENGTH", 8)


def test_every_kind_of_position_is_measured_at_every_length():
    result = CliRunner().invoke(app, [*TINY, "--json"])
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)["rows"]
    kinds = [BASELINE, *POSITIONS]
    with_matrix = [
        each
        for name in kinds
        for each in ([name, f"{name}, matrix"] if name in WITH_MATRIX else [name])
    ]
    expected = [(8, name) for name in with_matrix] + [(64, name) for name in kinds]
    assert [(row["length"], row["contender"]) for row in rows] == expected
    assert all(row["median"] > 0 and row["error"] is None for row in rows)
    assert {row["ratio"] for row in rows if row["contender"] == BASELINE} == {1}


def test_an_error_is_of_one_contender_alone(monkeypatch):
    def fail(layer, as_matrix, x):
        if layer.window:
            raise RuntimeError("no such kernel")
        return attend_causally(layer, as_matrix, x)

    monkeypatch.setattr(long, "attend_causally", fail)
    result = CliRunner().invoke(app, TINY)
    assert result.exit_code == 0, result.output
    text = " ".join(result.stdout.split())
    assert text.count("window failed") == text.count(" failed") == 2
    for length in (8, 64):
        assert f"{length} tokens, window: RuntimeError: no such kernel" in text


def test_contenders_without_time_say_so():
    result = long.Long(1, (8,), "cpu", seconds=-1).run()
    assert {row["error"] for row in result["rows"]} == {"not measured: -1 seconds were over"}


def test_long_sequences_need_a_gpu():
    with pytest.raises(UserError, match=r"32,768 tokens need an NVIDIA GPU.*--lengths 1024"):
        long.Long(device="cpu").run()


@pytest.mark.parametrize("name", POSITIONS)
def test_matrix_and_rule_compute_the_same(name):
    layer, x = build_layer(POSITIONS[name]), torch.randn(2, 7, 16)
    torch.testing.assert_close(attend_causally(layer, True, x), attend_causally(layer, False, x))


def test_the_baseline_does_the_same_work():
    layer, plain = build_layer({"position": "none"}), PlainCausal()
    plain.load_state_dict(layer.state_dict())
    x, ids = torch.randn(2, 7, 16), torch.arange(7).expand(2, 7)
    rule = MaskRule(ids, ids, latest=0, is_self=True)
    torch.testing.assert_close(plain(x), layer.self_attend(x, rule.matrix())[0])
