"""A test set of the user's: sources with one or several references each, from plain text, TSV or JSON lines.

Unlike training pairs (`pairs`), no line may be skipped: line N of the references, and of another system's
outputs, belongs to line N of the sources.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regard.errors import UserError, join_names, suggest
from regard.text.checks import check_references
from regard.text.lines import read_lines
from regard.text.pairs import SUFFIXES

FIELDS = ("source", "target")


@dataclass(frozen=True)
class ReferenceSet:
    """Sources, and the references of each, in order. The first reference is the one that is forced."""

    sources: list[str]
    references: list[list[str]]

    def __len__(self) -> int:
        return len(self.sources)

    @classmethod
    def from_pairs(cls, pairs: Sequence[tuple[str, str]]) -> "ReferenceSet":
        return cls([source for source, _ in pairs], [[target] for _, target in pairs])

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """Each source with its first reference."""
        return [
            (source, texts[0]) for source, texts in zip(self.sources, self.references, strict=True)
        ]

    def warnings(self, path: Path) -> list[str]:
        """What may be wrong with it, if it comes from the .tsv at `path`; an error if it must be wrong."""
        if table_suffix(path) != ".tsv":
            return []
        rows = [
            [source, *texts] for source, texts in zip(self.sources, self.references, strict=True)
        ]
        return list(check_references(path, rows))

    def take(self, count: int | None) -> "ReferenceSet":
        """The first `count` sentences, or all."""
        return ReferenceSet(self.sources[:count], self.references[:count])


def read_references(
    source: str | Path, references: Sequence[str | Path] = (), fields: Sequence[str] = FIELDS
) -> ReferenceSet:
    """The test set of `source` and `references`, line by line, or of `source` alone (.tsv or .jsonl).

    A TSV has the source in its first column and references in the others; JSON lines have them in `fields`,
    and a field may hold a list of references. Either may end in .gz.
    """
    source = Path(source)
    suffix = table_suffix(source)
    if references and suffix:
        raise UserError(
            f"{source} holds sources and references (a {suffix} file), so {references[0]} is one too many: "
            "leave it out, or give the sources as a plain text file"
        )
    if not references and not suffix:
        raise UserError(
            f"{source} holds only sources: give a second file with the references, line by line "
            "(evaluate --reference, score --target), or one file with both that ends in "
            f"{join_names(SUFFIXES)}"
        )
    if suffix:
        rows = read_table(source, suffix, fields)
    else:
        rows = zip_lines([source, *map(Path, references)])
    for number, (text, *texts) in enumerate(rows, start=1):
        if not text or not texts[0]:
            side = "reference" if text else "source"
            raise UserError(f"{source}, line {number} has no {side}: add it, or delete the line")
    return ReferenceSet(
        [row[0] for row in rows], [[text for text in row[1:] if text] for row in rows]
    )


def read_sentences(path: str | Path) -> ReferenceSet:
    """Every line of a file as the target of an empty source: the test set of a language model."""
    return ReferenceSet.from_pairs([("", line) for line in read_texts(Path(path)) if line])


def read_hypotheses(path: str | Path, expected: int, source: str) -> list[str]:
    """A system's outputs, one line for each of the `expected` sentences of `source`. Lines may be empty."""
    lines = read_texts(Path(path))
    if len(lines) != expected:
        raise UserError(
            f"{path} has {count_lines(lines)}, and {source} has {expected:,} sentences: line N must "
            "translate sentence N"
        )
    return lines


def table_suffix(path: Path) -> str | None:
    """.tsv or .jsonl, if the name ends so, or None: plain text."""
    name = path.name.lower().removesuffix(".gz")
    return next((suffix for suffix in SUFFIXES if name.endswith(suffix)), None)


def zip_lines(paths: Sequence[Path]) -> list[list[str]]:
    """Line N of every file; all must have equally many."""
    columns = [read_texts(path) for path in paths]
    for path, lines in zip(paths, columns, strict=True):
        if len(lines) != len(columns[0]):
            raise UserError(
                f"{paths[0]} has {count_lines(columns[0])}, and {path} has {len(lines):,}: line N of one "
                "must translate line N of the other"
            )
    return [list(row) for row in zip(*columns, strict=True)]


def count_lines(lines: Sequence[str]) -> str:
    return f"{len(lines):,} {'line' if len(lines) == 1 else 'lines'}"


def read_table(path: Path, suffix: str, fields: Sequence[str]) -> list[list[str]]:
    """The source and the references of every line."""
    rows = []
    for number, line in enumerate(read_nonempty(path), start=1):
        where = f"{path}, line {number}"
        if suffix == ".tsv":
            row = [column.strip() for column in line.split("\t")]
            if len(row) < 2:
                raise UserError(f"{where} has no tab: expected source TAB reference")
        else:
            row = parse_record(line, fields, where)
        rows.append(row)
    return rows


def parse_record(line: str, fields: Sequence[str], where: str) -> list[str]:
    """The texts of a JSON object's `fields`, of which all but the first may be lists."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        raise UserError(f"{where} is not JSON") from None
    if not isinstance(record, dict):
        raise UserError(f"{where} is not a JSON object")
    texts: list[Any] = []
    for field in fields:
        if field not in record:
            raise UserError(
                f'{where} has no field "{field}".{suggest(field, record)} It has '
                f"{join_names(record) or 'none'}: name its fields with --fields SOURCE,REFERENCE"
            )
        value = record[field]
        texts += value if isinstance(value, list) and texts else [value]
    if len(texts) < 2 or not all(isinstance(text, str) for text in texts):
        raise UserError(f"{where}: the fields {join_names(fields)} must hold texts")
    return [text.strip() for text in texts]


def read_texts(path: Path) -> list[str]:
    """The lines of a file without surrounding whitespace."""
    return [line.strip() for line in read_nonempty(path)]


def read_nonempty(path: Path) -> list[str]:
    """The lines of a file, which must have some."""
    lines = read_lines(path)
    if not lines:
        raise UserError(f"{path} is empty")
    return lines
