"""Every choice a user can make, each default once. Loads no model code, so it is there at once.

A table that has a `kind` is one of several alternatives. A kind may stand alone, as a string:
`score = "additive"` means `score = {kind = "additive"}`. Read in this order: `table` (what a table is),
`text`, `attention`, `models`, and here training, search and the whole.
"""

# pyright: reportInvalidTypeForm=false

from typing import Any, Literal

import tomli_w
from pydantic import Field, model_validator

from regard.config.added import EXTENSIONS, extensions
from regard.config.attention import (
    Alibi,
    Interleaved,
    Latent,
    LearnedPosition,
    Location,
    ManyHeads,
    MultiHead,
    NoAttention,
    NoPosition,
    Normaliser,
    PlainNormaliser,
    PlainScore,
    Position,
    Relative,
    Rotary,
    Score,
    SingleHead,
    Sinusoidal,
    Turning,
)
from regard.config.models import (
    AttentionMixer,
    DecoderOnly,
    Frozen,
    Full,
    Lora,
    Pretrained,
    Recurrent,
    RecurrentDecoder,
    RecurrentEncoder,
    Stack,
    StateSpaceMixer,
    Transformer,
    TransformerStack,
)
from regard.config.table import (
    Custom,
    Table,
    kind_of,
    kinds,
    one_of,
)
from regard.config.text import (
    Bpe,
    Characters,
    Data,
    Files,
    HeldOut,
    MadeTask,
    Named,
    Noise,
    PretrainedTokenizer,
    Text,
    TokenizerTable,
    Words,
)

__all__ = [
    "EXTENSIONS",
    "Alibi",
    "AttentionMixer",
    "Bpe",
    "Characters",
    "Config",
    "Custom",
    "Data",
    "DecoderOnly",
    "Files",
    "Frozen",
    "Full",
    "HeldOut",
    "Interleaved",
    "Latent",
    "LearnedPosition",
    "Location",
    "Lora",
    "MadeTask",
    "ManyHeads",
    "MultiHead",
    "Named",
    "NoAttention",
    "NoPosition",
    "Noise",
    "Normaliser",
    "PlainNormaliser",
    "PlainScore",
    "Position",
    "Pretrained",
    "PretrainedTokenizer",
    "Recurrent",
    "RecurrentDecoder",
    "RecurrentEncoder",
    "Relative",
    "Rotary",
    "Score",
    "Search",
    "SingleHead",
    "Sinusoidal",
    "Stack",
    "StateSpaceMixer",
    "Table",
    "Text",
    "TokenizerTable",
    "Training",
    "Transformer",
    "TransformerStack",
    "Turning",
    "Words",
    "extensions",
    "kind_of",
    "kinds",
    "one_of",
]


