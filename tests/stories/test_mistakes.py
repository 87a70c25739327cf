"""User errors: exit code 2, one clear message, and no file is changed."""

import os
import pickle
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

# Arguments ("RUN": a trained run, "HERE": a folder with the files below) and the expected message.
MISTAKES: dict[str, tuple[list[str], str]] = {
    "unknown preset": (["train", "caes"], 'no preset "caes".*Did you mean "case"'),
    "unknown key": (
        ["train", "case", "--set", "training.learning_rat=1"],
        'training.learning_rat: unknown key.*Did you mean "learning_rate"',
    ),
    "unknown table": (
        ["train", "case", "--set", "trainin.learning_rate=1"],
        'Did you mean "training"',
    ),
    "bad value": (
        ["train", "case", "--set", "training.learning_rate=fast"],
        'training.learning_rate: got "fast"; it should be a valid number',
    ),
    "value out of range": (["train", "case", "--set", "model.dropout=1.5"], "less than 1"),
    "bad kind": (
        ["train", "case", "--set", "model.attention.score=scaled-dt"],
        'Did you mean "scaled-dot"',
    ),
    "bad choice": (["train", "case", "--set", "model.cell=gruu"], 'Did you mean "gru"'),
    "two mistakes": (["train", "case", "--set", "x=1", "--set", "y=2"], "2 mistakes"),
    "set without a value": (
        ["train", "case", "--set", "training.learning_rate"],
        "write key=value",
    ),
    "set without a key": (["train", "case", "--set", "=3"], "write key=value"),
    "set inside a number": (["train", "case", "--set", "seed=1", "--set", "seed.x=2"], "seed"),
    "negative seed": (["train", "case", "--seed", "-1"], "seed: got -1"),
    "huge seed": (["train", "case", "--set", "seed=99999999999999999999"], "seed: got 9999"),
    "endless training": (["train", "case", "--set", "training.epochs=inf"], "training.epochs"),
    "no such TOML": (["train", "HERE/none.toml"], "there is no file .*none.toml"),
    "a folder as TOML": (["train", "HERE/folder.toml"], "folder.toml cannot be read"),
    "broken TOML": (["train", "HERE/broken.toml"], "broken.toml is not valid TOML.*line 2"),
    "binary TOML": (["train", "HERE/binary.toml"], "binary.toml is not valid TOML: byte 0 is not"),
    "run exists": (["train", "case", "--run", "RUN"], "already exists.*--resume"),
    "run is a file": (["train", "case", "--run", "HERE/file"], "file cannot be written: Not a dir"),
    "run inside a file": (
        ["train", "HERE/small.toml", "--run", "HERE/file/run"],
        "cannot be written",
    ),
    "resume with other settings": (
        ["train", "case", "--run", "RUN", "--resume"],
        "other settings.*data.train: saved 300, given 50000",
    ),
    "run folder without --resume": (["train", "RUN"], "case is a run folder: add --resume"),
    "resume a folder that is no run": (["train", "--resume", "HERE"], "is not a run folder"),
    "resume a missing folder": (["train", "--resume", "HERE/none"], "there is no run folder"),
    "resume a folder with other settings": (
        ["train", "--resume", "RUN", "--seed", "7", "--set", "model.dropout=0.7"],
        "other settings.*seed: saved 1, given 7, model.dropout",
    ),
    "resume a folder with another": (
        ["train", "--resume", "RUN", "--run", "HERE/other"],
        "continues in that folder: leave out --run",
    ),
    "no cuda": (["train", "case", "--device", "cuda"], "no CUDA device here: use the device cpu"),
    "no cuda, translating": (["translate", "RUN", "a", "--device", "cuda"], "no CUDA device"),
    "unknown device": (["translate", "RUN", "a", "--device", "tpu"], "tpu"),
    "missing run": (["translate", "HERE/none", "a"], "no run folder .*none"),
    "a file as a run": (["translate", "HERE/file", "a"], "no run folder"),
    "plot without ablation": (["evaluate", "RUN", "--plot", "HERE/a.png"], "--plot needs --ablate"),
    "bleu without ablation": (["evaluate", "RUN", "--bleu"], "--bleu needs --ablate heads"),
    "first 0 sentences": (["evaluate", "RUN", "--first", "0"], "--first is 1 or more, not 0"),
    "unknown ablation": (["evaluate", "RUN", "--ablate", "layers"], "layers.*heads"),
    "plot with an unknown suffix": (
        ["evaluate", "RUN", "--ablate", "heads", "--plot", "HERE/a.gif"],
        "a.gif.*ending in .png, .svg, .pdf",
    ),
    "not a run folder": (["evaluate", "HERE"], "is not a run folder: .*config.toml"),
    "nothing to translate": (["translate", "RUN"], "nothing to translate"),
    "empty text": (["translate", "RUN", ""], "text 1 is empty"),
    "blank text": (["translate", "RUN", "<U> a", "  "], "text 2 is empty"),
    "intervention that is no table": (
        ["translate", "RUN", "a", "--intervene", "mask 3"],
        r'--intervene takes a table, as in \{what="mask", keys=\[3\]\}: got mask 3',
    ),
    "intervention of no kind": (
        ["diagram", "RUN", "a", "--intervene", '{what = "maks"}'],
        "what: got 'maks'; choose force, mask, weights, ablate.*Did you mean \"mask\"",
    ),
    "intervention outside the text": (
        ["translate", "RUN", "<U> a", "--intervene", '{"what": "mask", "keys": [9]}'],
        "Mask: there is no key 9: the source of text 1 has 3, from 0 to 2",
    ),
    "empty file": (["translate", "RUN", "--input", "HERE/empty.txt"], "nothing to translate"),
    "long text": (["translate", "RUN", "a" * 257], "257 tokens .* at most 256 .*max_tokens"),
    "unseen characters": (
        ["translate", "RUN", "<U> a漢b字"],
        '"漢", "字", .*not in this model.s vocabulary',
    ),
    "unseen line separator": (
        ["translate", "RUN", "<U> a\u2028b"],
        "not in this model's vocabulary",
    ),
    "unseen characters in a diagram": (
        ["diagram", "RUN", "<U> a 漢"],
        "not in this model's vocabulary",
    ),
    "missing input": (["translate", "RUN", "--input", "HERE/none.txt"], "cannot be read: No such"),
    "a folder as input": (["translate", "RUN", "--input", "HERE"], "cannot be read: Is a dir"),
    "input of a diagram that is not UTF-8": (
        ["diagram", "RUN", "--input", "HERE/latin.txt"],
        "latin.txt, line 2: not valid UTF-8",
    ),
    "output inside a file": (
        ["diagram", "RUN", "<U> a", "--out", "HERE/file/a.png"],
        "a.png cannot be written",
    ),
    "output is a folder": (
        ["diagram", "RUN", "<U> a", "--out", "HERE/folder.png"],
        "folder.png cannot be written",
    ),
    "unknown picture": (["diagram", "RUN", "<U> a", "--out", "HERE/a.jpg"], r"a\.jpg.*\.png"),
    "no suffix": (["diagram", "RUN", "<U> a", "--out", "HERE/a"], r"\.png"),
    "missing layer": (["diagram", "RUN", "<U> a", "--out", "HERE/a.png", "--layer", "2"], "layer"),
    "layer 0": (["diagram", "RUN", "<U> a", "--out", "HERE/a.png", "--layer", "0"], "layer"),
    "missing head": (["diagram", "RUN", "<U> a", "--out", "HERE/a.png", "--head", "9"], "head"),
    "negative head": (["diagram", "RUN", "<U> a", "--out", "HERE/a.png", "--head", "-1"], "head"),
    "unknown mechanism": (
        ["diagram", "RUN", "<U> a", "--out", "HERE/a.png", "--mechanism", "self"],
        "'self' is not one of 'cross'",
    ),
    "missing mechanism": (
        ["diagram", "RUN", "<U> a", "--out", "HERE/a.png", "--mechanism", "encoder"],
        'no "encoder" attention: it has cross',
    ),
    "empty text in a diagram": (["diagram", "RUN", "", "--out", "HERE/a.png"], "empty"),
    "unknown split": (
        ["evaluate", "RUN", "--split", "tset"],
        'no split "tset".*Did you mean "test"',
    ),
    "beam 0": (["translate", "RUN", "<U> a", "--beam", "0"], "must be at least 1: got 0"),
    "nbest above beam": (["translate", "RUN", "<U> a", "--nbest", "2"], "raise --beam"),
    "beam that is not a list": (["evaluate", "RUN", "--beam", "1,x"], "--beam"),
    "temperature without sampling": (
        ["translate", "RUN", "<U> a", "--temperature", "2"],
        "needs --sample",
    ),
    "unknown option": (["translate", "RUN", "a", "--bean", "5"], "--bean"),
    "unknown command": (["trian", "case"], "trian.*train"),
    "missing argument": (["evaluate"], "(?i)missing argument"),
    "option without value": (["train", "case", "--run"], "--run"),
    "seed that is not a number": (["train", "case", "--seed", "one"], "--seed.*valid integer"),
}


