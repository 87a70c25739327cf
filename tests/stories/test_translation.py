"""Training on text files, then translation, evaluation, diagrams and comparison."""

import csv
import functools
import json
import re
import shutil
from pathlib import Path

import pytest

from regard.api import load
from regard.compare import sweep
from regard.interventions import Force, SetWeights
from regard.page.schema import Translation as Record
from tests.compare.conftest import execute_in_process
from tests.stories.conftest import with_examples

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
    lines = [[words[(i * n + shift) % 6] for n in range(1, 3 + i % 4)] for i in range(count)]
    return [(" ".join(line), " ".join(WORDS[word] for word in line)) for line in lines]


def write_files(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
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
    write_files(folder)
    return folder


@pytest.fixture(scope="module")
def trained(regard, home: Path):
    """trained(kind): a run with this tokenizer. Do not modify it."""

    @functools.cache
    def train(kind: str) -> Path:
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(home)
            with with_examples():
                result = regard("train", f"{kind}.toml", "--device", "cpu")
            assert result.code == 0, result.err
        return home / "runs" / kind

    return train


@pytest.fixture
def word_run(trained) -> Path:
    return trained("words")


@pytest.fixture(params=KINDS)
def file_run(request, trained) -> Path:
    return trained(request.param)


@pytest.fixture(autouse=True)
def _working_directory(home: Path, monkeypatch) -> None:
    monkeypatch.chdir(home)


def error_message(result) -> str:
    """Check the form of a user error; return its message on one line."""
    assert result.code == 2, (result.out, result.err)
    assert result.out == ""
    assert "Traceback" not in result.err
    return re.sub(r"[│╭╮╰╯─\s]+", " ", result.err)


def test_data_list_and_unknown_name(regard, monkeypatch, tmp_path):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path))
    monkeypatch.setenv("REGARD_DATA", "")
    result = regard("data", "list")
    assert result.code == 0
    assert re.search("(?s)multi30k .*regard data get", result.out)
    assert 'Did you mean "multi30k"' in error_message(regard("data", "get", "multi30"))
    assert list(tmp_path.iterdir()) == []


def test_card_and_examples(file_run: Path):
    assert set(json.loads((file_run / "card.json").read_text())["data"]) == {"train", "val", "test"}
    assert (file_run / "examples" / "1.png").is_file()


def test_examples_skip_texts_the_model_cannot_encode(regard, tmp_path, monkeypatch):
    write_files(tmp_path)
    monkeypatch.chdir(tmp_path)
    lines = [("ein 漢", "a"), ("ein " * 40, "a"), *sentences(3)]
    Path("val.tsv").write_text("".join(f"{s}\t{t}\n" for s, t in lines), "utf-8")
    settings = ["--set", "tokenizer=characters", "--set", "tokenizer.max_tokens=50"]
    with with_examples():
        result = regard("train", "words.toml", *settings, "--device", "cpu")
    assert result.code == 0, result.err
    assert "val: skipped 1 pairs over 50 tokens" in result.out
    assert len(list(Path("runs/words/examples").iterdir())) == 3


