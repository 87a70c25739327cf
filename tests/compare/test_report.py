"""What a comparison leaves, read back."""

import csv
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from regard.compare import write_report
from regard.compare.curves import read_curve
from regard.compare.report import COLUMNS, comma_separated, latex
from regard.compare.statistics import Summary
from regard.errors import UserError

FILES = {"results.json", "table.md", "table.csv", "table.tex", "curves.png"}


@pytest.fixture(scope="module")
def out(done, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("report") / "new"
    table = write_report(done, "test", "regard compare case", [], folder)
    assert (folder / "table.md").read_text("utf-8") == table
    return folder


@pytest.fixture(scope="module")
def results(out) -> dict:
    return json.loads((out / "results.json").read_text("utf-8"))


def test_the_files(out):
    assert {path.name for path in out.iterdir()} == FILES
    assert (out / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_the_figures_are_those_of_the_runs(done, results):
    assert [system["system"] for system in results["systems"]] == ["cell gru", "cell rnn"]
    for system in results["systems"]:
        mine = [run for run in done if run.system.label == system["system"]]
        cards = [json.loads((run.folder / "card.json").read_text()) for run in mine]
        found = [json.loads((run.folder / "evaluation-test.json").read_text()) for run in mine]
        losses = Summary.of([card["figures"]["val_loss"] for card in cards])
        assert system["summary"]["val_loss"] == vars(losses)
        bleu = Summary.of([one["results"][0]["bleu_lower"] for one in found])
        assert system["summary"]["bleu_lower"]["mean"] == pytest.approx(bleu.mean)
        assert [run["seed"] for run in system["runs"]] == [1, 2]
        assert [run["figures"] for run in system["runs"]] == [card["figures"] for card in cards]
        assert "outputs" not in json.dumps(system)


def test_the_first_is_what_the_others_are_measured_against(results):
    assert results["systems"][0]["p"] is None
    assert 0 < results["systems"][1]["p"] <= 1
    assert results["baseline"] == "cell gru"
    assert results["split"] == "test"
    assert results["command"] == "regard compare case"
    assert "case:lc" in results["signature"]
    assert results["failed"] == []


def test_the_tables_hold_the_same_cells(out):
    with (out / "table.csv").open(newline="", encoding="utf-8") as file:
        heads, *rows = csv.reader(file)
    assert heads == [head for _, head in COLUMNS]
    assert [len(row) for row in rows] == [len(heads)] * 2
    markdown = (out / "table.md").read_text("utf-8").splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in markdown[:4]]
    assert cells[0] == heads
    assert cells[2:] == rows
    assert rows[0][0] == "cell gru"
    assert rows[0][4] == ""  # no p for the first
    assert re.fullmatch(r"± \d+\.\d{3}", rows[1][3])


def test_the_latex_is_balanced_and_escaped(out):
    text = (out / "table.tex").read_text("utf-8")
    assert text.startswith(r"\begin{tabular}{l" + "r" * (len(COLUMNS) - 1) + "}")
    assert text.rstrip().endswith(r"\end{tabular}")
    assert text.count("{") == text.count("}")
    body = [line for line in text.splitlines() if line.endswith(r"\\")]
    assert len(body) == 3
    assert all(len(re.findall(r"(?<!\\)&", line)) == len(COLUMNS) - 1 for line in body)
    assert not re.search(r"(?<!\\)[%#_]", text)
    assert r"$\pm$ " in text


def test_odd_names_are_escaped():
    text = latex(["a", "b"], [["x_1 & 50%", "#{$}"]])
    assert r"x\_1 \& 50\% & \#\{\$\} \\" in text
    assert list(csv.reader(comma_separated(["a"], [['x,"y"']]).splitlines())) == [["a"], ['x,"y"']]


def test_a_run_that_failed_is_left_out_and_told(done, tmp_path):
    missing = tmp_path / "none"
    runs = [*done[:3], replace(done[3], folder=missing)]
    failed = ["cell rnn, seed 2: it said nothing"]
    table = write_report(runs, "test", "x", failed, tmp_path / "out")
    assert "Failed: cell rnn, seed 2: it said nothing" in table
    systems = json.loads((tmp_path / "out" / "results.json").read_text())["systems"]
    assert [len(system["runs"]) for system in systems] == [2, 1]
    assert systems[1]["p"] is None  # two runs against one: nothing to pair
    assert systems[1]["summary"]["val_loss"]["variance"] is None


def test_a_system_without_any_run_has_no_row(done, tmp_path):
    runs = [*done[:2], *(replace(run, folder=tmp_path / str(run.seed)) for run in done[2:])]
    table = write_report(runs, "test", "x", ["both"], tmp_path / "out")
    assert "cell rnn" not in table.split("\n\n")[0]


def test_nothing_at_all_is_an_error(done, tmp_path):
    runs = [replace(run, folder=tmp_path / str(n)) for n, run in enumerate(done)]
    with pytest.raises(UserError, match=r"no run came to an end.*: it was the rate"):
        write_report(runs, "test", "x", ["it was the rate"], tmp_path / "out")


def test_other_data_has_no_paired_test(done, tmp_path):
    other = done[2].config.model_copy(
        update={"data": done[2].config.data.model_copy(update={"max_characters": 1999})}
    )
    runs = [*done[:2], *(replace(run, config=other) for run in done[2:])]
    write_report(runs, "test", "x", [], tmp_path / "out")
    systems = json.loads((tmp_path / "out" / "results.json").read_text())["systems"]
    assert systems[1]["p"] is None


def test_a_curve_is_what_validation_said(done, tmp_path):
    curve = read_curve(done[0].folder)
    assert list(curve) == [2, 4, 6]
    card = json.loads((done[0].folder / "card.json").read_text())
    assert min(curve.values()) == card["figures"]["val_loss"]


def test_runs_of_different_lengths_share_a_curve(done, tmp_path):
    """Early stopping may end one before the other."""
    runs = []
    for run in done[:2]:
        shutil.copytree(run.folder, tmp_path / run.folder.name)
        runs.append(replace(run, folder=tmp_path / run.folder.name))
    file = runs[1].folder / "metrics.jsonl"
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:-1]))
    write_report(runs, "test", "x", [], tmp_path / "out")
    assert (tmp_path / "out" / "curves.png").is_file()
