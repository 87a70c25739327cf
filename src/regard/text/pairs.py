"""Users' own pairs: two line-aligned files, one TSV or one JSON-lines file, each plain or gzip.

`split` shares pairs that came without splits out among train, val and test.
"""

import gzip
import json
import unicodedata
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from io import BufferedIOBase
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

from regard.errors import UserError, join_names, suggest

Pairs = list[tuple[str, str]]

SPLITS = ("train", "val", "test")
ON_ERROR = ("raise", "skip")
KINDS = (".tsv", ".jsonl")
BOM = b"\xef\xbb\xbf"


@dataclass
class Counts:
    """How many pairs were kept, and how many lines were left out for each reason."""

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
        said = join_names(f"{count:,} {reason}" for reason, count in reasons.items() if count)
        left_out = f", skipped {self.skipped:,} ({said})" if said else ""
        return f"kept {self.kept:,} {noun}{left_out}"


class Flaw(NamedTuple):
    """Why a line cannot be used: a field of `Counts`, and the same in words."""

    reason: str
    words: str


def read(
    source: str | Path,
    target: str | Path | None = None,
    *,
    fields: tuple[str, str] = ("source", "target"),
    on_error: str = "raise",
    max_characters: int = 2000,
) -> tuple[Pairs, Counts]:
    """The pairs of `source` and `target`, line by line, or of `source` alone (.tsv or .jsonl).

    Of a TSV the first two columns count; of JSON-lines the two `fields`. A line with an empty side,
    more than `max_characters` on a side, wrong UTF-8 or another form is refused, or with
    on_error="skip" left out and counted. Text is stripped of the space around it, nothing else.
    """
    if on_error not in ON_ERROR:
        raise UserError(
            f"expected on_error to be one of {join_names(ON_ERROR)}; "
            f'got "{on_error}".{suggest(on_error, ON_ERROR)}'
        )
    if max_characters < 1:
        raise UserError(f"expected max_characters of 1 or more; got {max_characters}.")
    source = Path(source)
    if target is None:
        rows = _table(source, fields, max_characters)
    else:
        rows = _aligned(source, Path(target), max_characters)
    return _kept(rows, on_error, str(source) if target is None else f"{source} and {target}")


def read_text(paths: Iterable[str], on_error: str, max_characters: int) -> tuple[Pairs, Counts]:
    """Every line of these files as a pair with nothing to read, ("", line); empty ones aside."""
    names = list(paths)
    rows = (row for name in names for row in _sentences(Path(name), max_characters))
    return _kept(rows, on_error, join_names(names))


def _sentences(path: Path, most: int) -> Iterator["Row"]:
    for number, line in enumerate(_lines(path, most), 1):
        text = _side(line, most)
        if not isinstance(text, Flaw):
            yield f"{path}, line {number}", ("", text)
        elif text.reason != "empty":
            yield f"{path}, line {number}", text


def _kept(rows: Iterable["Row"], on_error: str, names: str) -> tuple[Pairs, Counts]:
    """The rows without a flaw, if flaws are to be skipped or there is none."""
    pairs: Pairs = []
    counts = Counts()
    refused = None
    for where, found in rows:
        if isinstance(found, Flaw):
            setattr(counts, found.reason, getattr(counts, found.reason) + 1)
            # Read on: that two files differ in length is the better explanation of a bad line.
            refused = refused or f"{where} {found.words}"
        elif refused is None or on_error == "skip":
            pairs.append(found)
    if refused and on_error == "raise":
        raise UserError(
            f'{refused}. Mend the line, or leave such lines out with on_error = "skip" '
            f"({counts.skipped:,} in all)."
        )
    counts.kept = len(pairs)
    if not pairs:
        reason = f" ({counts.summary()})" if counts.skipped else ""
        raise UserError(f"expected at least one pair in {names}; got none{reason}.")
    return pairs, counts


Row = tuple[str, tuple[str, str] | Flaw]


def _aligned(source: Path, target: Path, most: int) -> Iterator[Row]:
    """Every line of `source` with the same line of `target`; both must have as many."""
    counts = [0, 0]
    for number, both in enumerate(zip_longest(_lines(source, most), _lines(target, most)), 1):
        counts = [count + (line is not None) for count, line in zip(counts, both, strict=True)]
        if both[0] is None or both[1] is None:
            continue
        first, second = _side(both[0], most), _side(both[1], most)
        faulty = source if isinstance(first, Flaw) else target
        yield f"{faulty}, line {number}", _pair(first, second)
    if counts[0] != counts[1]:
        raise UserError(
            f"expected as many lines in both files; got {counts[0]:,} in {source} and "
            f"{counts[1]:,} in {target}. Line N of the one must translate line N of the other: "
            "find where they part."
        )


def _table(path: Path, fields: tuple[str, str], most: int) -> Iterator[Row]:
    """Every line of one file that holds both sides."""
    name = path.name.lower().removesuffix(".gz")
    kind = next((kind for kind in KINDS if name.endswith(kind)), None)
    if kind is None:
        raise UserError(
            f"expected one file of pairs that ends in {join_names(KINDS)} (or one of these and .gz), "
            f"or two files, source and target, with a sentence a line; got {path} alone."
        )
    # Other columns, other fields and JSON's escapes (up to 12 bytes a character) need room too.
    for number, line in enumerate(_lines(path, (1 << 20) + 24 * most), 1):
        text = line if isinstance(line, Flaw) else _decode(line)
        if isinstance(text, str):
            text = _columns(text) if kind == ".tsv" else _members(text, fields)
        if not isinstance(text, Flaw):
            text = _pair(_side(text[0], most), _side(text[1], most))
        yield f"{path}, line {number}", text


