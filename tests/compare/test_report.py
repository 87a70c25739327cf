"""The files that a comparison writes."""

import csv
import io
import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from regard.compare.columns import COLUMNS, TRAINING_TIME_COLUMNS, default_columns, select_columns
from regard.compare.curves import draw_curves, read_curve
from regard.compare.plan import Run, plan
from regard.compare.report import select_headline, write_report
from regard.compare.tables import format_rows, to_csv, to_markdown
from regard.errors import UserError
from regard.statistics import Summary, paired_bootstrap_p, welch_p
from regard.text import corpus
from tests.hostile import HOSTILE

FILES = {"results.json", "table.md", "table.csv", "table.tex", "curves.png", "outputs.md"}

DEFAULT_COLUMNS = default_columns("bleu_lower")


@pytest.fixture(scope="module")
def out(finished_runs, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("report") / "new"
    table = write_report(finished_runs, "test", "regard compare case", [], folder)
    assert (folder / "table.md").read_text("utf-8") == table
    return folder


@pytest.fixture(scope="module")
def results(out) -> dict:
    return json.loads((out / "results.json").read_text("utf-8"))


def test_the_files(out):
    assert {path.name for path in out.iterdir()} == FILES
    assert (out / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_figures_are_those_of_the_runs(finished_runs, results):
    assert [system["system"] for system in results["systems"]] == ["cell gru", "cell rnn"]
    for system in results["systems"]:
        group = [run for run in finished_runs if run.system.label == system["system"]]
        cards = [json.loads((run.folder / "card.json").read_text()) for run in group]
        evaluations = [
            json.loads((run.folder / "evaluation-test.json").read_text()) for run in group
        ]
        losses = Summary.of([card["figures"]["val_loss"] for card in cards])
        assert system["summary"]["val_loss"] == vars(losses)
        bleu = Summary.of([one["results"][0]["bleu_lower"] for one in evaluations])
        assert system["summary"]["bleu_lower"]["mean"] == pytest.approx(bleu.mean)
        assert [run["seed"] for run in system["runs"]] == [1, 2]
        assert [run["figures"] for run in system["runs"]] == [card["figures"] for card in cards]
        assert "outputs" not in json.dumps(system)


def test_the_first_system_is_the_baseline(results):
    assert results["systems"][0]["p"] is None
    assert 0 < results["systems"][1]["p"] <= 1
    assert results["systems"][0]["welch"] is None
    assert results["baseline"] == "cell gru"
    assert results["split"] == "test"
    assert results["command"] == "regard compare case"
    assert "case:lc" in results["signature"]
    assert results["failed"] == []


def cells(table: str) -> list[list[str]]:
    """The cells of a Markdown table, its headings first."""
    lines = [line for line in table.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line[1:-1].split("|")] for line in lines]


def test_the_markdown_table(out):
    headings, *rows = cells((out / "table.md").read_text("utf-8"))
    assert headings == ["system", *(COLUMNS[name].heading for name in DEFAULT_COLUMNS)]
    assert [row[0] for row in rows] == ["cell gru", "cell rnn"]
    row = dict(zip(DEFAULT_COLUMNS, rows[0][1:], strict=True))
    assert row["p"] == ""  # the baseline has no p-value
    assert re.fullmatch(r"± \d+\.\d{3}", row["interval"])
    assert re.fullmatch(r"\d,\d{3}", row["parameters"])


def test_the_csv_table(out, results):
    """All columns, by name, as unformatted numbers."""
    with (out / "table.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["system", *COLUMNS]
    for row, system in zip(rows, results["systems"], strict=True):
        assert row.pop("system") == system["system"]
        assert row.pop("speed") == ""  # not measured
        expected = {name: COLUMNS[name].get_value(system) for name in row}
        assert {name: float(cell) if cell else None for name, cell in row.items()} == expected
    assert rows[0]["p"] == ""
    assert rows[1].pop("welch") == ""  # both systems have a BLEU of zero
    assert rows[1].pop("bleu_tokens") == ""  # not of preprocessed text
    assert all(rows[1].values())
    assert rows[1]["cache"] == "0.0"  # a recurrent decoder state does not grow


def test_results_have_figures_that_the_default_table_omits(finished_runs, results):
    for system in results["systems"]:
        group = [run for run in finished_runs if run.system.label == system["system"]]
        evaluations = [
            json.loads((run.folder / "evaluation-test.json").read_text()) for run in group
        ]
        longest = Summary.of([one["results"][0]["bleu_lower_longest"] for one in evaluations])
        assert system["summary"]["bleu_lower_longest"] == vars(longest)
        bits = [run["bits_per_character"] for run in system["runs"]]
        assert bits == [one["bits_per_character"] for one in evaluations]
        assert system["summary"]["bits_per_character"]["mean"] == pytest.approx(sum(bits) / 2)


def test_selected_columns_and_their_notes(finished_runs, tmp_path):
    names = ("longest", "cache", "speed", "training_seconds")
    speeds = {"cell gru": 1234.5, "cell rnn": 66.6}
    table = write_report(
        finished_runs, "test", "x", [], tmp_path, columns=names, speeds=speeds, theme="dark"
    )
    headings, *rows = cells(table)
    assert headings[1:] == ["longest fifth", "cache bytes/token", "sentences/s", "training s"]
    assert [row[3] for row in rows] == ["1,234", "67"]
    assert "longest source, in characters" in table
    assert "one more token adds" in table
    assert "systems timed in turn, best of 3 rounds" in table
    assert "shared the device" not in table  # jobs is 1
    assert "paired bootstrap" not in table
    p_table = write_report(finished_runs, "test", "x", [], tmp_path, columns=["p"])
    assert "paired bootstrap test against cell gru" in p_table
    assert "2 seeds; test split, greedy;" in p_table
    tex = (tmp_path / "table.tex").read_text()
    assert tex.startswith(r"\begin{tabular}{lr}")
    assert set(TRAINING_TIME_COLUMNS) <= set(COLUMNS)


def test_systems_with_fewer_seeds_than_others(finished_runs, tmp_path):
    """The table shows the number of seeds, and outputs are paired by seed."""
    full = cells(
        write_report(finished_runs, "test", "x", [], tmp_path / "a", columns=["variance", "p"])
    )
    fewer = [run for run in finished_runs if run.seed == 2 or run.system == finished_runs[0].system]
    table = write_report(fewer, "test", "x", [], tmp_path / "b", columns=["variance", "p"])
    headings, first, second = cells(table)
    assert headings[1] == "seeds"
    assert "seeds" not in full[0]
    assert (first[1], second[1:3]) == ("2", ["1", ""])
    assert first[2]
    second_seeds = [run for run in finished_runs if run.seed == 2]
    evaluations = [
        json.loads((run.folder / "evaluation-test.json").read_text()) for run in second_seeds
    ]
    texts = [[evaluation["results"][0]["outputs"]] for evaluation in evaluations]
    references = [target for _, target in corpus.load(finished_runs[0].config.data)["test"]]
    assert second[3] == f"{paired_bootstrap_p(*texts, references):.3f}"
    assert "1 or 2 seeds; " in table


def test_the_notes_name_the_beam_width(finished_runs, tmp_path):
    runs = copy_runs(finished_runs, tmp_path)
    for run in runs:
        edit_record(run, lambda record: record["results"][0].update(beam=5))
    assert "test split, beam 5;" in write_report(runs, "test", "x", [], tmp_path / "out")


def test_the_table_has_the_requested_beam_width(finished_runs, tmp_path):
    runs = copy_runs(finished_runs, tmp_path)
    widths = [(1, 5), (5, 1), (5,), (1,)]  # what earlier comparisons evaluated
    for run, beams in zip(runs, widths, strict=True):

        def evaluate(record: dict, beams: tuple[int, ...] = beams) -> None:
            result = record["results"][0]
            record["results"] = [result | {"beam": beam, "bleu_lower": beam} for beam in beams]

        edit_record(run, evaluate)
    table = write_report(
        runs, "test", "x", [], tmp_path / "out", beams=[5], columns=["seeds", "bleu_lower"]
    )
    assert "test split, beam 5;" in table
    rows = [line.split(" | ")[1:3] for line in table.splitlines()[2:4]]
    assert rows == [["2", "5.00 |"], ["1", "5.00 |"]]  # the last run lacks it


def copy_runs(runs: list[Run], folder: Path) -> list[Run]:
    copies = [replace(run, folder=folder / str(number)) for number, run in enumerate(runs)]
    for old, new in zip(runs, copies, strict=True):
        shutil.copytree(old.folder, new.folder)
    return copies


def edit_record(run: Run, change: Callable[[dict], object], name: str = "evaluation-test") -> None:
    file = run.folder / f"{name}.json"
    record = json.loads(file.read_text())
    change(record)
    file.write_text(json.dumps(record))


def test_the_notes_name_the_devices_and_the_number_of_jobs(finished_runs, tmp_path):
    runs = copy_runs(finished_runs, tmp_path / "runs")
    edit_record(runs[3], lambda card: card.update(jobs=7, device="an abacus"), "card")
    edit_record(runs[0], lambda card: card.pop("jobs"), "card")
    times, quality = (
        write_report(runs, "test", "x", [], tmp_path, columns=columns)
        for columns in (["training_seconds"], ["bleu"])
    )
    assert "up to 7 runs shared the device" in times
    assert "shared the device" not in quality  # no column of times
    assert re.search(r"threads, PyTorch \S+ and an abacus, PyTorch \S+\.\n", quality)


def test_figures_missing_in_files_of_an_earlier_version_are_empty_cells(finished_runs, tmp_path):
    runs = copy_runs(finished_runs, tmp_path)
    edit_record(runs[0], lambda record: record.pop("cache_bytes_per_token"))
    edit_record(runs[2], lambda record: record["results"][0].pop("bleu_lower_longest"))
    edit_record(runs[2], lambda record: record.update(bits_per_character=None))  # unknown tokens
    columns = ["bleu", "cache", "longest", "bits_per_character"]
    table = write_report(runs, "test", "x", [], tmp_path / "out", columns=columns)
    _, first, second = cells(table)
    assert (first[2], second[2], second[3], second[4]) == ("", "0", "", "")
    assert float(first[4]) > 0
    assert first[1] and first[3] and second[1]  # noqa: PT018


def test_the_seed_level_test_compares_the_bleu_of_the_runs(finished_runs, tmp_path):
    runs = copy_runs(finished_runs, tmp_path)
    values = [20.5, 21.7, 27.1, 26.8]
    for run, bleu in zip(runs, values, strict=True):
        edit_record(run, lambda record, bleu=bleu: record["results"][0].update(bleu_lower=bleu))
    columns = ["bleu_lower", "std", "variance", "p", "welch"]
    table = write_report(runs, "test", "x", [], tmp_path / "out", columns=columns)
    headings, first, second = cells(table)
    assert headings[2:] == ["std", "variance", "p", "p (Welch)"]
    assert first[2:] == ["0.85", "0.720", "", ""]
    assert second[5] == f"{welch_p(values[:2], values[2:]):.2g}"
    assert "p (Welch): Welch's t-test over seeds against cell gru" in table
    one_seed = [run for run in runs if run.seed == 1 or run.system == runs[0].system]
    table = write_report(one_seed, "test", "x", [], tmp_path / "out", columns=columns)
    assert cells(table)[2][-1] == ""


def test_a_comparison_of_synthetic_tasks_is_about_exact_match(finished_runs, tmp_path, monkeypatch):
    runs = copy_runs(finished_runs, tmp_path)
    values = [0.5, 0.7, 0.25, 0.25]
    for run, value in zip(runs, values, strict=True):
        edit_record(run, lambda record, value=value: record["results"][0].update(exact_match=value))
    monkeypatch.setattr("regard.compare.report.select_headline", lambda systems: "exact_match")
    table = write_report(runs, "test", "x", [], tmp_path / "out")
    headings, first, second = cells(table)
    assert headings[1:7] == ["exact match", "std", "variance", "95 % CI", "p", "p (Welch)"]
    assert first[1:4] == ["60.00%", "14.14", "200.000"]  # in percentage points
    assert second[6] == f"{welch_p(values[:2], values[2:]):.2g}"
    assert 0 < float(second[5]) <= 1
    assert "in percentage points" in table
    assert "paired bootstrap test against cell gru by exact match" in table


def test_the_data_decides_what_a_comparison_is_about(finished_runs):
    runs = plan(["case", "multi30k-gru"], [], [], [1], Path("runs"))
    synthetic, text = ({run.system.label: [run]} for run in runs)
    assert select_headline(synthetic) == "exact_match"
    assert select_headline(text) == select_headline(synthetic | text) == "bleu_lower"


def test_a_figure_that_a_run_does_not_have_is_an_empty_cell(finished_runs, tmp_path):
    """Bits per character are undefined where a reference has an unknown word."""
    runs = copy_runs(finished_runs, tmp_path)
    edit_record(runs[1], lambda record: record.update(bits_per_character=None))
    write_report(runs, "test", "x", [], tmp_path / "out")
    first, second = json.loads((tmp_path / "out" / "results.json").read_text())["systems"]
    assert first["summary"]["bits_per_character"] is None
    assert second["summary"]["bits_per_character"]["mean"] > 0
    rows = list(csv.DictReader((tmp_path / "out" / "table.csv").read_text().splitlines()))
    assert [row["bits_per_character"] != "" for row in rows] == [False, True]


INVALID = {
    "bleu_lower,longes": r'no column "longes"\. Did you mean "longest"\? Columns: seeds, bleu_lower',
    "": 'no column ""',
    "p,p": '"p,p" names a column twice',
}


@pytest.mark.parametrize("text", INVALID)
def test_an_invalid_column_is_an_error(text):
    with pytest.raises(UserError, match=INVALID[text]):
        select_columns(text)
    assert select_columns(" p, longest ") == ("p", "longest")


def test_the_latex_is_balanced_and_escaped(out):
    text = (out / "table.tex").read_text("utf-8")
    assert text.startswith(r"\begin{tabular}{l" + "r" * len(DEFAULT_COLUMNS) + "}")
    assert text.rstrip().endswith(r"\end{tabular}")
    assert text.count("{") == text.count("}")
    body = [line for line in text.splitlines() if line.endswith(r"\\")]
    assert len(body) == 3
    assert all(len(re.findall(r"(?<!\\)&", line)) == len(DEFAULT_COLUMNS) for line in body)
    assert not re.search(r"(?<!\\)[%#_]", text)
    assert r"$\pm$ " in text


def test_special_characters_are_escaped():
    [headings, row] = csv.reader(to_csv([{"system": 'x,"y"'}]).splitlines())
    assert (headings[0], row[0]) == ("system", 'x,"y"')
    assert format_rows([{"system": "x", "p": 0.25}], ["p", "bleu"]) == [
        ["system", "p", "BLEU"],
        ["x", "0.250", ""],
    ]


def test_a_failed_run_is_left_out_and_listed(finished_runs, tmp_path):
    missing = tmp_path / "none"
    runs = [*finished_runs[:3], replace(finished_runs[3], folder=missing)]
    failed = ["cell rnn, seed 2: no output"]
    table = write_report(runs, "test", "x", failed, tmp_path / "out")
    assert "Failed: cell rnn, seed 2: no output" in table
    systems = json.loads((tmp_path / "out" / "results.json").read_text())["systems"]
    assert [len(system["runs"]) for system in systems] == [2, 1]
    assert systems[1]["p"] == 1.0  # for the common seed: both have a BLEU of zero
    assert systems[1]["summary"]["val_loss"]["variance"] is None


def test_systems_without_a_seed_in_common_have_no_paired_test(finished_runs, tmp_path):
    write_report([finished_runs[0], finished_runs[3]], "test", "x", [], tmp_path)
    systems = json.loads((tmp_path / "results.json").read_text())["systems"]
    assert [run["seed"] for system in systems for run in system["runs"]] == [1, 2]
    assert systems[1]["p"] is None


def test_a_log_without_validations_has_no_curve(finished_runs, tmp_path):
    one, other, *_ = copy_runs(finished_runs, tmp_path / "runs")
    for run, exists in ((one, True), (other, False)):
        path = run.folder / "metrics.jsonl"
        path.write_bytes(path.read_bytes().partition(b"\n")[0] + b"\n")
        draw_curves({"a": [one.folder], "b": [other.folder]}, tmp_path)
        assert (tmp_path / "curves.png").is_file() == exists
        (tmp_path / "curves.png").unlink(missing_ok=True)


def test_outputs_that_are_not_those_of_the_split_are_an_error(finished_runs, tmp_path):
    runs = copy_runs(finished_runs, tmp_path / "runs")
    path = runs[2].folder / "evaluation-test.json"
    evaluation = json.loads(path.read_text())
    evaluation["results"][0] |= {"outputs": ["a"], "sentences": 1}
    path.write_text(json.dumps(evaluation))
    with pytest.raises(
        UserError, match=r"evaluation-test\.json is damaged: it has 1 outputs, and the"
    ):
        write_report(runs, "test", "x", [], tmp_path)


def test_a_damaged_log_is_an_error(finished_runs, tmp_path):
    runs = copy_runs(finished_runs, tmp_path / "runs")
    path = runs[2].folder / "metrics.jsonl"
    path.write_bytes(path.read_bytes().replace(b"{", b"\xff", 1))
    with pytest.raises(UserError, match=r"metrics\.jsonl is damaged: line 1: byte 0 is not UTF-8"):
        write_report(runs, "test", "x", [], tmp_path)


@pytest.mark.parametrize("name", ["card", "evaluation-test"])
def test_a_damaged_record_is_an_error(finished_runs, tmp_path, name):
    runs = copy_runs(finished_runs, tmp_path / "runs")
    (runs[2].folder / f"{name}.json").write_text("{")
    with pytest.raises(UserError, match=rf"2/{name}\.json is damaged: .*elete it"):
        write_report(runs, "test", "x", [], tmp_path)


def test_a_system_without_finished_runs_has_no_row(finished_runs, tmp_path):
    runs = [
        *finished_runs[:2],
        *(replace(run, folder=tmp_path / str(run.seed)) for run in finished_runs[2:]),
    ]
    table = write_report(runs, "test", "x", ["both"], tmp_path / "out")
    assert "cell rnn" not in table.split("\n\n")[0]


def test_a_comparison_without_finished_runs_is_an_error(finished_runs, tmp_path):
    runs = [replace(run, folder=tmp_path / str(n)) for n, run in enumerate(finished_runs)]
    with pytest.raises(UserError, match=r"no run finished.*: it diverged"):
        write_report(runs, "test", "x", ["it diverged"], tmp_path / "out")


def with_other_test_set(finished_runs: list[Run], text: str, folder: Path) -> list[Run]:
    """The same runs, but the config of the second system has this test set."""
    file = folder / "other.tsv"
    file.write_text(text, "utf-8")
    data = finished_runs[2].config.data.model_copy(update={"test": str(file)})
    other = finished_runs[2].config.model_copy(update={"data": data})
    return [*finished_runs[:2], *(replace(run, config=other) for run in finished_runs[2:])]


def test_systems_with_other_test_sentences_have_no_paired_test(finished_runs, tmp_path):
    """Systems with equal test sentences have one, even if their data tables differ."""
    same = Path(finished_runs[2].config.data.test).read_text("utf-8")
    for text, paired in ((same, True), (same.replace("\t", "x\t", 1), False)):
        write_report(
            with_other_test_set(finished_runs, text, tmp_path), "test", "x", [], tmp_path / "out"
        )
        systems = json.loads((tmp_path / "out" / "results.json").read_text())["systems"]
        assert (systems[1]["p"] is not None) == paired
        page = (tmp_path / "out" / "outputs.md").read_text()
        assert ("| cell rnn |" in page) == paired
        assert ("evaluated on other sentences: cell rnn." in page) != paired


def test_a_curve_is_the_validation_loss(finished_runs, tmp_path):
    curve = read_curve(finished_runs[0].folder)
    assert list(curve) == [2, 4, 6]
    card = json.loads((finished_runs[0].folder / "card.json").read_text())
    assert min(curve.values()) == card["figures"]["val_loss"]


def test_runs_of_different_lengths_are_drawn_as_one_curve(finished_runs, tmp_path):
    """Early stopping can end one run before another."""
    runs = []
    for run in finished_runs[:2]:
        shutil.copytree(run.folder, tmp_path / run.folder.name)
        runs.append(replace(run, folder=tmp_path / run.folder.name))
    file = runs[1].folder / "metrics.jsonl"
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:-1]))
    write_report(runs, "test", "x", [], tmp_path / "out")
    assert (tmp_path / "out" / "curves.png").is_file()


def test_hostile_names_of_systems_stay_in_their_cells():
    for name in HOSTILE.values():
        rows = format_rows([{"system": name, "p": 0.25}], ["p"])
        page = to_markdown(rows, ["note"], f"regard compare '{name}'", [f"{name}: {name}"])
        *table, _, _, _, command, _, failed = page.splitlines()
        assert len(table) == 3
        assert command.startswith("    regard compare")
        assert re.match(r"Failed: [^<]*$", failed)
        [headings, row] = csv.reader(io.StringIO(to_csv([{"system": name}]), newline=""))
        assert row[0].removeprefix("'") == name
        assert len(row) == len(headings)
