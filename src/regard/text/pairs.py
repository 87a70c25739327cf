"""Users' parallel text: two line-aligned files, a TSV, JSON lines or Parquet, or wildcards for several.

`split_pairs` divides pairs that come without splits into train, val and test.
"""

import gzip
import json
import unicodedata
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from itertools import chain, zip_longest
from pathlib import Path
from typing import NamedTuple

from regard import documents, files
from regard.errors import UserError, join_names, suggest
from regard.text.arrow import find_text, read_parquet
from regard.text.decompress import OPENERS, split_suffix
from regard.text.lines import BOM, open_binary
from regard.text.wildcards import expand, pair_files

Pairs = list[tuple[str, str]]

SPLITS = ("train", "val", "test")
ON_ERROR = ("raise", "skip")
KINDS = {".gz": "gzip", ".zst": "Zstandard", "": "text"}
SUFFIXES = (".tsv", ".jsonl", ".parquet")
SEPARATORS = {";": "semicolons", ",": "commas", "|": "bars"}


@dataclass
class Counts:
    """How many pairs were kept, and how many lines were skipped for each reason."""

    kept: int = 0
    empty: int = 0
    too_long: int = 0
    not_utf8: int = 0
    malformed: int = 0

    @property
    def skipped(self) -> int:
        return self.empty + self.too_long + self.not_utf8 + self.malformed

    def summary(self) -> str:
        """'kept 1,000 pairs, skipped 3 (2 empty, 1 too long)'."""
        noun = "pair" if self.kept == 1 else "pairs"
        reasons = {
            "empty": self.empty,
            "too long": self.too_long,
            "not UTF-8": self.not_utf8,
            "malformed": self.malformed,
        }
        details = join_names(f"{count:,} {reason}" for reason, count in reasons.items() if count)
        skipped = f", skipped {self.skipped:,} ({details})" if details else ""
        return f"kept {self.kept:,} {noun}{skipped}"


class Invalid(NamedTuple):
    """Why a line cannot be used: a field of `Counts`, and a message."""

    reason: str
    message: str


def read_pairs(
    source: str | Path,
    target: str | Path | None = None,
    *,
    fields: tuple[str, str] = ("source", "target"),
    on_error: str = "raise",
    max_characters: int = 2000,
) -> tuple[Pairs, Counts]:
    """The pairs of `source` and `target`, line by line, or of `source` alone (.tsv, .jsonl or .parquet).

    A name with wildcards stands for several files. A TSV gives its first two columns, the others their two
    `fields`. A line that has an empty side, more
    than `max_characters` on a side, invalid UTF-8 or another format raises an error, or is skipped and
    counted with on_error="skip". Text is stripped of surrounding whitespace and not changed otherwise.
    """
    counts = Counts()
    options = {"fields": fields, "on_error": on_error, "max_characters": max_characters}
    return list(stream_pairs(source, target, counts, **options)), counts


def stream_pairs(
    source: str | Path,
    target: str | Path | None,
    counts: Counts,
    *,
    fields: tuple[str, str] = ("source", "target"),
    on_error: str = "raise",
    max_characters: int = 2000,
) -> Iterator[tuple[str, str]]:
    """The pairs of `read_pairs`, one after the other; what is skipped is counted in `counts`.

    An error about a line comes after all lines are read.
    """
    if on_error not in ON_ERROR:
        raise UserError(
            f'expected on_error to be one of {join_names(ON_ERROR)}; got "{on_error}".'
            f"{suggest(on_error, ON_ERROR)}"
        )
    if max_characters < 1:
        raise UserError(f"expected max_characters of 1 or more; got {max_characters}.")
    if target is None:
        paths = map(Path, expand(source))
        parts = (_table_rows(path, fields, max_characters) for path in paths)
    else:
        aligned = pair_files(source, target)
        parts = (_aligned_rows(Path(s), Path(t), max_characters) for s, t in aligned)
    rows = chain.from_iterable(parts)
    names = str(source) if target is None else f"{source} and {target}"
    return _select(rows, on_error, names, counts)


def read_sentences(
    paths: Iterable[str], on_error: str, max_characters: int
) -> tuple[Pairs, Counts]:
    """Every line of these files as a pair with an empty source, ("", line); empty lines are ignored."""
    names = [each for name in paths for each in expand(name)]
    rows = (row for name in names for row in _sentence_rows(Path(name), max_characters))
    counts = Counts()
    return list(_select(rows, on_error, join_names(names), counts)), counts


def _sentence_rows(path: Path, max_characters: int) -> Iterator["Row"]:
    for number, line in enumerate(_read_lines(path, max_characters), 1):
        text = _clean(line, max_characters)
        if not isinstance(text, Invalid):
            yield f"{path}, line {number}", ("", text)
        elif text.reason != "empty":
            yield f"{path}, line {number}", text


