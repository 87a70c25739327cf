"""Named experiments: a preset is a TOML file, found by name, changed by `--set`, validated as a whole.

    base = "multi30k-transformer"      inherit every setting of another preset or .toml file

Paths are relative to the .toml file that names them; those of data are absolute in the config. In the
config.toml of a run, pairs that training has made are relative to the run folder (`locate_pairs`).
Setting a table's `kind` to another value resets that table, in a preset with a base as in `--set`.
"""

import os
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from regard import documents, files, shipped
from regard.config import Config, ParallelData, renamed
from regard.errors import UserError, explain_unparsed, join_names, suggest
from regard.presets.errors import describe_error

__all__ = [
    "describe_error",
    "folder_argument",
    "is_complete",
    "load",
    "locate_pairs",
    "names",
    "override",
    "parse_setting",
    "read_file",
    "resolve",
    "validate",
]

Setting = tuple[list[str], Any]

FILE_KEYS = ("train", "val", "test")  # of [data]: where they are texts, they are paths


def names() -> dict[str, str]:
    """Every preset with its description."""
    folder = resources.files("regard.presets")
    files = sorted((f for f in folder.iterdir() if f.name.endswith(".toml")), key=lambda f: f.name)
    return {f.name[:-5]: tomllib.loads(f.read_text("utf-8"))["description"] for f in files}


def folder_argument(folder: Path) -> str:
    """A run folder as an argument of `regard train`, where the name of a preset would win."""
    return f"./{folder}" if str(folder) in names() else str(folder)


def load(name: str, overrides: Iterable[str] = ()) -> Config:
    """The experiment in the preset or TOML file `name`, with `key=value` overrides applied."""
    return build(override(read(name), overrides), name)


def build(table: dict[str, Any], name: str) -> Config:
    """The experiment of a table that must have [data]; relative paths start in the working directory."""
    table = with_absolute_paths(table, Path.cwd())
    check_kind_of_files(table, name)
    config = validate(table, name)
    if not config.data.model_fields_set:
        raise UserError(
            f"{name}: there is no [data], so nothing to train on. Your own parallel text is "
            'data = {kind = "files", train = "train.tsv", val = "val.tsv"}; with a preset as base '
            "(see `regard presets`), its data is used."
        )
    return config


def check_kind_of_files(table: dict[str, Any], name: str) -> None:
    """Raise an error if [data] names files without its kind, which would be generated sentences."""
    data = table.get("data")
    if isinstance(data, dict) and "kind" not in data:
        files = [key for key in FILE_KEYS if isinstance(data.get(key), str | list)]
        if files:
            raise UserError(
                f'{name}: data.kind: required with files, as in data.{files[0]}: write kind = "files" '
                'for parallel text, or kind = "text" for monolingual text'
            )


def resolve(
    experiment: str | Path | Mapping[str, Any] | Config, overrides: Mapping[str, Any] | None = None
) -> Config:
    """An experiment given in Python: a preset, a .toml file, a dict of settings, or a config.

    The keys of a dict may be dotted, {"training.epochs": 3}, and "base" names a preset or a file.
    """
    settings = list(leaves(overrides or {}))
    if isinstance(experiment, Config):
        table = experiment.model_dump(mode="json", exclude_unset=True)
        return build(apply(table, settings), "config")
    if isinstance(experiment, str | Path):
        return build(apply(read(str(experiment)), settings), str(experiment))
    if not isinstance(experiment, Mapping):
        raise UserError(
            "config is the name of a preset, a .toml file, a dict of settings or a Config: got "
            f"{experiment!r}"
        )
    given = dict(experiment)
    base = given.pop("base", None)
    table = {} if base is None else read(str(base))
    return build(apply(apply(table, leaves(given)), settings), "config")


