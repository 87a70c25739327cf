"""Run folders, read without PyTorch: cards, logs, evaluations."""

import json
import shutil
from pathlib import Path

import pytest

from regard import presets
from regard.errors import UserError
from regard.runs import COLUMNS, RunFolder, find_runs, open_run, tabulate


def write_run(folder: Path, *overrides: str, card: bool = True, **figures: object) -> Path:
    """A run folder of the preset `case`, without a model."""
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(presets.load("case", overrides).to_toml(), "utf-8")
    figures = {"parameters": 7, "steps": 30, "val_loss": 0.5, "training_seconds": 2.0} | figures
    start = {"versions": {"regard": "0.2.0"}, "device": "abacus", "seed": 1}
    if card:
        document = {**start, "data": {"train": "ab"}, "figures": {**figures, "best_step": 20}}
        (folder / "card.json").write_text(json.dumps(document), "utf-8")
    events = [
        {"event": "start", "parameters": 7, **start},
        {"event": "validation", "step": 10, "loss": 0.75, "seconds": 1.0},
        {"event": "validation", "step": 20, "loss": 0.9, "seconds": 1.5},
    ]
    lines = [json.dumps(event) for event in events]
    (folder / "metrics.jsonl").write_text("\n".join([*lines, '{"event": "val']), "utf-8")
    return folder


def write_evaluation(folder: Path, split: str, *results: tuple[int, float]) -> None:
    scores = {"exact_match": 0.0, "sentences": 1, "outputs": ["a"]}
    scores["signatures"] = {"bleu": "s", "bleu_lower": "s"}
    rows = [{"beam": k, "bleu": bleu - 1, "bleu_lower": bleu, **scores} for k, bleu in results]
    text = json.dumps({"split": split, "results": rows})
    (folder / f"evaluation-{split}.json").write_text(text, "utf-8")


def test_the_preset_is_found_with_its_changes(tmp_path: Path) -> None:
    changed = RunFolder(write_run(tmp_path / "a", "training.epochs=3", "seed=5"))
    assert (changed.preset, changed.changes) == ("case", {"training.epochs": 3.0})
    renamed = RunFolder(write_run(tmp_path / "b", "description=mine"))
    assert (renamed.preset, renamed.changes) == ("case", {})
    own = RunFolder(write_run(tmp_path / "c", "description=mine", "model.hidden_dim=17"))
    assert (own.preset, own.changes) == (None, {})


def test_an_unfinished_run_has_the_figures_of_its_log(tmp_path: Path) -> None:
    run = RunFolder(write_run(tmp_path / "run", card=False))
    assert not run.is_finished
    assert run.figures == {
        "parameters": 7,
        "val_loss": 0.75,
        "best_step": 10,
        "steps": 20,
        "training_seconds": 1.5,
    }
    (run.folder / "metrics.jsonl").unlink()
    assert RunFolder(run.folder).figures == {"parameters": None}


def test_the_description_has_every_file_and_evaluation(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    write_evaluation(folder, "test", (1, 40.0), (5, 42.0))
    document = open_run(folder).describe()
    assert set(document["files"]) == {
        *("config.toml", "card.json", "metrics.jsonl", "evaluation-test.json")
    }
    assert document["files"]["card.json"] == (folder / "card.json").stat().st_size
    assert [(row["beam"], row["bleu_lower"]) for row in document["evaluations"]] == [
        (1, 40.0),
        (5, 42.0),
    ]
    assert (document["device"], document["data"]) == ("abacus", {"train": "ab"})
    json.dumps(document)


def test_runs_are_found_at_any_depth_and_sorted(tmp_path: Path) -> None:
    write_run(tmp_path / "b", val_loss=0.3)
    write_run(tmp_path / "deep" / "er", val_loss=0.1)
    write_run(tmp_path / "a", card=False)
    (tmp_path / "a" / "metrics.jsonl").unlink()
    write_evaluation(tmp_path / "a", "test", (1, 7.0), (5, 6.0))
    write_evaluation(tmp_path / "b", "test", (1, 9.0))
    write_evaluation(tmp_path / "deep" / "er", "val", (1, 99.0))
    runs = find_runs(tmp_path)

    def order(column: str) -> list[str]:
        return [Path(row["run"]).name for row in tabulate(runs, column)]

    assert order("run") == ["a", "b", "er"]
    assert order("val_loss") == ["er", "b", "a"]
    assert order("test_bleu") == ["b", "a", "er"]
    assert [row["test_bleu"] for row in tabulate(runs)] == [7.0, 9.0, None]


@pytest.mark.parametrize("column", COLUMNS)
def test_every_column_sorts(tmp_path: Path, column: str) -> None:
    write_run(tmp_path / "a")
    write_run(tmp_path / "b", card=False)
    rows = tabulate(find_runs(tmp_path), column)
    assert [set(row) for row in rows] == [set(COLUMNS)] * 2


def test_errors_name_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"there is no run folder .*regard train case"):
        open_run(tmp_path / "none")
    with pytest.raises(UserError, match=r"is not a run folder: it has no config\.toml$"):
        open_run(tmp_path)
    folder = write_run(tmp_path / "run")
    with pytest.raises(UserError, match=r"`regard runs .*` lists the 1 runs below it"):
        open_run(tmp_path)
    (folder / "card.json").write_text("{", "utf-8")
    with pytest.raises(UserError, match=r"card\.json is damaged"):
        open_run(folder).describe()
    shutil.rmtree(folder)
    assert find_runs(tmp_path) == []
