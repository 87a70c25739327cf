"""From plain text to a translator: write or mend sentences first, then learn to translate."""

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


@pytest.fixture(scope="module", autouse=True)
def no_pictures():
    """They take most of the time, and other stories draw them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("regard.training.run.EXAMPLES", 0)
        yield


@pytest.fixture(scope="module", params=MODEL)
def made(request, regard, tmp_path_factory) -> tuple[Path, str]:
    """(a folder with base.toml, task.toml and the run base/, the family)"""
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
    said = regard("train", here / "base.toml", "--run", here / "base", "--device", "cpu")
    assert said.code == 0, said.err
    return here, request.param


def test_a_translator_starts_from_what_it_wrote_or_mended(made, regard):
    here, _ = made
    run = ("train", here / "task.toml", "--run", here / "run", "--device", "cpu")
    said = regard(*run, "--init", here / "base")
    assert said.code == 0, said.err
    card = json.loads((here / "run" / "card.json").read_text("utf-8"))
    pieces = card["init"]["pieces"]["joint"]
    assert pieces["kept"] >= 260  # ours, and the 256 bytes
    assert (
        f"{pieces['kept']} of {sum(pieces.values())} pieces come from {here / 'base'}" in said.out
    )
    # Three sentences of val, in whatever case, are in the text that it learned from first.
    assert card["init"]["overlap"] == {"val": {"source": 3, "target": 3}}
    assert "3 sources and 3 targets of val" in said.out
    assert card["config"]["init"] == str(here / "base")
    assert regard("translate", here / "run", "A DOG").code == 0
    assert regard("evaluate", here / "run", "--split", "val").code == 0
    again = regard(*run, "--init", here / "base", "--resume")
    assert again.code == 0, again.err


def test_what_mends_reads_and_what_writes_does_not(made, regard):
    here, family = made
    said = regard("translate", here / "base", "a _ runs")
    assert said.code == (0 if family == "transformer" else 2)


def test_the_overlap_of_two_experiments(made, regard):
    here, _ = made
    said = regard("data", "overlap", here / "base.toml", here / "task.toml", "--json")
    assert said.code == 0, said.err
    assert json.loads(said.out) == [
        {"split": "train", "side": "source", "sentences": 20, "found": 20},
        {"split": "train", "side": "target", "sentences": 20, "found": 20},
        {"split": "val", "side": "source", "sentences": 13, "found": 3},
        {"split": "val", "side": "target", "sentences": 13, "found": 3},
    ]
    shown = regard("data", "overlap", here / "base.toml", here / "task.toml").out
    assert ["val", "target", "13", "3"] in [line.split() for line in shown.splitlines()]


def test_a_preset_is_no_run(regard, tmp_path):
    said = regard("train", "multi30k-fr-en-from-lm", "--run", tmp_path / "run", "--device", "cpu")
    assert said.code == 2
    told = " ".join(said.err.split())
    assert "there is no run folder captions-lm, but a preset to make one" in told
    assert (
        "`regard train captions-lm`, then this command again with `--init runs/captions-lm`" in told
    )
    assert not (tmp_path / "run").exists()
