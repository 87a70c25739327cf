"""Rows of Parquet and Arrow files, which need pyarrow, and the texts in their columns."""

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from regard.errors import UserError, join_names, suggest
from regard.text.decompress import check_size

EXTRA = 'needs pyarrow: pip install "regard[hf]"'
ROWS = 2**14
"""Of a file that are in memory at a time."""


def read_parquet(path: Path, columns: list[str]) -> Iterator[dict[str, Any]]:
    file = import_arrow("pyarrow.parquet", path).ParquetFile(path)
    groups = range(file.metadata.num_row_groups)
    size = sum(file.metadata.row_group(group).total_byte_size for group in groups)
    check_size(path, path.stat().st_size, size)
    known = [name for name in columns if name in file.schema_arrow.names]
    # Without any of the columns, the first row is enough for a message.
    for batch in file.iter_batches(ROWS, columns=known or None):
        yield from batch.to_pylist()


def read_arrow(path: Path, columns: list[str]) -> Iterator[dict[str, Any]]:
    with path.open("rb") as file:
        for batch in import_arrow("pyarrow.ipc", path).open_stream(file):
            yield from batch.to_pylist()


def import_arrow(module: str, path: Path) -> Any:
    try:
        return import_module(module)
    except ImportError:
        raise UserError(f"{path} {EXTRA}") from None


def find_text(row: dict[str, Any], field: str, path: Path) -> str:
    """The text in a field: a column, or `translation.de` for one inside a column."""
    value: Any = row
    for key in field.split("."):
        if value is None:  # a column without a value in this row
            return ""
        if not isinstance(value, dict) or key not in value:
            known = list(list_fields(row))
            raise UserError(
                f'data.fields: {path} has no field "{field}".{suggest(field, known)} It has '
                f'{join_names(known)}: write data.fields = ["...", "..."], source and target'
            )
        value = value[key]
    if value is not None and not isinstance(value, str):
        raise UserError(
            f'data.fields: "{field}" in {path} is not text but {type(value).__name__}: choose among '
            f"{join_names(list_fields(row))}"
        )
    return (value or "").strip()


def list_fields(row: dict[str, Any], prefix: str = "") -> Iterator[str]:
    """The names of all fields, `column` or `column.key`."""
    for key, value in row.items():
        if isinstance(value, dict):
            yield from list_fields(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}"
