"""Data and tokenizer settings."""

import re
from typing import Literal

from pydantic import Field, model_validator

from regard.config import limits
from regard.config.synthetic import SyntheticPairs
from regard.config.table import Table


class Data(Table):
    fraction: float = Field(default=1.0, gt=0, le=1)
    """Fraction of the training data that is used, independent of the run's seed; smaller fractions are
    subsets of larger ones. The tokenizer is trained on the same subset."""

    @property
    def file_splits(self) -> tuple[str, ...]:
        """The splits that are read from the user's files."""
        return ()

    @property
    def is_user_data(self) -> bool:
        """Whether the user brings the data: neither generated nor one of Regard's public corpora."""
        return bool(self.file_splits)


class ParallelData(Data):
    """Sentence pairs, real and synthetic."""

    swap: bool = False
    """Swap the two sides: train the other direction on the same data."""
    repeat: int = Field(default=1, ge=0, le=1000)
    """How often each real pair occurs in an epoch; 0: train on synthetic pairs alone."""
    synthetic: tuple[SyntheticPairs, ...] = ()  # type: ignore[valid-type]
    """Pairs that a model has made of monolingual text, mixed with the real ones. Those with a sentence of the
    validation or test set are left out. They are not preprocessed: what a model of preprocessed text makes is
    such text."""
    preprocess: Literal["none", "moses"] = "none"
    """What is done to both sides before anything else: nothing, or lower-casing, Moses punctuation
    normalisation and Moses tokenisation, the text on which papers report BLEU (see docs/papers.md). The model
    then reads and writes such text. Needs the extra `papers`."""

    @property
    def language_pair(self) -> tuple[str, str] | None:
        """The languages of the source and the target, before they are swapped, if they are known."""
        return None

    @model_validator(mode="after")
    def _check_languages(self) -> "ParallelData":
        if self.preprocess == "moses" and self.language_pair is None:
            raise ValueError(
                'data.preprocess = "moses" has rules for each language: name those of source and target, '
                'as in data.languages = ["en", "de"]'
            )
        if self.preprocess == "none" and getattr(self, "languages", None) is not None:
            raise ValueError(
                'data.languages selects the rules of data.preprocess, which is "none": leave it out, or '
                'set data.preprocess = "moses"'
            )
        return self

    @model_validator(mode="after")
    def _check_repeat(self) -> "ParallelData":
        if self.repeat == 0 and not self.synthetic:
            raise ValueError(
                "data.repeat = 0 leaves only the pairs of data.synthetic, and there are none: add some"
            )
        return self


class SyntheticData(Data):
    """Generated sentences: nothing to download, the same for everyone."""

    kind: Literal["synthetic"] = "synthetic"
    name: Literal["case", "reverse", "copy"] = "case"
    """The task: write a sentence in upper or lower case, reverse it, or copy it."""
    min_length: int = Field(default=4, ge=1, le=10_000)
    """Minimum sentence length in characters."""
    max_length: int = Field(default=32, ge=1, le=10_000)
    """Maximum sentence length in characters."""
    train: int = Field(default=50_000, ge=1, le=limits.SENTENCES)
    """Number of training sentences; splits are disjoint."""
    val: int = Field(default=500, ge=1, le=limits.SENTENCES)
    """Number of validation sentences."""
    test: int = Field(default=1_000, ge=1, le=limits.SENTENCES)
    """Number of test sentences."""
    seed: int = Field(default=1, ge=0, le=limits.SEED)
    """Seed of the generator, separate from the run's seed, so that several runs share one test set."""

    @model_validator(mode="after")
    def _check_lengths(self) -> "SyntheticData":
        if self.min_length > self.max_length:
            raise ValueError("data.min_length is above data.max_length")
        return self


ParallelCorpus = Literal["multi30k", "tatoeba-fr-en", "tatoeba-de-en"]


class DatasetData(ParallelData):
    """A public parallel corpus: see `regard data list`."""

    kind: Literal["dataset"] = "dataset"
    name: ParallelCorpus = "multi30k"
    """The corpus."""
    source: str = "de"
    """Source language."""
    target: str = "en"
    """Target language."""

    @property
    def language_pair(self) -> tuple[str, str]:
        return self.source, self.target


