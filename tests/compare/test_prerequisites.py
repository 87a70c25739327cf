"""Runs that are initialised from another run: it is trained first, and once."""

import importlib
import json
import shutil
import threading
from pathlib import Path

import pytest

from regard.compare.plan import plan
from regard.compare.processes import JobPool
from regard.compare.sweep import is_finished, is_trained, prerequisites, sweep
from regard.errors import UserError


@pytest.fixture
def names(settings, tmp_path) -> list[str]:
    """tuned.toml, which is initialised from base.toml, and plain.toml, which is not."""
    folder = settings[1].split("'")[1].rpartition("/")[0]
    data = "".join(f'{split} = "{folder}/{split}.tsv"\n' for split in ("train", "val", "test"))
    for name, init in (("base", ""), ("plain", ""), ("tuned", f'init = "{tmp_path}/base.toml"\n')):
        text = f'{init}[data]\nkind = "files"\n{data}[tokenizer]\nmin_frequency = 2\n'
        text += "[training]\nepochs = 1\nbatch_sentences = 20\n"
        text += "learning_rate = 1e-2\n" if name == "base" else ""
        (tmp_path / f"{name}.toml").write_text(text, "utf-8")
    return [str(tmp_path / f"{name}.toml") for name in ("plain", "tuned")]


SMALL = ["model.hidden_dim=8", "model.embedding_dim=6", "model.attention.kq_dim=5"]


def test_the_plan_has_one_prerequisite_for_all_variations_and_seeds(names, tmp_path):
    runs = plan(names, ["data.fraction=0.5,1"], SMALL, [2], tmp_path / "runs")
    assert len(runs) == 8
    [base] = prerequisites(runs)
    assert base.system.label == "base"
    assert base.folder.parent.name.startswith("base-")
    assert base.config.model == runs[0].config.model  # or the weights would not fit
    assert base.config.data.fraction == 1
    assert [bool(run.prerequisites) for run in runs] == 4 * [False] + 4 * [True]
    other_folder = plan(names, ["data.fraction=0.5,1"], SMALL, [2], tmp_path / "other" / "folder")
    assert [run.config for run in other_folder] == [run.config for run in runs]
    varied_model = plan(names, ["model.hidden_dim=8,9"], SMALL[1:], [1], tmp_path / "runs")
    assert [run.config.model.hidden_dim for run in prerequisites(varied_model)] == [8, 9]


def test_a_prerequisite_is_trained_once_and_initialises_its_runs(names, tmp_path, executed):
    messages: list[str] = []
    runs = plan(names, [], SMALL, [2], tmp_path / "runs")
    assert sweep(runs, "test", [1], "cpu", JobPool(1), messages.append) == []
    [base] = prerequisites(runs)
    assert executed == [base.folder, *(run.folder for run in runs)]
    assert messages[1] == "prerequisite base: done"
    assert is_trained(base)
    assert not (base.folder / "evaluation-test.json").exists()
    for run in runs:
        card = json.loads((run.folder / "card.json").read_text("utf-8"))
        assert (card["init"] is None) == (not run.prerequisites)
    shutil.move(tmp_path / "runs", tmp_path / "moved")
    moved = plan(names, [], SMALL, [2], tmp_path / "moved")
    shutil.rmtree(prerequisites(moved)[0].folder)  # finished runs no longer need it
    assert all(is_finished(run, "test", [1]) for run in moved)
    assert sweep(moved, "test", [1], "cpu", JobPool(1), messages.append) == []
    assert len(executed) == 5


def test_a_failed_prerequisite_fails_its_runs_only(names, tmp_path, executed):
    base = Path(tmp_path / "base.toml")
    base.write_text(base.read_text("utf-8").replace("1e-2", "1e30\nwarmup_steps = 0"), "utf-8")
    runs = plan(names, [], SMALL, [1], tmp_path / "runs")
    [failed] = sweep(runs, "test", [1], "cpu", JobPool(1), lambda line: None)
    assert failed.startswith("tuned, seed 1: base: the ")
    assert "loss became" in failed
    assert executed == [prerequisites(runs)[0].folder, runs[0].folder]


