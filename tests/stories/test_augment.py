"""`regard augment`, and training on what it wrote."""

import gzip
import json

import pytest

TEXTS = ["Guten Morgen!", "", "Wie geht es dir?", "Guten Morgen", "Ein Hund schläft.", "\xff"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REGARD_DATA", str(tmp_path / "nothing"))
    lines = [text.encode("latin-1" if text == "\xff" else "utf-8") for text in TEXTS]
    (tmp_path / "text.txt").write_bytes(b"\n".join(lines) + b"\n")
    return tmp_path


def read(path):
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def test_a_file_becomes_pairs_with_counts_and_a_card(folder, regard):
    result = regard("augment", "de-en", "--input", "text.txt", "--out", "pairs.jsonl")
    assert result.code == 0, result.err
    assert result.out == ""
    assert "sentences of the test set are not left out" in result.err  # there is no Tatoeba here
    expected = (
        "3 pairs of 6 texts; left out: 1 blank lines, 1 texts that occurred before, 1 texts that"
    )
    assert expected in result.err
    pairs = read(folder / "pairs.jsonl")
    assert [pair["line"] for pair in pairs] == [1, 3, 5]
    assert (pairs[0]["source"], pairs[0]["target"]) == ("Guten Morgen!", "Good morning.")
    card = json.loads((folder / "pairs.card.json").read_text("utf-8"))
    assert card["run"] == "de-en"
    assert card["counts"]["pairs"] == 3
    assert sorted(path.name for path in folder.iterdir()) == [
        "pairs.card.json",
        "pairs.jsonl",
        "text.txt",
    ]
    again = regard("augment", "de-en", "--input", "text.txt", "--out", "pairs.jsonl")
    assert again.code == 2
    assert "already exists: choose another name, or add --overwrite" in again.err


def test_back_translation_from_standard_input_sampled(folder, regard):
    options = ("--reverse", "--sample", "--top-k", 5, "--seed", 3, "--first", 2)
    text = gzip.decompress(gzip.compress(b"Guten Morgen!\nHallo!\nJa.\n"))
    command = ("augment", "de-en", "--input", "-", "--out", "pairs.jsonl", *options)
    result = regard(*command, stdin=text)
    assert result.code == 0, result.err
    assert [pair["target"] for pair in read(folder / "pairs.jsonl")] == ["Guten Morgen!", "Hallo!"]


def test_what_does_not_translate_back_is_left_out(folder, regard):
    # The same model is none of the other direction: nothing translates back.
    command = (
        "augment",
        "de-en",
        "--input",
        "text.txt",
        "--out",
        "p.jsonl",
        "--round-trip",
        "de-en",
    )
    result = regard(*command, "--min-round-trip", -0.01)
    assert result.code == 2
    assert "no pair is left for p.jsonl" in result.err
    assert "3 pairs that do not translate back" in result.err


def test_pairs_are_trained_on(folder, regard):
    assert regard("augment", "de-en", "--input", "text.txt", "--out", "pairs.jsonl").code == 0
    rows = "".join(f"satz {n}\tsentence {n}\n" for n in range(40))
    for split in ("train", "val"):
        (folder / f"{split}.tsv").write_text(rows)
    (folder / "mine.toml").write_text(
        '[data]\nkind = "files"\ntrain = "train.tsv"\nval = "val.tsv"\n'
        'synthetic = [{file = "pairs.jsonl", repeat = 2}]\n'
        '[tokenizer]\nkind = "characters"\n[model]\nhidden_dim = 8\nembedding_dim = 8\n'
        "[training]\nepochs = 1\n"
    )
    result = regard("train", "mine.toml", "--device", "cpu")
    assert result.code == 0, result.err
    assert "train: 3 synthetic pairs, 2 times; 0 left out" in result.out
    assert "46 training pairs" in result.out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--input", "text.txt", "--out", "pairs.tsv"), "give a name that ends in .jsonl"),
        (
            ("--input", "missing.txt", "--out", "p.jsonl"),
            "missing.txt cannot be read: No such file",
        ),
        (("--input", "text.txt", "--out", "p.jsonl", "--top-k", "3"), "top_k is about sampling"),
        (
            ("--input", "text.txt", "--out", "p.jsonl", "--beam", "2", "--sample"),
            "choose either beam search or sampling",
        ),
        (
            ("--input", "text.txt", "--out", "p.jsonl", "--language", "de"),
            "--language is for a public corpus",
        ),
        (
            ("--input", "text.txt", "--out", "p.jsonl", "--min-round-trip", "-1"),
            "needs --round-trip",
        ),
        (("--input", "multi30k", "--out", "p.jsonl"), "regard data get multi30k"),
    ],
)
def test_a_mistake_gives_advice(words, message, folder, regard):
    result = regard("augment", "de-en", *words)
    assert result.code == 2
    assert message in result.err.replace("\n", " ")
    assert "Traceback" not in result.err