def read(name: str, derived: tuple[str, ...] = ()) -> dict[str, Any]:
    """The raw table of a preset, or of a file if `name` ends in .toml, merged into its base.

    `derived`: the files, outermost first, whose base this is.
    """
    path = Path(name)
    is_file = name.endswith(".toml")
    where = f"{derived[-1]}: base: " if derived else ""
    table = from_folder(read_file(path), path.parent) if is_file else read_preset(name, where)
    if "base" not in table:
        return table
    base = table.pop("base")
    if not isinstance(base, str):
        raise UserError(f"{name}: base: got {base}; it should be a preset or a .toml file")
    if base.endswith(".toml"):
        base = str(path.parent / base)
    if base in (chain := (*derived, name)):
        raise UserError(f"{name}: base: {' -> '.join((*chain, base))} is a cycle")
    return apply(read(base, chain), leaves(table))


def read_preset(name: str, where: str = "") -> dict[str, Any]:
    """The table of a preset; errors begin with `where` its name was found."""
    file = resources.files("regard.presets") / f"{name}.toml"
    if not file.is_file():
        if name in renamed.PRESETS:
            raise UserError(
                f'{where}there is no preset "{name}". It is now called "{renamed.PRESETS[name]}".'
            )
        known = names()
        if name in shipped.names():
            raise UserError(
                f'{where}there is no preset "{name}": it is a shipped model, trained already, as in '
                f'`regard translate {name} "..."`. Its preset is "tatoeba-{name}".'
            )
        raise UserError(
            f'{where}there is no preset "{name}".{suggest(name, known)} Presets: {join_names(known)}. '
            "A file of your own must end in .toml."
        )
    return tomllib.loads(file.read_text("utf-8"))


def read_file(path: Path) -> dict[str, Any]:
    if path.exists():
        files.refuse_device(path)
    data = documents.read_bytes(path)
    try:
        return documents.parse_toml(data)
    except ValueError as error:
        raise UserError(f"{path} is not valid TOML: {explain_unparsed(error)}") from None


def from_folder(table: dict[str, Any], folder: Path) -> dict[str, Any]:
    """A copy of a file's table in which every path starts in the `folder` of that file.

    `init` and the name of a pretrained model may be something else than a path: those that exist seen from
    `folder` are paths.
    """
    table = with_absolute_paths(table, folder)
    model = table.get("model")
    if isinstance(name := table.get("init"), str):
        table = table | {"init": locate(name, folder)}
    if isinstance(model, dict) and isinstance(name := model.get("name"), str):
        table = table | {"model": model | {"name": locate(name, folder)}}
    return table


def locate_synthetic(entry: Any, folder: Path) -> Any:
    """A copy of a table of data.synthetic with absolute paths; what exists under a name is a path."""
    if not isinstance(entry, dict):
        return entry
    located = dict(entry)
    if isinstance(name := entry.get("file"), str) and name:
        located["file"] = os.path.abspath(folder / Path(name).expanduser())
    if isinstance(name := entry.get("monolingual"), str):
        located["monolingual"] = locate(name, folder)
    if isinstance(name := entry.get("from"), str):
        located["from"] = ",".join(locate(part, folder) for part in name.split(","))
    return located


def locate_pairs(config: Config, folder: Path) -> Config:
    """The config of a run with the absolute paths of its synthetic pairs: relative ones start in `folder`."""
    if not isinstance(config.data, ParallelData) or not config.data.synthetic:
        return config
    entries = [
        entry.model_copy(update={"file": os.path.abspath(folder / entry.file)})
        if entry.file is not None
        else entry
        for entry in config.data.synthetic
    ]
    data = config.data.model_copy(update={"synthetic": tuple(entries)})
    return config.model_copy(update={"data": data})


def locate(name: str, folder: Path) -> str:
    path = folder / name
    return os.path.abspath(path) if name and path.exists() else name


