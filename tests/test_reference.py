"""The list of settings: complete, with a meaning each, and true to the tables."""

from typing import Any

import pytest

from regard import presets
from regard.config import Config
from regard.config.reference import find_settings, format_setting, list_settings
from regard.errors import UserError

SETTINGS = list_settings()


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.key)
def test_every_setting_has_a_type_and_a_meaning(setting) -> None:
    assert setting.meaning
    assert setting.type
    text = format_setting(setting)
    assert text.startswith(setting.key)
    assert all(len(line) <= 100 for line in text.splitlines())


@pytest.mark.parametrize("name", presets.names())
def test_every_key_of_every_preset_is_listed(name: str) -> None:
    tables = presets.load(name).model_dump(mode="json")
    listed = {setting.key for setting in SETTINGS}
    for path, _ in presets.leaves(tables):
        assert ".".join(path) in listed


def is_allowed(setting) -> bool:
    """A recurrent encoder rejects the positions that act in self-attention."""
    position = setting.kinds.get("model.encoder.position.kind", ["none"])
    return not {"relative", "alibi", "rotary", "interleaved"} & set(position)


@pytest.mark.parametrize(
    "setting", list(filter(is_allowed, SETTINGS)), ids=lambda setting: setting.key
)
def test_defaults_are_those_of_the_tables(setting) -> None:
    """Build a config with the kinds that have this setting, and read it there."""
    if setting.required or "[]" in setting.key or setting.key.startswith("data.noise."):
        return
    table: dict[str, Any] = {}
    required = {"files": {"train": "a", "val": "b"}, "text": {"name": "multi30k"}}
    required |= {"pretrained": {"name": "x"}, "hf": {"name": "x"}}
    for key, kinds in setting.kinds.items():
        presets.set_path(table, key.split("."), kinds[0])
        for name, value in required.get(kinds[0], {}).items():
            if f"{key.removesuffix('.kind')}.{name}" != setting.key:
                presets.set_path(table, [*key.split(".")[:-1], name], value)
    if setting.key in ("data.name", "data.train", "data.val") and "text" in str(setting.kinds):
        return  # one of them must be given
    config: Any = construct(table)
    for step in setting.key.split("."):
        config = getattr(config, step)
    assert config == setting.default


def construct(table: dict[str, Any]) -> Config:
    if table.get("tokenizer", {}).get("kind") == "pretrained":
        table["model"] = {"kind": "pretrained", "name": "x"}
    if table.get("model", {}).get("position", {}).get("kind") == "interleaved":
        table["model"]["decoder"] = {"layers": 4}
    return presets.validate(table, "test")


def test_settings_are_found_by_key_table_and_ending() -> None:
    assert [s.key for s in find_settings("training.epochs")] == ["training.epochs"]
    assert [s.key for s in find_settings("epochs")] == ["training.epochs"]
    training = {s.key for s in find_settings("training")}
    assert training == {f"training.{name}" for name in type(Config().training).model_fields}
    assert {s.key for s in find_settings("dropout")} == {
        *("model.dropout", "model.attention.dropout", "model.tune.dropout"),
        "tokenizer.dropout",
    }


def test_kinds_say_which_tables_have_a_setting() -> None:
    recurrent, transformer = find_settings("model.dropout")
    assert recurrent.kinds == {"model.kind": ["recurrent"]}
    assert transformer.kinds == {"model.kind": ["transformer", "decoder-only"]}
    [epochs] = find_settings("epochs")
    assert epochs.kinds == {}
    [layers] = find_settings("model.tune.layers")
    assert list(layers.kinds.values()) == [["pretrained"], ["frozen"]]


def test_unknown_setting_error() -> None:
    with pytest.raises(UserError, match=r'no setting "epoch"\. Did you mean "epochs"\? `regard'):
        find_settings("epoch")
    with pytest.raises(UserError, match=r'Did you mean "training\.epochs"'):
        find_settings("trainig.epochs")
