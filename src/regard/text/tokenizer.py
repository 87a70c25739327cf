"""Text to ids and back: the tokenizers, and the source-target pair of them that a run uses."""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers, trainers

from regard import config, documents, files, schemas
from regard.errors import is_rust_error
from regard.text.pretrained import PretrainedTokenizer
from regard.text.vocabulary import BOS, EOS, PAD, SPECIAL_TOKENS, UNK, Tokenizer

__all__ = [
    "BOS",
    "EOS",
    "PAD",
    "SPECIAL_TOKENS",
    "TOKENIZERS",
    "UNK",
    "BpeTokenizer",
    "CharacterTokenizer",
    "Tokenizer",
    "TokenizerPair",
    "WordTokenizer",
]


MAX_WORDS = 200_000
"""How many words a `BpeTokenizer` remembers before it starts again."""
MAX_TRAINING_TEXTS = 1_000_000


class CharacterTokenizer(Tokenizer):
    """Each character is a token."""

    kind = "characters"

    def tokenize(self, text: str) -> list[str]:
        return list(text)

    def detokenize(self, pieces: Iterable[str]) -> str:
        return "".join(pieces)


class WordTokenizer(Tokenizer):
    """A token is a word or a punctuation mark; spaces are implied by the tokens.

    With the usual spacing (no space before a comma, one after it), a token carries no mark. Otherwise it
    is marked with the space that is present or absent. So `detokenize` is the exact inverse of
    `tokenize`, and the vocabulary stays small.
    """

    kind = "words"
    PIECE = re.compile(r"(\s*)(['’]?\w+|[^\w\s])")
    SPACE, JOINER = "␣", "⌢"
    CLOSING = frozenset(".,;:!?)]}»”%…")
    OPENING = frozenset("([{«„“¿¡#$€£@")

    def usual_gap(self, left: str, right: str) -> str:
        """The usual spacing between two pieces: a space or nothing."""
        is_joined = right in self.CLOSING or left in self.OPENING or right[0] in "'’"
        return "" if is_joined or {left, right} & {"-", "/"} else " "

    def tokenize(self, text: str) -> list[str]:
        pieces: list[str] = []
        left, end = None, 0
        for match in self.PIECE.finditer(text):
            gap, piece = match.groups()
            if left is None or gap not in ("", " "):
                pieces += gap  # other whitespace: one token per character
                gap = ""
            elif gap != self.usual_gap(left, piece):
                piece = (self.SPACE if gap else self.JOINER) + piece
            if match[2][0] in (self.SPACE, self.JOINER) and piece == match[2]:
                piece = (self.SPACE if gap else self.JOINER) + piece  # escape a literal mark
            pieces.append(piece)
            left, end = match[2], match.end()
        return pieces + list(text[end:])

    def detokenize(self, pieces: Iterable[str]) -> str:
        text, left = "", None
        for piece in pieces:
            if piece.isspace():
                text, left = text + piece, None
                continue
            if piece[0] in (self.SPACE, self.JOINER):
                gap, piece = (" " if piece[0] == self.SPACE else ""), piece[1:]
            else:
                gap = "" if left is None else self.usual_gap(left, piece)
            text, left = text + gap + piece, piece
        return text


