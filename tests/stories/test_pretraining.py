"""Pretraining on plain text (language modelling or denoising), then training a translator from it."""

import json
from pathlib import Path

import pytest

WORDS = ["a", "the", "dog", "cat", "boy", "girl", "runs", "sleeps", "plays", "reads", "here"]
MODEL = {
    "decoder-only": 'model = {kind = "decoder-only", d_model = 8, d_ff = 16}',
    "transformer": 'model = {kind = "transformer", d_model = 8, d_ff = 16}',
}
COMMON = """
training = {epochs = 1, batch_sentences = 16}
tokenizer = {kind = "bpe", vocab_size = 320, max_tokens = 60}
"""
TEXT = '[data]\nkind = "text"\ntrain = "{here}/text.txt"\nval = "{here}/val.txt"\n'
PAIRS = '[data]\nkind = "files"\ntrain = "{here}/train.tsv"\nval = "{here}/val.tsv"\n'


@pytest.fixture(scope="module", params=MODEL)
def pretrained(request, regard, tmp_path_factory) -> tuple[Path, str]:
    """(folder with base.toml, task.toml and the run base/, model family)"""
    here = tmp_path_factory.mktemp("pretraining")
    lines = [" ".join(WORDS[(n * k) % 11] for k in (1, 3, 5, 7)) + f" {n}" for n in range(1, 41)]
    (here / "text.txt").write_text("\n".join(lines[:30]), "utf-8")
    (here / "val.txt").write_text("\n".join(lines[26:]), "utf-8")
    rows = [f"{line.upper()}\t{line}\n" for line in lines]
    (here / "train.tsv").write_text("".join(rows[:20]), "utf-8")
    (here / "val.tsv").write_text("".join(rows[27:]), "utf-8")
    noise = "noise = {{copies = 2}}\n" if request.param == "transformer" else ""
    tables = {"base": TEXT + noise, "task": PAIRS}
    for name, table in tables.items():
        text = MODEL[request.param] + COMMON + table.format(here=here)
        (here / f"{name}.toml").write_text(text, "utf-8")
    result = regard("train", here / "base.toml", "--run", here / "base", "--device", "cpu")
    assert result.code == 0, result.err
    return here, request.param


def test_translator_starts_from_the_pretrained_run(pretrained, regard):
    here, _ = pretrained
    run = ("train", here / "task.toml", "--run", here / "run", "--device", "cpu")
    result = regard(*run, "--init", here / "base")
    assert result.code == 0, result.err
    card = json.loads((here / "run" / "card.json").read_text("utf-8"))
    pieces = card["init"]["pieces"]["joint"]
    assert pieces["copied"] >= 260  # the special tokens and the 256 bytes
    copied = f"{pieces['copied']} of {sum(pieces.values())} token embeddings are copied from"
    assert f"{copied} {here / 'base'}" in result.out
    # Three sentences of val, ignoring case, are in the pretraining text.
    assert card["init"]["overlap"] == {"val": {"source": 3, "target": 3}}
    assert "3 sources and 3 targets of val" in result.out
    assert card["config"]["init"] == str(here / "base")
    assert regard("translate", here / "run", "A DOG").code == 0
    assert regard("evaluate", here / "run", "--split", "val").code == 0
    again = regard(*run, "--init", here / "base", "--resume")
    assert again.code == 0, again.err


def test_denoising_model_translates_and_language_model_does_not(pretrained, regard):
    here, family = pretrained
    result = regard("translate", here / "base", "a _ runs")
    assert result.code == (0 if family == "transformer" else 2)


def test_data_overlap(pretrained, regard):
    here, _ = pretrained
    result = regard("data", "overlap", here / "base.toml", here / "task.toml", "--json")
    assert result.code == 0, result.err
    assert json.loads(result.out) == [
        {"split": "train", "side": "source", "sentences": 20, "found": 20},
        {"split": "train", "side": "target", "sentences": 20, "found": 20},
        {"split": "val", "side": "source", "sentences": 13, "found": 3},
        {"split": "val", "side": "target", "sentences": 13, "found": 3},
    ]
    table = regard("data", "overlap", here / "base.toml", here / "task.toml").out
    assert ["val", "target", "13", "3"] in [line.split() for line in table.splitlines()]


def test_preset_that_is_not_trained_yet(regard, tmp_path):
    result = regard("train", "multi30k-fr-en-from-lm", "--run", tmp_path / "run", "--device", "cpu")
    assert result.code == 2
    message = " ".join(result.err.split())
    assert "there is no run folder captions-lm; captions-lm is a preset" in message
    commands = "`regard train captions-lm`, then repeat this command with `--init runs/captions-lm`"
    assert commands in message
    assert not (tmp_path / "run").exists()
