"""Benchmarks run, tiny, through the command line; no test asserts a time."""

import json

import pytest
import torch
from typer.testing import CliRunner

from regard.benchmarks import BENCHMARKS, Decoding
from regard.benchmarks.plain import plain_beam, plain_greedy
from regard.benchmarks.timing import Result, Side, interleave
from regard.cli import app
from regard.search import beam, greedy

TINY = {"d_model": 16, "layers": 2, "heads": 2, "d_ff": 32, "vocabulary": 211}


def test_the_list_names_every_benchmark():
    said = CliRunner().invoke(app, ["bench"]).stdout
    assert all(name in said for name in BENCHMARKS)


@pytest.mark.parametrize("form", [["--json"], []])
def test_decoding_tiny(form):
    options = ["--rounds", "1", "--sentences", "3", "--batch", "2", "--beam", "1,2"]
    done = CliRunner().invoke(app, ["bench", "decoding", "--device", "cpu", *options, *form])
    assert done.exit_code == 0, done.output
    if not form:
        assert "Ratios: to the first of a task" in " ".join(done.stdout.split())
        return
    found = json.loads(done.stdout)
    sides = [(row["task"], row["side"], row["precision"]) for row in found["rows"]]
    assert sides == [
        (task, *side)
        for task in ("greedy", "beam 2")
        for side in (("plain loop", "float32"), ("regard", "float32"), ("regard", "int8"))
    ]
    assert all(row["median"] > 0 for row in found["rows"])


@torch.inference_mode()
def test_the_plain_loop_finds_what_we_find():
    model = Decoding(shape=TINY).model().double()
    source = torch.randint(4, 200, (3, 7))
    mask = torch.arange(7) < torch.tensor([7, 3, 5])[:, None]
    limits = torch.full((3,), 5)
    memory = model.encode(source, mask)
    found = [h.ids for h in greedy(model, memory, limits)]
    assert found == plain_greedy(model, source, mask, 5).tolist()
    found = [row[0].ids for row in beam(model, memory, limits, 3)]
    assert found == plain_beam(model, source, mask, 5, 3).tolist()


def test_a_side_that_does_less_is_no_measurement():
    with pytest.raises(RuntimeError, match="lazy made 3 tokens instead of 4"):
        interleave([Side("lazy", "greedy", lambda: 3)], 1, 1, 4)


def test_ratios_are_taken_within_a_round():
    base, other = (Side(name, "task", int) for name in ("base", "other"))
    base.speeds, other.speeds = [1.0, 2.0, 4.0], [3.0, 4.0, 8.0]
    row = Result.of("about", "things/s", [base, other]).rows[1]
    assert row["median"] == 4.0
    assert row["ratio"] == 2.0
    assert row["ratio_range"] == [2.0, 3.0]


@pytest.mark.parametrize("option", ["--rounds", "--batch", "--sentences"])
def test_mistakes(option):
    done = CliRunner().invoke(app, ["bench", "decoding", option, "0"])
    assert f"{option} is 1 or more, not 0" in str(done.exception)
