"""Text to ids and back.

Four ids are ours: padding, begin, end, unknown. No text can reach them: a tokenizer looks text up in its
own vocabulary, whose ids start after them, so a user who types "<end>" gets the letters of "<end>".
Task symbols such as <U> are read at the start of a text and nowhere else.
"""

import json
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from tokenizers import Tokenizer as Engine
from tokenizers import decoders, models, pre_tokenizers, trainers

from regard import config, files
from regard.errors import UserError

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
        cls, texts: Iterable[str], symbols: Sequence[str], lower: bool, min_frequency: int
    ) -> "Tokenizer":
        """The pieces that occur at least `min_frequency` times, most frequent first."""
        reader = cls((), symbols, lower, strict=False)
        counts = Counter(piece for text in texts for piece in reader.read(text)[1])
        ranked = sorted(counts, key=lambda piece: (-counts[piece], piece))
        pieces = [piece for piece in ranked if counts[piece] >= min_frequency]
        return cls(pieces, symbols, lower, strict=len(pieces) == len(ranked))


class CharacterTokenizer(Tokenizer):
    """A token is a character."""

    kind = "characters"

    def cut(self, text: str) -> list[str]:
        return list(text)

    def join(self, pieces: Iterable[str]) -> str:
        return "".join(pieces)


class WordTokenizer(Tokenizer):
    """A token is a word or a punctuation mark, and the spaces follow from the tokens.

    Where a text is spaced as usual (none before a comma, one after), a token says nothing of spaces.
    Where it is not, the token carries a mark for the space that is there or the one that is missing.
    So cutting and joining are exact inverses, and the vocabulary stays clean.
    """

    kind = "words"
    PIECE = re.compile(r"(\s*)(['’]?\w+|[^\w\s])")
    SPACE, GLUE = "␣", "⌢"
    CLOSING = frozenset(".,;:!?)]}»”%…")
    OPENING = frozenset("([{«„“¿¡#$€£@")

    def usual(self, left: str, right: str) -> str:
        """What one usually writes between these two pieces: a space, or nothing."""
        glued = right in self.CLOSING or left in self.OPENING or right[0] in "'’"
        return "" if glued or {left, right} & {"-", "/"} else " "

    def cut(self, text: str) -> list[str]:
        pieces: list[str] = []
        left, end = None, 0
        for match in self.PIECE.finditer(text):
            gap, piece = match.groups()
            if left is None or gap not in ("", " "):
                pieces += gap  # white space of other kinds stands for itself, a token a character
                gap = ""
            elif gap != self.usual(left, piece):
                piece = (self.SPACE if gap else self.GLUE) + piece
            if match[2][0] in (self.SPACE, self.GLUE) and piece == match[2]:
                piece = (self.SPACE if gap else self.GLUE) + piece  # or it would read as marked
            pieces.append(piece)
            left, end = match[2], match.end()
        return pieces + list(text[end:])

    def join(self, pieces: Iterable[str]) -> str:
        text, left = "", None
        for piece in pieces:
            if piece.isspace():
                text, left = text + piece, None
                continue
            if piece[0] in (self.SPACE, self.GLUE):
                gap, piece = (" " if piece[0] == self.SPACE else ""), piece[1:]
            else:
                gap = "" if left is None else self.usual(left, piece)
            text, left = text + gap + piece, piece
        return text


