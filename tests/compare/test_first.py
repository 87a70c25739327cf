"""A comparison of systems that start from another: that one is trained first, and once."""

import json
import shutil
from pathlib import Path

import pytest

from regard.compare import plan, sweep
from regard.compare.sweep import before, finished, trained
from regard.errors import UserError


@pytest.fixture
def names(settings, tmp_path) -> list[str]:
    """mine.toml, which starts from base.toml, and plain.toml, which does not."""
    folder = settings[1].split("'")[1].rpartition("/")[0]
    data = "".join(f'{split} = "{folder}/{split}.tsv"\n' for split in ("train", "val", "test"))
    for name, init in (("base", ""), ("plain", ""), ("mine", f'init = "{tmp_path}/base.toml"\n')):
        text = f'{init}[data]\nkind = "files"\n{data}[tokenizer]\nmin_frequency = 2\n'
        text += "[training]\nepochs = 1\nbatch_sentences = 20\n"
        text += "learning_rate = 1e-2\n" if name == "base" else ""
        (tmp_path / f"{name}.toml").write_text(text, "utf-8")
    return [str(tmp_path / f"{name}.toml") for name in ("plain", "mine")]


SMALL = ["model.hidden_dim=8", "model.embedding_dim=6", "model.attention.kq_dim=5"]


def test_what_is_planned_first(names, tmp_path):
    runs = plan(names, ["data.fraction=0.5,1"], SMALL, [2], tmp_path / "runs")
    assert len(runs) == 8
    firsts = before(runs)
    assert [run.system.label for run in firsts] == ["base"]
    assert firsts[0].folder.parent.name.startswith("base-")
    assert firsts[0].config.model == runs[0].config.model  # or the weights would not fit
    assert firsts[0].config.data.fraction == 1
    assert [run.first is not None for run in runs] == 4 * [False] + 4 * [True]
    elsewhere = plan(names, ["data.fraction=0.5,1"], SMALL, [2], tmp_path / "other" / "place")
    assert [run.config for run in elsewhere] == [run.config for run in runs]
    wider = plan(names, ["model.hidden_dim=8,9"], SMALL[1:], [1], tmp_path / "runs")
    assert [run.config.model.hidden_dim for run in before(wider)] == [8, 9]


def test_it_is_trained_once_and_its_like_start_from_it(names, tmp_path, in_this_process):
    said: list[str] = []
    runs = plan(names, [], SMALL, [2], tmp_path / "runs")
    assert sweep(runs, "test", [1], "cpu", 1, said.append) == []
    [base] = before(runs)
    assert in_this_process == [base.folder, *(run.folder for run in runs)]
    assert said[1] == "first, as others start from it, base: done"
    assert trained(base)
    assert not (base.folder / "evaluation-test.json").exists()
    for run in runs:
        card = json.loads((run.folder / "card.json").read_text("utf-8"))
        assert (card["init"] is None) == (run.first is None)
    shutil.move(tmp_path / "runs", tmp_path / "moved")
    there = plan(names, [], SMALL, [2], tmp_path / "moved")
    shutil.rmtree(before(there)[0].folder)  # what is done needs it no more
    assert all(finished(run, "test", [1]) for run in there)
    assert sweep(there, "test", [1], "cpu", 1, said.append) == []
    assert len(in_this_process) == 5


def test_where_it_fails_the_others_have_their_turn(names, tmp_path, in_this_process):
    base = Path(tmp_path / "base.toml")
    base.write_text(base.read_text("utf-8").replace("1e-2", "1e30\nwarmup_steps = 0"), "utf-8")
    runs = plan(names, [], SMALL, [1], tmp_path / "runs")
    [failed] = sweep(runs, "test", [1], "cpu", 1, lambda line: None)
    assert failed.startswith("mine, seed 1: base: the ")
    assert "loss became" in failed
    assert in_this_process == [before(runs)[0].folder, runs[0].folder]


def test_a_circle_and_a_name_that_is_neither_are_refused(names, tmp_path):
    file = tmp_path / "base.toml"
    file.write_text(f'init = "{names[1]}"\n' + file.read_text("utf-8"), "utf-8")
    with pytest.raises(
        UserError, match=r"init goes round in a circle: .*mine.toml from .*base.toml"
    ):
        plan(names, [], SMALL, [1], tmp_path / "runs")
    with pytest.raises(UserError, match='there is no preset "captions"'):
        plan(["case"], [], ["init=captions"], [1], tmp_path / "runs")


@pytest.mark.parametrize("data", ["multi30k", "tatoeba"])
@pytest.mark.parametrize("start", ["lm", "denoising"])
def test_our_presets_fit_what_they_start_from(data, start, tmp_path):
    [run] = plan([f"{data}-fr-en-from-{start}"], [], [], [1], tmp_path)
    assert run.first is not None
    scratch = plan([f"{data}-fr-en-decoder-only"], [], [], [1], tmp_path)[0].config
    assert run.config.model_copy(update={"init": None, "description": ""}) == scratch.model_copy(
        update={"description": ""}
    )
    mine, base = (config.model.model_dump() for config in (run.config, run.first.config))
    assert mine | {"dropout": None} == base | {"dropout": None}
    assert run.first.config.is_language_model == (start == "lm")
    assert run.config.tokenizer.kind == run.first.config.tokenizer.kind
