"""Every setting with its type, default and meaning, read off the tables of `Config`.

A table with a `kind` is one of several alternatives; a setting that some of them lack says which have it.
"""

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic import Discriminator
from pydantic.fields import FieldInfo

from regard import documents
from regard.config import Config
from regard.config.extensions import extensions
from regard.config.table import Custom, Table, kinds
from regard.errors import UserError, suggest

NAMES = {str: "text", int: "integer", float: "number", bool: "true | false"}
BOUNDS = {Ge: ("ge", "at least"), Gt: ("gt", "above"), Le: ("le", "at most"), Lt: ("lt", "below")}
Kinds = dict[str, list[str]]


@dataclass(frozen=True)
class Setting:
    """One key of a TOML file."""

    key: str
    type: str
    default: Any
    """As in a TOML file; None: not set."""
    required: bool
    meaning: str
    choices: tuple[tuple[str, str], ...] = ()
    """For a kind: what each of them is, where its table says so."""
    kinds: Kinds = field(default_factory=dict, compare=False)
    """The kinds that have this setting, by the key of the kind; none: all."""


def list_settings() -> list[Setting]:
    """Every setting once, in the order of the tables."""
    merged: dict[Setting, list[Kinds]] = {}
    for setting in walk(Config, "", {}):
        merged.setdefault(setting, []).append(setting.kinds)
    all_kinds: dict[str, set[str]] = {}
    for setting in merged:
        all_kinds.setdefault(setting.key, set()).update(setting.type.split(" | "))
    return [
        replace(setting, kinds=_merge(occurrences, all_kinds))
        for setting, occurrences in merged.items()
    ]


def find_settings(key: str) -> list[Setting]:
    """The settings with this key, below this table, or whose key ends with it."""
    settings = list_settings()
    for matches in (
        [s for s in settings if s.key == key],
        [s for s in settings if s.key.startswith((f"{key}.", f"{key}["))],
        [s for s in settings if s.key.endswith((f".{key}", f"].{key}"))],
    ):
        if matches:
            return matches
    names = {s.key for s in settings} | {s.key.rpartition(".")[2] for s in settings}
    tables = {s.key.rpartition(".")[0] for s in settings} - {""}
    raise UserError(
        f'there is no setting "{key}".{suggest(key, sorted(names | tables))} '
        "`regard settings` lists all of them"
    )


def walk(table: type[Table], path: str, given: Kinds) -> Iterator[Setting]:
    """The settings of a table at `path`, which is there for these kinds of the tables around it."""
    for name, info in table.model_fields.items():
        if name == "kind" and path in {key.removesuffix(".kind") for key in given}:
            continue  # listed by the field that chooses between the kinds
        key = f"{path}.{name}".lstrip(".")
        alternatives = [
            member for member in tables_of(info.annotation) if "kind" in member.model_fields
        ]
        if len(alternatives) > 1 or (alternatives and _extension(info)):
            yield _kind_setting(key, info, alternatives, given)
            for member in alternatives:
                chosen = given | {f"{key}.kind": list(kinds(member))}
                yield from walk(member, key, chosen)
            continue
        members = tables_of(info.annotation)
        is_list = get_origin(info.annotation) is tuple
        if not members or is_list or type(None) in get_args(info.annotation):
            yield _plain_setting(key, info, given)
        for member in members:
            yield from walk(member, f"{key}[]" if is_list else key, given)


def tables_of(annotation: Any) -> list[type[Table]]:
    """The tables that a field may hold, without those that users register."""
    if isinstance(annotation, type) and issubclass(annotation, Table):
        return [] if annotation is Custom else [annotation]
    origin = get_origin(annotation)
    if origin is Annotated:
        return tables_of(get_args(annotation)[0])
    if origin in (Union, UnionType, tuple):
        return [table for member in get_args(annotation) for table in tables_of(member)]
    return []


def describe_type(annotation: Any, metadata: tuple[Any, ...] | list[Any] = ()) -> str:
    """'integer, at least 1', 'gru | lstm | rnn', 'list of texts'"""
    origin, members = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return " | ".join(members)
    if origin in (Union, UnionType):
        given = [describe_type(m, metadata) for m in members if m is not type(None)]
        return " or ".join(dict.fromkeys(given))
    if origin is tuple:
        element = describe_type(members[0])
        return f"list of {element}" if "|" in element else f"list of {element}s"
    if tables_of(annotation):
        return "table"
    bounds = [
        f"{words} {getattr(bound, name):g}"
        for bound in metadata
        if type(bound) in BOUNDS
        for name, words in [BOUNDS[type(bound)]]
    ]
    return ", ".join([NAMES[annotation], *bounds])


def format_default(value: Any) -> str:
    """The default as in a TOML file."""
    return documents.dumps(value, ensure_ascii=False)


def format_setting(setting: Setting, width: int = 100) -> str:
    """A few lines of text: key and default, type, the kinds that have it, meaning."""
    if setting.required:
        default = "  (required)"
    elif setting.default is None:
        default = "  (not set)"
    else:
        default = f" = {format_default(setting.default)}"
    details = f"{setting.type}"
    if setting.kinds:
        listed = (f"{key} = {', '.join(names)}" for key, names in setting.kinds.items())
        details += f"; if {' and '.join(listed)}"
    lines = [f"{setting.key}{default}"]
    choices = [f"{name}: {meaning}" for name, meaning in setting.choices]
    for text in (details, setting.meaning, *choices):
        lines += textwrap.wrap(
            text,
            width,
            initial_indent="    ",
            subsequent_indent="    ",
            break_on_hyphens=False,
        )
    return "\n".join(lines)


def _kind_setting(
    key: str, info: FieldInfo, alternatives: list[type[Table]], given: Kinds
) -> Setting:
    names = [kind for member in alternatives for kind in kinds(member)]
    names += sorted(extensions(_extension(info)) - set(names))
    default = None if info.is_required() else info.default.kind
    choices = tuple(
        (kinds(member)[0], _clean(member.__doc__)) for member in alternatives if member.__doc__
    )
    meaning = _clean(info.description or "")
    type_ = " | ".join(names)
    return Setting(f"{key}.kind", type_, default, info.is_required(), meaning, choices, given)


def _plain_setting(key: str, info: FieldInfo, given: Kinds) -> Setting:
    default = None if info.is_required() else info.default
    type_, meaning = describe_type(info.annotation, info.metadata), _clean(info.description or "")
    return Setting(key, type_, default, info.is_required(), meaning, kinds=given)


def _extension(info: FieldInfo) -> str:
    """The extension point of a field, or an empty string."""
    found = [m for m in (*info.metadata, info.discriminator) if isinstance(m, Discriminator)]
    context = found[0].custom_error_context if found else None
    return str((context or {}).get("extension", ""))


def _clean(text: str) -> str:
    return " ".join(text.split())


def _merge(occurrences: list[Kinds], all_kinds: dict[str, set[str]]) -> Kinds:
    """The kinds of all occurrences together, without a choice that excludes none."""
    merged: dict[str, dict[str, None]] = {}
    shared = set.intersection(*(set(kinds) for kinds in occurrences))
    for given in occurrences:
        for key in shared:
            merged.setdefault(key, {}).update(dict.fromkeys(given[key]))
    outermost_first = sorted(merged, key=lambda key: key.count("."))
    return {key: list(merged[key]) for key in outermost_first if set(merged[key]) < all_kinds[key]}
