"""The decoding benchmark at a tiny size, through the command line; no test asserts a time."""

import json
import tomllib
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from regard.benchmarks import BENCHMARKS, Decoding, peers
from regard.benchmarks.plain import plain_beam, plain_greedy
from regard.benchmarks.timing import Contender, Result, interleave
from regard.cli import app
from regard.errors import UserError
from regard.search import beam, greedy

TINY = {"d_model": 16, "layers": 2, "heads": 2, "d_ff": 32, "vocab_size": 211}


def test_the_list_names_every_benchmark():
    output = CliRunner().invoke(app, ["bench"]).stdout
    assert all(name in output for name in BENCHMARKS)


@pytest.mark.parametrize("form", [["--json"], []])
def test_decoding_tiny(form, monkeypatch):
    monkeypatch.setattr("regard.benchmarks.decoding.SHAPE", TINY)
    options = ["--rounds", "1", "--sentences", "3", "--batch", "2", "--beam", "1,2"]
    result = CliRunner().invoke(app, ["bench", "decoding", "--device", "cpu", *options, *form])
    assert result.exit_code == 0, result.output
    if not form:
        assert "Ratios: to the first contender of a task" in " ".join(result.stdout.split())
        return
    rows = json.loads(result.stdout)["rows"]
    assert [(row["task"], row["contender"], row["precision"]) for row in rows] == [
        (task, *contender)
        for task in ("greedy", "beam 2")
        for contender in (("plain loop", "float32"), ("regard", "float32"), ("regard", "int8"))
    ]
    assert all(row["median"] > 0 for row in rows)


@torch.inference_mode()
def test_the_plain_loop_generates_the_same_outputs():
    model = Decoding(shape=TINY).model().double()
    source = torch.randint(4, 200, (3, 7))
    mask = torch.arange(7) < torch.tensor([7, 3, 5])[:, None]
    limits = torch.full((3,), 5)
    memory = model.encode(source, mask)
    ids = [h.ids for h in greedy(model, memory, limits)]
    assert ids == plain_greedy(model, source, mask, 5).tolist()
    ids = [row[0].ids for row in beam(model, memory, limits, 3)]
    assert ids == plain_beam(model, source, mask, 5, 3).tolist()


def test_a_contender_that_generates_too_few_tokens_is_an_error():
    with pytest.raises(RuntimeError, match="lazy generated 3 tokens instead of 4"):
        interleave([Contender("lazy", "greedy", lambda: 3)], 1, 1, 4)


def test_ratios_are_taken_within_each_round():
    base, other = (Contender(name, "task", int) for name in ("base", "other"))
    base.speeds, other.speeds = [1.0, 2.0, 4.0], [3.0, 4.0, 8.0]
    row = Result.of("about", "units/s", [base, other]).rows[1]
    assert row["median"] == 4.0
    assert row["ratio"] == 2.0
    assert row["ratio_range"] == [2.0, 3.0]


@pytest.mark.parametrize("option", ["--rounds", "--batch", "--sentences"])
def test_options_must_be_positive(option):
    result = CliRunner().invoke(app, ["bench", "decoding", option, "0"])
    assert result.exit_code == 2
    assert option in result.output
    assert "greater than or equal to 1" in result.output


@pytest.mark.parametrize("missing", [["ctranslate2"], ["transformers", "ctranslate2"]], ids=str)
def test_missing_peers_are_one_error(missing, monkeypatch):
    monkeypatch.setattr(peers, "find_spec", lambda name: None if name in missing else object())
    result = CliRunner().invoke(app, ["bench", "decoding", "--peers"])
    assert isinstance(result.exception, UserError)
    message = str(result.exception)
    assert f"not installed: {', '.join(missing)}. " in message
    assert message.endswith('pip install "regard[peers]"')


def test_the_extra_has_the_packages_of_the_peers():
    file = Path(__file__).parents[2] / "pyproject.toml"
    extras = tomllib.loads(file.read_text("utf-8"))["project"]["optional-dependencies"]
    assert [package.partition(">")[0] for package in extras["peers"]] == list(peers.PACKAGES)