BROKEN = {
    "missing": (lambda: Path("train.en").unlink(), r"train\.en cannot be read: No such file"),
    "uneven": (
        lambda: Path("train.en").write_text("a\n"),
        r"data\.train: .*equally many lines.*; got 60 in \S+/train\.de and 1 in \S+/train\.en",
    ),
    "not UTF-8": (
        lambda: Path("val.tsv").write_bytes(b"a\tb\nna\xefve\tnaive\n"),
        r"val\.tsv, line 2 is not UTF-8.*on_error = \"skip\"",
    ),
    "empty": (
        lambda: Path("val.tsv").write_text(""),
        r"data\.val: .*at least one pair in \S+/val\.tsv",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_files(regard, tmp_path, monkeypatch, name):
    write_files(tmp_path)
    monkeypatch.chdir(tmp_path)
    break_file, message = BROKEN[name]
    break_file()
    assert re.search(message, error_message(regard("train", "words.toml", "--device", "cpu")))
    assert not Path("runs").exists()


# --- translate ------------------------------------------------------------------------------------


def test_interventions(regard, file_run, tmp_path):
    """The same in Python and on the command line; a line that is too short is reported."""
    table = '{what = "weights", weights = {2 = 1.0}, layer = 1}'
    forced = '{"what": "force", "step": 0, "token": "old"}'
    options = ("--intervene", table, "--intervene", forced)
    plain, changed = translate_json(regard, file_run), translate_json(regard, file_run, *options)
    interventions = [SetWeights(weights={2: 1.0}, layer=1), Force(step=0, token="old")]
    expected = load(file_run).translate(TEXTS, interventions=interventions)
    assert [out["text"] for out in changed] == [out.text for out in expected]
    assert all(out["target"][0] == "old" for out in changed)
    assert [out["score"] for out in changed] != [out["score"] for out in plain]
    for out in changed:
        assert Record.model_validate(out).text == out["text"]
    (tmp_path / "in.txt").write_text("ein\nein Hund sieht\n", "utf-8")
    result = regard("translate", file_run, "--input", tmp_path / "in.txt", "--json", *options)
    assert result.code == 1
    assert "no key 2: the source of line 1 has 2, from 0 to 1" in result.err
    short, long = json.loads(result.out)
    assert Record.model_validate(short).error in result.err
    assert long["text"] == changed[0]["text"]
    picture = tmp_path / "changed.png"
    drawn = regard("diagram", file_run, TEXTS[0], "--out", picture, "--device", "cpu", *options)
    assert drawn.out.splitlines()[0] == changed[0]["text"]
    assert picture.is_file()


def translate_json(regard, run: Path, *options: object) -> list[dict]:
    result = regard("translate", run, *TEXTS, "--device", "cpu", "--json", *options)
    assert (result.code, result.err) == (0, "")
    return json.loads(result.out)


def test_beam_and_nbest(regard, file_run: Path):
    greedy, narrow, wide = (translate_json(regard, file_run, "--beam", k) for k in (1, 1, 4))
    assert greedy == narrow
    outputs = translate_json(regard, file_run, "--beam", 4, "--nbest", 4)
    assert [best["text"] for best in outputs] == [best["text"] for best in wide]
    nbest = [[best, *best["alternatives"]] for best in outputs]
    for ranked in nbest:
        scores = [output["normalised"] for output in ranked]
        assert scores == sorted(scores, reverse=True)
        assert len({tuple(output["target"]) for output in ranked}) == len(ranked)
    lines = regard("translate", file_run, *TEXTS, "--beam", 4, "--nbest", 4).out.split("\n")[:-1]
    assert lines == [
        f"{rank}\t{output['normalised']:.4f}\t{output['text']}"
        for ranked in nbest
        for rank, output in enumerate(ranked, start=1)
    ]


def test_sampling(regard, word_run: Path):
    greedy = translate_json(regard, word_run)
    sampled = translate_json(regard, word_run, "--sample", "--seed", 3)
    assert sampled == translate_json(regard, word_run, "--sample", "--seed", 3)
    assert sampled != translate_json(regard, word_run, "--sample", "--seed", 4)
    assert translate_json(regard, word_run, "--sample") == translate_json(
        regard, word_run, "--sample", "--seed", 0
    )
    for options in (["--top-k", 1], ["--top-p", 1e-6], ["--temperature", 1e-6]):
        outputs = translate_json(regard, word_run, "--sample", *options)
        assert [output["text"] for output in outputs] == [output["text"] for output in greedy]
    outputs = translate_json(regard, word_run, "--sample", "--nbest", 3, "--temperature", 2)
    assert [len(output["alternatives"]) for output in outputs] == [2, 2]


TRANSLATE_MISTAKES = {
    "nbest above beam": (["--beam", "2", "--nbest", "3"], r"nbest (3) is above the beam size (2)"),
    "beam and sampling": (["--beam", "2", "--sample"], "choose either"),
    "temperature 0": (
        ["--sample", "--temperature", "0"],
        "temperature must be above 0 and at most 1e+06, not 0",
    ),
    "infinite temperature": (["--sample", "--temperature", "inf"], "less than or equal to 1000000"),
    "top-p 0": (["--sample", "--top-p", "0"], "top-p must be above 0 and at most 1, not 0"),
    "seed without sampling": (["--seed", "0"], "--seed needs --sample"),
    "top-p without sampling": (["--top-p", "0.5", "--beam", "3"], "--top-p needs --sample"),
}


@pytest.mark.parametrize("mistake", TRANSLATE_MISTAKES)
def test_translate_user_error(regard, run: Path, mistake):
    options, message = TRANSLATE_MISTAKES[mistake]
    assert message in error_message(regard("translate", run, "<U> a", *options))


def test_evaluate_writes_the_outputs(regard, file_run: Path, tmp_path):
    file = tmp_path / "new" / "out.tsv"
    command = regard("evaluate", file_run, "--beam", "1,2", "--outputs", file, "--json")
    assert (command.code, command.err) == (0, "")
    report = json.loads(command.out)
    assert [result["beam"] for result in report["results"]] == [1, 2]
    with file.open(newline="", encoding="utf-8") as lines:
        header, *rows = csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)
    assert header == ["source", "reference", "beam 1", "BLEU", "beam 2", "BLEU"]
    exact_scores = [row[3] for row in rows if row[2] == row[1]]
    assert all(float(score) == pytest.approx(100) for score in exact_scores)
    assert all(0 <= float(row[5]) <= 100.1 for row in rows)
    assert [tuple(row[:2]) for row in rows] == sentences(7, 2)
    exact = sum(row[2] == row[1] for row in rows) / len(rows)
    assert report["results"][0]["exact_match"] == pytest.approx(exact)


def test_a_run_needs_only_the_files_of_the_split_from_any_folder(regard, tmp_path, monkeypatch):
    write_files(tmp_path / "data")
    monkeypatch.chdir(tmp_path)
    result = regard("train", "data/words.toml", "--run", "run", "--device", "cpu")
    assert result.code == 0, result.err
    shutil.move("run", "moved")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    for name in ("train.de", "train.en", "val.tsv"):
        (tmp_path / "data" / name).unlink()
    assert "test: 7 sentences" in regard("evaluate", "../moved").out
    message = error_message(regard("evaluate", "../moved", "--split", "val"))
    assert re.search(r"data\.val: \S+/data/val\.tsv cannot be read: No such file", message)
    assert regard("translate", "../moved", TEXTS[0]).code == 0


# --- diagram --------------------------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", ["cross", "encoder", "decoder"])
def test_gallery_of_several_texts(regard, word_run: Path, tmp_path, mechanism):
    options = ["--mechanism", mechanism, "--out", tmp_path / "g", "--layer", 1]
    result = regard("diagram", word_run, *TEXTS, *options)
    assert result.code == 0, result.err
    assert result.out == f"{tmp_path / 'g' / 'index.html'}\n"
    assert {p.name for p in (tmp_path / "g").iterdir()} == {"0001.png", "0002.png", "index.html"}


def test_gallery_and_alignments_of_a_split(regard, file_run: Path, tmp_path):
    out, alignments = tmp_path / "g", tmp_path / "a.txt"
    options = ["--split", "test", "--first", 3, "--out", out, "--alignments", alignments]
    result = regard("diagram", file_run, *options)
    assert result.code == 0, result.err
    assert result.out.splitlines() == [str(out / "index.html"), str(alignments)]
    assert (out / "index.html").read_text("utf-8").count("<dt>reference</dt>") == 3
    lines = alignments.read_text("utf-8").split("\n")
    assert len(lines) == 4
    assert all(re.fullmatch(r"(\d+-\d+( \d+-\d+)*)?", line) for line in lines)


def test_diagram_user_errors(regard, word_run: Path, run: Path):
    assert "nothing to draw" in error_message(regard("diagram", word_run))
    assert "greater than or equal to 1" in error_message(
        regard("diagram", word_run, "--split", "val", "--first", 0)
    )
    assert 'no split "tset"' in error_message(regard("diagram", word_run, "--split", "tset"))
    result = regard("diagram", run, "<U> a", "--mechanism", "encoder")
    assert 'no "encoder" attention: it has cross' in error_message(result)


# --- compare --------------------------------------------------------------------------------------


def test_compare(regard, tmp_path, checksums, monkeypatch):
    """One system fails to train: the table has the others, and the exit code is 1."""
    monkeypatch.setattr(sweep, "execute", execute_in_process)
    arguments = [
        "compare",
        "words.toml",
        "--vary",
        "training.learning_rate=1e-3,1e30",
        "--seeds",
        1,
    ]
    arguments += ["--set", "training.warmup_steps=0", "--device", "cpu", "--out", tmp_path / "out"]
    dry = regard(*arguments, "--dry-run")
    assert (dry.code, [line.split("\t")[0] for line in dry.out.splitlines()]) == (0, ["to run"] * 2)
    result = regard(*arguments, "--jobs", 2)
    assert (result.code, result.err) == (1, "")
    assert "2 runs, 0 already finished, 2 at a time" in result.out
    assert re.search(r"learning_rate 1e30, seed 1: .*loss became", result.out)
    assert "| learning_rate 1e-3 |" in result.out
    assert "| learning_rate 1e30 |" not in result.out
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert len(results["failed"]) == 1
    assert results["command"].startswith(
        "regard compare words.toml --vary training.learning_rate=1e-3,1e30"
    )
    dry = regard(*arguments, "--dry-run")
    assert [line.split("\t")[0] for line in dry.out.splitlines()] == ["finished", "to run"]
    # Without the system that fails, everything is finished: nothing runs, and the exit code is 0.
    arguments[3] = "training.learning_rate=1e-3"
    before = checksums(tmp_path / "out" / "runs")
    result = regard(*arguments, "--columns", "bleu_lower,cache,speed")
    assert "shared the device" not in result.out
    assert "up to 2 runs shared" in regard(*arguments, "--columns", "training_seconds").out
    assert (result.code, result.err) == (0, "")
    assert "1 runs, 1 already finished, 1 at a time" in result.out
    assert "| system | BLEU (lowercased) | cache bytes/token | sentences/s |" in result.out
    assert re.search(r"\| [\d,]+ \| [\d,]*[1-9][\d,]* \|\n\n1 seed; test split, greedy", result.out)
    assert "# Outputs side by side" in (tmp_path / "out" / "outputs.md").read_text("utf-8")
    assert checksums(tmp_path / "out" / "runs") == before


COMPARE_MISTAKES = {
    "jobs": (["--jobs", "0"], "greater than or equal to 1"),
    "column": (
        ["--columns", "p,sped"],
        'no column "sped". Did you mean "speed"? Columns: seeds, bleu_lower',
    ),
    "value": (["--vary", "training.learning_rate=1,fast"], 'training.learning_rate: got "fast"'),
}


@pytest.mark.parametrize("mistake", COMPARE_MISTAKES)
def test_compare_user_error(regard, tmp_path, mistake):
    options, message = COMPARE_MISTAKES[mistake]
    result = regard("compare", "words.toml", *options, "--out", tmp_path / "out", "--dry-run")
    assert message in error_message(result)
    assert not (tmp_path / "out").exists()
