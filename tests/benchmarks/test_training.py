"""The training benchmark: its sides compute one loss, and its count of operations is the formula's."""

import json
from dataclasses import replace

import pytest
import torch
from typer.testing import CliRunner

from regard import config
from regard.benchmarks import training
from regard.benchmarks.timing import Result, Side, matrix_rate
from regard.benchmarks.training import Loop, Plain, Training, flops_a_token, model_of, text
from regard.cli import app
from regard.training.objective import objective

SIZES = [(3 + row % 5, 2 + row % 7) for row in range(23)]


@pytest.fixture(autouse=True)
def tiny(monkeypatch) -> None:
    monkeypatch.setattr(training, "VOCABULARY", 31)
    two = config.TransformerStack(layers=2)
    small = {"dropout": 0.0}
    attention = config.SingleHead(kq_dim=7)
    gru = config.Recurrent(embedding=5, hidden=11, attention=attention, **small)
    heads = config.MultiHead(heads=2)
    wide = {"d_model": 12, "d_ff": 17, "encoder": two, "decoder": two, "attention": heads}
    monkeypatch.setattr(training, "GRU", gru)
    monkeypatch.setattr(training, "TRANSFORMER", config.Transformer(**wide, **small))


def test_the_loops_and_ours_compute_one_loss() -> None:
    data = text(SIZES)
    batch = data.batch(range(9))
    model = model_of(training.GRU, "cpu")
    wanted = objective(model, batch, 0.1)
    for lean in (True, False):
        torch.testing.assert_close(Loop(model, lean)(batch), wanted)


def test_plain_pytorch_has_as_many_weights_but_for_biases() -> None:
    """Ours has no bias in its attention; there is nothing else that the other side lacks or has."""
    ours = model_of(training.TRANSFORMER, "cpu")
    plain = Plain(training.TRANSFORMER, "cpu")
    biases = sum(p.numel() for n, p in plain.named_parameters() if "attn" in n and "bias" in n)
    theirs = sum(p.numel() for p in plain.parameters())
    assert ours.parameter_count == theirs - biases
    assert plain(text(SIZES).batch(range(9))).isfinite()


def test_operations_are_six_a_weight_and_those_of_attention() -> None:
    sizes = [(6, 4)] * 3  # each source 6 long, each target 5 with its end
    table = training.TRANSFORMER
    width, inner, vocab = 12, 17, 31
    encoder = 2 * (4 * width**2 + 2 * width * inner)
    decoder = 2 * (6 * width**2 + 2 * width * inner) + width * vocab
    crossed = 2 * 2 * width**2  # keys and values of the source
    weights = (6 * (encoder + crossed) + 5 * decoder) / 5
    attention = 2 * (2 * 6 * 6 + 2 * 5 * 5 + 2 * 5 * 6) * width / 5
    found = flops_a_token(model_of(table, "cpu"), text(sizes))
    assert found == pytest.approx(6 * (weights + attention))


@pytest.mark.parametrize("form", [["--json"], []])
def test_training_tiny(form, monkeypatch) -> None:
    monkeypatch.setattr(training, "matrix_rate", lambda *_: 1e9)
    options = ["--rounds", "1", "--steps", "1", "--batch", "3", "--device", "cpu"]
    done = CliRunner().invoke(app, ["bench", "training", *options, *form])
    assert done.exit_code == 0, done.output
    if not form:
        assert "of matrix rate" in done.stdout
        return
    rows = json.loads(done.stdout)["rows"]
    assert [(row["task"], row["side"]) for row in rows] == [
        ("recurrent", "course loop"),
        ("recurrent", "lean loop"),
        ("recurrent", "regard"),
        ("transformer", "plain PyTorch"),
        ("transformer", "regard"),
    ]
    assert all(row["median"] > 0 and row["matrix_share"] > 0 for row in rows)


def test_a_share_of_the_matrix_rate() -> None:
    side = Side("mine", "task", int, flops=50.0, speeds=[2.0, 4.0, 3.0])
    [row] = Result.of("about", "things/s", [side], matrix_rate=600.0).rows
    assert row["matrix_share"] == 0.25
    [row] = Result.of("about", "things/s", [replace(side, flops=None)], matrix_rate=600.0).rows
    assert row["matrix_share"] is None


def test_a_matrix_rate_is_a_rate() -> None:
    assert matrix_rate("cpu", torch.float32, size=32) > 0


def test_an_unknown_task_is_told() -> None:
    done = CliRunner().invoke(app, ["bench", "training", "--task", "transfomer"])
    assert 'got "transfomer" Did you mean "transformer"?' in str(done.exception)


def test_a_turn_is_as_long_as_asked() -> None:
    data = text(SIZES)
    bench = Training(batch=4, steps=2, sentences=len(SIZES))
    for side in (*bench.recurrent(data), *bench.transformer(data)):
        assert 2 * 4 * 3 <= side.run() <= 2 * 4 * 9
