"""Every code name in docs/glossary.md exists: a setting in the config tables, or an importable attribute."""

import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, get_args

import pytest

from regard.config import Config, Table, kinds

TEXT = (Path(__file__).parents[1] / "docs" / "glossary.md").read_text("utf-8")
HEADER = ["symbol", "term", "code name", "paper"]
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in TEXT.splitlines()
    if line.startswith("|") and not line.startswith("|---")
]
NAMES = list(dict.fromkeys(name for row in ROWS for name in re.findall(r"`(.+?)`", row[2])))


def test_every_row_has_four_cells_and_a_code_name():
    assert all(len(row) == 4 for row in ROWS)
    assert all("`" in row[2] and row[1] for row in ROWS if row != HEADER)
    assert len(NAMES) > 100


def tables_in(annotation: Any) -> Iterator[type[Table]]:
    """The config tables that an annotation allows."""
    if inspect.isclass(annotation) and issubclass(annotation, Table):
        yield annotation
    for part in get_args(annotation):
        yield from tables_in(part)


def has_setting(table: type[Table], path: list[str], value: str) -> bool:
    """Is there a setting at this path, in one of the alternatives at each step, with this kind (if any)?"""
    field = table.model_fields.get(path[0])
    if field is None:
        return False
    inner = list(tables_in(field.annotation))
    if path[1:]:
        return any(has_setting(each, path[1:], value) for each in inner)
    return not value or any("kind" in t.model_fields and value in kinds(t) for t in inner)


def has_attribute(owner: Any, name: str) -> bool:
    """Does a class have the attribute: defined, annotated as a field, or set in `__init__`?"""
    if hasattr(owner, name) or not inspect.isclass(owner):
        return hasattr(owner, name)
    return any(
        name in vars(each).get("__annotations__", {})
        or re.search(rf"self\.{name}\b[^=\n]*=[^=]", inspect.getsource(each))
        for each in owner.__mro__
        if each.__module__.startswith("regard.")
    )


def resolves(name: str) -> bool:
    module, colon, path = name.partition(":")
    if not colon:
        key, _, value = name.partition(" = ")
        return has_setting(Config, key.split("."), value.strip('"'))
    try:
        owner = import_module(module)
    except ModuleNotFoundError:
        return False
    *outer, last = path.split(".")
    for step in outer:
        if not hasattr(owner, step):
            return False
        owner = getattr(owner, step)
    return has_attribute(owner, last)


@pytest.mark.parametrize("name", NAMES)
def test_code_name_resolves(name):
    assert resolves(name), f"docs/glossary.md has the code name {name}, which does not exist"


@pytest.mark.parametrize(
    "name",
    [
        "training.rate",
        'model.attention.score = "additve"',
        "regard.attention:Attend",
        "regard.attention:MultiHead.nothing",
        "regard.nothing:name",
    ],
)
def test_unknown_name_does_not_resolve(name):
    assert not resolves(name)
