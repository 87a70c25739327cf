"""The vocabulary of one side: pieces of text and their ids.

The first four ids are special: padding, BOS, EOS, unknown. No text encodes to the first three, because a
tokenizer only looks pieces up among the ids after them: typing "<end>" gives the letters of "<end>".
Task symbols such as <U> are recognised only at the start of a text.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

SPECIAL_TOKENS = ("<pad>", "<begin>", "<end>", "<unk>")
PAD, BOS, EOS, UNK = range(len(SPECIAL_TOKENS))

# Keys of tokenizer.json that differ from the constructor's parameters.
JSON_KEYS = {"lower": "lowercase", "engine": "backend", "end": "eos_row", "unknown": "unk_row"}


class Tokenizer(ABC):
    """The vocabulary of one side. A subclass defines how text is split into pieces and joined again."""

    kind: ClassVar[str]

    def __init__(
        self, pieces: Sequence[str], symbols: Sequence[str], lowercase: bool, strict: bool
    ) -> None:
        self.pieces = tuple(pieces)
        self.symbols = tuple(symbols)
        self.lowercase = lowercase
        self.strict = strict
        """No <unk> occurred in training, so its embedding is untrained: reject unknown pieces."""
        first = len(SPECIAL_TOKENS) + len(self.symbols)
        self.piece_to_id = {piece: first + index for index, piece in enumerate(self.pieces)}
        self.vocab = (*SPECIAL_TOKENS, *self.symbols, *self.pieces)

    @abstractmethod
    def tokenize(self, text: str) -> list[str]:
        """Text to pieces."""

    @abstractmethod
    def detokenize(self, pieces: Iterable[str]) -> str:
        """Pieces to text: the inverse of `tokenize`."""

    @property
    def vocab_size(self) -> int:
        return len(self.vocab)

    def split_symbol(self, text: str) -> tuple[list[int], str]:
        """(the id of the leading task symbol, if any; the rest, in lower case if that is set)"""
        for index, symbol in enumerate(self.symbols):
            if text == symbol or text.startswith(symbol + " "):
                rest = text[len(symbol) + 1 :]
                return [len(SPECIAL_TOKENS) + index], rest.lower() if self.lowercase else rest
        return [], text.lower() if self.lowercase else text

    def parse(self, text: str) -> tuple[list[int], list[str]]:
        """(the id of the leading task symbol, if any; the pieces of the rest)"""
        symbol, rest = self.split_symbol(text)
        return symbol, self.tokenize(rest)

    def encode(self, text: str) -> list[int]:
        """Ids of a text, without BOS and EOS."""
        symbol, pieces = self.parse(text)
        return symbol + [self.piece_to_id.get(piece, UNK) for piece in pieces]

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text."""
        return [self.encode(text) for text in texts]

    def unknown_pieces(self, text: str) -> list[str]:
        """The pieces of a text that are not in the vocabulary, without duplicates."""
        return list(dict.fromkeys(p for p in self.parse(text)[1] if p not in self.piece_to_id))

    def decode(self, ids: Iterable[int]) -> str:
        """Text of ids; BOS, EOS and padding are dropped, <unk> stays visible."""
        kept = [i for i in ids if i not in (PAD, BOS, EOS)]
        has_symbol = bool(kept) and 0 <= kept[0] - len(SPECIAL_TOKENS) < len(self.symbols)
        rest = self.detokenize(self.vocab[i] for i in kept[has_symbol:])
        if not has_symbol:
            return rest
        symbol = self.vocab[kept[0]]
        return f"{symbol} {rest}" if rest else symbol

    def ids_to_tokens(self, ids: Iterable[int]) -> list[str]:
        """One readable string per id, as shown in diagrams."""
        return [self.vocab[i] for i in ids]

    def token_to_ids(self, token: str) -> list[int]:
        """The ids that `ids_to_tokens` may show as this token: usually one, or none."""
        return [i for i in range(self.vocab_size) if self.ids_to_tokens([i]) == [token]]

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "lower": self.lowercase,
            "strict": self.strict,
            "symbols": self.symbols,
            "pieces": self.pieces,
        }

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> "Tokenizer":
        """The inverse of `to_json`."""
        return cls(**{JSON_KEYS.get(k, k): value for k, value in record.items() if k != "kind"})

    @classmethod
    def train(
        cls, texts: Iterable[str], symbols: Sequence[str], lowercase: bool, min_frequency: int
    ) -> "Tokenizer":
        """The pieces that occur at least `min_frequency` times, most frequent first."""
        tokenizer = cls((), symbols, lowercase, strict=False)
        counts = Counter(piece for text in texts for piece in tokenizer.parse(text)[1])
        ranked = sorted(counts, key=lambda piece: (-counts[piece], piece))
        pieces = [piece for piece in ranked if counts[piece] >= min_frequency]
        return cls(pieces, symbols, lowercase, strict=len(pieces) == len(ranked))
