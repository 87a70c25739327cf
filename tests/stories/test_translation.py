"""A user's own text, from files to translations, pictures and comparisons."""

import csv
import functools
import json
import re
from pathlib import Path

import pytest

WORDS = {"ein": "a", "Hund": "dog", "Mann": "man", "sieht": "sees", "und": "and", "alt": "old"}
SETTINGS = """
description = "a test"
[data]
kind = "files"
train = ["train.de", "train.en"]
val = "val.tsv"
test = "test.tsv"
[tokenizer]
{tokenizer}
[model]
kind = "transformer"
d_model = 16
attention = {{heads = 2}}
encoder = {{layers = 1}}
decoder = {{layers = 2}}
[training]
epochs = 1
batch_sentences = 20
"""
KINDS = {"words": 'kind = "words"\nmin_frequency = 1', "bpe": 'kind = "bpe"\nvocab_size = 300'}
TEXTS = ["ein Hund sieht", "alt und alt"]


def sentences(count: int, shift: int = 0) -> list[tuple[str, str]]:
    words = list(WORDS)
    made = [[words[(i * n + shift) % 6] for n in range(1, 3 + i % 4)] for i in range(count)]
    return [(" ".join(line), " ".join(WORDS[word] for word in line)) for line in made]


def lay_out(folder: Path) -> None:
    train = sentences(60)
    (folder / "train.de").write_text("".join(f"{source}\n" for source, _ in train), "utf-8")
    (folder / "train.en").write_text("".join(f"{target}\n" for _, target in train), "utf-8")
    for name, shift in (("val", 1), ("test", 2)):
        lines = "".join("\t".join(pair) + "\n" for pair in sentences(7, shift))
        (folder / f"{name}.tsv").write_text(lines, "utf-8")
    for kind, table in KINDS.items():
        (folder / f"{kind}.toml").write_text(SETTINGS.format(tokenizer=table), "utf-8")


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    lay_out(folder)
    return folder


@pytest.fixture(scope="module")
def trained(regard, home: Path):
    """A run of a tokenizer. Not to be changed."""

    @functools.cache
    def train(kind: str) -> Path:
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(home)
            said = regard("train", f"{kind}.toml", "--device", "cpu")
            assert said.code == 0, said.err
        return home / "runs" / kind

    return train


@pytest.fixture
def words(trained) -> Path:
    return trained("words")


@pytest.fixture(params=KINDS)
def mine(request, trained) -> Path:
    return trained(request.param)


@pytest.fixture(autouse=True)
def _there(home: Path, monkeypatch) -> None:
    monkeypatch.chdir(home)


def complaint(said) -> str:
    assert said.code == 2, (said.out, said.err)
    assert said.out == ""
    assert "Traceback" not in said.err
    return re.sub(r"[│╭╮╰╯─\s]+", " ", said.err)


def test_data_list_and_an_unknown_name(regard, monkeypatch, tmp_path):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path))
    monkeypatch.setenv("REGARD_DATA", "")
    said = regard("data", "list")
    assert said.code == 0
    assert re.search("(?s)multi30k .*regard data get", said.out)
    assert 'Did you mean "multi30k"' in complaint(regard("data", "get", "multi30"))
    assert list(tmp_path.iterdir()) == []


def test_a_run_of_files(mine: Path):
    assert set(json.loads((mine / "card.json").read_text())["data"]) == {"train", "val", "test"}
    assert (mine / "examples" / "1.png").is_file()


def test_validation_text_the_model_cannot_read_is_not_drawn(regard, tmp_path, monkeypatch):
    """The run is whole all the same."""
    lay_out(tmp_path)
    monkeypatch.chdir(tmp_path)
    lines = [("ein 漢", "a"), ("ein " * 40, "a"), *sentences(3)]
    Path("val.tsv").write_text("".join(f"{s}\t{t}\n" for s, t in lines), "utf-8")
    words = ["--set", "tokenizer=characters", "--set", "tokenizer.max_tokens=50"]
    said = regard("train", "words.toml", *words, "--device", "cpu")
    assert said.code == 0, said.err
    assert "val: 1 pairs over 50 tokens left out" in said.out
    assert len(list(Path("runs/words/examples").iterdir())) == 3


