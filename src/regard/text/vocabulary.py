"""One side's vocabulary: pieces of text as ids.

Four ids are ours: padding, begin, end, unknown. No text can reach them: a tokenizer looks text up in its
own vocabulary, whose ids start after them, so a user who types "<end>" gets the letters of "<end>".
Task symbols such as <U> are read at the start of a text and nowhere else.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

SPECIALS = ("<pad>", "<begin>", "<end>", "<unk>")
PAD, BEGIN, END, UNKNOWN = range(len(SPECIALS))


class Tokenizer(ABC):
    """One side's vocabulary. A kind says how text is cut into pieces and pieces are joined."""

    kind: ClassVar[str]

    def __init__(
        self, pieces: Sequence[str], symbols: Sequence[str], lower: bool, strict: bool
    ) -> None:
        self.pieces = tuple(pieces)
        self.symbols = tuple(symbols)
        self.lower = lower
        self.strict = strict
        """Training met no unknown piece, so the model could make nothing of one."""
        first = len(SPECIALS) + len(self.symbols)
        self.ids = {piece: first + index for index, piece in enumerate(self.pieces)}
        self.names = (*SPECIALS, *self.symbols, *self.pieces)

    @abstractmethod
    def cut(self, text: str) -> list[str]:
        """Text to pieces."""

    @abstractmethod
    def join(self, pieces: Iterable[str]) -> str:
        """Pieces to text: the inverse of `cut`."""

    @property
    def size(self) -> int:
        return len(self.names)

    def read(self, text: str) -> tuple[list[int], list[str]]:
        """(the id of the leading task symbol, if any; the pieces of the rest)"""
        for index, symbol in enumerate(self.symbols):
            if text == symbol or text.startswith(symbol + " "):
                rest = text[len(symbol) + 1 :]
                return [len(SPECIALS) + index], self.cut(rest.lower() if self.lower else rest)
        return [], self.cut(text.lower() if self.lower else text)

    def encode(self, text: str) -> list[int]:
        """Ids of a text, without begin and end."""
        symbol, pieces = self.read(text)
        return symbol + [self.ids.get(piece, UNKNOWN) for piece in pieces]

    def unknown(self, text: str) -> list[str]:
        """The pieces of a text that training never showed, each once."""
        return list(dict.fromkeys(p for p in self.read(text)[1] if p not in self.ids))

    def decode(self, ids: Iterable[int]) -> str:
        """Text of ids; begin, end and padding are dropped, unknown stays visible."""
        kept = [i for i in ids if i not in (PAD, BEGIN, END)]
        is_symbol = bool(kept) and 0 <= kept[0] - len(SPECIALS) < len(self.symbols)
        rest = self.join(self.names[i] for i in kept[is_symbol:])
        if not is_symbol:
            return rest
        symbol = self.names[kept[0]]
        return f"{symbol} {rest}" if rest else symbol

    def tokens(self, ids: Iterable[int]) -> list[str]:
        """One string for each id, as shown in a diagram."""
        return [self.names[i] for i in ids]

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "lower": self.lower,
            "strict": self.strict,
            "symbols": self.symbols,
            "pieces": self.pieces,
        }

    @classmethod
    def learn(
        cls, texts: Iterable[str], symbols: Sequence[str], lowercase: bool, min_frequency: int
    ) -> "Tokenizer":
        """The pieces that occur at least `min_frequency` times, most frequent first."""
        reader = cls((), symbols, lowercase, strict=False)
        counts = Counter(piece for text in texts for piece in reader.read(text)[1])
        ranked = sorted(counts, key=lambda piece: (-counts[piece], piece))
        pieces = [piece for piece in ranked if counts[piece] >= min_frequency]
        return cls(pieces, symbols, lowercase, strict=len(pieces) == len(ranked))
