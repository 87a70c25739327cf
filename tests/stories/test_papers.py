"""A model of preprocessed text, from training to a comparison: raw text goes in, BLEU is on tokens."""

import csv
import gzip
import json
from pathlib import Path

import pytest
import sacrebleu

from regard import augment, config, load
from regard import train as train_model
from regard.compare import job
from regard.compare.plan import plan
from regard.compare.report import select_headline, write_report
from regard.errors import UserError
from regard.evaluation import metrics
from regard.page.pack import check_supported
from regard.text import corpus
from regard.training import examples, synthetic
from tests.stories.conftest import with_examples

pytest.importorskip("sacremoses", reason="needs the extra `papers`")

ROWS = [(f"Le chien n’est pas l'ami {n}.", f"The dog isn't “{n}” & co.") for n in range(40)]
SETTINGS = {
    "data.kind": "files",
    "data.preprocess": "moses",
    "data.languages": ["fr", "en"],
    "tokenizer": {"kind": "bpe", "vocab_size": 400},
    "model.hidden_dim": 8,
    "model.embedding_dim": 6,
    "training.epochs": 2,
    "training.batch_sentences": 20,
    "training.validate_every": 2,
    "training.checkpoint_metric": "bleu",
    "search.max_extra": 3,
    "search.max_ratio": 0.5,
}


def make_data(folder: Path, **changes: object) -> config.FileData:
    for name, rows in (("train", ROWS), ("val", ROWS[:7]), ("test", ROWS[3:12])):
        lines = "".join("\t".join(row) + "\n" for row in rows)
        (folder / f"{name}.tsv").write_text(lines, "utf-8")
    files = {name: str(folder / f"{name}.tsv") for name in ("train", "val", "test")}
    options = {"preprocess": "moses", "languages": ("fr", "en"), **changes}
    return config.FileData.model_validate(files | options)


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """A run on preprocessed text, evaluated on its test split."""
    folder = tmp_path_factory.mktemp("papers")
    data = make_data(folder)
    files = {f"data.{name}": getattr(data, name) for name in ("train", "val", "test")}
    train_model(SETTINGS | files, run=folder / "run", device="cpu", quiet=True)
    return folder / "run"


def test_typed_text_is_preprocessed_once(run: Path) -> None:
    model = load(run)
    [raw] = model.translate([ROWS[5][0]])
    tokens = model.tokenizers.source.encode("le chien n' est pas l' ami 5 .")
    assert raw.source == model.tokenizers.source.ids_to_tokens([*tokens, 2])
    encoded = model.encode_pairs([ROWS[5]])
    assert encoded.target == [model.tokenizers.target.encode('the dog isn \'t " 5 " & co .')]


def test_the_examples_of_a_run_are_of_raw_text(run: Path, monkeypatch) -> None:
    titles = []
    monkeypatch.setattr(examples, "draw", lambda *_, title: titles.append(title))
    model = load(run)
    with with_examples():
        examples.draw_examples(model, corpus.load(model.config.data), run / "examples")
    assert titles == [source for source, _ in ROWS[:3]]


def test_bleu_on_tokens_is_that_of_sacrebleu_without_tokenisation(run: Path) -> None:
    model = load(run)
    pairs = corpus.load_split(model.config.data, "test")
    [result] = model.evaluate(ROWS[3:12])["results"]
    references = [target for _, target in pairs]
    expected = sacrebleu.corpus_bleu(result["outputs"], [references], tokenize="none", force=True)
    assert result["bleu_tokens"] == expected.score
    assert "tok:none" in result["signatures"]["bleu_tokens"]
    undefined = ("bleu", "bleu_lower", "bleu_lower_longest", "chrf", "ter")
    assert {result[name] for name in undefined} == {None}
    assert all("bleu_tokens" in bucket and "chrf" not in bucket for bucket in result["lengths"])


def test_tokens_are_scored_as_they_are() -> None:
    """A detokenised reference would match the words, but not the tokens."""
    reference = "le chien n' est pas là ."
    assert metrics.score("bleu_tokens", [reference], [reference]) == pytest.approx(100)
    assert metrics.score("bleu_tokens", ["Le chien n'est pas là."], [reference]) < 50
    raw = metrics.score_corpus([reference], [reference])
    assert raw["bleu_tokens"] is None
    assert "bleu_tokens" not in raw["signatures"]


