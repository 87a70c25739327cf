"""Which runs a comparison needs."""

from pathlib import Path

import pytest

from regard import presets
from regard.compare import plan
from regard.compare.plan import axis, fingerprint, short
from regard.config import Config
from regard.errors import UserError

OUT = Path("runs")


def test_every_preset_with_every_combination_and_each_seed():
    vary = ["model.cell=gru,lstm", "training.learning_rate=1e-3,1e-4,1e-5"]
    runs = plan(["case", "case-rnn"], vary, ["model.hidden_dim=31"], [2], OUT)
    assert len(runs) == 2 * 2 * 3 * 2
    assert len({run.folder for run in runs}) == len(runs)
    assert [run.seed for run in runs[:4]] == [1, 2, 1, 2]
    assert all(run.config.seed == run.seed for run in runs)
    assert all(run.config.model.hidden_dim == 31 for run in runs)
    assert [run.system.label for run in runs[::2][:3]] == [
        f"case, cell gru, learning_rate {rate}" for rate in ("1e-3", "1e-4", "1e-5")
    ]
    last = runs[-1]
    assert (last.system.preset, last.config.model.cell) == ("case-rnn", "lstm")
    assert last.config.training.learning_rate == 1e-5
    assert last.folder.parent.parent == OUT
    assert last.folder.name == "seed-2"


def test_each_preset_can_have_seeds_of_its_own():
    runs = plan(["case", "case-rnn"], ["training.learning_rate=1e-3,1e-4"], [], [3, 1], OUT)
    assert [(run.system.preset, run.seed) for run in runs] == [
        *[("case", seed) for seed in (1, 2, 3)] * 2,
        *[("case-rnn", 1)] * 2,
    ]


def test_a_preset_alone_is_called_by_its_name_and_a_lone_one_by_what_varies(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text('description = "mine"\n')
    assert [run.system.label for run in plan([str(file)], [], [], [1], OUT)] == ["mine"]
    assert [run.system.label for run in plan(["case"], ["model.cell=gru"], [], [1], OUT)] == [
        "cell gru"
    ]
    [run] = plan([str(file)], [], [], [1], OUT)
    assert run.folder.parent.name.startswith("mine-")


def test_a_varied_kind_resets_its_table_and_what_is_set_besides_stays():
    vary = ["model.attention.score.kind=dot,location"]
    runs = plan(["case"], vary, ["model.attention.kq_dim=7"], [1], OUT)
    assert [run.config.model.attention.score.kind for run in runs] == ["dot", "location"]
    assert all(run.config.model.attention.kq_dim == 7 for run in runs)
    assert [run.system.label for run in runs] == ["score dot", "score location"]


@pytest.mark.parametrize(
    ("setting", "label"),
    [
        ("model.cell=gru", "cell gru"),
        ("model.attention.score.kind=dot", "score dot"),
        ("model.attention.score=dot", "score dot"),
        ("seed=3", "seed 3"),
        ("description=a=b", "description a=b"),
        ('model.position={kind="relative", form="query"}', "position relative form query"),
        ("model.attention={kv_heads=1}", "attention kv_heads 1"),
    ],
)
def test_a_short_name(setting, label):
    assert short(setting) == label


def test_an_axis():
    assert axis("model.cell=gru,lstm") == ["model.cell=gru", "model.cell=lstm"]
    assert axis(" model.cell = gru , lstm ") == ["model.cell=gru", "model.cell=lstm"]
    assert axis("a=1") == ["a=1"]


def test_a_comma_inside_a_value_is_the_values():
    values = ['{kind="relative", form="query"}', "rotary", "[1, 2]", '"a, b"', "{x=1}"]
    assert axis("model.position=" + ",".join(values)) == [f"model.position={v}" for v in values]


@pytest.mark.parametrize("text", ["model.cell", "=gru", "model.cell=", "model.cell=gru,,rnn", ""])
def test_an_axis_that_varies_nothing(text):
    with pytest.raises(UserError, match="varies nothing: write key=a,b,c"):
        axis(text)


def test_equal_settings_have_one_fingerprint_however_they_came_about():
    plain = presets.load("case")
    same = presets.load("case", ["model.hidden_dim=128", "seed=9", "description=other words"])
    assert fingerprint(plain) == fingerprint(same)
    others = [
        plain.model_copy(update={"search": plain.search.model_copy(update={"max_extra": 3})}),
        presets.load("case", ["model.cell=rnn"]),
        presets.load("case", ["training.epochs=0.5"]),
        presets.load("case", ["data.seed=2"]),
        Config(),
    ]
    names = {fingerprint(config) for config in [plain, *others]}
    assert len(names) == len(others) + 1


@pytest.mark.parametrize(
    ("names", "vary"),
    [
        (["case", "case"], []),
        (["case"], ["model.cell=gru,gru"]),
        (["case"], ["seed=1,2"]),  # every system has its seeds: these two are one
        (["case"], ["model.hidden_dim=128,0x80"]),
        (["case"], ["description=one,two"]),
    ],
    ids=str,
)
def test_the_same_system_twice_is_refused(names, vary):
    with pytest.raises(UserError, match="two systems are the same"):
        plan(names, vary, [], [2], OUT)


def test_mistakes_are_told_before_anything_runs():
    with pytest.raises(UserError, match="or one for each: got 2 numbers and 3 presets"):
        plan(["case", "case-rnn", "case-transformer"], [], [], [2, 1], OUT)
    with pytest.raises(UserError, match='Did you mean "gru"'):
        plan(["case"], ["model.cell=rnn,gruu"], [], [1], OUT)
    with pytest.raises(UserError, match='no preset "caes"'):
        plan(["case", "caes"], [], [], [1], OUT)
