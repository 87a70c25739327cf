"""`regard evaluate` on the user's files and another system's outputs, `regard score`, and the example."""

import json
import math
import re
import runpy
from pathlib import Path

import pytest

import regard as package
from regard.evaluation.metrics import select_metrics
from regard.loading import read_config
from regard.text import corpus

EXAMPLE = Path(__file__).parents[2] / "examples" / "compare_systems.py"


@pytest.fixture(scope="module")
def home(run: Path, tmp_path_factory) -> Path:
    """The test split of the run as files, its references in upper case, and other systems' outputs."""
    folder = tmp_path_factory.mktemp("measuring")
    pairs = corpus.load(read_config(run).data)["test"]
    sources, targets = zip(*pairs, strict=True)
    columns = {"test.in": sources, "test.out": targets, "upper.out": [t.upper() for t in targets]}
    columns["other.txt"] = [target[::-1] for target in targets]
    columns["short.txt"] = targets[:-1]
    columns["test.tsv"] = ["\t".join(pair) for pair in pairs]
    columns["two.tsv"] = [f"{source}\t{target}\t{target.upper()}" for source, target in pairs]
    columns["test.jsonl"] = [json.dumps({"in": s, "out": [t, t.upper()]}) for s, t in pairs]
    for name, lines in columns.items():
        (folder / name).write_text("".join(f"{line}\n" for line in lines), "utf-8")
    return folder


@pytest.fixture(autouse=True)
def _working_directory(home: Path, monkeypatch) -> None:
    monkeypatch.chdir(home)


@pytest.fixture
def evaluate(regard):
    """evaluate(*words, err=""): the JSON of `regard evaluate`, with this on standard error."""

    def evaluate(*words: object, err: str = "") -> dict:
        result = regard("evaluate", *words, "--json")
        assert (result.code, result.err) == (0, err)
        return json.loads(result.out)

    return evaluate


def figures(report: dict) -> dict:
    """What does not depend on the clock and on where the sentences came from."""
    kept = {key: value for key, value in report.items() if key not in ("split", "input")}
    kept["results"] = [{**result, "seconds": 0} for result in kept["results"]]
    return kept


FORMS = {"plain": ["--input", "test.in", "--reference", "test.out"], "tsv": ["--input", "test.tsv"]}


@pytest.mark.parametrize("form", FORMS)
def test_files_are_evaluated_as_a_split_is(evaluate, run: Path, form) -> None:
    options = ["--beam", "1,2", "--first", 9]
    by_file, by_split = evaluate(run, *FORMS[form], *options), evaluate(run, *options)
    assert (by_split["split"], by_split["input"]) == ("test", None)
    assert (by_file["split"], by_file["input"]) == (None, FORMS[form][1])
    assert figures(by_file) == figures(by_split)
    assert [result["sentences"] for result in by_file["results"]] == [9, 9]


SEVERAL = {
    "plain": ["--input", "test.in", "--reference", "test.out", "--reference", "upper.out"],
    "tsv": ["--input", "two.tsv"],
    "jsonl": ["--input", "test.jsonl", "--fields", "in,out"],
}


def test_several_references(evaluate, run: Path) -> None:
    warning = (
        "regard: warning: two.tsv has 3 columns: the first is the source, and the others are 2 "
        "references for it\n"
    )
    plain, *others = (
        evaluate(run, *words, err=warning if form == "tsv" else "")
        for form, words in SEVERAL.items()
    )
    [result] = plain["results"]
    assert all("nrefs:2" in signature for signature in result["signatures"].values())
    assert all(figures(other) == figures(plain) for other in others)
    assert plain["loss"] == evaluate(run)["loss"]  # of the first reference


def test_an_ablation_on_a_file(regard, run: Path, tmp_path) -> None:
    options = ["--ablate", "attention", "--plot", tmp_path / "a.png", "--first", 3]
    result = regard("evaluate", run, *FORMS["tsv"], *options)
    assert result.code == 0, result.err
    assert (tmp_path / "a.png").is_file()


def test_another_systems_outputs(regard, evaluate, run: Path, tmp_path) -> None:
    words = [run, *FORMS["plain"], "--hypotheses", "other.txt", "--outputs", tmp_path / "o.tsv"]
    report = evaluate(*words)
    [ours], [theirs], [test] = report["results"], report["hypotheses"], report["tests"]["systems"]
    assert theirs["signatures"] == ours["signatures"]
    for name in select_metrics():
        assert test[name]["difference"] == pytest.approx(theirs[name] - ours[name])
        assert 0 < test[name]["p"] <= 1
    lines = (tmp_path / "o.tsv").read_text("utf-8").splitlines()
    header = "source\treference\tbeam 1\tBLEU\tother.txt\tBLEU"
    assert lines[0] == header
    assert [line.split("\t")[4] for line in lines[1:]] == Path("other.txt").read_text().splitlines()
    text = regard("evaluate", *words, "--overwrite").out
    assert "BLEU (lowercased)" in text
    assert "Difference to beam 1, and p of a paired bootstrap test" in text
    assert "exact match by source length" in text  # a synthetic task
    assert re.search(r"TER: nrefs:1\|case:lc\|tok:tercom", text)
    by_split = evaluate(run, "--split", "test", "--hypotheses", "other.txt")
    assert by_split["hypotheses"] == report["hypotheses"]


