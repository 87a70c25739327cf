"""Runs with synthetic pairs: what makes them comes first, and an interruption anywhere changes nothing."""

import importlib
import io
import json
import pkgutil
import shutil
from pathlib import Path

import pytest

from regard import augment, presets
from regard.compare import job
from regard.compare.plan import plan
from regard.compare.processes import JobPool
from regard.compare.sweep import is_finished, prerequisites, sweep
from regard.config import Config
from regard.errors import UserError
from regard.loading import load, read_config
from regard.search import Hypothesis
from regard.terminal import Console
from regard.text import corpus
from regard.text.tokenizer import EOS
from regard.training import synthetic, train

WORDS = [f"{i * i * 7919 % 100_003:05}"[: 3 + i % 3] for i in range(90)]
SMALL = """
[tokenizer]
kind = "characters"
[model]
hidden_dim = 7
embedding_dim = 5
[training]
epochs = 2
batch_sentences = 8
validate_every = 5
learning_rate = 0.02
[search]
max_ratio = 0.0
max_extra = 7
"""


@pytest.fixture
def files(tmp_path, monkeypatch) -> Path:
    """reverse.toml trains on words and their reverse; more.toml adds pairs made of more words by it."""
    for split, words in (("train", WORDS[:40]), ("val", WORDS[40:50]), ("test", WORDS[50:55])):
        text = "".join(f"{word}\t{word[::-1]}\n" for word in words)
        (tmp_path / f"{split}.tsv").write_text(text)
    (tmp_path / "more.txt").write_text("".join(f"{word}\n" for word in WORDS[45:]))
    data = 'kind = "files"\ntrain = "train.tsv"\nval = "val.tsv"\ntest = "test.tsv"\n'
    (tmp_path / "reverse.toml").write_text(f"[data]\n{data}{SMALL}")
    entry = '{from = "reverse.toml", monolingual = "more.txt", max_ratio = 9.0, tag = true}'
    (tmp_path / "more.toml").write_text(f"[data]\n{data}repeat = 2\nsynthetic = [{entry}]\n{SMALL}")
    monkeypatch.setattr(augment, "WINDOW", 16)

    check = augment.Augmenter.check_output  # a model of so few steps hardly ever ends its output

    def check_all_but_the_end(self, text, output, length, hypothesis, score):
        ended = Hypothesis([*hypothesis.ids, EOS], hypothesis.score, 0.0)
        return check(self, text, output or "x", length, ended, score)

    monkeypatch.setattr(augment.Augmenter, "check_output", check_all_but_the_end)
    return tmp_path


def run(config: Config | None, folder: Path, resume: bool = False) -> dict:
    card = train(config, folder, "cpu", resume, Console(file=io.StringIO()))
    tensors = load(folder).model.state_dict()
    pairs = (folder / "synthetic" / "1" / "pairs.jsonl").read_text("utf-8")
    return {
        "weights": {name: tensor.tolist() for name, tensor in tensors.items()},
        "pairs": pairs,
        "data": card["data"],
        "counts": card["synthetic"][0]["counts"],
    }


def test_a_run_makes_its_pairs_first_and_records_them(files):
    config = presets.load(str(files / "more.toml"))
    folder = files / "run"
    made = run(config, folder)
    model = read_config(folder / "synthetic" / "1" / "model")
    assert model.data.swap
    assert not model.data.synthetic
    assert model.data.repeat == 1
    pairs = [json.loads(line) for line in made["pairs"].splitlines()]
    assert {pair["target"] for pair in pairs} <= set(WORDS[55:])  # without those of val and test
    assert made["counts"]["texts"] == 45
    assert made["counts"]["held_out"] >= 10
    card = json.loads((folder / "card.json").read_text("utf-8"))
    [record] = card["synthetic"]
    assert record["run"] == "../../../reverse.toml"
    assert record["recipe"]["max_ratio"] == 9
    used = sum(pair["source"] != "" for pair in pairs)
    assert any(f"{used} synthetic pairs" in message for message in card["messages"])
    assert 'file = "synthetic/1/pairs.jsonl"' in (folder / "config.toml").read_text("utf-8")
    assert "<BT>" in load(folder).tokenizers.source.vocab
    # Everything is in the folder, which may move.
    moved = files / "elsewhere" / "moved"
    moved.parent.mkdir()
    shutil.move(folder, moved)
    (files / "more.txt").unlink()
    (files / "reverse.toml").unlink()
    assert train(None, moved, "cpu", True, Console(file=io.StringIO()))["data"] == made["data"]
    assert len(read_config(moved).data.synthetic) == 1