class BpeTokenizer(Tokenizer):
    """Byte-level byte-pair encoding (Sennrich et al., 2016; Radford et al., 2019): frequent words are
    one token, rare ones several; no text is unknown, and decoding restores it exactly.
    """

    kind = "bpe"

    def __init__(
        self,
        pieces: Sequence[str],
        symbols: Sequence[str],
        lowercase: bool,
        strict: bool,
        merges: Sequence[Sequence[str]],
    ) -> None:
        super().__init__(pieces, symbols, lowercase, strict)
        self.merges = [(left, right) for left, right in merges]
        vocabulary = {piece: index for index, piece in enumerate(pieces)}
        self.backend = build_backend(models.BPE(vocab=vocabulary, merges=self.merges))
        self.byte_decoder = decoders.ByteLevel()
        self.word_ids: dict[str, list[int]] = {}

    def tokenize(self, text: str) -> list[str]:
        # After a space, the first word is the same token as inside a sentence.
        return self.backend.encode(" " + text).tokens if text else []

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        """Each word is encoded once: no merge crosses a space, so a text has the ids of its words."""
        symbols, rests = zip(*map(self.split_symbol, texts), strict=True) if texts else ((), ())
        words = [split_words(rest) for rest in rests]
        self._remember(dict.fromkeys(chain.from_iterable(words)))
        return [
            symbol + list(chain.from_iterable(map(self.word_ids.__getitem__, row)))
            for symbol, row in zip(symbols, words, strict=True)
        ]

    def _remember(self, words: Iterable[str]) -> None:
        """Encode the words that are new, on all cores."""
        if len(self.word_ids) > MAX_WORDS:
            self.word_ids.clear()
        new = [word for word in words if word not in self.word_ids]
        encodings = self.backend.encode_batch_fast([" " + word for word in new])
        first = len(SPECIAL_TOKENS) + len(self.symbols)  # a byte-level piece is never unknown
        for word, encoding in zip(new, encodings, strict=True):
            self.word_ids[word] = [first + index for index in encoding.ids]

    def split_word(self, word: str) -> list[str]:
        """The parts of one of `split_words` that no merge crosses, in the byte-level alphabet."""
        assert self.backend.pre_tokenizer is not None
        return [part for part, _ in self.backend.pre_tokenizer.pre_tokenize_str(" " + word)]

    def detokenize(self, pieces: Iterable[str]) -> str:
        return self.byte_decoder.decode(list(pieces)).removeprefix(" ")

    def ids_to_tokens(self, ids: Iterable[int]) -> list[str]:
        """Readable: a word's first token as it is, its further tokens after a dot."""
        return [self._readable(i) for i in ids]

    def _readable(self, index: int) -> str:
        name = self.vocab[index]
        if index < len(SPECIAL_TOKENS) + len(self.symbols):
            return name
        text = self.byte_decoder.decode([name])
        if text.startswith(" "):
            return text[1:] or text
        return "·" + text if text[0].isalnum() else text

    def to_json(self) -> dict[str, Any]:
        return {**super().to_json(), "merges": self.merges}

    @classmethod
    def train(  # type: ignore[override]
        cls, texts: Sequence[str], symbols: Sequence[str], lowercase: bool, vocab_size: int
    ) -> "BpeTokenizer":
        """At most `vocab_size` ids: special tokens, task symbols, the 256 bytes and the merges.

        The merges are counted in at most `MAX_TRAINING_TEXTS` texts.
        """
        backend = build_backend(models.BPE())
        trainer = trainers.BpeTrainer(
            vocab_size=vocab_size - len(SPECIAL_TOKENS) - len(symbols),
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        # Evenly spread over all texts: counting takes 11 microseconds of CPU time a text.
        sample = islice(texts, 0, None, -(-len(texts) // MAX_TRAINING_TEXTS) or 1)
        blank = cls((), symbols, lowercase, strict=False, merges=())  # symbols have no merges
        prepared = (" " + blank.split_symbol(text)[1] for text in sample)
        backend.train_from_iterator(prepared, trainer)
        vocabulary = backend.get_vocab()
        pieces = sorted(vocabulary, key=lambda piece: vocabulary[piece])
        merges = json.loads(backend.to_str())["model"]["merges"]
        return cls(pieces, symbols, lowercase, strict=False, merges=merges)


def split_words(text: str) -> list[str]:
    """The words of a text, or the whole text if anything but single spaces separates them."""
    words = text.split(" ")
    return words if words == text.split() else [text] * bool(text)


def build_backend(model: models.BPE) -> Backend:
    backend = Backend(model)
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # type: ignore[assignment]
    return backend


TOKENIZERS: dict[str, type[Tokenizer]] = {
    "characters": CharacterTokenizer,
    "words": WordTokenizer,
    "bpe": BpeTokenizer,
}
# Kinds that tokenizer.json may hold; a pretrained one is loaded, never trained.
SAVED: dict[str, type[Tokenizer]] = TOKENIZERS | {"pretrained": PretrainedTokenizer}


@dataclass(frozen=True)
class TokenizerPair:
    """The tokenizers of source and target: the same object if the vocabulary is joint."""

    source: Tokenizer
    target: Tokenizer
    max_tokens: int
    source_eos: bool = True
    """Does each source end with EOS?"""

    @property
    def joint(self) -> bool:
        return self.source is self.target

    @classmethod
    def train(
        cls,
        table: config.Characters | config.Words | config.Bpe,
        pairs: Sequence[tuple[str, str]],
        symbols: Sequence[str],
    ) -> "TokenizerPair":
        """Tokenizers trained on the training pairs."""
        kind = TOKENIZERS[table.kind]
        source = [pair[0] for pair in pairs]
        target = [pair[1] for pair in pairs]
        not_vocabulary = {"kind", "joint", "max_tokens", "source_eos", "reuse", "dropout"}
        options = table.model_dump(exclude=not_vocabulary)
        if table.joint:
            both = kind.train(source + target, symbols, **options)
            return cls(both, both, table.max_tokens, table.source_eos)
        sides = kind.train(source, symbols, **options), kind.train(target, (), **options)
        return cls(*sides, table.max_tokens, table.source_eos)

    def encode_source(self, text: str) -> list[int]:
        """Ids of a source, with its EOS."""
        return self.source.encode(text) + [EOS] * self.source_eos

    def encode_sources(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each source, with its EOS."""
        return [ids + [EOS] * self.source_eos for ids in self.source.encode_all(texts)]

    def to_json(self) -> dict[str, Any]:
        sides = (
            {"joint": self.source} if self.joint else {"source": self.source, "target": self.target}
        )
        record: dict[str, Any] = {name: side.to_json() for name, side in sides.items()}
        return record | {"max_tokens": self.max_tokens, "source_eos": self.source_eos}

    def save(self, path: Path) -> None:
        files.write(path, documents.dumps(self.to_json(), ensure_ascii=False, indent=1))

    @classmethod
    def load(cls, path: Path) -> "TokenizerPair":
        record = documents.read(path, schemas.Tokenizers)
        names = ("joint",) if "joint" in record else ("source", "target")
        try:
            sides = [SAVED[record[name]["kind"]].from_json(record[name]) for name in names]
        except BaseException as error:
            if not is_rust_error(error):
                raise
            raise documents.damaged(path, error, schemas.Tokenizers) from None
        source_eos = record.get("source_eos", True)  # version 0.2 always had one
        return cls(sides[0], sides[-1], record["max_tokens"], source_eos)