def test_outputs_without_a_run(regard, evaluate) -> None:
    words = ["--input", "test.tsv", "--hypotheses", "test.out", "--hypotheses", "other.txt"]
    report = evaluate(*words)
    assert "run" not in report
    assert report["results"] == []
    assert report["hypotheses"][0]["exact_match"] == 1.0
    assert report["tests"]["baseline"] == "test.out"
    text = regard("evaluate", *words[:4]).out
    assert re.search(r"source words +sentences +chrF", text)
    assert "Difference" not in text


# --- score ----------------------------------------------------------------------------------------


def score(regard, *words: object) -> list[dict]:
    result = regard("score", *words)
    assert (result.code, result.err) == (0, "")
    return [json.loads(line) for line in result.out.splitlines()]


def test_score(regard, evaluate, run: Path) -> None:
    rows = score(regard, run, "--input", "test.tsv")
    tokens = sum(len(row["log_probs"]) for row in rows)
    loss = -sum(row["score"] for row in rows) / tokens
    assert loss == pytest.approx(evaluate(run)["loss"])
    for row in rows:
        assert row["score"] == pytest.approx(sum(row["log_probs"]))
        assert row["perplexity"] == pytest.approx(math.exp(-row["score"] / len(row["target"])))
        assert row["target"][-1] == "<end>"
    assert rows == score(regard, run, "--input", "test.in", "--target", "test.out")
    [first, *_] = package.load(run).score(
        [tuple(Path("test.tsv").read_text().split("\n")[0].split("\t"))]
    )
    assert first.log_probs == pytest.approx(rows[0]["log_probs"], abs=1e-4)


def test_score_with_attention(regard, run: Path, monkeypatch) -> None:
    monkeypatch.setattr("regard.cli.evaluation.CHUNK", 7)  # 40 pairs
    rows = score(regard, run, "--input", "test.tsv", "--attention")
    assert len(rows) == 40
    for row in rows:
        [[weights]] = row["attention"]["cross"]  # one layer, one head
        assert (len(weights), len(weights[0])) == (len(row["target"]), len(row["source"]))
        assert all(sum(query) == pytest.approx(1, abs=1e-4) for query in weights)


# --- mistakes -------------------------------------------------------------------------------------

PLAIN = FORMS["plain"]
MISTAKES = {
    "no reference": (["RUN", "--input", "test.in"], "test.in holds only sources: give a second"),
    "no input": (["RUN", "--reference", "test.out"], "--reference needs --input"),
    "fields without input": (["RUN", "--fields", "a,b"], "--fields needs --input"),
    "split and input": (["RUN", *PLAIN, "--split", "val"], "choose --split val or --input test.in"),
    "fields of a TSV": (["RUN", "--input", "test.tsv", "--fields", "a,b"], "test.tsv is not one"),
    "unknown field": (["RUN", "--input", "test.jsonl"], 'no field "source". It has in, out'),
    "uneven": (["RUN", *PLAIN[:3], "short.txt"], "test.in has 40 lines, and short.txt has 39"),
    "short hypotheses": (
        ["RUN", *PLAIN, "--hypotheses", "short.txt"],
        "short.txt has 39 lines, and test.in has 40 sentences: line N must translate sentence N",
    ),
    "short for the split": (
        ["RUN", "--hypotheses", "short.txt"],
        "short.txt has 39 lines, and the test split has 40",
    ),
    "missing hypotheses": (["RUN", "--hypotheses", "none.txt"], "none.txt cannot be read: No such"),
    "twice": (["RUN", "--hypotheses", "a", "--hypotheses", "a"], "--hypotheses names a file twice"),
    "nothing": (["--hypotheses", "other.txt"], "missing argument RUN: give a run folder, or"),
    "beam without run": (
        [*PLAIN, "--hypotheses", "other.txt", "--beam", "5"],
        "--beam needs a RUN to evaluate",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_user_error(regard, run: Path, mistake) -> None:
    words, message = MISTAKES[mistake]
    result = regard("evaluate", *(run if word == "RUN" else word for word in words))
    assert (result.code, result.out) == (2, "")
    assert len(result.err.splitlines()) == 1
    assert message in result.err


def test_a_pair_that_cannot_be_scored_is_named_before_any_output(regard, run: Path, tmp_path):
    lines = [*Path("test.tsv").read_text("utf-8").splitlines(), "<U> " + "a" * 5000 + "\tA"]
    (tmp_path / "long.tsv").write_text("\n".join(lines), "utf-8")
    result = regard("score", run, "--input", tmp_path / "long.tsv")
    assert (result.code, result.out) == (2, "")
    assert "text 41 has 5001 tokens" in result.err


# --- the example ----------------------------------------------------------------------------------


def test_the_example(run: Path, capsys) -> None:
    main = runpy.run_path(str(EXAMPLE))["main"]
    main(str(run), "test.in", "test.out", "other.txt")
    printed = capsys.readouterr().out
    assert re.search(r"^beam 5: BLEU [\d.]+  BLEU \(lowercased\) [\d.]+  chrF", printed)
    assert re.search(
        r"^chrF: [-+][\d.]+, p = [\d.]+: (significant|could be chance)$", printed, re.M
    )
    assert "<end> -" in printed