def test_the_best_weights_are_selected_by_bleu_on_tokens(run: Path) -> None:
    lines = (run / "metrics.jsonl").read_text("utf-8").splitlines()
    scores = [event["bleu_tokens"] for event in map(json.loads, lines[1:])]
    figures = json.loads((run / "card.json").read_text("utf-8"))["figures"]
    assert figures["val_bleu_tokens"] == max(scores)
    assert figures["val_bleu_lower"] is None


def test_evaluate_shows_bleu_on_tokens(run: Path, regard, tmp_path) -> None:
    document = json.loads(regard("evaluate", run, "--beam", "1,2", "--json").out)
    assert [result["bleu_tokens"] is not None for result in document["results"]] == [True, True]
    text = regard("evaluate", run).out
    assert "BLEU (tokens)" in text
    assert "BLEU (lowercased)" not in text
    assert "are undefined" in text
    # The same sentences from files, which are raw text; and another system's outputs.
    for name, side in (("in.fr", 0), ("ref.en", 1)):
        lines = [row[side] for row in ROWS[3:12]]
        (tmp_path / name).write_text("\n".join(lines) + "\n", "utf-8")
    words = ["--input", tmp_path / "in.fr", "--reference", tmp_path / "ref.en"]
    words += ["--hypotheses", tmp_path / "ref.en", "--outputs", tmp_path / "o.tsv", "--json"]
    other = json.loads(regard("evaluate", run, *words).out)
    assert other["results"][0]["bleu_tokens"] == document["results"][0]["bleu_tokens"]
    assert other["hypotheses"][0]["bleu_tokens"] == pytest.approx(100)
    assert set(other["tests"]["systems"][0]) == {"system", "bleu_tokens", "exact_match"}
    lines = (tmp_path / "o.tsv").read_text("utf-8").splitlines()
    assert lines[1].startswith("le chien n' est pas l' ami 3 .\t")
    ablated = regard("evaluate", run, "--ablate", "attention", "--plot", tmp_path / "a.png")
    assert ablated.code == 0, ablated.err
    assert "(tokens)" in ablated.out


def test_score_preprocesses_once(run: Path, regard, tmp_path) -> None:
    (tmp_path / "pairs.tsv").write_text("\t".join(ROWS[3]) + "\n", "utf-8")
    result = regard("score", run, "--input", tmp_path / "pairs.tsv")
    tokenizer = load(run).tokenizers.source
    ids = tokenizer.encode("le chien n' est pas l' ami 3 .")
    assert json.loads(result.out)["source"][:-1] == tokenizer.ids_to_tokens(ids)


def test_other_commands(run: Path, regard, tmp_path) -> None:
    assert "BLEU (tokens)" in regard("info", run).out
    assert regard("runs", run.parent).out.splitlines()[1].split()[-2:] != ["", "yes"]
    result = regard("export", run, "--to", "hub", "--out", tmp_path / "hub")
    assert result.code == 0, result.err
    readme = (tmp_path / "hub" / "README.md").read_text("utf-8")
    assert "on lower-cased tokens of Moses" in readme
    assert '"name": "BLEU (tokens)"' in readme
    result = regard("diagram", run, "--split", "test", "--first", 2, "--out", tmp_path / "gallery")
    assert result.code == 0, result.err


def test_synthetic_pairs_are_preprocessed_on_both_sides(run: Path, monkeypatch) -> None:
    """The text is read raw, and written as the model reads it."""
    monkeypatch.setattr(augment.Augmenter, "check_output", lambda *_: None)
    model = load(run)
    augmenter = augment.Augmenter(model, config.Recipe(reverse=False))
    [pair] = augmenter.pairs([ROWS[5][0]], 1)
    [output] = model.translate([ROWS[5][0]])
    assert (pair["source"], pair["target"]) == ("le chien n' est pas l' ami 5 .", output.text)
    data = model.config.data
    plain = data.model_copy(update={"preprocess": "none", "languages": None})
    synthetic.check_preprocessed(data, data, "a")
    synthetic.check_preprocessed(plain, plain, "a")
    with pytest.raises(UserError, match=r"a writes raw text, and the real pairs are preprocessed"):
        synthetic.check_preprocessed(plain, data, "a")
    with pytest.raises(UserError, match=r"a writes preprocessed text, and the real pairs are raw"):
        synthetic.check_preprocessed(data, plain, "a")


