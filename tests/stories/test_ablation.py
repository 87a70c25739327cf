"""`regard evaluate --ablate`."""

import json
from pathlib import Path

import pytest

SIGNATURES = {"png": b"\x89PNG", "svg": b"<?xml"}


def test_heads_json(regard, run: Path) -> None:
    result = regard("evaluate", run, "--ablate", "heads", "--first", 7, "--json")
    assert result.code == 0, result.err
    report = json.loads(result.out)
    assert {"perplexity", "loss", "split", "results"} <= set(report)
    assert report["results"][0]["sentences"] == 7
    ablations = report["ablations"]
    assert (ablations["kind"], ablations["sentences"]) == ("heads", 7)
    assert ablations["baseline"]["loss"] == pytest.approx(report["loss"])
    [row] = ablations["rows"]
    assert (row["mechanism"], row["layer"], row["head"]) == ("cross", 1, 1)
    assert row["loss"] - row["loss_change"] == pytest.approx(report["loss"])
    assert "cross, layer 1, head 1, ablated: loss" in result.err


@pytest.mark.parametrize("kind", ["heads", "attention"])
@pytest.mark.parametrize("suffix", SIGNATURES)
def test_report_with_a_figure(regard, run: Path, tmp_path: Path, kind, suffix) -> None:
    picture = tmp_path / "new" / f"ablation.{suffix}"
    options = ("--ablate", kind, "--first", 9, "--bleu", "--plot", picture, "--theme", "dark")
    result = regard("evaluate", run, *options)
    assert result.code == 0, result.err
    assert "baseline" in result.out
    assert "nats per token" in result.out
    assert "BLEU (lowercased)" in result.out
    assert result.out.splitlines()[-1] == str(picture)
    assert picture.read_bytes().startswith(SIGNATURES[suffix])


def test_first_limits_every_evaluation(regard, run: Path) -> None:
    report = json.loads(regard("evaluate", run, "--first", 3, "--json").out)
    assert report["results"][0]["sentences"] == 3
    assert "ablations" not in report


def test_in_int8(regard, run: Path) -> None:
    result = regard("evaluate", run, "--ablate", "attention", "--first", 3, "--int8", "--json")
    assert result.code == 0, result.err
    assert json.loads(result.out)["ablations"]["token_masking"]["seed"] == 0


def test_model_without_attention_error(regard, small, tmp_path: Path) -> None:
    settings = [word for word in small if "kq_dim" not in word]
    settings = [
        word for i, word in enumerate(settings) if settings[i : i + 2] != ["--set", "--set"]
    ]
    changes = ("--set", "model.attention=none", "--device", "cpu")
    trained = regard("train", "case", "--run", tmp_path / "bottleneck", *settings, *changes)
    assert trained.code == 0, trained.err
    result = regard("evaluate", tmp_path / "bottleneck", "--ablate", "heads")
    assert (result.code, result.out) == (2, "")
    assert "this model has no attention to ablate" in result.err