class Killed(BaseException):
    """Not an Exception, so that no handler catches it and cleans up."""


KILLED_IN = {
    "the reverse model": ("regard.training.loop.TrainingLoop.validate", 2),
    "a window": ("regard.augment.Augmenter.pairs", 2),
    "the last rename": ("regard.files.complete", 1),
    "the run itself": ("regard.training.loop.TrainingLoop.validate", 5),
}


@pytest.mark.parametrize("moment", KILLED_IN)
def test_a_run_that_is_killed_goes_on_where_it_was(moment, files, monkeypatch):
    config = presets.load(str(files / "more.toml"))
    whole = run(config, files / "whole")
    name, call = KILLED_IN[moment]
    with monkeypatch.context() as patch:
        target, calls = pkgutil.resolve_name(name), iter(range(1, 1000))

        def wrapped(*arguments):
            if next(calls) == call:
                raise Killed
            return target(*arguments)

        patch.setattr(name, wrapped)
        with pytest.raises(Killed):
            run(config, files / "killed")
    assert run(None, files / "killed", resume=True) == whole


def test_ctrl_c_keeps_what_is_done(files, monkeypatch):
    config = presets.load(str(files / "more.toml"))
    with monkeypatch.context() as patch:

        def interrupt(*_):
            raise KeyboardInterrupt

        patch.setattr(augment.Augmenter, "pairs", interrupt)
        with pytest.raises(KeyboardInterrupt):
            run(config, files / "run")
    assert (files / "run" / "synthetic" / "1" / "model" / "card.json").is_file()
    run(config, files / "run", resume=True)


def test_a_trained_run_translates_as_it_is(files):
    reverse = presets.load(str(files / "reverse.toml"), ["data.swap=true"])
    train(reverse, files / "translator", "cpu", False, Console(file=io.StringIO()))
    settings = [f'data.synthetic=[{{from="{files}/translator",monolingual="train",max_ratio=9.0}}]']
    config = presets.load(str(files / "reverse.toml"), settings)
    made = run(config, files / "run")
    assert not (files / "run" / "synthetic" / "1" / "model").exists()
    assert {json.loads(line)["target"] for line in made["pairs"].splitlines()} <= {
        word[::-1] for word in WORDS[:40]
    }


def test_an_ensemble_translates_the_sources_for_distillation(files):
    for seed in (1, 2):
        config = presets.load(str(files / "reverse.toml"), [f"seed={seed}", "training.epochs=15"])
        train(config, files / f"run-{seed}", "cpu", False, Console(file=io.StringIO()))
    names = f"{files}/run-1,{files}/run-2"
    settings = [
        f'data.synthetic=[{{from="{names}",monolingual="train",reverse=false,max_ratio=9.0}}]',
        "data.repeat=0",
    ]
    made = run(presets.load(str(files / "reverse.toml"), settings), files / "student")
    pairs = [json.loads(line) for line in made["pairs"].splitlines()]
    assert {pair["source"] for pair in pairs} <= set(WORDS[:40])
    outputs = load(names).translate([pair["source"] for pair in pairs], attention=False)
    assert [output.text for output in outputs] == [pair["target"] for pair in pairs]


def test_the_number_of_pairs_is_known_before_anything_is_translated(files):
    config = presets.load(str(files / "more.toml"))
    assert synthetic.count_pairs(config, corpus.load) == 2 * 40 + 45
    limited = presets.load(
        str(files / "more.toml"),
        ["data.repeat=1", 'data.synthetic=[{from="case",monolingual="train",limit=7,repeat=3}]'],
    )
    assert synthetic.count_pairs(limited, corpus.load) == 40 + 3 * 7


def test_a_circle_is_an_error(files):
    text = (files / "more.toml").read_text()
    (files / "more.toml").write_text(text.replace("reverse.toml", "more.toml"))
    config = presets.load(str(files / "more.toml"))
    with pytest.raises(UserError, match=r"data.synthetic: from is circular: .*more.toml from"):
        run(config, files / "run")
    with pytest.raises(UserError, match="circular"):
        plan([str(files / "more.toml")], [], [], [1], files / "runs")


