"""The training benchmark: contenders compute the same loss, and the FLOP count matches the formula."""

import json
from dataclasses import replace

import pytest
import torch
from typer.testing import CliRunner

from regard import config
from regard.benchmarks import training
from regard.benchmarks.timing import Contender, Result, measure_matmul_rate
from regard.benchmarks.training import (
    PlainTransformer,
    StepwiseLoss,
    Training,
    build_model,
    flops_per_token,
    random_pairs,
)
from regard.cli import app
from regard.training.objective import objective

LENGTHS = [(3 + row % 5, 2 + row % 7) for row in range(23)]


@pytest.fixture(autouse=True)
def tiny(monkeypatch) -> None:
    monkeypatch.setattr(training, "VOCAB_SIZE", 31)
    two = config.TransformerStack(layers=2)
    small = {"dropout": 0.0}
    attention = config.SingleHead(kq_dim=7)
    gru = config.Recurrent(embedding_dim=5, hidden_dim=11, attention=attention, **small)
    heads = config.MultiHead(heads=2)
    sizes = {"d_model": 12, "d_ff": 17, "encoder": two, "decoder": two, "attention": heads}
    monkeypatch.setattr(training, "GRU", gru)
    monkeypatch.setattr(training, "TRANSFORMER", config.Transformer(**sizes, **small))


def test_the_loops_and_regard_compute_the_same_loss() -> None:
    data = random_pairs(LENGTHS)
    batch = data.batch(range(9))
    model = build_model(training.GRU, "cpu")
    expected = objective(model, batch, 0.1)
    for reuse_keys in (True, False):
        torch.testing.assert_close(StepwiseLoss(model, reuse_keys)(batch), expected)


def test_plain_pytorch_has_the_same_parameters_except_attention_biases() -> None:
    """Regard's attention has no biases."""
    regard = build_model(training.TRANSFORMER, "cpu")
    plain = PlainTransformer(training.TRANSFORMER, "cpu")
    biases = sum(p.numel() for n, p in plain.named_parameters() if "attn" in n and "bias" in n)
    total = sum(p.numel() for p in plain.parameters())
    assert regard.parameter_count == total - biases
    assert plain(random_pairs(LENGTHS).batch(range(9))).isfinite()


def test_flops_are_six_per_weight_plus_attention() -> None:
    lengths = [(6, 4)] * 3  # source length 6, target length 5 with EOS
    table = training.TRANSFORMER
    d_model, d_ff, vocab_size = 12, 17, 31
    encoder = 2 * (4 * d_model**2 + 2 * d_model * d_ff)
    decoder = 2 * (6 * d_model**2 + 2 * d_model * d_ff) + d_model * vocab_size
    cross = 2 * 2 * d_model**2  # keys and values of the source
    weights = (6 * (encoder + cross) + 5 * decoder) / 5
    attention = 2 * (2 * 6 * 6 + 2 * 5 * 5 + 2 * 5 * 6) * d_model / 5
    flops = flops_per_token(build_model(table, "cpu"), random_pairs(lengths))
    assert flops == pytest.approx(6 * (weights + attention))


@pytest.mark.parametrize("form", [["--json"], []])
def test_training_tiny(form, monkeypatch) -> None:
    monkeypatch.setattr(training, "measure_matmul_rate", lambda *_: 1e9)
    options = ["--rounds", "1", "--steps", "1", "--batch", "3", "--device", "cpu"]
    result = CliRunner().invoke(app, ["bench", "training", *options, *form])
    assert result.exit_code == 0, result.output
    if not form:
        assert "of matmul rate" in result.stdout
        return
    rows = json.loads(result.stdout)["rows"]
    assert [(row["task"], row["contender"]) for row in rows] == [
        ("recurrent", "course loop"),
        ("recurrent", "lean loop"),
        ("recurrent", "regard"),
        ("transformer", "plain PyTorch"),
        ("transformer", "regard"),
    ]
    assert all(row["median"] > 0 and row["matmul_fraction"] > 0 for row in rows)


def test_the_fraction_of_the_matmul_rate() -> None:
    contender = Contender("regard", "task", int, flops=50.0, speeds=[2.0, 4.0, 3.0])
    [row] = Result.of("about", "units/s", [contender], matmul_rate=600.0).rows
    assert row["matmul_fraction"] == 0.25
    [row] = Result.of("about", "units/s", [replace(contender, flops=None)], matmul_rate=600.0).rows
    assert row["matmul_fraction"] is None


def test_the_matmul_rate_is_positive() -> None:
    assert measure_matmul_rate("cpu", torch.float32, size=32) > 0


def test_an_unknown_task_is_an_error() -> None:
    result = CliRunner().invoke(app, ["bench", "training", "--task", "transfomer"])
    assert 'got "transfomer". Did you mean "transformer"?' in str(result.exception)


def test_a_round_has_the_requested_number_of_steps() -> None:
    data = random_pairs(LENGTHS)
    bench = Training(batch=4, steps=2, sentences=len(LENGTHS))
    for contender in (*bench.recurrent(data), *bench.transformer(data)):
        assert 2 * 4 * 3 <= contender.run() <= 2 * 4 * 9
