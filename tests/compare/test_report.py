"""What a comparison leaves, read back."""

import csv
import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from regard.compare import Run, write_report
from regard.compare.columns import COLUMNS, TIMED, USUAL, chosen
from regard.compare.curves import read_curve
from regard.compare.statistics import Summary, paired_p
from regard.compare.tables import comma_separated, latex, shown
from regard.errors import UserError
from regard.text import corpus

FILES = {"results.json", "table.md", "table.csv", "table.tex", "curves.png", "outputs.md"}


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


def cells(table: str) -> list[list[str]]:
    """The cells of a Markdown table, its headings first."""
    lines = [line for line in table.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line[1:-1].split("|")] for line in lines]


def test_the_table_for_people(out):
    heads, *rows = cells((out / "table.md").read_text("utf-8"))
    assert heads == ["system", *(COLUMNS[name].head for name in USUAL)]
    assert [row[0] for row in rows] == ["cell gru", "cell rnn"]
    row = dict(zip(USUAL, rows[0][1:], strict=True))
    assert row["p"] == ""  # the first is not compared with itself
    assert re.fullmatch(r"± \d+\.\d{3}", row["interval"])
    assert re.fullmatch(r"\d,\d{3}", row["parameters"])


def test_the_table_for_programs(out, results):
    """Every column, by its name, as plain numbers."""
    with (out / "table.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["system", *COLUMNS]
    for row, system in zip(rows, results["systems"], strict=True):
        assert row.pop("system") == system["system"]
        assert row.pop("speed") == ""  # nobody asked for it
        known = {name: COLUMNS[name].value(system) for name in row}
        assert {name: float(cell) if cell else None for name, cell in row.items()} == known
    assert rows[0]["p"] == ""
    assert all(rows[1].values())
    assert rows[1]["cache"] == "0.0"  # a recurrent model keeps nothing of each token


def test_the_figures_a_table_leaves_out(done, results):
    for system in results["systems"]:
        mine = [run for run in done if run.system.label == system["system"]]
        found = [json.loads((run.folder / "evaluation-test.json").read_text()) for run in mine]
        longest = Summary.of([one["results"][0]["bleu_lower_longest"] for one in found])
        assert system["summary"]["bleu_lower_longest"] == vars(longest)
        bits = [run["bits_per_character"] for run in system["runs"]]
        assert bits == [one["bits_per_character"] for one in found]
        assert system["summary"]["bits_per_character"]["mean"] == pytest.approx(sum(bits) / 2)


def test_chosen_columns_and_what_is_said_under_them(done, tmp_path):
    names = ("longest", "cache", "speed", "training_seconds")
    speeds = {"cell gru": 1234.5, "cell rnn": 66.6}
    table = write_report(
        done, "test", "x", [], tmp_path, columns=names, speeds=speeds, theme="dark"
    )
    heads, *rows = cells(table)
    assert heads[1:] == ["longest fifth", "cache bytes/token", "sentences/s", "training s"]
    assert [row[3] for row in rows] == ["1,234", "67"]
    assert "longest source, in characters" in table
    assert "one more token adds" in table
    assert "one system at a time in turn, best of 3" in table
    assert "shared the device" not in table  # each had it for itself
    assert "paired bootstrap" not in table
    plain = write_report(done, "test", "x", [], tmp_path, columns=["p"])
    assert "paired bootstrap against cell gru" in plain
    assert "2 seeds; test split, greedy;" in plain
    tex = (tmp_path / "table.tex").read_text()
    assert tex.startswith(r"\begin{tabular}{lr}")
    assert set(TIMED) <= set(COLUMNS)


def test_systems_with_fewer_seeds_than_others(done, tmp_path):
    """Their number is shown unasked, and what is paired is what the same seeds said."""
    whole = cells(write_report(done, "test", "x", [], tmp_path / "a", columns=["variance", "p"]))
    fewer = [run for run in done if run.seed == 2 or run.system == done[0].system]
    table = write_report(fewer, "test", "x", [], tmp_path / "b", columns=["variance", "p"])
    heads, first, second = cells(table)
    assert heads[1] == "seeds"
    assert "seeds" not in whole[0]
    assert (first[1], second[1:3]) == ("2", ["1", ""])
    assert first[2]
    seeds = {run.seed: run for run in done if run.system != done[0].system}
    other = {run.seed: run for run in done if run.system == done[0].system}
    said = [
        json.loads((r.folder / "evaluation-test.json").read_text()) for r in (other[2], seeds[2])
    ]
    texts = [[one["results"][0]["outputs"]] for one in said]
    references = [target for _, target in corpus.load(done[0].config.data)["test"]]
    assert second[3] == f"{paired_p(*texts, references):.3f}"
    assert "1 or 2 seeds; " in table


def test_the_table_says_which_beam_it_shows(done, tmp_path):
    runs = copies(done, tmp_path)
    for run in runs:
        edit(run, lambda found: found["results"][0].update(beam=5))
    assert "test split, beam 5;" in write_report(runs, "test", "x", [], tmp_path / "out")


def copies(runs: list[Run], folder: Path) -> list[Run]:
    made = [replace(run, folder=folder / str(number)) for number, run in enumerate(runs)]
    for old, new in zip(runs, made, strict=True):
        shutil.copytree(old.folder, new.folder)
    return made


def edit(run: Run, change: Callable[[dict], object], name: str = "evaluation-test") -> None:
    file = run.folder / f"{name}.json"
    found = json.loads(file.read_text())
    change(found)
    file.write_text(json.dumps(found))


def test_where_and_beside_how_many_it_was_trained_is_told_by_the_runs(done, tmp_path):
    runs = copies(done, tmp_path / "runs")
    edit(runs[3], lambda card: card.update(jobs=7, device="an abacus"), "card")
    edit(runs[0], lambda card: card.pop("jobs"), "card")
    times, quality = (
        write_report(runs, "test", "x", [], tmp_path, columns=columns)
        for columns in (["training_seconds"], ["bleu"])
    )
    assert "up to 7 runs shared the device" in times
    assert "shared the device" not in quality  # no time is shown
    assert re.search(r"threads, PyTorch \S+ and an abacus, PyTorch \S+\.\n", quality)


def test_a_file_of_an_earlier_version_leaves_cells_empty(done, tmp_path):
    runs = copies(done, tmp_path)
    edit(runs[0], lambda found: found.pop("cache_bytes_per_token"))
    edit(runs[2], lambda found: found["results"][0].pop("bleu_lower_longest"))
    table = write_report(
        runs, "test", "x", [], tmp_path / "out", columns=["bleu", "cache", "longest"]
    )
    _, first, second = cells(table)
    assert (first[2], second[2], second[3]) == ("", "0", "")
    assert first[1] and first[3] and second[1]  # noqa: PT018


WRONG = {
    "bleu_lower,longes": r'no column "longes"\. Did you mean "longest"\? Columns: seeds, bleu_lower',
    "": 'no column ""',
    "p,p": '"p,p" names a column twice',
}


@pytest.mark.parametrize("text", WRONG)
def test_a_column_that_is_not_there(text):
    with pytest.raises(UserError, match=WRONG[text]):
        chosen(text)
    assert chosen(" p, longest ") == ("p", "longest")


def test_the_latex_is_balanced_and_escaped(out):
    text = (out / "table.tex").read_text("utf-8")
    assert text.startswith(r"\begin{tabular}{l" + "r" * len(USUAL) + "}")
    assert text.rstrip().endswith(r"\end{tabular}")
    assert text.count("{") == text.count("}")
    body = [line for line in text.splitlines() if line.endswith(r"\\")]
    assert len(body) == 3
    assert all(len(re.findall(r"(?<!\\)&", line)) == len(USUAL) for line in body)
    assert not re.search(r"(?<!\\)[%#_]", text)
    assert r"$\pm$ " in text


def test_odd_names_are_escaped():
    text = latex([["a", "b"], ["x_1 & 50%", "#{$}"]])
    assert r"x\_1 \& 50\% & \#\{\$\} \\" in text
    [heads, row] = csv.reader(comma_separated([{"system": 'x,"y"'}]).splitlines())
    assert (heads[0], row[0]) == ("system", 'x,"y"')
    assert shown([{"system": "x", "p": 0.25}], ["p", "bleu"]) == [
        ["system", "p", "BLEU"],
        ["x", "0.250", ""],
    ]


def test_a_run_that_failed_is_left_out_and_told(done, tmp_path):
    missing = tmp_path / "none"
    runs = [*done[:3], replace(done[3], folder=missing)]
    failed = ["cell rnn, seed 2: it said nothing"]
    table = write_report(runs, "test", "x", failed, tmp_path / "out")
    assert "Failed: cell rnn, seed 2: it said nothing" in table
    systems = json.loads((tmp_path / "out" / "results.json").read_text())["systems"]
    assert [len(system["runs"]) for system in systems] == [2, 1]
    assert systems[1]["p"] == 1.0  # of the seed that both have: neither got a word right
    assert systems[1]["summary"]["val_loss"]["variance"] is None


def test_systems_without_a_seed_in_common_have_no_paired_test(done, tmp_path):
    write_report([done[0], done[3]], "test", "x", [], tmp_path)
    systems = json.loads((tmp_path / "results.json").read_text())["systems"]
    assert [run["seed"] for system in systems for run in system["runs"]] == [1, 2]
    assert systems[1]["p"] is None


@pytest.mark.parametrize("name", ["card", "evaluation-test"])
def test_a_damaged_record_is_named(done, tmp_path, name):
    runs = copies(done, tmp_path / "runs")
    (runs[2].folder / f"{name}.json").write_text("{")
    with pytest.raises(UserError, match=rf"2/{name}\.json is damaged: delete it"):
        write_report(runs, "test", "x", [], tmp_path)


def test_a_system_without_any_run_has_no_row(done, tmp_path):
    runs = [*done[:2], *(replace(run, folder=tmp_path / str(run.seed)) for run in done[2:])]
    table = write_report(runs, "test", "x", ["both"], tmp_path / "out")
    assert "cell rnn" not in table.split("\n\n")[0]


def test_nothing_at_all_is_an_error(done, tmp_path):
    runs = [replace(run, folder=tmp_path / str(n)) for n, run in enumerate(done)]
    with pytest.raises(UserError, match=r"no run came to an end.*: it was the rate"):
        write_report(runs, "test", "x", ["it was the rate"], tmp_path / "out")


def elsewhere(done: list[Run], text: str, folder: Path) -> list[Run]:
    """The same runs, but the second system says that its test data is this."""
    file = folder / "other.tsv"
    file.write_text(text, "utf-8")
    data = done[2].config.data.model_copy(update={"test": str(file)})
    other = done[2].config.model_copy(update={"data": data})
    return [*done[:2], *(replace(run, config=other) for run in done[2:])]


def test_other_sentences_have_no_paired_test(done, tmp_path):
    """But the same ones do, whatever else the data is."""
    same = Path(done[2].config.data.test).read_text("utf-8")
    for text, paired in ((same, True), (same.replace("\t", "x\t", 1), False)):
        write_report(elsewhere(done, text, tmp_path), "test", "x", [], tmp_path / "out")
        systems = json.loads((tmp_path / "out" / "results.json").read_text())["systems"]
        assert (systems[1]["p"] is not None) == paired
        page = (tmp_path / "out" / "outputs.md").read_text()
        assert ("| cell rnn |" in page) == paired
        assert ("measured on other sentences: cell rnn." in page) != paired


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
