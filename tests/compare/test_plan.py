"""Plans: which runs a comparison needs."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard import presets
from regard.compare.plan import fingerprint, parse_axis, plan, short_label
from regard.config import (
    Config,
    MultiHead,
    NoAttention,
    PlainNormaliser,
    Recurrent,
    SingleHead,
    Table,
    Training,
    Transformer,
    one_of,
)
from regard.errors import UserError
from regard.text import corpus

OUT = Path("runs")


def test_a_plan_is_presets_by_combinations_by_seeds():
    vary = ["model.cell=gru,rnn", "training.learning_rate=1e-3,1e-4,1e-5"]
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
    assert (last.system.preset, last.config.model.cell) == ("case-rnn", "rnn")
    assert last.config.training.learning_rate == 1e-5
    assert last.folder.parent.parent == OUT
    assert last.folder.name == "seed-2"


def test_each_preset_can_have_its_number_of_seeds():
    runs = plan(["case", "case-rnn"], ["training.learning_rate=1e-3,1e-4"], [], [3, 1], OUT)
    assert [(run.system.preset, run.seed) for run in runs] == [
        *[("case", seed) for seed in (1, 2, 3)] * 2,
        *[("case-rnn", 1)] * 2,
    ]


def test_own_files_are_read_once_for_all_runs(tmp_path, monkeypatch):
    loads = []

    def load_full(data, splits):
        loads.append(splits)
        return corpus.Corpus({"train": [("a", "b")] * 4000})

    monkeypatch.setattr(corpus, "load_full", load_full)
    (tmp_path / "mine.toml").write_text('data = {kind = "files", train = "a.tsv", val = "b.tsv"}')
    runs = plan([str(tmp_path / "mine.toml")], ["model.cell=gru,rnn"], [], [2], OUT)
    assert {run.config.training.batch_sentences for run in runs} == {48}
    assert loads == [("train",)]


def test_labels_without_variation_and_with_a_single_preset(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text('description = "mine"\ndata = "synthetic"\n')
    assert [run.system.label for run in plan([str(file)], [], [], [1], OUT)] == ["mine"]
    assert [run.system.label for run in plan(["case"], ["model.cell=gru"], [], [1], OUT)] == [
        "cell gru"
    ]
    [run] = plan([str(file)], [], [], [1], OUT)
    assert run.folder.parent.name.startswith("mine-")


def test_a_varied_kind_resets_its_table_and_keeps_other_settings():
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
        (
            'model.attention={kind="latent", score={kind="location", max_length=9}}',
            "attention latent score location max_length 9",
        ),
    ],
)
def test_a_short_label(setting, label):
    assert short_label(setting) == label


def test_parse_axis():
    assert parse_axis("model.cell=gru,lstm") == ["model.cell=gru", "model.cell=lstm"]
    assert parse_axis(" model.cell = gru , lstm ") == ["model.cell=gru", "model.cell=lstm"]
    assert parse_axis("a=1") == ["a=1"]


def test_a_comma_inside_a_value_does_not_split_it():
    values = [
        '{kind="relative", form="query"}',
        "rotary",
        '{kind="multi-head", score={kind="additive", dim=3}}',
        '{a={b={c=[1, 2]}, d=","}}',
        "[1, 2]",
        '[{a=1, b=2}, {a=[3, 4], b="}, ]"}]',
        '"a, b"',
        r'"a \", [b"',
        r"'a\'",  # in single quotes, a backslash is a character
        "'a, {b'",
        '"""a", "b"""',
        "{x=1}",
    ]
    assert parse_axis("model.position=" + ",".join(values)) == [
        f"model.position={v}" for v in values
    ]


STRINGS = st.text("ab,={}[]\"'\\# \n\u00e9", max_size=6)
VALUES = st.recursive(
    st.booleans() | st.integers(-9, 9) | st.floats(-9, 9) | STRINGS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(STRINGS, inner, max_size=3),
)


def to_inline_toml(value: Any) -> str:
    if isinstance(value, dict):
        pairs = (f"{json.dumps(key)} = {to_inline_toml(inner)}" for key, inner in value.items())
        return f"{{{', '.join(pairs)}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(to_inline_toml, value))}]"
    return json.dumps(value)


@given(st.lists(VALUES, min_size=1, max_size=4))
def test_values_joined_by_commas_are_split_again(values):
    axis = parse_axis("a.b=" + ",".join(map(to_inline_toml, values)))
    assert [presets.parse_setting(setting) for setting in axis] == [
        (["a", "b"], value) for value in values
    ]


@pytest.mark.parametrize("value", ['{kind="relative", form="query"', "[1, 2", '"a, b', "[a], b"])
def test_an_unclosed_value_is_an_error(value):
    with pytest.raises(UserError, match="a bracket or a quote is missing in") as error:
        parse_axis(f"model.position=rotary, {value}")
    assert str(error.value).endswith(value)


@pytest.mark.parametrize("text", ["model.cell", "=gru", "model.cell=", "model.cell=gru,,rnn", ""])
def test_an_invalid_axis_is_an_error(text):
    with pytest.raises(UserError, match="is not a valid --vary: write key=a,b,c"):
        parse_axis(text)


def test_equal_settings_have_equal_fingerprints():
    default = presets.load("case")
    same = presets.load(
        "case", ["model.hidden_dim=128", "seed=9", "description=another description"]
    )
    assert fingerprint(default) == fingerprint(same)
    others = [
        default.model_copy(update={"search": default.search.model_copy(update={"max_extra": 3})}),
        presets.load("case", ["model.cell=rnn"]),
        presets.load("case", ["training.epochs=0.5"]),
        presets.load("case", ["data.seed=2"]),
        Config(),
    ]
    fingerprints = {fingerprint(config) for config in [default, *others]}
    assert len(fingerprints) == len(others) + 1


def neighbours(table: Table) -> Iterator[Table]:
    """Copies of a table that differ in one field, at any depth, in its value or its kind."""
    for name, value in table:
        others: list[Any] = [None if value is not None else "another"]
        if isinstance(value, Table):
            others += neighbours(value)
        elif isinstance(value, bool | int | float):
            others.append(value + 1)
        elif isinstance(value, str):
            others.append(value + "x")
        elif isinstance(value, tuple):
            others += [value[1:] or ("x",), (*value, *value)]
        for other in others:
            if other != value:
                yield table.model_copy(update={name: other})


def test_configs_that_differ_in_any_field_have_different_fingerprints():
    for preset in presets.names():
        config = presets.load(preset)
        unhashed = {"seed": config.seed, "description": config.description}
        others = [one for one in neighbours(config) if one.model_copy(update=unhashed) != config]
        fingerprints = [fingerprint(one) for one in [config, *others]]
        assert len(others) > 50
        assert len(set(fingerprints)) == len(fingerprints), preset


def test_two_kinds_with_their_defaults_have_different_fingerprints():
    kinds = [
        presets.load("multi30k-transformer", [f"model.position={kind}"])
        for kind in ("none", "sinusoidal", "learned", "relative", "alibi", "rotary")
    ]
    assert len({fingerprint(config) for config in kinds}) == len(kinds)


class NewTraining(Training):
    optimizer: str = "adamw"


class NewSingleHead(SingleHead):
    sinks: int = 0
    temperature: PlainNormaliser = PlainNormaliser()


class NewRecurrent(Recurrent):
    attention: one_of(NewSingleHead, NoAttention) = NewSingleHead()


class NewMultiHead(MultiHead):
    sinks: int = 0


class NewTransformer(Transformer):
    attention: one_of(NewMultiHead) = NewMultiHead()


class NewConfig(Config):
    """A later version: new fields with defaults, and the fields in another order."""

    training: NewTraining = NewTraining()
    model: one_of(NewRecurrent, NewTransformer) = NewRecurrent()
    dtype: str = "float32"
    description: str = ""


def test_a_new_setting_with_a_default_changes_no_fingerprint():
    for preset in ("case", "case-rnn", "multi30k-gru", "multi30k-transformer"):
        for settings in ([], ["model.attention.score=dot", "training.epochs=7"]):
            config = presets.load(preset, settings)
            table = config.model_dump(exclude_none=True)
            newer = NewConfig.model_validate(table)
            assert fingerprint(newer) == fingerprint(config)
            changed = NewConfig.model_validate(table | {"dtype": "float64"})
            assert fingerprint(changed) != fingerprint(config)


@pytest.mark.parametrize(
    ("names", "vary"),
    [
        (["case", "case"], []),
        (["case"], ["model.cell=gru,gru"]),
        (["case"], ["seed=1,2"]),  # seeds are counted separately: both have the same settings
        (["case"], ["model.hidden_dim=128,0x80"]),
        (["case"], ["description=one,two"]),
    ],
    ids=str,
)
def test_a_duplicate_system_is_an_error(names, vary):
    with pytest.raises(UserError, match="two systems have the same settings"):
        plan(names, vary, [], [2], OUT)


def test_user_errors_are_raised_while_planning():
    with pytest.raises(UserError, match="or one per preset: got 2 numbers and 3 presets"):
        plan(["case", "case-rnn", "case-transformer"], [], [], [2, 1], OUT)
    with pytest.raises(UserError, match='Did you mean "gru"'):
        plan(["case"], ["model.cell=rnn,gruu"], [], [1], OUT)
    with pytest.raises(UserError, match='no preset "caes"'):
        plan(["case", "caes"], [], [], [1], OUT)