class FileData(ParallelData):
    """Your own parallel text: two line-aligned files, a .tsv, or a .jsonl, each plain, .gz or .zst; or a
    .parquet. * and ? in a name stand for several files, as in train-*.de.gz.
    """

    kind: Literal["files"] = "files"
    train: str | tuple[str, str]
    """One file, or a source file and a target file."""
    val: str | tuple[str, str]
    """Validation files, like those of train."""
    test: str | tuple[str, str] | None = None
    """Test files, like those of train."""
    fields: tuple[str, str] = ("source", "target")
    """Field names of source and target in JSON lines or Parquet; `translation.de` is the key de in the column
    translation of a Parquet file."""
    on_error: Literal["raise", "skip"] = "raise"
    """What to do with a line that is empty, invalid or too long."""
    max_characters: int = Field(default=2000, ge=1, le=limits.CHARACTERS)
    """Longer lines are errors (see on_error)."""
    languages: tuple[str, str] | None = None
    """Languages of source and target, such as ["en", "de"], whose rules data.preprocess applies."""
    storage: Literal["memory", "disk"] = "memory"
    """Where training pairs are: in memory, or as token ids in files of the cache, of which a part is
    in memory at a time."""
    shuffle_buffer: int = Field(default=2**18, ge=1, le=limits.SENTENCES)
    """With storage = "disk": how many pairs are in memory, where they are shuffled and put into batches."""

    @property
    def language_pair(self) -> tuple[str, str] | None:
        return self.languages

    @property
    def file_splits(self) -> tuple[str, ...]:
        return ("train", "val") if self.test is None else ("train", "val", "test")

    @model_validator(mode="after")
    def _check_same_file(self) -> "FileData":
        for split in self.file_splits:
            files = getattr(self, split)
            if not isinstance(files, str) and files[0] == files[1]:
                raise ValueError(
                    f"data.{split} names {files[0]} as source and as target: give two files, or one "
                    ".tsv or .jsonl with both sides"
                )
        return self

    @model_validator(mode="after")
    def _check_storage(self) -> "FileData":
        if self.storage == "memory" and self.changed("shuffle_buffer"):
            raise ValueError(
                'data.shuffle_buffer is for data.storage = "disk": pairs in memory are shuffled all '
                "together. Leave it out"
            )
        unused = self.changed("preprocess", "repeat", "synthetic")
        if self.storage == "disk" and unused:
            raise ValueError(
                f'data.{unused[0]} needs all pairs in memory, and data.storage is "disk": leave one of them '
                "out, or write the pairs that you want into files of their own"
            )
        return self

    @model_validator(mode="after")
    def _check_fields(self) -> "FileData":
        single = [files for files in (self.train, self.val, self.test) if isinstance(files, str)]
        tables = [
            name for name in single if re.search(r"\.(jsonl(\.gz|\.zst)?|parquet)$", name.lower())
        ]
        if self.changed("fields") and not tables:
            raise ValueError(
                "data.fields names the fields of a .jsonl or .parquet file, and none is given: leave it out"
            )
        return self


class HubData(ParallelData):
    """A Hugging Face dataset; Parquet and Arrow files need the extra `hf`."""

    kind: Literal["hf"] = "hf"
    name: str = Field(min_length=1)
    """A folder, or hf:user/name or hf:user/name@revision, which is downloaded."""
    subset: str = ""
    """The folder of one of several configurations, such as de-en; all files by default."""
    fields: tuple[str, str] = ("source", "target")
    """Columns of source and target; `translation.de` is the key de in the column translation."""
    max_characters: int = Field(default=2000, ge=1, le=limits.CHARACTERS)
    """Pairs with a longer side are skipped, as are those with an empty one."""
    languages: tuple[str, str] | None = None
    """Languages of source and target, such as ["en", "de"], whose rules data.preprocess applies."""

    @property
    def language_pair(self) -> tuple[str, str] | None:
        return self.languages

    @property
    def is_user_data(self) -> bool:
        return True


class PairsData(Data):
    """Pairs given in Python to `regard.train`, which a run folder does not contain."""

    kind: Literal["pairs"] = "pairs"

    @property
    def is_user_data(self) -> bool:
        return True


class ExcludedSplits(Table):
    """Splits of a public corpus."""

    name: ParallelCorpus
    """The corpus."""
    splits: tuple[Literal["train", "val", "test"], ...] = ("val", "test")
    """Its splits whose sentences are removed."""


class Noise(Table):
    """Corruption for denoising pretraining (BART): span masking, deletion, local shuffling."""

    mask_ratio: float = Field(default=0.3, ge=0, lt=1)
    """Fraction of words that are masked, a whole span by one mask token."""
    span_length: float = Field(default=3.0, ge=1, le=1000)
    """Mean length of a masked span in words."""
    delete_ratio: float = Field(default=0.1, ge=0, lt=1)
    """Fraction of the remaining words that are deleted."""
    shuffle_distance: int = Field(default=2, ge=0, le=1000)
    """Maximum number of positions a word moves."""
    copies: int = Field(default=2, ge=1, le=100)
    """Number of corrupted copies of each training sentence; one epoch covers all of them."""
    seed: int = Field(default=1, ge=0, le=limits.SEED)
    """Seed of the corruption, separate from the run's seed."""

    @model_validator(mode="after")
    def _check_ratio(self) -> "Noise":
        maximum = self.span_length / (self.span_length + 1)
        if self.mask_ratio > maximum:
            raise ValueError(
                f"data.noise.mask_ratio is {self.mask_ratio:g}, and spans of {self.span_length:g} words "
                f"with a word between them mask {maximum:.2f} at most: lower mask_ratio or raise "
                "span_length"
            )
        return self


