"""Text files, line by line: read a window of lines, translate it, write it, go on.

Memory is bounded by a window. Within one, lines of similar length share a batch; outputs keep the order of
the lines. A line that cannot be translated is reported, and the others are translated.
"""

import os
import stat
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import IO, BinaryIO, TypeVar

from regard import files
from regard.errors import UserError, join_names
from regard.scripts import find_scripts
from regard.text.decompress import open_gzip
from regard.text.lines import BOM
from regard.translation import Decoding, Translation
from regard.translator import Translator

T = TypeVar("T")

FIRST_WINDOW, LARGEST_WINDOW = 64, 4096  # in lines: the first outputs come soon, later ones fast
MAX_BYTES = 1 << 20  # of a line; the rest of a longer one is not kept


def windows(
    items: Iterable[T], first: int = FIRST_WINDOW, largest: int = LARGEST_WINDOW
) -> Iterator[list[T]]:
    """Consecutive lists of the items, each twice as long as the one before, up to the largest."""
    iterator, size = iter(items), first
    while window := list(islice(iterator, size)):
        yield window
        size = min(2 * size, largest)


# --- reading --------------------------------------------------------------------------------------


@dataclass
class Input:
    """The lines of a binary file; a line that is not text is the error that says why."""

    name: str
    file: IO[bytes]
    raw: BinaryIO
    """The same file before decompression."""
    number: int = 0

    @property
    def is_interactive(self) -> bool:
        return self.raw.isatty()

    @cached_property
    def size(self) -> int | None:
        """In bytes; None for a pipe."""
        try:
            status = os.fstat(self.raw.fileno())
        except OSError:
            return None
        return status.st_size if stat.S_ISREG(status.st_mode) else None

    @property
    def fraction_read(self) -> float:
        """How much of the file has been read, from 0 to 1; 0 for a pipe."""
        return min(1.0, self.raw.tell() / self.size) if self.size else 0.0

    def __iter__(self) -> Iterator[str | UserError]:
        prefix = BOM
        while line := self.read_line():
            self.number += 1
            yield self.decode(line.removeprefix(prefix))
            prefix = b""

    def read_line(self) -> bytes:
        try:
            line = chunk = self.file.readline(MAX_BYTES)
            while len(chunk) == MAX_BYTES and not chunk.endswith(b"\n"):
                chunk = self.file.readline(MAX_BYTES)
            return line
        except (OSError, EOFError) as error:
            reason = getattr(error, "strerror", None) or error
            raise UserError(f"{self.name} cannot be read: {reason}") from None

    def decode(self, line: bytes) -> str | UserError:
        if len(line) == MAX_BYTES and not line.endswith(b"\n"):
            return UserError(f"line {self.number} is longer than {MAX_BYTES:,} bytes: split it")
        try:
            return line.decode().removesuffix("\n").removesuffix("\r")
        except UnicodeDecodeError as error:
            return UserError(f"line {self.number} is not valid UTF-8 (byte {error.start + 1})")


@contextmanager
def open_input(name: str) -> Iterator[Input]:
    """A text file, plain or .gz; "-" is standard input."""
    if name == "-":
        yield Input("standard input", sys.stdin.buffer, sys.stdin.buffer)  # type: ignore[arg-type]
        return
    try:
        files.refuse_device(Path(name))
        raw = Path(name).open("rb")  # noqa: SIM115
    except OSError as error:
        raise UserError(f"{name} cannot be read: {error.strerror}") from None
    with raw, open_gzip(raw, name) if name.lower().endswith(".gz") else raw as file:
        yield Input(name, file, raw)


# --- translating ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Line:
    """A line's translation, or the error that says why there is none; neither for a blank line."""

    translation: Translation | None = None
    error: UserError | None = None
    warning: str | None = None


@dataclass
class LineTranslator:
    """Translates windows of lines. Each new script that training did not have gives one warning."""

    translator: Translator
    decoding: Decoding
    warned: set[str] = field(default_factory=set)

    def translate(self, window: list[str | UserError], first_number: int) -> list[Line]:
        """The lines of a window, numbered from `first_number`."""
        texts = ["" if isinstance(line, UserError) else line for line in window]
        outputs = self.translator.try_translate(texts, self.decoding, first_number, "line")
        lines = zip(window, outputs, strict=True)
        return [self.as_line(*line, f"line {n}") for n, line in enumerate(lines, first_number)]

    def as_line(
        self, line: str | UserError, output: Translation | UserError, name: str = "the text"
    ) -> Line:
        if isinstance(line, UserError):
            return Line(error=line)
        if isinstance(output, UserError):
            return Line(error=output) if line.strip() else Line()
        return Line(output, warning=self.warn_of_scripts(line, name))

    @cached_property
    def source_scripts(self) -> frozenset[str]:
        """The scripts of the letters in the source vocabulary."""
        tokenizer = self.translator.tokenizers.source
        return find_scripts("".join(tokenizer.ids_to_tokens(range(tokenizer.vocab_size))))

    def warn_of_scripts(self, text: str, name: str) -> str | None:
        """A warning, the first time that a text has letters of a script that is not in the vocabulary."""
        new = find_scripts(text) - self.source_scripts - self.warned
        if not new:
            return None
        self.warned |= new
        return (
            f"{name} has {format_scripts(new)} letters, and the vocabulary of this model has only "
            f"{format_scripts(self.source_scripts)}: expect no useful translation"
        )


def format_scripts(names: Iterable[str]) -> str:
    return join_names(sorted(name if name == "CJK" else name.title() for name in names))