def _select(
    rows: Iterable["Row"], on_error: str, names: str, counts: Counts
) -> Iterator[tuple[str, str]]:
    """The valid rows; an invalid one is skipped or raises an error, as `on_error` says."""
    first_error = None
    for where, row in rows:
        if isinstance(row, Invalid):
            setattr(counts, row.reason, getattr(counts, row.reason) + 1)
            # Read on: if two files differ in length, that explains an invalid line better.
            first_error = first_error or f"{where} {row.message}"
        elif first_error is None or on_error == "skip":
            counts.kept += 1
            yield row
    if first_error and on_error == "raise":
        raise UserError(
            f'{first_error}. Fix the line, or skip such lines with data.on_error = "skip" '
            f"({counts.skipped:,} in total)."
        )
    if not counts.kept:
        reason = f" ({counts.summary()}): {first_error}" if counts.skipped else ""
        raise UserError(f"expected at least one pair in {names}; got none{reason}.")


Row = tuple[str, tuple[str, str] | Invalid]


def _aligned_rows(source: Path, target: Path, max_characters: int) -> Iterator[Row]:
    """Each line of `source` with the same line of `target`; both must have equally many."""
    counts = [0, 0]
    both = (_read_lines(path, max_characters) for path in (source, target))
    for number, lines in enumerate(zip_longest(*both), 1):
        counts = [count + (line is not None) for count, line in zip(counts, lines, strict=True)]
        if lines[0] is None or lines[1] is None:
            continue
        first, second = _clean(lines[0], max_characters), _clean(lines[1], max_characters)
        path = source if isinstance(first, Invalid) else target
        yield f"{path}, line {number}", _combine(first, second)
    if counts[0] != counts[1]:
        raise UserError(
            f"expected equally many lines in both files; got {counts[0]:,} in {source} and "
            f"{counts[1]:,} in {target}. Line N of one file must translate line N of the other: "
            "find where they diverge."
        )


def _table_rows(path: Path, fields: tuple[str, str], max_characters: int) -> Iterator[Row]:
    """Each line of one file that holds both sides."""
    if not _has_suffix(path, *SUFFIXES):
        csv = " A .csv is not read: save it as tab-separated text." * _has_suffix(path, ".csv")
        raise UserError(
            f"expected one file of pairs that ends in {join_names(SUFFIXES)} (the text also with "
            f"{join_names(OPENERS)} after it), or two files, source and target, with one sentence per line; "
            f"got only {path}.{csv}"
        )
    if _has_suffix(path, ".parquet"):
        yield from _parquet_rows(path, fields, max_characters)
        return
    for number, line in enumerate(_read_lines(path, _wide(max_characters)), 1):
        row = line if isinstance(line, Invalid) else _decode(line)
        if isinstance(row, str):
            row = _parse_tsv(row) if is_tsv(path) else _parse_json(row, fields)
        if not isinstance(row, Invalid):
            row = _combine(_clean(row[0], max_characters), _clean(row[1], max_characters))
        yield f"{path}, line {number}", row


def _parquet_rows(path: Path, fields: tuple[str, str], max_characters: int) -> Iterator[Row]:
    """Each row's texts in two columns, or in fields of one: `translation.de`."""
    columns = [field.split(".")[0] for field in fields]
    rows = read_parquet(files.local_path(path), columns)
    try:
        for number, row in enumerate(rows, 1):
            sides = [_clean(find_text(row, field, path), max_characters) for field in fields]
            yield f"{path}, row {number}", _combine(*sides)
    except UserError:
        raise
    except (ValueError, OSError) as error:  # pyarrow's errors are ValueErrors
        raise UserError(f"{path} cannot be read: {error}") from None


def is_tsv(path: Path) -> bool:
    return _has_suffix(path, ".tsv")


def read_columns(path: Path, max_characters: int) -> Iterator[list[str]]:
    """All columns of each valid line of a .tsv."""
    for line in _read_lines(path, _wide(max_characters)):
        text = line if isinstance(line, Invalid) else _decode(line)
        columns = text if isinstance(text, Invalid) else _parse_tsv(text)
        if not isinstance(columns, Invalid):
            yield columns


def _has_suffix(path: Path, *suffixes: str) -> bool:
    return split_suffix(path.name.lower())[0].endswith(suffixes)


def _wide(max_characters: int) -> int:
    """Characters of a line that may have other columns, other fields and JSON's escapes (up to 12 bytes)."""
    return (1 << 20) + 24 * max_characters


def _parse_tsv(text: str) -> list[str] | Invalid:
    """The columns of a line; quotation marks have no special meaning."""
    if not text.strip():
        return Invalid("empty", "is empty")
    columns = text.split("\t")
    if len(columns) < 2:
        separator = next((name for mark, name in SEPARATORS.items() if mark in text), None)
        csv = f" (separated by {separator}? Save the file as tab-separated text)" * bool(separator)
        return Invalid("malformed", f"has no tab: expected source TAB target{csv}")
    return columns