class Training(Table):
    epochs: float = Field(default=10.0, gt=0)
    """Passes over the training text; may be a fraction."""
    min_steps: int = Field(default=0, ge=0)
    """A small text is passed over more often than that, until there were so many steps."""
    batch_tokens: int = Field(default=4096, ge=1)
    """A batch holds at most this many target tokens, padding included, ..."""
    batch_sentences: int = Field(default=128, ge=1)
    """... and at most this many sentences."""
    rate: float = Field(default=1e-3, gt=0)
    """Peak learning rate."""
    schedule: Literal["linear", "cosine", "inverse-sqrt", "constant"] = "linear"
    """How the rate falls after the warm-up."""
    warmup: int = Field(default=100, ge=0)
    """Steps over which the rate rises to its peak."""
    weight_decay: float = Field(default=0.01, ge=0)
    clip: float = Field(default=1.0, gt=0)
    """Largest norm of the gradient."""
    label_smoothing: float = Field(default=0.0, ge=0, lt=1)
    average: float | None = Field(default=None, gt=0, lt=1)
    """Keep a running mean of the weights, of which each step leaves this share (0.99, say); the mean
    is what is validated and saved."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """What products are computed in; weights stay float32. Auto: bfloat16 on a GPU that has it."""
    shapes: int = Field(default=8, ge=1)
    """On a GPU: how many different shapes batches come in. More shapes, less padding; each is
    recorded once as a CUDA graph, which takes a fraction of a second."""
    graphs: bool = True
    """On a GPU: replay steps as CUDA graphs."""
    evaluate_every: int = Field(default=250, ge=1)
    """Steps between two looks at the validation set; a checkpoint is written each time."""
    best_by: Literal["loss", "bleu"] = "loss"
    """Which weights are kept: those of the lowest validation loss, or those whose greedy translations
    of the validation set have the highest BLEU (lower-cased). A model that has learned a small text by
    heart translates better than its loss says."""
    patience: int | None = Field(default=None, ge=1)
    """Stop after this many looks that found nothing better."""
    tensorboard: bool = False
    """Also write TensorBoard event files (needs the extra `tensorboard`)."""


class Search(Table):
    max_ratio: float = Field(default=2.0, gt=0)
    """An output is at most max_ratio times the source plus max_extra tokens long; one of a language
    model, at most tokenizer.max_tokens."""
    max_extra: int = Field(default=20, ge=0)
    length_power: float = Field(default=1.0, ge=0)
    """A beam ranks finished outputs by score / length^length_power: 0 favours short ones."""


class Config(Table):
    """One experiment, whole."""

    description: str = ""
    seed: int = Field(default=1, ge=0, lt=2**63)
    """Initial weights, order of batches, dropout."""
    init: str | None = Field(default=None, min_length=1)
    """A run to start from: its folder. In a comparison, also a preset or a .toml file, which is then
    trained first."""
    data: one_of(MadeTask, Named, Files, Text) = MadeTask()
    tokenizer: one_of(Characters, Words, Bpe, PretrainedTokenizer) = Characters()
    model: one_of(Recurrent, Transformer, DecoderOnly, Pretrained) = Recurrent()
    training: Training = Training()
    search: Search = Search()

    @model_validator(mode="before")
    @classmethod
    def _tokenizer_of_its_own(cls, data: Any) -> Any:
        """So that only [model] need change: of [tokenizer], what is about a vocabulary goes."""
        if not isinstance(data, dict) or kind_of(data.get("model")) != "pretrained":
            return data
        given = data.get("tokenizer")
        given = given.model_dump() if isinstance(given, Table) else given
        kept = given if isinstance(given, dict) else {}
        learned = {name for table in (Characters, Words, Bpe) for name in table.model_fields}
        of_text = set(PretrainedTokenizer.model_fields) - {"joint"}
        kept = {name: kept[name] for name in kept if name not in learned - of_text}
        return data | {"tokenizer": kept | {"kind": "pretrained"}}

    @model_validator(mode="after")
    def _tokenizer_of_another(self) -> "Config":
        if isinstance(self.tokenizer, PretrainedTokenizer) and not self.pretrained:
            raise ValueError(
                'tokenizer.kind: "pretrained" is what a pretrained model brings along; for a model '
                "made from scratch choose characters, words or bpe"
            )
        return self

    @model_validator(mode="after")
    def _places_suffice(self) -> "Config":
        if self.pretrained:
            return self  # its places are counted when it is there
        recurrent = isinstance(self.model, Recurrent)
        name = "model.encoder.position" if recurrent else "model.position"
        position = self.model.encoder.position if recurrent else self.model.position
        longest, why = self.tokenizer.max_tokens + 1, "tokenizer.max_tokens and one"
        if isinstance(self.model, DecoderOnly):
            longest, why = 2 * longest, "twice tokenizer.max_tokens and one, for source and target"
        if isinstance(position, LearnedPosition) and position.max_length < longest:
            raise ValueError(
                f"{name}.max_length is {position.max_length}, and a text may need {longest} places "
                f"({why}): raise the first or lower the second"
            )
        return self

    @model_validator(mode="after")
    def _something_to_translate(self) -> "Config":
        if self.language_model and self.training.best_by == "bleu":
            raise ValueError(
                'training.best_by = "bleu" judges translations, and a language model makes none: '
                'use "loss"'
            )
        return self

    @model_validator(mode="after")
    def _reused_from(self) -> "Config":
        if self.tokenizer.reuse and self.init is None:
            raise ValueError("tokenizer.reuse takes the vocabulary of the run in init: give init")
        return self

    @model_validator(mode="after")
    def _measured_by_a_source(self) -> "Config":
        unread = self.search.changed("max_ratio", "max_extra") if self.language_model else []
        if unread:
            raise ValueError(
                f"search.{unread[0]} measures an output by its source, and a language model has none: "
                "leave it out; the longest text it writes has tokenizer.max_tokens"
            )
        return self

    @property
    def language_model(self) -> bool:
        """Is there nothing to read, only something to write?"""
        return isinstance(self.data, Text) and self.data.noise is None

    @property
    def pretrained(self) -> bool:
        """Does the model come with weights and a tokenizer of its own?"""
        return isinstance(self.model, Pretrained)

    def to_toml(self) -> str:
        return tomli_w.dumps(self.model_dump(mode="json", exclude_none=True))