def test_the_training_text_is_translated_raw(run: Path, tmp_path: Path, monkeypatch) -> None:
    """data.synthetic with monolingual = "train": preprocessed once."""
    monkeypatch.setattr(augment.Augmenter, "check_output", lambda *_: None)
    settings = make_data(tmp_path).model_dump(exclude_unset=True)
    entry = {"from": str(run), "monolingual": "train", "reverse": False}
    table = {f"data.{key}": value for key, value in settings.items()}
    train_model(
        SETTINGS | table | {"data.synthetic": [entry]},
        run=tmp_path / "run",
        device="cpu",
        quiet=True,
    )
    pairs = tmp_path / "run" / "synthetic" / "1" / "pairs.jsonl"
    sources = {json.loads(line)["source"] for line in pairs.read_text("utf-8").splitlines()}
    assert sources == {f"le chien n' est pas l' ami {n} ." for n in range(12, 40)}  # not of test


def test_a_page_cannot_preprocess(run: Path) -> None:
    with pytest.raises(
        UserError, match=r'run cannot run in a page: its data\.preprocess is "moses"'
    ):
        check_supported(load(run).config, "run")


def test_a_comparison_is_about_bleu_on_tokens(tmp_path: Path, monkeypatch) -> None:
    data = make_data(tmp_path)
    settings = [f"{key}={json.dumps(value)}" for key, value in SETTINGS.items() if "." in key]
    settings += ["tokenizer.kind=bpe", "tokenizer.vocab_size=400"]
    settings += [f"data.{name}='{getattr(data, name)}'" for name in ("train", "val", "test")]
    runs = plan(["case"], ["model.cell=gru,rnn"], settings, [1], tmp_path / "runs")
    for one in runs:
        one.folder.parent.mkdir(parents=True, exist_ok=True)
        path = one.folder.with_suffix(".toml")
        path.write_text(one.config.to_toml(), "utf-8")
        job.run_job(path, one.folder, "cpu", 1, "test", [1])
    write_report(runs, "test", "x", [], tmp_path / "out")
    document = json.loads((tmp_path / "out" / "results.json").read_text("utf-8"))
    assert document["headline"] == "bleu_tokens"
    assert "tok:none" in document["signature"]
    assert 0 < document["systems"][1]["p"] <= 1
    rows = list(csv.DictReader((tmp_path / "out" / "table.csv").read_text("utf-8").splitlines()))
    assert rows[0]["bleu_tokens"] != rows[0]["bleu_lower"] == ""
    table = write_report(runs, "test", "x", [], tmp_path / "out", columns=["bleu_tokens", "p"])
    assert "BLEU (tokens)" in table
    # Mixed with raw text, whose BLEU is another, there is no common figure: cells stay empty.
    raw = plan(["multi30k-gru"], [], [], [1], tmp_path / "raw")
    assert select_headline({"a": runs, "b": raw}) == "bleu_lower"
    monkeypatch.setattr("regard.compare.report.select_headline", lambda systems: "bleu_lower")
    assert "BLEU (lowercased)" in write_report(runs, "test", "x", [], tmp_path / "out")


def test_a_later_test_set_is_evaluated_if_it_is_there(regard, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("REGARD_DATA", str(tmp_path))
    folder = tmp_path / "multi30k"
    folder.mkdir()

    def write(split: str) -> None:
        for language, side in (("en", 1), ("fr", 0)):
            text = "".join(row[side] + "\n" for row in ROWS)
            (folder / f"{split}.{language}.gz").write_bytes(gzip.compress(text.encode()))

    for split in ("train", "val", "test_2016_flickr"):
        write(split)
    small = ("training.epochs=1", "model.d_model=16", "model.d_ff=16", "tokenizer.vocab_size=400")
    words = [word for setting in (*small, "search.max_ratio=0") for word in ("--set", setting)]
    result = regard(
        "train", "multi30k-paper-en-fr", "--run", tmp_path / "run", *words, "--device", "cpu"
    )
    assert result.code == 0, result.err
    words = ("evaluate", tmp_path / "run", "--split", "test_2017_flickr", "--json")
    result = regard(*words)
    assert result.code == 2
    assert "test_2017_flickr.en.gz" in result.err
    assert "also has" not in regard("data", "list").out
    write("test_2017_flickr")
    document = json.loads(regard(*words).out)
    assert document["split"] == "test_2017_flickr"
    assert document["results"][0]["bleu_tokens"] is not None
    assert "also has the split test_2017_flickr of multi30k" in regard("data", "list").out