class BpeTokenizer(Tokenizer):
    """Byte-pair encoding (Sennrich et al., 2016) over bytes: a token is a run of bytes that training
    found often. Frequent words are one token, rare ones several, and any text comes back as it was.
    """

    kind = "bpe"

    def __init__(
        self,
        pieces: Sequence[str],
        symbols: Sequence[str],
        lower: bool,
        strict: bool,
        merges: Sequence[Sequence[str]],
    ) -> None:
        super().__init__(pieces, symbols, lower, strict)
        self.merges = [(left, right) for left, right in merges]
        vocabulary = {piece: index for index, piece in enumerate(pieces)}
        self.engine = engine(models.BPE(vocab=vocabulary, merges=self.merges))
        self.bytes = decoders.ByteLevel()

    def cut(self, text: str) -> list[str]:
        # With a space in front, the first word is the same token as in the middle of a sentence.
        return self.engine.encode(" " + text).tokens if text else []

    def join(self, pieces: Iterable[str]) -> str:
        return self.bytes.decode(list(pieces)).removeprefix(" ")

    def tokens(self, ids: Iterable[int]) -> list[str]:
        """Readable: a word's first token as it is, its further ones behind a dot."""
        return [self._shown(i) for i in ids]

    def _shown(self, index: int) -> str:
        name = self.names[index]
        if index < len(SPECIALS) + len(self.symbols):
            return name
        text = self.bytes.decode([name])
        if text.startswith(" "):
            return text[1:] or text
        return "·" + text if text[0].isalnum() else text

    def to_json(self) -> dict[str, Any]:
        return {**super().to_json(), "merges": self.merges}

    @classmethod
    def learn(  # type: ignore[override]
        cls, texts: Iterable[str], symbols: Sequence[str], lower: bool, size: int
    ) -> "BpeTokenizer":
        """At most `size` ids in all: ours, the task's symbols, the 256 bytes and the merges."""
        learner = engine(models.BPE())
        trainer = trainers.BpeTrainer(
            vocab_size=size - len(SPECIALS) - len(symbols),
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        lowered = (" " + (text.lower() if lower else text) for text in texts)
        learner.train_from_iterator(lowered, trainer)
        vocabulary = learner.get_vocab()
        pieces = sorted(vocabulary, key=lambda piece: vocabulary[piece])
        merges = json.loads(learner.to_str())["model"]["merges"]
        return cls(pieces, symbols, lower, strict=False, merges=merges)


def engine(model: models.BPE) -> Engine:
    made = Engine(model)
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # type: ignore[assignment]
    return made


TOKENIZERS: dict[str, type[Tokenizer]] = {
    "characters": CharacterTokenizer,
    "words": WordTokenizer,
    "bpe": BpeTokenizer,
}


@dataclass(frozen=True)
class TokenizerPair:
    """The tokenizers of source and target: one and the same, if the vocabulary is joint."""

    source: Tokenizer
    target: Tokenizer
    max_tokens: int

    @property
    def joint(self) -> bool:
        return self.source is self.target

    @classmethod
    def learn(
        cls,
        table: config.Characters | config.Words | config.Bpe,
        pairs: Sequence[tuple[str, str]],
        symbols: Sequence[str],
    ) -> "TokenizerPair":
        """Vocabularies from the training text."""
        kind = TOKENIZERS[table.kind]
        source = [pair[0] for pair in pairs]
        target = [pair[1] for pair in pairs]
        choices = table.model_dump(exclude={"kind", "joint", "max_tokens", "reuse"})
        if table.joint:
            both = kind.learn(source + target, symbols, **choices)
            return cls(both, both, table.max_tokens)
        sides = kind.learn(source, symbols, **choices), kind.learn(target, (), **choices)
        return cls(*sides, table.max_tokens)

    def to_json(self) -> dict[str, Any]:
        sides = (
            {"joint": self.source} if self.joint else {"source": self.source, "target": self.target}
        )
        record: dict[str, Any] = {name: side.to_json() for name, side in sides.items()}
        return record | {"max_tokens": self.max_tokens}

    def save(self, path: Path) -> None:
        files.write(path, json.dumps(self.to_json(), ensure_ascii=False, indent=1))

    @classmethod
    def load(cls, path: Path) -> "TokenizerPair":
        try:
            record = json.loads(path.read_text("utf-8"))
            sides = [record.get(name) or record["joint"] for name in ("source", "target")]
            built = [
                TOKENIZERS[side.pop("kind")](**side) for side in sides[: 2 - ("joint" in record)]
            ]
            return cls(built[0], built[-1], record["max_tokens"])
        except Exception as error:  # bare, as the engine raises for merges it cannot follow
            raise UserError(f"{path} is not a tokenizer saved by regard: {error!r}") from None