def test_a_model_of_the_wrong_direction_is_an_error(files):
    settings = [
        'data={kind="dataset",name="multi30k",source="de",target="en",synthetic=[{from="de-en",'
        'monolingual="more.txt"}]}'
    ]
    config = presets.load(str(files / "reverse.toml"), settings)
    entry = config.data.synthetic[0]
    with pytest.raises(UserError, match=r"de-en translates de to en, and en to de is needed"):
        synthetic.check_direction("de-en", config.data, entry)
    forward = entry.model_copy(update={"reverse": False})
    synthetic.check_direction("de-en", config.data, forward)


# --- comparisons ----------------------------------------------------------------------------------


def execute(one, split, beams, device, jobs, pool) -> str:
    """`sweep.execute` without a subprocess."""
    config = one.folder.with_suffix(".toml")
    config.parent.mkdir(parents=True, exist_ok=True)
    config.write_text(one.config.to_toml())
    if one.makes_pairs:
        job.make_pairs(config, one.folder, device)
    else:
        job.run_job(config, one.folder, device, jobs, split, list(beams))
    return ""


def test_a_comparison_makes_pairs_once_for_all_seeds(files, monkeypatch):
    monkeypatch.setattr(importlib.import_module("regard.compare.sweep"), "execute", execute)
    names = [str(files / "more.toml")]
    runs = plan(names, ["data.repeat=1,2"], [], [2], files / "runs")
    model, pairs = prerequisites(runs)
    assert pairs.makes_pairs
    assert pairs.prerequisites == (model,)
    assert pairs.system.label == "pairs by reverse"
    messages: list[str] = []
    assert sweep(runs[:2], "test", [1], "cpu", JobPool(1), messages.append) == []
    expected = ["prerequisite reverse: done", "prerequisite pairs by reverse: done"]
    assert messages[1:3] == expected
    made = (pairs.folder / "pairs.jsonl").read_bytes()
    for one in runs[:2]:
        entry = read_config(one.folder).data.synthetic[0]
        assert Path(entry.file) == pairs.folder / "pairs.jsonl"
        assert not (one.folder / "synthetic").exists()
        assert json.loads((one.folder / "card.json").read_text("utf-8"))["synthetic"]
    assert sweep(runs[:2], "test", [1], "cpu", JobPool(1), messages.append) == []
    assert messages[-1].startswith("2 runs, 2 already finished")
    assert (pairs.folder / "pairs.jsonl").read_bytes() == made
    shutil.rmtree(model.folder)  # finished runs no longer need it
    assert is_finished(runs[0], "test", [1])
    (runs[0].folder / "card.json").unlink()
    assert execute(runs[0], "test", [1], "cpu", 1, JobPool(1)) == ""
    assert is_finished(runs[0], "test", [1])
    # Another model makes other pairs.
    text = (files / "reverse.toml").read_text()
    (files / "reverse.toml").write_text(text.replace("hidden_dim = 7", "hidden_dim = 8"))
    _, other = prerequisites(plan(names, [], [], [1], files / "runs"))
    assert other.folder != pairs.folder


def test_experiments_that_were_moved_keep_their_runs(files):
    shutil.copytree(files, files / "moved")
    for name in ("more.toml", "reverse.toml"):
        text = (files / name).read_text()
        for data in ("train.tsv", "val.tsv", "test.tsv", "more.txt"):
            text = text.replace(f'"{data}"', f'"{files / data}"')
        (files / name).write_text(text)
        (files / "moved" / name).write_text(text)
    plans = [
        plan([str(folder / "more.toml")], [], [], [2], files / "runs")
        for folder in (files, files / "moved")
    ]
    here, there = [[one.folder for one in [*prerequisites(p), *p]] for p in plans]
    assert here == there


def test_a_reverse_model_is_trained_once_for_all_ways_to_search(files):
    entries = [
        f'[{{from="{files}/reverse.toml",monolingual="train",{search}}}]'
        for search in ("beam=2", "sample=true")
    ]
    runs = plan(
        [str(files / "reverse.toml")], [f"data.synthetic={','.join(entries)}"], [], [2], files
    )
    assert [run.makes_pairs for run in prerequisites(runs)] == [False, True, True]