class PlainText(Data):
    """Monolingual text, from a public corpus or your own files: trains a language model or, with noise, a
    denoising model.
    """

    kind: Literal["text"] = "text"
    name: Literal["multi30k", "multi30k-captions", "tatoeba-fr-en", "tatoeba-de-en"] | None = None
    """A public corpus ..."""
    language: str | tuple[str, ...] = "en"
    """... and which of its languages to use."""
    train: str | tuple[str, ...] | None = None
    """Or your own files with one sentence per line, each plain, .gz or .zst, which may have wildcards."""
    val: str | tuple[str, ...] | None = None
    """Validation files, like those of train."""
    test: str | tuple[str, ...] | None = None
    """Test files, like those of train."""
    on_error: Literal["raise", "skip"] = "raise"
    """What to do with a line that is invalid or too long; empty lines are ignored."""
    max_characters: int = Field(default=2000, ge=1, le=limits.CHARACTERS)
    """Longer lines are errors (see on_error)."""
    exclude: tuple[ExcludedSplits, ...] = ()
    """Held-out splits whose sentences, in the languages above, are removed from the training text, ignoring
    case and punctuation."""
    noise: Noise | None = None
    """Corrupt each sentence, and train a model that restores it; by default a language model is trained."""

    @property
    def languages(self) -> tuple[str, ...]:
        return (self.language,) if isinstance(self.language, str) else self.language

    @property
    def file_splits(self) -> tuple[str, ...]:
        files = {"train": self.train, "val": self.val, "test": self.test}
        return tuple(split for split, names in files.items() if names is not None)

    @model_validator(mode="after")
    def _check_origin(self) -> "PlainText":
        given = self.file_splits
        if self.name is None and not {"train", "val"} <= set(given):
            raise ValueError("give data.name, or data.train and data.val")
        if self.name is not None and given:
            raise ValueError(f"data.name and data.{given[0]} are both given: choose one")
        if not self.languages:
            raise ValueError("data.language is an empty list")
        return self

    @model_validator(mode="after")
    def _check_settings_used(self) -> "PlainText":
        if self.name is None and not self.exclude and self.changed("language"):
            raise ValueError(
                "data.language selects languages of data.name or data.exclude and has no effect on your "
                "own files: leave it out, or give one of those"
            )
        unused = self.changed("on_error", "max_characters") if self.name is not None else []
        if unused:
            raise ValueError(
                f"data.{unused[0]} applies to your own files, and {self.name} is a public corpus: leave "
                "it out, or give data.train and data.val instead of data.name"
            )
        return self


# --- tokenizer ------------------------------------------------------------------------------------


class TokenizerConfig(Table):
    joint: bool
    """One vocabulary for both sides, or one for each."""
    lowercase: bool = False
    """Lower-case all text."""
    max_tokens: int = Field(default=256, ge=1, le=limits.TOKENS)
    """Maximum text length in tokens; longer texts are rejected."""
    reuse: bool = False
    """With `init`: use that run's vocabulary instead of training a new one."""


class TrainedTokenizer(TokenizerConfig):
    """A tokenizer whose vocabulary is that of the training text."""

    source_eos: bool = True
    """End each source with the end token, which attention can use as a place for no word."""


class Characters(TrainedTokenizer):
    kind: Literal["characters"] = "characters"
    joint: bool = True
    """One vocabulary for both sides, or one for each."""
    min_frequency: int = Field(default=1, ge=1, le=limits.COUNT)
    """Rarer characters of the training text become unknown."""


class Words(TrainedTokenizer):
    kind: Literal["words"] = "words"
    joint: bool = False
    """One vocabulary for both sides, or one for each."""
    min_frequency: int = Field(default=2, ge=1, le=limits.COUNT)
    """Rarer words of the training text become unknown."""


class Bpe(TrainedTokenizer):
    kind: Literal["bpe"] = "bpe"
    joint: bool = True
    """One vocabulary for both sides, or one for each."""
    vocab_size: int = Field(default=8000, ge=300, le=10**6)
    """Vocabulary size; includes the 256 bytes, so no text is unknown."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """BPE-dropout: in training, each merge of a word is skipped with this probability (0.1, say), so that a
    word has several segmentations. Validation and translation never skip any."""


class PretrainedTokenizer(TokenizerConfig):
    """The tokenizer of a pretrained model, whose vocabulary is fixed."""

    kind: Literal["pretrained"] = "pretrained"
    joint: bool = True
    """One vocabulary for both sides, or one for each."""