@pytest.fixture
def here(tmp_path: Path) -> Path:
    (tmp_path / "file").write_text("text")
    (tmp_path / "folder.toml").mkdir()
    (tmp_path / "folder.png").mkdir()
    (tmp_path / "broken.toml").write_text("[data]\nname = = 3\n")
    (tmp_path / "small.toml").write_text("[data]\ntrain = 9\nval = 2\ntest = 2\n")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "latin.txt").write_bytes(b"good\nna\xefve\n")
    return tmp_path


def error_message(result: Any) -> str:
    """Check the form of a user error; return its message on one line, without the box around it."""
    assert result.code == 2, (result.out, result.err)
    assert result.out == ""
    assert "Traceback" not in result.err
    assert len(re.findall(r"^regard: |─ Error ─", result.err, re.MULTILINE)) == 1
    return re.sub(r"[│╭╮╰╯─\s]+", " ", result.err)


@pytest.mark.parametrize("mistake", MISTAKES)
def test_user_error(regard, run: Path, here: Path, checksums, monkeypatch, mistake: str) -> None:
    monkeypatch.chdir(here)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    arguments, message = MISTAKES[mistake]
    before = checksums(run), checksums(here)
    result = regard(*(a.replace("RUN", str(run)).replace("HERE", str(here)) for a in arguments))
    assert re.search(message, error_message(result)), result.err
    assert (checksums(run), checksums(here)) == before


