"""Is what we see what matters? `regard evaluate --ablate`."""

import json
from pathlib import Path

import pytest

STARTS = {"png": b"\x89PNG", "svg": b"<?xml"}


def test_heads_json(regard, run: Path) -> None:
    said = regard("evaluate", run, "--ablate", "heads", "--first", 7, "--json")
    assert said.code == 0, said.err
    report = json.loads(said.out)
    assert {"perplexity", "loss", "split", "results"} <= set(report)
    assert report["results"][0]["sentences"] == 7
    found = report["ablations"]
    assert (found["what"], found["sentences"]) == ("heads", 7)
    assert found["untouched"]["loss"] == pytest.approx(report["loss"])
    [row] = found["rows"]
    assert (row["mechanism"], row["layer"], row["head"]) == ("cross", 1, 1)
    assert row["loss"] - row["loss_change"] == pytest.approx(report["loss"])
    assert "cross, layer 1, head 1, silenced: loss" in said.err


@pytest.mark.parametrize("what", ["heads", "attention"])
@pytest.mark.parametrize("suffix", STARTS)
def test_for_people_with_a_picture(regard, run: Path, tmp_path: Path, what, suffix) -> None:
    picture = tmp_path / "new" / f"ablation.{suffix}"
    words = ("--ablate", what, "--first", 9, "--bleu", "--plot", picture, "--theme", "dark")
    said = regard("evaluate", run, *words)
    assert said.code == 0, said.err
    assert "untouched" in said.out
    assert "nats a token" in said.out
    assert "BLEU lower" in said.out
    assert said.out.splitlines()[-1] == str(picture)
    assert picture.read_bytes().startswith(STARTS[suffix])


def test_first_is_for_every_evaluation(regard, run: Path) -> None:
    report = json.loads(regard("evaluate", run, "--first", 3, "--json").out)
    assert report["results"][0]["sentences"] == 3
    assert "ablations" not in report


def test_in_int8(regard, run: Path) -> None:
    said = regard("evaluate", run, "--ablate", "attention", "--first", 3, "--int8", "--json")
    assert said.code == 0, said.err
    assert json.loads(said.out)["ablations"]["words"]["seed"] == 0


def test_a_model_without_attention(regard, small, tmp_path: Path) -> None:
    few = [word for word in small if "kq_dim" not in word]
    few = [word for i, word in enumerate(few) if few[i : i + 2] != ["--set", "--set"]]
    changes = ("--set", "model.attention=none", "--device", "cpu")
    made = regard("train", "case", "--run", tmp_path / "bottleneck", *few, *changes)
    assert made.code == 0, made.err
    said = regard("evaluate", tmp_path / "bottleneck", "--ablate", "heads")
    assert (said.code, said.out) == (2, "")
    assert "this model has no attention to take away" in said.err