BROKEN = {
    "missing": (lambda: Path("train.en").unlink(), r"train\.en cannot be read: No such file"),
    "uneven": (
        lambda: Path("train.en").write_text("a\n"),
        r"equally many lines in both files; got 60 in train\.de and 1 in train\.en",
    ),
    "not UTF-8": (
        lambda: Path("val.tsv").write_bytes(b"a\tb\nna\xefve\tnaive\n"),
        r"val\.tsv, line 2 is not UTF-8.*on_error = \"skip\"",
    ),
    "empty": (lambda: Path("val.tsv").write_text(""), "at least one pair in val.tsv"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_files(regard, tmp_path, monkeypatch, name):
    lay_out(tmp_path)
    monkeypatch.chdir(tmp_path)
    harm, message = BROKEN[name]
    harm()
    assert re.search(message, complaint(regard("train", "words.toml", "--device", "cpu")))
    assert not Path("runs").exists()


# --- translate ------------------------------------------------------------------------------------


def told(regard, mine: Path, *words: object) -> list[dict]:
    said = regard("translate", mine, *TEXTS, "--device", "cpu", "--json", *words)
    assert (said.code, said.err) == (0, "")
    return json.loads(said.out)


def test_beam_and_nbest(regard, mine: Path):
    greedy, narrow, wide = (told(regard, mine, "--beam", k) for k in (1, 1, 4))
    assert greedy == narrow
    best = told(regard, mine, "--beam", 4, "--nbest", 4)
    assert [one["text"] for one in best] == [one["text"] for one in wide]
    for one in best:
        ranks = [one, *one["alternatives"]]
        scores = [rank["normalised"] for rank in ranks]
        assert scores == sorted(scores, reverse=True)
        assert len({tuple(r["target"]) for r in ranks}) == len(ranks)
    plain = regard("translate", mine, *TEXTS, "--beam", 4, "--nbest", 4).out.split("\n")[:-1]
    shown = [list(enumerate([one, *one["alternatives"]], start=1)) for one in best]
    assert plain == [
        f"{rank}\t{r['normalised']:.4f}\t{r['text']}" for ranks in shown for rank, r in ranks
    ]


def test_sampling(regard, words: Path):
    plain = told(regard, words)
    drawn = told(regard, words, "--sample", "--seed", 3)
    assert drawn == told(regard, words, "--sample", "--seed", 3)
    assert drawn != told(regard, words, "--sample", "--seed", 4)
    assert told(regard, words, "--sample") == told(regard, words, "--sample", "--seed", 0)
    for options in (["--top-k", 1], ["--top-p", 1e-6], ["--temperature", 1e-6]):
        found = told(regard, words, "--sample", *options)
        assert [one["text"] for one in found] == [one["text"] for one in plain]
    several = told(regard, words, "--sample", "--nbest", 3, "--temperature", 2)
    assert [len(one["alternatives"]) for one in several] == [2, 2]


WRONG = {
    "more than the beam": (["--beam", "2", "--nbest", "3"], "a beam of 2 has no 3 best"),
    "both": (["--beam", "2", "--sample"], "choose one"),
    "cold": (["--sample", "--temperature", "0"], "temperature is a number above 0, not 0"),
    "endless heat": (["--sample", "--temperature", "inf"], "not inf"),
    "no mass": (["--sample", "--top-p", "0"], "top-p is above 0 and at most 1, not 0"),
    "seed alone": (["--seed", "0"], "--seed needs --sample"),
    "top-p alone": (["--top-p", "0.5", "--beam", "3"], "--top-p needs --sample"),
}


@pytest.mark.parametrize("mistake", WRONG)
def test_translate_mistake(regard, run: Path, mistake):
    words, message = WRONG[mistake]
    assert message in complaint(regard("translate", run, "<U> a", *words))


def test_evaluate_writes_the_outputs(regard, mine: Path, tmp_path):
    file = tmp_path / "new" / "out.tsv"
    said = regard("evaluate", mine, "--beam", "1,2", "--outputs", file, "--json")
    assert (said.code, said.err) == (0, "")
    report = json.loads(said.out)
    assert [result["beam"] for result in report["results"]] == [1, 2]
    with file.open(newline="", encoding="utf-8") as lines:
        header, *rows = csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)
    assert header == ["source", "reference", "beam 1", "BLEU", "beam 2", "BLEU"]
    best = [row[3] for row in rows if row[2] == row[1]]
    assert all(float(score) == pytest.approx(100) for score in best)
    assert all(0 <= float(row[5]) <= 100.1 for row in rows)
    assert [tuple(row[:2]) for row in rows] == sentences(7, 2)
    exact = sum(row[2] == row[1] for row in rows) / len(rows)
    assert report["results"][0]["exact_match"] == pytest.approx(exact)


def test_a_corpus_that_went_away_is_told(regard, words: Path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # the files were named from another folder
    assert "train.de cannot be read" in complaint(regard("evaluate", words))
    assert regard("translate", words, TEXTS[0]).code == 0


# --- diagram --------------------------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", ["cross", "encoder", "decoder"])
def test_several_texts_make_a_gallery(regard, words: Path, tmp_path, mechanism):
    options = ["--mechanism", mechanism, "--out", tmp_path / "g", "--layer", 1]
    said = regard("diagram", words, *TEXTS, *options)
    assert said.code == 0, said.err
    assert said.out == f"{tmp_path / 'g' / 'index.html'}\n"
    assert {p.name for p in (tmp_path / "g").iterdir()} == {"0001.png", "0002.png", "index.html"}


def test_a_split_and_its_alignments(regard, mine: Path, tmp_path):
    out, lines = tmp_path / "g", tmp_path / "a.txt"
    words = ["--split", "test", "--first", 3, "--out", out, "--alignments", lines]
    said = regard("diagram", mine, *words)
    assert said.code == 0, said.err
    assert said.out.splitlines() == [str(out / "index.html"), str(lines)]
    assert (out / "index.html").read_text("utf-8").count("<dt>reference</dt>") == 3
    found = lines.read_text("utf-8").split("\n")
    assert len(found) == 4
    assert all(re.fullmatch(r"(\d+-\d+( \d+-\d+)*)?", line) for line in found)


def test_what_cannot_be_drawn(regard, words: Path, run: Path):
    assert "nothing to draw" in complaint(regard("diagram", words))
    assert "--first is 1 or more" in complaint(
        regard("diagram", words, "--split", "val", "--first", 0)
    )
    assert 'no split "tset"' in complaint(regard("diagram", words, "--split", "tset"))
    said = regard("diagram", run, "<U> a", "--mechanism", "encoder")
    assert 'no "encoder" attention: it has cross' in complaint(said)


# --- compare --------------------------------------------------------------------------------------


def test_compare(regard, tmp_path, checksums):
    """One system cannot be trained: the others have their table, and the exit code is 1."""
    words = ["compare", "words.toml", "--vary", "training.learning_rate=1e-3,1e30", "--seeds", 1]
    words += ["--set", "training.warmup_steps=0", "--device", "cpu", "--out", tmp_path / "out"]
    dry = regard(*words, "--dry-run")
    assert (dry.code, [line.split("\t")[0] for line in dry.out.splitlines()]) == (0, ["to run"] * 2)
    said = regard(*words, "--jobs", 2)
    assert (said.code, said.err) == (1, "")
    assert "2 runs, 0 already finished, 2 at a time" in said.out
    assert re.search(r"learning_rate 1e30, seed 1: .*loss became", said.out)
    assert "| learning_rate 1e-3 |" in said.out
    assert "| learning_rate 1e30 |" not in said.out
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert len(results["failed"]) == 1
    assert results["command"].startswith(
        "regard compare words.toml --vary training.learning_rate=1e-3,1e30"
    )
    dry = regard(*words, "--dry-run")
    assert [line.split("\t")[0] for line in dry.out.splitlines()] == ["finished", "to run"]
    # Without the one that fails, everything is there: nothing runs, and all is well.
    words[3] = "training.learning_rate=1e-3"
    before = checksums(tmp_path / "out" / "runs")
    said = regard(*words, "--columns", "bleu_lower,cache,speed")
    assert "shared the device" not in said.out
    assert "up to 2 runs shared" in regard(*words, "--columns", "training_seconds").out  # they had
    assert (said.code, said.err) == (0, "")
    assert "1 runs, 1 already finished, 1 at a time" in said.out
    assert "| system | BLEU lower | cache bytes/token | sentences/s |" in said.out
    assert re.search(r"\| [\d,]+ \| [\d,]*[1-9][\d,]* \|\n\n1 seed; test split, greedy", said.out)
    assert "# Outputs side by side" in (tmp_path / "out" / "outputs.md").read_text("utf-8")
    assert checksums(tmp_path / "out" / "runs") == before


COMPARE = {
    "jobs": (["--jobs", "0"], "--jobs must be 1 or more: got 0"),
    "column": (
        ["--columns", "p,sped"],
        'no column "sped". Did you mean "speed"? Columns: seeds, bleu_lower',
    ),
    "value": (["--vary", "training.learning_rate=1,fast"], 'training.learning_rate: got "fast"'),
}


@pytest.mark.parametrize("mistake", COMPARE)
def test_compare_mistake(regard, tmp_path, mistake):
    words, message = COMPARE[mistake]
    said = regard("compare", "words.toml", *words, "--out", tmp_path / "out", "--dry-run")
    assert message in complaint(said)
    assert not (tmp_path / "out").exists()
