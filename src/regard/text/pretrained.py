"""The tokenizer of a pretrained model, its vocabulary in our order.

What a checkpoint numbers its own way gets our four ids first, then everything else as it came. So its
rows are put in order once, and nothing else need know whose numbers they were.
"""

from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

from tokenizers import Tokenizer as Engine

from regard.text.vocabulary import SPECIALS, Tokenizer

SPACES = ("Ġ", "▁")  # how a piece begins that has a space before it


class PretrainedTokenizer(Tokenizer):
    """head, then the pieces of prefix + text, then tail: what the model reads for a text."""

    kind = "pretrained"

    def __init__(
        self,
        engine: str,
        rows: int,
        end: int,
        unknown: int | None,
        lower: bool,
        head: Sequence[str] = (),
        prefix: str = "",
        tail: Sequence[str] = (),
    ) -> None:
        """`engine` in its own JSON; how many `rows` its model's embedding has; ids as it counts."""
        self.record = {"engine": engine, "rows": rows, "end": end, "unknown": unknown}
        self.engine = engine_of(engine)
        self.end, self.unknown_row = end, unknown
        self.others = [row for row in range(rows) if row not in (end, unknown)]
        names = {row: name for name, row in self.engine.get_vocab().items()}
        pieces = [names.get(row, f"<unused {row}>") for row in self.others]
        super().__init__(pieces, (), lower, strict=False)
        self.head, self.prefix, self.tail = tuple(head), prefix, tuple(tail)
        added = self.engine.get_added_tokens_decoder().items()
        self.silent = {token.content for row, token in added if token.special and row != unknown}

    def order(self, begin: int) -> list[int]:
        """Which row of the checkpoint each id of ours is; `begin` is what it reads there."""
        unknown = self.end if self.unknown_row is None else self.unknown_row
        return [self.end, begin, self.end, unknown, *self.others]

    def cut(self, text: str) -> list[str]:
        return [*self.head, *self.split(self.prefix + text), *self.tail]

    def split(self, text: str) -> list[str]:
        """The pieces of the text alone."""
        return self.engine.encode(text, add_special_tokens=False).tokens

    def join(self, pieces: Iterable[str]) -> str:
        kept = [piece for piece in pieces if piece not in self.silent]
        if self.tail and tuple(kept[-len(self.tail) :]) == self.tail:
            kept = kept[: -len(self.tail)]
        return self.say(kept).removeprefix(self.prefix)

    def say(self, pieces: list[str]) -> str:
        decoder = self.engine.decoder
        return " ".join(pieces) if decoder is None else decoder.decode(pieces)

    def tokens(self, ids: Iterable[int]) -> list[str]:
        """Readable: a word's first token as it is, its further ones behind a dot, space as space."""
        shown, inside = [], False
        for index in ids:
            name = self.names[index]
            own = index < len(SPECIALS) or name in self.silent
            said = "" if own else " " if name in SPACES else self.say([name])
            text = said.strip()
            further = inside and not name.startswith(SPACES) and text[:1].isalnum()
            shown.append("·" + text if further else text or said or name)
            inside = bool(text)
        return shown

    def to_json(self) -> dict[str, Any]:
        own = {"head": self.head, "prefix": self.prefix, "tail": self.tail}
        return {"kind": self.kind, "lower": self.lower} | self.record | own


@cache
def engine_of(text: str) -> Engine:
    """Built once for both sides. What a user types is text, even if it reads like a special token."""
    made = Engine.from_str(text)
    made.encode_special_tokens = True
    made.no_truncation()
    made.no_padding()
    return made