def _columns(text: str) -> list[str] | Flaw:
    """The columns of a line; a quotation mark is a character like any other."""
    if not text.strip():
        return Flaw("empty", "is empty")
    columns = text.split("\t")
    if len(columns) < 2:
        return Flaw("malformed", "has no tab: expected source TAB target")
    return columns


def _members(text: str, fields: tuple[str, str]) -> list[str] | Flaw:
    """The texts that a line of JSON holds under `fields`."""
    if not text.strip():
        return Flaw("empty", "is empty")
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        return Flaw("malformed", f"is not JSON ({getattr(error, 'msg', None) or error})")
    if not isinstance(found, dict):
        return Flaw("malformed", f"is not a JSON object but a {type(found).__name__}")
    for key in fields:
        if key not in found:
            has = f"it has {join_names(map(str, found))}" if found else "it has none"
            return Flaw("malformed", f'has no key "{key}": {has}')
        if not isinstance(found[key], str):
            kind = type(found[key]).__name__
            return Flaw("malformed", f'has no text under "{key}" but a {kind}')
    return [found[key] for key in fields]


def _pair(first: str | Flaw, second: str | Flaw) -> tuple[str, str] | Flaw:
    if isinstance(first, Flaw):
        return first
    return second if isinstance(second, Flaw) else (first, second)


def _side(text: str | bytes | Flaw, most: int) -> str | Flaw:
    """One side of a pair, stripped, or what is wrong with it."""
    if isinstance(text, bytes):
        text = _decode(text)
    if isinstance(text, Flaw):
        return text
    text = text.strip()
    if not text:
        return Flaw("empty", "has an empty side")
    if len(text) > most:
        return Flaw("too_long", f"has {len(text):,} characters on a side, more than {most:,}")
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:  # JSON can spell half a character: "\ud83d"
            return Flaw("not_utf8", "holds half a character (a lone surrogate)")
    return text


def _decode(line: bytes) -> str | Flaw:
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        return Flaw("not_utf8", f"is not UTF-8 (byte {error.start + 1}: {error.reason})")


def _lines(path: Path, most: int) -> Iterator[bytes | Flaw]:
    """The lines of a file, one at a time, and never more of a line than `most` characters need."""
    limit = 4 * most + len(BOM) + 1024  # some space around it, and the end of the line
    try:
        with _open(path) as file:
            start = BOM
            while line := file.readline(limit):
                size, end = len(line), line
                while not end.endswith(b"\n") and (end := file.readline(limit)):
                    size += len(end)
                if size > limit:
                    yield Flaw("too_long", f"is {size:,} bytes long")
                else:
                    yield line.removeprefix(start)
                start = b""
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(f"{path} is damaged or not gzip: {error}. Get or make it anew.") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}.") from None


def _open(path: Path) -> BufferedIOBase:
    return gzip.open(path, "rb") if path.name.lower().endswith(".gz") else path.open("rb")


# Of 10,000 groups of sentences, so many go to val and so many to test.
HELD_OUT = 100


def split(pairs: Pairs) -> dict[str, Pairs]:
    """Pairs in train, val and test, such that no sentence of either side occurs in two of them.

    Pairs that share a sentence, whatever its case and punctuation, directly or through others, form
    a group. The group goes where a hash of one of its first sides sends it, not where its position
    would: a newer file, with more pairs, is split almost alike.
    """
    nodes = [("1" + bare(first), "2" + bare(second)) for first, second in pairs]
    groups = _groups(nodes)
    # Of the group's sentences the one with the smallest hash decides: a newcomer seldom is that.
    # It is chosen by other bits than those that decide, or big groups would draw other lots.
    lots: dict[int, tuple[int, int]] = {}
    for first in {first for first, _ in nodes}:
        digest = blake2b(first.encode(), digest_size=16).digest()
        lot = int.from_bytes(digest[:8], "big"), int.from_bytes(digest[8:], "big") % 10_000
        lots[groups[first]] = min(lot, lots.get(groups[first], lot))
    made: dict[str, Pairs] = {key: [] for key in SPLITS}
    for pair, (first, _) in zip(pairs, nodes, strict=True):
        _, lot = lots[groups[first]]
        made["val" if lot < HELD_OUT else "test" if lot < 2 * HELD_OUT else "train"].append(pair)
    return made


def _groups(edges: Pairs) -> dict[str, int]:
    """The number of each node's connected component (union-find; a root is its smallest member)."""
    numbers: dict[str, int] = {}
    parent: list[int] = []
    for edge in edges:
        roots = []
        for node in edge:
            at = numbers.setdefault(node, len(parent))
            if at == len(parent):
                parent.append(at)
            while parent[at] != at:
                parent[at] = parent[parent[at]]  # halve the way for those who come after
                at = parent[at]
            roots.append(at)
        parent[max(roots)] = min(roots)
    for at, above in enumerate(parent):  # upwards, so what is above is already done
        parent[at] = parent[above]
    return {node: parent[at] for node, at in numbers.items()}


def bare(sentence: str) -> str:
    """A sentence without case, punctuation and space: what two spellings of it share."""
    folded = unicodedata.normalize("NFKC", sentence).casefold()
    return "".join(filter(str.isalnum, folded)) or folded
