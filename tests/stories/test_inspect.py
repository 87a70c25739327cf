"""`regard presets`, `settings`, `info` and `runs`; pictures that replace nothing."""

import json
import os
import re
import shutil
import tomllib
from pathlib import Path

import pytest

from regard import presets


def test_a_preset_prints_as_toml_that_trains_the_same(regard, tmp_path: Path) -> None:
    result = regard("presets", "case-llama")
    assert (result.code, result.err) == (0, "")
    config = presets.load("case-llama")
    assert tomllib.loads(result.out)["model"]["position"]["kind"] == "rotary"
    (tmp_path / "mine.toml").write_text(result.out, "utf-8")
    assert presets.load(str(tmp_path / "mine.toml")) == config
    assert regard("presets", tmp_path / "mine.toml").out == result.out
    assert json.loads(regard("presets", "case-llama", "--json").out) == config.model_dump(
        mode="json"
    )


def test_settings(regard) -> None:
    everything = regard("settings")
    assert everything.code == 0
    for key in ("training.epochs = 10.0", "model.tune.kind", "data.train  (required)"):
        assert f"\n{key}" in everything.out
    [rotary] = [
        row
        for row in json.loads(regard("settings", "model.position", "--json").out)
        if row["key"] == "model.position.factor"
    ]
    assert rotary["default"] == 1.0
    assert rotary["kinds"]["model.position.kind"] == ["rotary", "interleaved"]


def test_info(regard, run: Path, tmp_path: Path) -> None:
    result = regard("info", run)
    assert (result.code, result.err) == (0, "")
    card = json.loads((run / "card.json").read_text("utf-8"))
    assert f"{card['figures']['parameters']:,} parameters" in result.out
    assert f"loss {card['figures']['val_loss']:.4f}" in result.out
    assert re.search(r"preset +case\n +with data.train = 300\n", result.out)
    assert re.search(r"kB  tokenizer.json|B  tokenizer.json", result.out)
    document = json.loads(regard("info", run, "--json").out)
    assert document["changes"]["model.hidden_dim"] == 16
    assert set(document["files"]) == {
        str(path.relative_to(run)) for path in run.rglob("*") if path.is_file()
    }
    unfinished = tmp_path / "unfinished"
    shutil.copytree(run, unfinished)
    for name in ("card.json", "metrics.jsonl"):
        (unfinished / name).unlink()
        result = regard("info", unfinished)
        assert result.code == 0
        assert "not finished" in result.out


def test_runs(regard, run: Path, tmp_path: Path) -> None:
    for name in ("b", "a/deep"):
        shutil.copytree(run, tmp_path / name)
    result = regard("runs", tmp_path)
    lines = result.out.splitlines()
    assert (result.code, len(lines)) == (0, 3)
    assert lines[0].split()[:3] == ["run", "preset", "model"]
    assert lines[1].split()[:3] == [str(tmp_path / "a/deep"), "case", "recurrent"]
    rows = json.loads(regard("runs", tmp_path, "--json", "--sort", "val_loss").out)
    assert len(rows) == 2
    assert rows[0]["finished"] is True


MISTAKES = {
    "two presets": (["presets", "case", "case-gpt"], "one preset at a time, not of 2.*--table"),
    "an empty table": (["presets", "--table"], "--table needs presets"),
    "a preset": (["presets", "cas"], 'no preset "cas". Did you mean "case"'),
    "a setting": (["settings", "training.epoch"], 'Did you mean "training.epochs"'),
    "no run": (["info", "HERE/none"], "there is no run folder .*none"),
    "not a run": (["info", "HERE"], "is not a run folder: it has no config.toml"),
    "a column": (["runs", "HERE", "--sort", "loss"], 'no column "loss". Did you mean "val_loss"'),
    "no folder": (["runs", "HERE/none"], "there is no folder .*none"),
    "no runs": (["runs", "HERE"], "there are no runs below"),
    "an adapter": (["train", "case", "--adapter-only", "--run", "HERE/run"], "is for LoRA"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes(regard, tmp_path: Path, mistake: str) -> None:
    words, message = MISTAKES[mistake]
    result = regard(*(word.replace("HERE", str(tmp_path)) for word in words))
    assert (result.code, result.out) == (2, "")
    assert re.search(message, result.err)
    assert len(result.err.splitlines()) == 1
    assert os.listdir(tmp_path) == []


# --- pictures -------------------------------------------------------------------------------------


def test_two_texts_make_two_numbered_pictures(regard, run: Path, tmp_path: Path) -> None:
    result = regard("diagram", run, "<U> ab", "<L> CD", "--out", tmp_path / "foo.svg")
    assert result.code == 0, result.err
    assert sorted(os.listdir(tmp_path)) == ["foo-1.svg", "foo-2.svg"]
    assert "&lt;U&gt; ab" in (tmp_path / "foo-1.svg").read_text("utf-8")  # the title
    result = regard("diagram", run, "<U> ab", "<L> CD", "--out", tmp_path / "foo.jpg")
    assert (result.code, len(os.listdir(tmp_path))) == (2, 2)
    assert "ending in .png, .svg, .pdf, .html" in result.err


@pytest.mark.parametrize("words", [["a.png"], ["g"], ["b.svg", "--alignments", "HERE/a.png"]])
def test_no_picture_is_replaced_in_silence(regard, run: Path, tmp_path: Path, words) -> None:
    (tmp_path / "g").mkdir()
    for name in ("a.png", "a-1.png", "g/0001.png"):
        (tmp_path / name).write_text("mine", "utf-8")
    out, *rest = (word.replace("HERE", str(tmp_path)) for word in words)
    texts = ["<U> ab", "<L> CD"] if out == "g" else ["<U> ab"]
    command = ["diagram", run, *texts, "--out", tmp_path / out, *rest]
    result = regard(*command)
    assert result.code == 2
    assert re.search(r"\.png already exists: choose another name, or add --overwrite", result.err)
    assert (tmp_path / "a.png").read_text("utf-8") == "mine"
    assert (tmp_path / "g/0001.png").read_text("utf-8") == "mine"
    assert regard(*command, "--overwrite").code == 0
    changed = tmp_path / ("g/0001.png" if out == "g" else "a.png")
    assert changed.read_bytes() != b"mine"


def test_the_default_name_is_a_free_one(regard, run: Path, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    printed = [regard("diagram", run, "<U> ab").out.splitlines()[-1] for _ in range(3)]
    assert printed == ["attention.png", "attention-2.png", "attention-3.png"]


def test_plots_of_labs_and_evaluations_are_not_replaced(regard, run: Path, tmp_path: Path) -> None:
    (tmp_path / "copying.png").touch()
    result = regard("lab", "copying", "--plots", tmp_path)
    assert (result.code, result.out) == (2, "")
    assert "copying.png already exists" in result.err
    assert regard("lab", "copying", "--plots", tmp_path, "--overwrite").code == 0
    (tmp_path / "a.png").touch()
    options = ["--ablate", "heads", "--first", "2", "--plot", tmp_path / "a.png"]
    result = regard("evaluate", run, *options)
    assert result.code == 2
    assert "a.png already exists" in result.err


def test_a_missing_font_is_one_line_on_standard_error(
    regard, run: Path, tmp_path: Path, monkeypatch
) -> None:
    from regard.diagrams import fonts

    monkeypatch.setattr(fonts, "covered_characters", lambda families: frozenset(range(97)))
    result = regard("diagram", run, "<U> ab", "--out", tmp_path / "a.png")
    assert result.code == 0
    assert re.match(r"regard: warning: no installed font has \d+ of the characters", result.err)
    assert len(result.err.splitlines()) == 1
