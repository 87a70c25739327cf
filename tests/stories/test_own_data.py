"""Your own parallel text, as a newcomer gives it: a TOML with three lines, and the usual mistakes."""

import json
import re
import tomllib
from pathlib import Path

import pytest

WORDS = {"der": "the", "Hund": "dog", "schläft": "sleeps", "Katze": "cat", "läuft": "runs"}
OWN = '[data]\nkind = "files"\ntrain = "train.tsv"\nval = "val.tsv"\n'
SMALL = ["model.hidden_dim=8", "model.embedding_dim=8", "training.epochs=1"]
SETTINGS = [word for setting in SMALL for word in ("--set", setting)]


def make_pairs(count: int, start: int = 0) -> list[tuple[str, str]]:
    words = list(WORDS)
    sources = [
        [words[(i * k) % 5] for k in (1, 2, 3)] + [str(i)] for i in range(start, start + count)
    ]
    return [(" ".join(s), " ".join(WORDS.get(word, word) for word in s)) for s in sources]


def write(name: str, rows) -> None:
    Path(name).write_text("".join("\t".join(row) + "\n" for row in rows), "utf-8")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch) -> Path:
    """A folder with good data and a config, as the working directory."""
    monkeypatch.chdir(tmp_path)
    write("train.tsv", make_pairs(600))
    write("val.tsv", make_pairs(60, 1000))
    Path("mine.toml").write_text(OWN)
    return tmp_path


def train(regard, *words):
    return regard("train", "mine.toml", *SETTINGS, "--device", "cpu", *words)


def error_message(result) -> str:
    assert result.code == 2, (result.out, result.err)
    assert result.out == ""
    return " ".join(result.err.split())


def test_what_nobody_set_follows_the_data_and_is_saved(regard):
    result = train(regard)
    assert result.code == 0, result.err
    assert re.search(r"chosen by the number .*tokenizer\.vocab_size = 500", result.out)
    assert re.search(
        r"600 training pairs, .*about 38 steps \(1 epoch\) .* goes to runs/mine", result.out, re.S
    )
    saved = tomllib.loads(Path("runs/mine/config.toml").read_text("utf-8"))
    assert saved["tokenizer"]["kind"] == "bpe"
    assert saved["training"]["batch_sentences"] == 16
    assert saved["model"]["hidden_dim"] == 8
    assert re.search(r"warning: the run had only 3\d steps.*set training\.epochs=\d\d", result.out)
    messages = json.loads(Path("runs/mine/card.json").read_text("utf-8"))["messages"]
    assert any("only 3" in message for message in messages)
    again = train(regard, "--resume")
    assert again.code == 0, again.err


def test_a_warning_is_printed_before_training(regard):
    write("train.tsv", [("de", "en"), *make_pairs(600)])
    result = train(regard)
    assert result.code == 0
    header, steps = result.out.index("looks like a header"), result.out.index("about 38 steps")
    assert result.out.startswith("warning: data.train: ")
    assert header < steps


ERRORS = {
    "swapped languages": (
        lambda: write("val.tsv", [pair[::-1] for pair in make_pairs(60, 1000)]),
        r"data\.val: .*languages are swapped",
    ),
    "CSV in a .tsv": (
        lambda: Path("train.tsv").write_text("der Hund;the dog\n" * 99),
        r"train\.tsv, line 1 has no tab.*separated by semicolons\? Save .*tab-separated",
    ),
    "a .csv": (
        lambda: Path("mine.toml").write_text(OWN.replace("train.tsv", "train.csv")),
        r"data\.train: .*\.csv is not read: save it as tab-separated text",
    ),
    "other JSON fields": (
        lambda: (
            Path("mine.toml").write_text(OWN.replace("val.tsv", "val.jsonl")),
            Path("val.jsonl").write_text('{"id": 3, "de": "Hund", "en": "dog"}\n'),
        ),
        r'no field "source": it has id, de, en; .*data\.fields = \["de", "en"\]',
    ),
    "no [data]": (
        lambda: Path("mine.toml").write_text("[model]\nhidden_dim = 8\n"),
        r"mine\.toml: there is no \[data\]",
    ),
    "an empty [data]": (
        lambda: Path("mine.toml").write_text("[data]\n"),
        r"mine\.toml: there is no \[data\]",
    ),
    "no kind": (
        lambda: Path("mine.toml").write_text(OWN.replace('kind = "files"\n', "")),
        r'data\.kind: required with files, as in data\.train: write kind = "files"',
    ),
    "one file twice": (
        lambda: Path("mine.toml").write_text(OWN.replace('"val.tsv"', '["a.de", "a.de"]')),
        r"data\.val names \S+a\.de as source and as target",
    ),
    "no file": (
        lambda: Path("val.tsv").unlink(),
        r"data\.val: \S+val\.tsv cannot be read: No such file.*or change data\.val",
    ),
}


@pytest.mark.parametrize("mistake", ERRORS)
def test_mistakes_with_which_no_training_can_be_meant(regard, mistake):
    make, message = ERRORS[mistake]
    make()
    assert re.search(message, error_message(train(regard)))
    assert not Path("runs").exists()


def test_paths_are_relative_to_the_toml_that_names_them(regard, folder, monkeypatch):
    (folder / "more").mkdir()
    (folder / "more" / "child.toml").write_text('base = "../mine.toml"\n[data]\nval = "val.tsv"\n')
    monkeypatch.chdir(folder / "more")
    write("val.tsv", make_pairs(77, 2000))
    (folder / "else").mkdir()
    monkeypatch.chdir(folder / "else")
    result = regard("train", "../more/child.toml", *SETTINGS, "--device", "cpu")
    assert result.code == 0, result.err
    assert "val: 77 sentences" in regard("evaluate", "runs/child", "--split", "val").out
    write("mine.tsv", make_pairs(33, 3000))
    override = ["--set", "data.val=mine.tsv", "--run", "runs/set"]
    result = regard("train", "../mine.toml", *SETTINGS, *override, "--device", "cpu")
    assert "data.val: 33 pairs are few" in result.out


def test_compare_uses_the_same_rule(regard):
    words = ["compare", "mine.toml", *SETTINGS, "--vary", "model.cell=gru,rnn", "--seeds", "1"]
    listed = regard(*words, "--dry-run")
    assert listed.code == 0, listed.err
    assert listed.out.count("to run") == 2
