"""Choices of data and tokenizer."""

from typing import Literal

from pydantic import Field, model_validator

from regard.config.table import Table


class Data(Table):
    share: float = Field(default=1.0, gt=0, le=1)
    """The part of the training text that is used, whatever the run's seed; a smaller part lies within
    a larger one. The tokenizer learns from that part alone."""


class MadeTask(Data):
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


Parallel = Literal["multi30k", "tatoeba-fr-en", "tatoeba-de-en"]


class Named(Data):
    """A public corpus: see `regard data list`."""

    kind: Literal["named"] = "named"
    name: Parallel = "multi30k"
    source: str = "de"
    """Language to read and language to write."""
    target: str = "en"


class Files(Data):
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

    @model_validator(mode="after")
    def _keys_of_something(self) -> "Files":
        tables = [given for given in (self.train, self.val, self.test) if isinstance(given, str)]
        json = [name for name in tables if name.lower().removesuffix(".gz").endswith(".jsonl")]
        if self.changed("keys") and not json:
            raise ValueError(
                "data.keys names the sides of a .jsonl file, and none is given: leave it out"
            )
        return self


class HeldOut(Table):
    """Splits of a public corpus."""

    name: Parallel
    splits: tuple[Literal["train", "val", "test"], ...] = ("val", "test")


class Noise(Table):
    """How a sentence is spoiled, for a model to mend it (as in BART): words hidden, lost and moved."""

    mask: float = Field(default=0.3, ge=0, lt=1)
    """The share of words that are hidden, a run of them behind one mark, ..."""
    span: float = Field(default=3.0, ge=1)
    """... and how many words a run has, in the mean."""
    delete: float = Field(default=0.1, ge=0, lt=1)
    """The share of the other words that are lost."""
    shuffle: int = Field(default=2, ge=0)
    """No word moves by more places than this."""
    copies: int = Field(default=2, ge=1)
    """Each training sentence is spoiled so many times, and a pass over the text reads them all."""
    seed: int = 1
    """Which words; apart from the run's own seed."""

    @model_validator(mode="after")
    def _runs_part(self) -> "Noise":
        most = self.span / (self.span + 1)
        if self.mask > most:
            raise ValueError(
                f"data.noise.mask is {self.mask:g}, and runs of {self.span:g} words with one between "
                f"them hide {most:.2f} at most: lower mask or raise span"
            )
        return self


class Text(Data):
    """Plain text, of a public corpus or your own, to learn to write it or, with noise, to mend it."""

    kind: Literal["text"] = "text"
    name: Literal["multi30k", "multi30k-captions", "tatoeba-fr-en", "tatoeba-de-en"] | None = None
    """A public corpus, of which one language is read, or several, ..."""
    language: str | tuple[str, ...] = "en"
    train: str | tuple[str, ...] | None = None
    """... or files with a sentence a line, each plain or .gz."""
    val: str | tuple[str, ...] | None = None
    test: str | tuple[str, ...] | None = None
    bad: Literal["refuse", "skip"] = "refuse"
    """What to do with a line that is damaged or too long; empty ones do not count."""
    max_characters: int = Field(default=2000, ge=1)
    without: tuple[HeldOut, ...] = ()
    """Whose sentences are left out of the training text, in the languages above, whatever their case
    and punctuation."""
    noise: Noise | None = None

    @property
    def languages(self) -> tuple[str, ...]:
        return (self.language,) if isinstance(self.language, str) else self.language

    @model_validator(mode="after")
    def _one_origin(self) -> "Text":
        own = {"train": self.train, "val": self.val, "test": self.test}
        given = [split for split, files in own.items() if files is not None]
        if self.name is None and not {"train", "val"} <= set(given):
            raise ValueError("give data.name, or data.train and data.val")
        if self.name is not None and given:
            raise ValueError(f"data.name and data.{given[0]} are two origins: choose one")
        if not self.languages:
            raise ValueError("data.language names no language")
        return self

    @model_validator(mode="after")
    def _all_of_it_counts(self) -> "Text":
        if self.name is None and not self.without and self.changed("language"):
            raise ValueError(
                "data.language chooses among the languages of data.name, or of data.without, and your "
                "own files are read whole: leave it out, or give one of those"
            )
        unread = self.changed("bad", "max_characters") if self.name is not None else []
        if unread:
            raise ValueError(
                f"data.{unread[0]} is about lines of your own files, and {self.name} is read as it is: "
                "leave it out, or give data.train and data.val instead of data.name"
            )
        return self


# --- tokenizer ------------------------------------------------------------------------------------


class TokenizerTable(Table):
    joint: bool
    """One vocabulary for both sides, or one each."""
    lower: bool = False
    """Lower-case all text."""
    max_tokens: int = Field(default=256, ge=1)
    """The longest text, in tokens; a longer one is refused."""
    reuse: bool = False
    """With `init`: take that run's vocabulary whole, and learn none."""


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


class PretrainedTokenizer(TokenizerTable):
    """The one that a pretrained model brings along: its vocabulary is not ours to choose."""

    kind: Literal["pretrained"] = "pretrained"
    joint: bool = True
