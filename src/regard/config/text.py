"""Choices of data and tokenizer."""

from typing import Literal

from pydantic import Field, model_validator

from regard.config.table import Table


class MadeTask(Table):
    """Sentences made on the spot: no download, the same for everyone."""

    kind: Literal["task"] = "task"
    name: Literal["case", "reverse", "copy"] = "case"
    min_length: int = Field(default=4, ge=1)
    """Shortest and longest sentence, in characters."""
    max_length: int = Field(default=32, ge=1)
    train: int = Field(default=50_000, ge=1)
    """How many sentences each split has; no two splits share one."""
    val: int = Field(default=500, ge=1)
    test: int = Field(default=1_000, ge=1)
    seed: int = 1
    """Which sentences; apart from the run's own seed, so that several runs share one test set."""

    @model_validator(mode="after")
    def _range(self) -> "MadeTask":
        if self.min_length > self.max_length:
            raise ValueError("data.min_length is above data.max_length")
        return self


class Named(Table):
    """A public corpus: see `regard data list`."""

    kind: Literal["named"] = "named"
    name: Literal["multi30k", "tatoeba-fr-en", "tatoeba-de-en"] = "multi30k"
    source: str = "de"
    """Language to read and language to write."""
    target: str = "en"


class Files(Table):
    """Your own text: two line-aligned files, a .tsv, or a .jsonl, each plain or .gz."""

    kind: Literal["files"] = "files"
    train: str | tuple[str, str]
    """One file, or the source's and the target's."""
    val: str | tuple[str, str]
    test: str | tuple[str, str] | None = None
    keys: tuple[str, str] = ("source", "target")
    """Names of the two sides in JSON lines."""
    bad: Literal["refuse", "skip"] = "refuse"
    """What to do with a line that is empty, damaged or too long."""
    max_characters: int = Field(default=2000, ge=1)


class Text(Table):
    """Plain text, to learn to write it: a language model. A public corpus, or files of your own."""

    kind: Literal["text"] = "text"
    name: Literal["multi30k", "multi30k-captions", "tatoeba-fr-en", "tatoeba-de-en"] | None = None
    """A public corpus, of which one language is read, ..."""
    language: str = "en"
    train: str | tuple[str, ...] | None = None
    """... or files with a sentence a line, each plain or .gz."""
    val: str | tuple[str, ...] | None = None
    test: str | tuple[str, ...] | None = None
    bad: Literal["refuse", "skip"] = "refuse"
    """What to do with a line that is damaged or too long; empty ones do not count."""
    max_characters: int = Field(default=2000, ge=1)

    @model_validator(mode="after")
    def _one_origin(self) -> "Text":
        own = {"train": self.train, "val": self.val, "test": self.test}
        given = [split for split, files in own.items() if files is not None]
        if self.name is None and not {"train", "val"} <= set(given):
            raise ValueError("give data.name, or data.train and data.val")
        if self.name is not None and given:
            raise ValueError(f"data.name and data.{given[0]} are two origins: choose one")
        return self


# --- tokenizer ------------------------------------------------------------------------------------


class TokenizerTable(Table):
    joint: bool
    """One vocabulary for both sides, or one each."""
    lower: bool = False
    """Lower-case all text."""
    max_tokens: int = Field(default=256, ge=1)
    """The longest text, in tokens; a longer one is refused."""


class Characters(TokenizerTable):
    kind: Literal["characters"] = "characters"
    joint: bool = True
    min_frequency: int = Field(default=1, ge=1)
    """How often a character must occur in the training text to be known."""


class Words(TokenizerTable):
    kind: Literal["words"] = "words"
    joint: bool = False
    min_frequency: int = Field(default=2, ge=1)
    """How often a word must occur in the training text to be known."""


class Bpe(TokenizerTable):
    kind: Literal["bpe"] = "bpe"
    joint: bool = True
    size: int = Field(default=8000, ge=300)
    """Size of the vocabulary; the 256 bytes are in it, so no text is unknown."""
