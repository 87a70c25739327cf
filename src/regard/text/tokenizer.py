"""Text to ids and back: kinds of tokenizers, and the pair of them that a run has."""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Engine
from tokenizers import decoders, models, pre_tokenizers, trainers

from regard import config, files
from regard.errors import UserError
from regard.text.pretrained import PretrainedTokenizer
from regard.text.vocabulary import BEGIN, END, PAD, SPECIALS, UNKNOWN, Tokenizer

__all__ = [
    "BEGIN",
    "END",
    "PAD",
    "SPECIALS",
    "TOKENIZERS",
    "UNKNOWN",
    "BpeTokenizer",
    "CharacterTokenizer",
    "Tokenizer",
    "TokenizerPair",
    "WordTokenizer",
]


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
        cls, texts: Iterable[str], symbols: Sequence[str], lowercase: bool, vocab_size: int
    ) -> "BpeTokenizer":
        """At most `vocab_size` ids in all: ours, the task's symbols, the 256 bytes and the merges."""
        learner = engine(models.BPE())
        trainer = trainers.BpeTrainer(
            vocab_size=vocab_size - len(SPECIALS) - len(symbols),
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        lowered = (" " + (text.lower() if lowercase else text) for text in texts)
        learner.train_from_iterator(lowered, trainer)
        vocabulary = learner.get_vocab()
        pieces = sorted(vocabulary, key=lambda piece: vocabulary[piece])
        merges = json.loads(learner.to_str())["model"]["merges"]
        return cls(pieces, symbols, lowercase, strict=False, merges=merges)


def engine(model: models.BPE) -> Engine:
    made = Engine(model)
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # type: ignore[assignment]
    return made


TOKENIZERS: dict[str, type[Tokenizer]] = {
    "characters": CharacterTokenizer,
    "words": WordTokenizer,
    "bpe": BpeTokenizer,
}
# One that was never learned here can still be read again.
SAVED: dict[str, type[Tokenizer]] = TOKENIZERS | {"pretrained": PretrainedTokenizer}


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
            built = [SAVED[side.pop("kind")](**side) for side in sides[: 2 - ("joint" in record)]]
            return cls(built[0], built[-1], record["max_tokens"])
        except Exception as error:  # bare, as the engine raises for merges it cannot follow
            raise UserError(f"{path} is not a tokenizer saved by regard: {error!r}") from None