def test_a_circular_or_unknown_init_is_an_error(names, tmp_path):
    file = tmp_path / "base.toml"
    file.write_text(f'init = "{names[1]}"\n' + file.read_text("utf-8"), "utf-8")
    with pytest.raises(UserError, match=r"init is circular: .*tuned.toml from .*base.toml"):
        plan(names, [], SMALL, [1], tmp_path / "runs")
    with pytest.raises(UserError, match='there is no preset "captions"'):
        plan(["case"], [], ["init=captions"], [1], tmp_path / "runs")


@pytest.mark.parametrize("data", ["multi30k", "tatoeba"])
@pytest.mark.parametrize("start", ["lm", "denoising"])
def test_our_presets_fit_their_prerequisites(data, start, tmp_path):
    [run] = plan([f"{data}-fr-en-from-{start}"], [], [], [1], tmp_path)
    [before] = run.prerequisites
    scratch = plan([f"{data}-fr-en-decoder-only"], [], [], [1], tmp_path)[0].config
    assert run.config.model_copy(update={"init": None, "description": ""}) == scratch.model_copy(
        update={"description": ""}
    )
    model, base = (config.model.model_dump() for config in (run.config, before.config))
    assert model | {"dropout": None} == base | {"dropout": None}
    assert before.config.is_language_model == (start == "lm")
    assert run.config.tokenizer.kind == before.config.tokenizer.kind


def test_runs_start_as_soon_as_what_they_need_is_done(names, tmp_path, monkeypatch):
    """Two at a time: what is independent overlaps, and what is not waits for the other."""
    order, together = [], threading.Barrier(2)

    def execute(run, *_) -> str:
        order.append((run.system.label, "starts"))
        if run.system.label in ("base", "plain"):
            together.wait(timeout=20)  # neither waits for the other
        order.append((run.system.label, "ends"))
        return ""

    monkeypatch.setattr(importlib.import_module("regard.compare.sweep"), "execute", execute)
    runs = plan(names, [], SMALL, [1], tmp_path / "runs")
    assert sweep(runs, "test", [1], "cpu", JobPool(2), lambda line: None) == []
    assert order.index(("base", "ends")) < order.index(("tuned", "starts"))


def test_a_run_that_others_start_from_is_trained_once(names, tmp_path, executed):
    """It is a row of the table, too: evaluated after it was trained for the others."""
    base = str(tmp_path / "base.toml")
    runs = plan([base, names[1]], [], SMALL, [1], tmp_path / "runs")
    assert [run.folder for run in prerequisites(runs)] == [runs[0].folder]
    assert sweep(runs, "test", [1], "cpu", JobPool(2), lambda line: None) == []
    assert executed[0] == runs[0].folder
    events = (runs[0].folder / "metrics.jsonl").read_text("utf-8")
    assert events.count('"start"') == 1
    assert all(is_finished(run, "test", [1]) for run in runs)


def test_what_finished_prerequisites_needed_is_not_trained_again(names, tmp_path, executed):
    (tmp_path / "last.toml").write_text(f'base = "{names[1]}"\ninit = "{names[1]}"\n', "utf-8")
    last = [str(tmp_path / "last.toml")]
    runs = plan(last, [], SMALL, [1], tmp_path / "runs")
    base, _ = prerequisites(runs)
    assert sweep(runs, "test", [1], "cpu", JobPool(1), lambda line: None) == []
    shutil.rmtree(base.folder)
    more = plan(last, [], SMALL, [2], tmp_path / "runs")
    executed.clear()
    assert sweep(more, "test", [1], "cpu", JobPool(1), lambda line: None) == []
    assert executed == [more[1].folder]
