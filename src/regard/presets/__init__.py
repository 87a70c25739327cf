"""Named experiments: a preset is a TOML file, found by name, changed by `--set`, checked as a whole."""

import re
import tomllib
from collections.abc import Iterable
from importlib import resources
from pathlib import Path
from typing import Any, get_args

from pydantic import Tag, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from regard.config import Config, Table, extensions
from regard.errors import UserError, listing, nearest

# Steps of a place that nobody writes in a TOML file: which kind of table, which type of several.
UNWRITTEN = re.compile(r"kind:|(str|int|float|bool)$|.*\[")


def names() -> dict[str, str]:
    """Every preset and what it is, in one line."""
    folder = resources.files("regard.presets")
    files = sorted((f for f in folder.iterdir() if f.name.endswith(".toml")), key=lambda f: f.name)
    return {f.name[:-5]: tomllib.loads(f.read_text("utf-8"))["description"] for f in files}


def load(name: str, overrides: Iterable[str] = ()) -> Config:
    """The experiment in the preset or TOML file `name`, with `key=value` overrides applied."""
    return check(override(read(name), overrides), name)


def read(name: str) -> dict[str, Any]:
    """The raw table of a preset, or of a file if `name` ends in .toml."""
    if name.endswith(".toml"):
        return read_file(Path(name))
    file = resources.files("regard.presets") / f"{name}.toml"
    if not file.is_file():
        known = names()
        raise UserError(
            f'there is no preset "{name}".{nearest(name, known)} Presets: {listing(known)}. '
            "A file of your own must end in .toml."
        )
    return tomllib.loads(file.read_text("utf-8"))


def read_file(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise UserError(f"there is no file {path}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read: {error}") from None
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{path} is not valid TOML: {error}") from None


def override(table: dict[str, Any], settings: Iterable[str]) -> dict[str, Any]:
    """A copy of `table` with each `dotted.key=value` set. Setting a kind resets its table."""
    changes = [split(setting) for setting in settings]
    # Outer before inner, a table's kind before its keys: a later reset must not undo what was asked for
    # as well. `model.attention.kind = "none"` and the short `model.attention = "none"` are one depth.
    changes.sort(key=lambda change: len(change[0]) - (change[0][-1] == "kind"))
    table = dict(table)
    for path, value in changes:
        put(table, path, value)
    return table


def split(setting: str) -> tuple[list[str], Any]:
    """'model.decoder.layers=4' -> (['model', 'decoder', 'layers'], 4)"""
    key, equals, text = setting.partition("=")
    path = key.strip().split(".")
    if not equals or not all(path):
        raise UserError(f'"{setting}" sets nothing: write key=value, as in model.decoder.layers=4')
    try:
        return path, tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return path, text.strip()  # a bare word is a string


def put(table: dict[str, Any], path: list[str], value: Any) -> None:
    """Set the value at a path, copying the tables on the way."""
    *way, last = path
    for step in way:
        inner = table.get(step, {})
        if isinstance(inner, str):
            inner = {"kind": inner}
        table[step] = dict(inner) if isinstance(inner, dict) else {}
        table = table[step]
    if last == "kind" and table.get("kind") != value:
        table.clear()
    table[last] = value


def check(table: dict[str, Any], origin: str) -> Config:
    """The table as a Config, or every mistake in it at once."""
    try:
        return Config.model_validate(table)
    except ValidationError as error:
        mistakes = [explain(detail) for detail in error.errors()]
    heading = f"{origin}: {len(mistakes)} mistakes\n  " if len(mistakes) > 1 else f"{origin}: "
    raise UserError(heading + "\n  ".join(mistakes))


def explain(error: ErrorDetails, root: type[Table] = Config) -> str:
    """One mistake: the dotted path, what was given, what is allowed, the nearest spelling."""
    place = [str(step) for step in error["loc"]]
    path = ".".join(step for step in place if not UNWRITTEN.match(step))
    given, ctx = error["input"], error.get("ctx", {})
    shown = f'"{given}"' if isinstance(given, str) else given
    match error["type"]:
        case "extra_forbidden":
            known = list(fields_at(place[:-1], root))
            return f"{path}: unknown key.{nearest(place[-1], known)} Known here: {listing(known)}"
        case "kind":
            kind = given.get("kind") if isinstance(given, dict) else given
            added = sorted(extensions(ctx["extension"]))
            choices = list(dict.fromkeys([*error["msg"].split(", "), *added]))
            own = " One of your own? Name its file in $REGARD_KINDS." if ctx["extension"] else ""
            told = f"choose {listing(choices)}.{nearest(str(kind), choices)}{own}"
            return f'{path}.kind: got "{kind}"; {told}'
        case "missing":
            field = fields_at(place[:-1], root).get(place[-1])
            what = f". {field.description}" if field and field.description else ""
            return f"{path}: it is missing, and has no default{what}"
        case "tuple_type":
            return f'{path}: got {shown}; it should be a list, as in ["a", "b"]'
        case "string_too_short":
            return f"{path}: it is empty"
        case "literal_error":
            choices = [c.strip(" '") for c in ctx["expected"].replace(" or ", ", ").split(",")]
            return f"{path}: got {shown}; choose {listing(choices)}.{nearest(str(given), choices)}"
        case "value_error":
            told = str(ctx["error"])
            return told if told.startswith(path) else f"{path}: {told}"
        case _:
            wanted = error["msg"].removeprefix("Input should be ")
            return f"{path}: got {shown}; it should be {wanted}"


def fields_at(place: list[str], root: type[Table]) -> dict[str, FieldInfo]:
    """The fields of the table at a place such as ['model', 'kind:recurrent', 'decoder']; of a list, none."""
    here: Any = root
    for step in place:
        inside = get_args(here)
        if step in fields_of(here):
            here = fields_of(here)[step].annotation
        elif step.startswith("kind:") and inside:
            here = next(m for m in inside if Tag(step) in getattr(m, "__metadata__", ()))
            here = here.__origin__
        elif step.isdecimal() and inside:  # one of a list
            here = inside[0]
    return fields_of(here)


def fields_of(annotation: Any) -> dict[str, FieldInfo]:
    """Of a table, or of one that may be left out (X | None)."""
    some = (annotation, *get_args(annotation))
    return next((one.model_fields for one in some if hasattr(one, "model_fields")), {})
