"""JSON documents: one encoder, one reader.

What `dumps` writes is JSON: NaN and infinity are null. `read` takes any bytes: what is not JSON, or does not
fit its schema, is one error that names file and field.
"""

import json
import math
import re
import tomllib
from collections.abc import Callable, Iterator
from datetime import date, time
from pathlib import Path
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails

from regard.errors import UserError

MAX_DEPTH = 64  # of nested lists and objects
MAX_INTEGER = 2**63 - 1
SURROGATE = re.compile("[\ud800-\udfff]")


class Document(BaseModel):
    """The schema of a JSON object: strict about the fields that we use, with any others."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)

    repair: ClassVar[str] = (
        "Restore it from a copy; without one, delete it and run the command that wrote it again"
    )
    """What to do if a file does not fit."""


# --- writing --------------------------------------------------------------------------------------


def dumps(document: Any, **options: Any) -> str:
    """`json.dumps` with null for NaN and infinity, and ISO 8601 for the dates of TOML."""
    options = {"default": format_date, "allow_nan": False} | options
    try:
        return json.dumps(document, **options)
    except ValueError:
        return json.dumps(replace_nonfinite(document), **options)


def format_date(value: Any) -> str:
    if isinstance(value, date | time):
        return value.isoformat()
    raise TypeError(f"{type(value).__name__} is not JSON")


def replace_nonfinite(value: Any) -> Any:
    """A copy with None for NaN and infinity."""
    if isinstance(value, dict):
        return {key: replace_nonfinite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [replace_nonfinite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


# --- reading --------------------------------------------------------------------------------------


def read(path: Path, schema: type[Document] = Document) -> dict[str, Any]:
    """The JSON object in `path`, if it fits the schema."""
    data = read_bytes(path)
    try:
        return check(parse(data), schema)
    except ValueError as error:
        raise damaged(path, error, schema) from None


def read_lines(
    path: Path, select: Callable[[dict[str, Any]], type[Document]]
) -> list[dict[str, Any]]:
    """The JSON object in each line of `path`, if it fits the schema that `select` names for it.

    A last line without its end is left out if it is not complete: whoever wrote it was killed.
    """
    *lines, last = read_bytes(path).split(b"\n")
    documents = []
    for number, line in enumerate([*lines, last], start=1):
        try:
            document = check(parse(line), Document)
        except ValueError as error:
            if number > len(lines):
                break
            raise damaged(path, f"line {number}: {error}", Document) from None
        schema = select(document)
        try:
            documents.append(check(document, schema))
        except ValueError as error:
            raise damaged(path, f"line {number}: {error}", schema) from None
    return documents


def read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise UserError(f"there is no file {path}") from None
    except (OSError, ValueError) as error:  # ValueError: NUL in a path
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"{path} cannot be read: {reason}") from None


def parse(data: bytes | str) -> Any:
    """The value of a JSON text; ValueError: it is none, or one that no file of ours has."""
    try:
        text = data if isinstance(data, str) else data.decode("utf-8")
        value = json.loads(
            text,
            parse_int=parse_integer,
            parse_float=parse_number,
            parse_constant=lambda _: None,  # NaN and infinity, as earlier versions wrote them
            object_pairs_hook=build_object,
        )
    except UnicodeDecodeError as error:
        raise not_utf8(error) from None
    except RecursionError:
        raise too_deep() from None
    check_depth(value)
    if r"\u" in text and any(SURROGATE.search(one) for one in strings(value)):
        raise ValueError("half of a surrogate pair in a text")
    return value


def parse_toml(data: bytes) -> dict[str, Any]:
    """The table of a TOML text; ValueError: it is none."""
    try:
        table = tomllib.loads(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise not_utf8(error) from None
    except RecursionError:
        raise too_deep() from None
    check_depth(table)
    return table


def not_utf8(error: UnicodeDecodeError) -> ValueError:
    return ValueError(f"byte {error.start:,} is not UTF-8")


def parse_integer(digits: str) -> int:
    if len(digits) > len(str(MAX_INTEGER)) + 1 or abs(value := int(digits)) > MAX_INTEGER:
        raise ValueError(f"the integer {shorten(digits)} is too large")
    return value


def parse_number(digits: str) -> float:
    if not math.isfinite(value := float(digits)):
        raise ValueError(f"the number {shorten(digits)} is too large")
    return value


def build_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{shorten(twice)} occurs twice in one object")
    return result


def check_depth(value: Any) -> None:
    """ValueError if lists and objects are nested so deeply that recursive code could fail."""
    level, depth = [value], 0
    while level := [one for one in level if isinstance(one, dict | list)]:
        depth += 1
        if depth > MAX_DEPTH:
            raise too_deep()
        level = [inner for one in level for inner in elements(one)]


def too_deep() -> ValueError:
    return ValueError(f"lists and tables are nested more than {MAX_DEPTH} deep")


def elements(container: dict[str, Any] | list[Any]) -> Iterator[Any]:
    return iter(container.values() if isinstance(container, dict) else container)


def strings(value: Any) -> Iterator[str]:
    """Every text in a value, with the names in its objects."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        yield from value if isinstance(value, dict) else ()
        for inner in elements(value):
            yield from strings(inner)


def check(value: Any, schema: type[Document]) -> dict[str, Any]:
    """The value itself, not a copy, if it fits the schema; ValueError: its first mistake."""
    if not isinstance(value, dict):
        raise ValueError(f"it holds {shorten(value)}, not a JSON object")
    try:
        schema.model_validate(value)
    except ValidationError as error:
        raise ValueError(describe(error.errors()[0])) from None
    return value


def describe(error: ErrorDetails) -> str:
    """'figures.val_loss: got "x"; it should be a valid number'"""
    field = ".".join(str(step) for step in error["loc"])
    if error["type"] == "extra_forbidden":
        return f"{field} is not a known field"
    if error["type"] == "missing":
        return f"{field} is missing"
    if error["type"] == "value_error":
        return ": ".join(filter(None, [field, error["msg"].removeprefix("Value error, ")]))
    is_object = error["type"] == "model_type"
    expected = "an object" if is_object else error["msg"].removeprefix("Input should be ")
    return f"{field}: got {shorten(error['input'])}; it should be {expected}"


def shorten(value: Any, width: int = 40) -> str:
    """The value in one line of a message."""
    text = dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= width else f"{text[: width - 3]}..."


def damaged(path: Path | str, reason: object, schema: type[Document] = Document) -> UserError:
    """The error about a file that does not fit its schema."""
    first_line = str(reason).partition("\n")[0].rstrip(".")
    return UserError(f"{path} is damaged: {first_line}. {schema.repair}")
