"""Validation errors of a config, each in one sentence with the fix."""

import re
from typing import Any, get_args

from pydantic import Tag
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from regard.config import Config, Table, extensions, renamed
from regard.config.table import kinds
from regard.errors import join_names, suggest

# Steps of pydantic's error location that are not written in a TOML file: union tags and types.
INTERNAL_STEP = re.compile(r"kind:|(str|int|float|bool)$|.*\[")


def describe_error(error: ErrorDetails, root: type[Table] = Config) -> str:
    """One error: the dotted path, the value given, the values allowed, the nearest spelling."""
    location = [str(step) for step in error["loc"]]
    path = ".".join(step for step in location if not INTERNAL_STEP.match(step))
    value, ctx = error["input"], error.get("ctx", {})
    quoted = quote(value)
    match error["type"]:
        case "extra_forbidden":
            known = list(fields_at(location[:-1], root))
            new = renamed.KEYS.get(".".join(path.split(".")[-2:]))
            if new in known:
                return f'{path}: unknown key. It is now called "{new}".'
            hint = other_kinds(location, root) or suggest(location[-1], known)
            return f"{path}: unknown key.{hint} Known here: {join_names(known)}"
        case "kind":
            kind = shorten(value.get("kind") if isinstance(value, dict) else value)
            registered = sorted(extensions(ctx["extension"]))
            choices = list(dict.fromkeys([*error["msg"].split(", "), *registered]))
            plugin = " Your own kind? Name its file in $REGARD_PLUGINS." if ctx["extension"] else ""
            return f"{wrong_choice(f'{path}.kind', kind, choices)}{plugin}"
        case "missing":
            field = fields_at(location[:-1], root).get(location[-1])
            description = f". {field.description}" if field and field.description else ""
            return f"{path}: required, and missing{description}"
        case "tuple_type":
            return f'{path}: got {quoted}; it should be a list, as in ["a", "b"]'
        case "string_too_short" | "too_short":
            return f"{path}: empty"
        case "literal_error":
            choices = [c.strip(" '") for c in ctx["expected"].replace(" or ", ", ").split(",")]
            return wrong_choice(path, value, choices)
        case "value_error":
            message = str(ctx["error"])
            return message if message.startswith(path) else f"{path}: {message}"
        case _:
            expected = error["msg"].removeprefix("Input should be ")
            bounds = [ctx[name] for name in ("ge", "gt", "le", "lt") if name in ctx]
            if bounds and isinstance(bounds[0], float):  # pydantic prints 1e30 with all its digits
                expected = f"{expected.rpartition(' ')[0]} {bounds[0]:g}"
            return f"{path}: got {quoted}; it should be {expected}"


def wrong_choice(path: str, value: Any, choices: list[str]) -> str:
    new = renamed.VALUES.get(path, {}).get(shorten(value))
    hint = f' It is now called "{new}".' if new else suggest(shorten(value), choices)
    return f"{path}: got {quote(value)}; choose {join_names(choices)}.{hint}"


def quote(value: Any) -> str:
    """A value for a message, with quotation marks if it is a text."""
    return f'"{shorten(value)}"' if isinstance(value, str) else shorten(value)


def shorten(value: Any, length: int = 200) -> str:
    """The value in words, or its start."""
    try:
        text = str(value)
    except (ValueError, RecursionError):  # an integer of more digits than Python prints
        return f"a {type(value).__name__} that is too long to print"
    return text if len(text) <= length else f"{text[:length]}..."


def other_kinds(location: list[str], root: type[Table]) -> str:
    """' It is a key of tokenizer.kind = "bpe", and the kind here is "words".', if that is the mistake."""
    *table, tag, key = location if len(location) > 1 else ["", *location]
    if not tag.startswith("kind:"):
        return ""
    tables = [member.__origin__ for member in get_args(annotation_at(table, root))]
    having = [kind for one in tables if key in one.model_fields for kind in kinds(one)]
    if not having:
        return ""
    path = ".".join(step for step in [*table, "kind"] if not INTERNAL_STEP.match(step))
    here = tag.removeprefix("kind:")
    return f' It is a key of {path} = {" or ".join(map(quote, having))}, and the kind here is "{here}".'


def fields_at(location: list[str], root: type[Table]) -> dict[str, FieldInfo]:
    """The fields of the table at a location such as ['model', 'kind:recurrent', 'decoder']; {} for a list."""
    return fields_of(annotation_at(location, root))


def annotation_at(location: list[str], root: type[Table]) -> Any:
    """The type at a location."""
    here: Any = root
    for step in location:
        members = get_args(here)
        if step in fields_of(here):
            here = fields_of(here)[step].annotation
        elif step.startswith("kind:") and members:
            here = next(m for m in members if Tag(step) in getattr(m, "__metadata__", ()))
            here = here.__origin__
        elif step.isdecimal() and members:  # an element of a list
            here = members[0]
    return here


def fields_of(annotation: Any) -> dict[str, FieldInfo]:
    """The fields of a table type, or of an optional one (X | None)."""
    candidates = (annotation, *get_args(annotation))
    return next((one.model_fields for one in candidates if hasattr(one, "model_fields")), {})