def test_standard_input_that_is_not_utf8(regard, run: Path) -> None:
    result = regard("diagram", run, "--input", "-", stdin=b"<U> a\n\xff\n")
    assert "-, line 2: not valid UTF-8" in error_message(result)


# --- damaged runs ---------------------------------------------------------------------------------


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)


class PickleTrap:
    """A pickle that creates a folder when it is loaded."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.folder),)


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "no config": (lambda run: (run / "config.toml").unlink(), "is not a run folder"),
    "broken config": (lambda run: truncate(run / "config.toml"), "config.toml"),
    "config with an unknown key": (
        lambda run: (run / "config.toml").write_text("nonexistent = true\n"),
        "nonexistent: unknown key",
    ),
    "no model yet": (
        lambda run: (run / "model.safetensors").unlink(),
        "no trained model yet.*--res",
    ),
    "no tokenizer": (lambda run: (run / "tokenizer.json").unlink(), "no trained model yet"),
    "truncated model": (
        lambda run: truncate(run / "model.safetensors"),
        "model.safetensors is damaged",
    ),
    "empty model": (
        lambda run: (run / "model.safetensors").write_bytes(b""),
        "model.safetensors is damaged",
    ),
    "foreign model": (
        lambda run: save_file({"x": torch.zeros(3)}, run / "model.safetensors"),
        "was not written by regard",
    ),
    "another run's model": (
        lambda run: (run / "config.toml").write_text(
            (run / "config.toml").read_text().replace("hidden_dim = 16", "hidden_dim = 17")
        ),
        "does not match this run's config.toml",
    ),
    "changed weight": (
        lambda run: flip(run / "model.safetensors", -3),
        "does not match its checksum",
    ),
    "changed token": (
        lambda run: flip(run / "tokenizer.json", 300),
        "it has changed since the wei",
    ),
    "pickled model": (
        lambda run: (run / "model.safetensors").write_bytes(
            pickle.dumps(PickleTrap(run / "unpickled"))
        ),
        "model.safetensors is damaged or not a safetensors file",
    ),
    "truncated tokenizer": (
        lambda run: truncate(run / "tokenizer.json"),
        "tokenizer.json is damaged",
    ),
    "foreign tokenizer": (
        lambda run: (run / "tokenizer.json").write_text('{"model": {}}'),
        "tokenizer.json is damaged",
    ),
    "tokenizer that is a list": (
        lambda run: (run / "tokenizer.json").write_text("[1, 2]"),
        "tokenizer.json is damaged",
    ),
    "binary tokenizer": (
        lambda run: (run / "tokenizer.json").write_bytes(b"\xff\xfe"),
        "tokenizer.json is damaged",
    ),
}


@pytest.mark.parametrize(
    "arguments", [["translate", "RUN", "<U> a"], ["evaluate", "RUN", "--json"]]
)
@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_run(regard, run: Path, tmp_path: Path, checksums, damage: str, arguments) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(run, broken)
    damage_run, message = DAMAGE[damage]
    damage_run(broken)
    before = checksums(broken)
    result = regard(*(a.replace("RUN", str(broken)) for a in arguments))
    assert re.search(message, error_message(result)), result.err
    assert checksums(broken) == before
    assert not (broken / "unpickled").exists()


@pytest.mark.parametrize(
    "damage",
    [
        truncate,
        lambda path: path.write_bytes(pickle.dumps(PickleTrap(path.parent / "unpickled"))),
        lambda path: shutil.copy(path.parent.parent / "model.safetensors", path),
    ],
    ids=["truncated", "pickle", "model"],
)
def test_damaged_checkpoint(regard, small, tmp_path: Path, checksums, damage) -> None:
    broken = tmp_path / "broken"
    small = [*small, "--set", "training.keep_last=true"]
    assert regard("train", "case", "--run", broken, *small, "--device", "cpu").code == 0
    damage(broken / "last" / "state.safetensors")
    before = checksums(broken)
    result = regard("train", "case", "--run", broken, *small, "--device", "cpu", "--resume")
    assert result.code == 2
    assert re.search(r"state\.safetensors (is damaged|does not match)", result.err)
    assert "Traceback" not in result.err
    assert checksums(broken) == before
    assert regard("translate", broken, "<U> a").code == 0  # the model is intact


def test_bug_keeps_its_traceback(regard, monkeypatch) -> None:
    monkeypatch.setattr(sys.modules["regard.presets"], "names", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        regard("presets")