def _parse_json(text: str, fields: tuple[str, str]) -> list[str] | Invalid:
    """The texts of a JSON object's two `fields`."""
    if not text.strip():
        return Invalid("empty", "is empty")
    try:
        record = json.loads(text)
    except (ValueError, RecursionError) as error:
        return Invalid("malformed", f"is not JSON ({getattr(error, 'msg', None) or error})")
    if not isinstance(record, dict):
        return Invalid("malformed", f"is not a JSON object but a {type(record).__name__}")
    for field in fields:
        if field not in record:
            return Invalid("malformed", f'has no field "{field}": {_describe_fields(record)}')
        if not isinstance(record[field], str):
            kind = type(record[field]).__name__
            return Invalid("malformed", f'expected a string in field "{field}"; got {kind}')
    return [record[field] for field in fields]


def _describe_fields(record: dict[str, object]) -> str:
    """'it has de, en; name the source and the target in data.fields, as in ...'"""
    if not record:
        return "it has none"
    example = [name for name, value in record.items() if isinstance(value, str)][:2]
    setting = f", as in data.fields = {documents.dumps(example, ensure_ascii=False)}"
    advice = f"name source and target in data.fields{setting if len(example) == 2 else ''}"
    return f"it has {join_names(record)}; {advice}"


def _combine(first: str | Invalid, second: str | Invalid) -> tuple[str, str] | Invalid:
    if isinstance(first, Invalid):
        return first
    return second if isinstance(second, Invalid) else (first, second)


def _clean(text: str | bytes | Invalid, max_characters: int) -> str | Invalid:
    """One side of a pair, stripped, or why it is invalid."""
    if isinstance(text, bytes):
        text = _decode(text)
    if isinstance(text, Invalid):
        return text
    text = text.strip()
    if not text:
        return Invalid("empty", "has an empty side")
    if len(text) > max_characters:
        return Invalid(
            "too_long", f"has {len(text):,} characters on a side, more than {max_characters:,}"
        )
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:  # JSON can encode half a surrogate pair: "\ud83d"
            return Invalid("not_utf8", "contains half a character (a lone surrogate)")
    return text


def _decode(line: bytes) -> str | Invalid:
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        return Invalid("not_utf8", f"is not UTF-8 (byte {error.start + 1}: {error.reason})")


def _read_lines(path: Path, max_characters: int) -> Iterator[bytes | Invalid]:
    """The lines of a file, reading at most as many bytes of each as `max_characters` may need."""
    limit = 4 * max_characters + len(BOM) + 1024  # some whitespace around it, and the line ending
    try:
        with open_binary(path) as file:
            prefix = BOM
            while line := file.readline(limit):
                size, chunk = len(line), line
                while not chunk.endswith(b"\n") and (chunk := file.readline(limit)):
                    size += len(chunk)
                if size > limit:
                    yield Invalid("too_long", f"is {size:,} bytes long")
                else:
                    yield line.removeprefix(prefix)
                prefix = b""
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(
            f"{path} is damaged or not {KINDS[split_suffix(path.name)[1]]}: {error}. Download or create it "
            "again."
        ) from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}.") from None


# Of 10,000 groups of sentences, this many go to val and this many to test.
HELD_OUT = 100


def split_pairs(pairs: Pairs) -> dict[str, Pairs]:
    """Pairs divided into train, val and test, such that no sentence of either side is in two of them.

    Pairs that share a sentence (ignoring case and punctuation), directly or through others, form a
    group. A hash of one of the group's first sides, not its position, determines its split: a newer
    file with more pairs is divided almost identically.
    """
    edges = [("1" + normalise(first), "2" + normalise(second)) for first, second in pairs]
    groups = _connected_components(edges)
    # The sentence with the smallest hash represents its group: added pairs seldom change that.
    # It is selected by other bits than those that decide, or larger groups would be biased.
    draws: dict[int, tuple[int, int]] = {}
    for first in {first for first, _ in edges}:
        digest = blake2b(first.encode(), digest_size=16).digest()
        draw = int.from_bytes(digest[:8], "big"), int.from_bytes(digest[8:], "big") % 10_000
        draws[groups[first]] = min(draw, draws.get(groups[first], draw))
    splits: dict[str, Pairs] = {split: [] for split in SPLITS}
    for pair, (first, _) in zip(pairs, edges, strict=True):
        _, draw = draws[groups[first]]
        splits["val" if draw < HELD_OUT else "test" if draw < 2 * HELD_OUT else "train"].append(
            pair
        )
    return splits


def _connected_components(edges: Pairs) -> dict[str, int]:
    """The component of each node (union-find; the root is the member with the smallest index)."""
    indices: dict[str, int] = {}
    parent: list[int] = []
    for edge in edges:
        roots = []
        for node in edge:
            index = indices.setdefault(node, len(parent))
            if index == len(parent):
                parent.append(index)
            while parent[index] != index:
                parent[index] = parent[parent[index]]  # path halving
                index = parent[index]
            roots.append(index)
        parent[max(roots)] = min(roots)
    for index, above in enumerate(parent):  # in increasing order, so `above` is already a root
        parent[index] = parent[above]
    return {node: parent[index] for node, index in indices.items()}


def normalise(sentence: str) -> str:
    """A sentence without case, punctuation and whitespace: equal for different spellings of it."""
    folded = unicodedata.normalize("NFKC", sentence).casefold()
    return "".join(filter(str.isalnum, folded)) or folded