def with_absolute_paths(table: dict[str, Any], folder: Path) -> dict[str, Any]:
    """A copy of the table in which the paths of [data] are absolute: relative ones start in `folder`."""
    data = table.get("data")
    if not isinstance(data, dict):
        return table

    def absolute(value: Any) -> Any:
        if isinstance(value, list):
            return [absolute(item) for item in value]
        if not isinstance(value, str) or not value:
            return value  # not a path: a number of sentences, or a mistake
        return os.path.abspath(folder / Path(value).expanduser())

    name = data.get("name")
    is_folder = data.get("kind") == "hf" and isinstance(name, str) and not name.startswith("hf:")
    keys = (*FILE_KEYS, "name") if is_folder else FILE_KEYS
    paths = {key: absolute(data[key]) for key in keys if key in data}
    if isinstance(synthetic := data.get("synthetic"), list):
        paths["synthetic"] = [locate_synthetic(entry, folder) for entry in synthetic]
    return table | {"data": data | paths}


def leaves(table: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[Setting]:
    """Every (path, value) of nested tables, whose keys may be dotted."""
    for key, value in table.items():
        inner = (*path, *key.split("."))
        if isinstance(value, Mapping):
            yield from leaves(value, inner)
        else:
            yield list(inner), value


def override(table: dict[str, Any], settings: Iterable[str]) -> dict[str, Any]:
    """A copy of `table` with each `dotted.key=value` set."""
    return apply(table, map(parse_setting, settings))


def apply(table: dict[str, Any], settings: Iterable[Setting]) -> dict[str, Any]:
    """A copy of `table` with each setting applied. Setting a kind resets its table."""
    # Outer tables before inner ones, and a kind before its siblings: a reset must not undo another
    # setting. `model.attention.kind = "none"` and the short `model.attention = "none"` have one depth.
    ordered = sorted(settings, key=lambda setting: len(setting[0]) - (setting[0][-1] == "kind"))
    table = dict(table)
    for path, value in ordered:
        set_path(table, path, value)
    return table


def parse_setting(setting: str) -> Setting:
    """'model.decoder.layers=4' -> (['model', 'decoder', 'layers'], 4)"""
    key, equals, text = setting.partition("=")
    path = key.strip().split(".")
    if not equals or not all(path):
        raise UserError(
            f'"{setting}" is not a setting: write key=value, as in model.decoder.layers=4'
        )
    try:
        return path, parse_toml(text)
    except tomllib.TOMLDecodeError:
        return path, text.strip()  # a bare word is a string


def parse_toml(text: str) -> Any:
    """A TOML value; `TOMLDecodeError` for a bare word."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        raise
    except (ValueError, RecursionError) as error:
        start = text if len(text) <= 40 else f"{text[:40]}..."
        raise UserError(f"the value {start} cannot be read: {explain_unparsed(error)}") from None


def is_complete(text: str) -> bool:
    """Whether `text` is a TOML value or a bare word, not the start of a longer value."""
    try:
        parse_toml(text)
    except tomllib.TOMLDecodeError:
        return not text.lstrip().startswith(("{", "[", '"', "'"))
    return True


def set_path(table: dict[str, Any], path: list[str], value: Any) -> None:
    """Set the value at a path, copying the tables on the way."""
    *parents, last = path
    for key in parents:
        inner = table.get(key, {})
        if isinstance(inner, str):
            inner = {"kind": inner}
        table[key] = dict(inner) if isinstance(inner, dict) else {}
        table = table[key]
    if last == "kind" and table.get("kind") != value:
        table.clear()
    table[last] = value


def validate(table: dict[str, Any], origin: str) -> Config:
    """The table as a Config, or one error that lists every mistake in it."""
    try:
        return Config.model_validate(table)
    except ValidationError as error:
        mistakes = [describe_error(detail) for detail in error.errors()]
    heading = f"{origin}: {len(mistakes)} mistakes\n  " if len(mistakes) > 1 else f"{origin}: "
    raise UserError(heading + "\n  ".join(mistakes))
