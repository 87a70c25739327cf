"""Every setting, each default defined once. Imports no model code, so that it loads fast.

A table with a `kind` is one of several alternatives. A kind may be written as a string:
`score = "additive"` means `score = {kind = "additive"}`. Read in this order: `table` (the base class),
`text`, `attention`, `models`, and here training, search and the complete `Config`.
"""

# pyright: reportInvalidTypeForm=false

from typing import Any, Literal

import tomli_w
from pydantic import Field, model_validator

from regard.config import limits
from regard.config.attention import (
    Alibi,
    Interleaved,
    Latent,
    LearnedPosition,
    Location,
    MultiHead,
    MultiHeadBase,
    NoAttention,
    NoPosition,
    Normaliser,
    PlainNormaliser,
    PlainScore,
    Position,
    Relative,
    Rotary,
    RotaryBase,
    Score,
    SingleHead,
    Sinusoidal,
)
from regard.config.extensions import EXTENSIONS, extensions
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
    StateSpaceMixer,
    Transformer,
    TransformerBase,
    TransformerStack,
)
from regard.config.synthetic import Recipe, SyntheticPairs
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
    DatasetData,
    ExcludedSplits,
    FileData,
    HubData,
    Noise,
    PairsData,
    ParallelData,
    PlainText,
    PretrainedTokenizer,
    SyntheticData,
    TokenizerConfig,
    TrainedTokenizer,
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
    "DatasetData",
    "DecoderOnly",
    "ExcludedSplits",
    "FileData",
    "Frozen",
    "Full",
    "HubData",
    "Interleaved",
    "Latent",
    "LearnedPosition",
    "Location",
    "Lora",
    "MultiHead",
    "MultiHeadBase",
    "NoAttention",
    "NoPosition",
    "Noise",
    "Normaliser",
    "PairsData",
    "ParallelData",
    "PlainNormaliser",
    "PlainScore",
    "PlainText",
    "Position",
    "Pretrained",
    "PretrainedTokenizer",
    "Recipe",
    "Recurrent",
    "RecurrentDecoder",
    "RecurrentEncoder",
    "Relative",
    "Rotary",
    "RotaryBase",
    "Score",
    "Search",
    "SingleHead",
    "Sinusoidal",
    "StateSpaceMixer",
    "SyntheticData",
    "SyntheticPairs",
    "Table",
    "TokenizerConfig",
    "TrainedTokenizer",
    "Training",
    "Transformer",
    "TransformerBase",
    "TransformerStack",
    "Words",
    "extensions",
    "kind_of",
    "kinds",
    "one_of",
]


class Training(Table):
    epochs: float = Field(default=10.0, gt=0, le=1e6)
    """Passes over the training data; may be fractional."""
    min_steps: int = Field(default=0, ge=0, le=limits.COUNT)
    """Minimum number of steps: small data gets more epochs."""
    batch_tokens: int = Field(default=4096, ge=1, le=limits.COUNT)
    """Maximum number of target tokens in a batch, padding included."""
    batch_sentences: int = Field(default=128, ge=1, le=10**6)
    """Maximum number of sentences in a batch."""
    batching: Literal["bucketed", "random"] = "bucketed"
    """Which pairs share a batch: pairs of similar length, which need little padding, or random pairs, each
    batch padded to its longest. Random batches have too many shapes for bucket_shapes and CUDA graphs."""
    accumulation_steps: int = Field(default=1, ge=1, le=10_000)
    """Gradient accumulation: batches per optimizer step. Each token counts the same, so n small batches
    train like one large batch and need the memory of a small one. All settings in steps count optimizer
    steps; the last step of an epoch may have fewer batches."""
    learning_rate: float = Field(default=1e-3, gt=0, le=1e30)
    """Peak learning rate. Training that diverges is an error; only what float32 cannot hold is one here."""
    schedule: Literal["linear", "cosine", "inverse-sqrt", "constant"] = "linear"
    """Learning-rate decay after the warm-up."""
    warmup_steps: int = Field(default=100, ge=0, le=limits.COUNT)
    """Steps of linear warm-up to the peak."""
    weight_decay: float = Field(default=0.01, ge=0, le=100)
    """Decoupled weight decay (AdamW)."""
    adam_beta2: float = Field(default=0.98, gt=0, lt=1)
    """Decay of Adam's average of squared gradients: 0.98 as in Vaswani et al. (2017); PyTorch has 0.999."""
    grad_clip: float = Field(default=1.0, gt=0, le=1e12)
    """Maximum gradient norm; a large value, such as 1e9, never clips."""
    label_smoothing: float = Field(default=0.0, ge=0, lt=1)
    """Probability that the training objective spreads over all tokens; reported losses are unsmoothed."""
    r_drop: float = Field(default=0.0, ge=0, le=1000)
    """R-Drop: each batch goes through the model twice, with different dropout, and this times the divergence
    of the two predictions is added to the loss. 2.5 is the paper's alpha = 5; a step costs twice as much."""
    ema_decay: float | None = Field(default=None, gt=0, lt=1)
    """Decay of an exponential moving average of the weights (0.99, say); if set, the average is what is
    validated and saved."""
    precision: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Precision of matrix multiplications; weights stay float32. float16 is with loss scaling. Auto: on a GPU
    bfloat16, or float16 if it supports only that (V100, T4); else float32."""
    bucket_shapes: int = Field(default=8, ge=1, le=1000)
    """On a GPU: number of distinct batch shapes. More shapes mean less padding; each shape is captured
    once as a CUDA graph, which takes a fraction of a second."""
    cuda_graphs: bool = True
    """On a GPU: capture training steps as CUDA graphs and replay them."""
    sharding: Literal["none", "fsdp"] = "none"
    """On several devices (`regard train --devices N`, torchrun): each has the whole model, or, with "fsdp", a
    part of every parameter, of its gradient and of its optimizer state. For models that do not fit one."""
    validate_every: int = Field(default=250, ge=1, le=limits.COUNT)
    """Steps between validations; each writes a checkpoint."""
    checkpoint_metric: Literal["loss", "bleu"] = "loss"
    """How the best checkpoint is selected: lowest validation loss, or highest BLEU (lower-cased; on
    tokens, if the data are preprocessed) of greedy translations of the validation set. A model that overfits
    a small corpus still improves in BLEU after its validation loss rises."""
    average_checkpoints: int | None = Field(default=None, ge=2, le=1000)
    """At the end, average the weights of this many last validations (of their moving averages, with
    ema_decay); the average is saved if it is at least as good as the best checkpoint by checkpoint_metric."""
    patience: int | None = Field(default=None, ge=1, le=10**6)
    """Early stopping: stop after this many validations without improvement."""
    keep_last: bool = False
    """Keep the checkpoint of the last validation (`last/`, with the optimizer state) when a run is finished.
    It is several times as large as the model, and only an interrupted run needs it."""
    tensorboard: bool = False
    """Also write TensorBoard event files (needs the extra `tensorboard`)."""


class Search(Table):
    max_ratio: float = Field(default=2.0, ge=0, le=100)
    """Maximum output length in tokens: max_ratio * source length + max_extra, so max_extra with a ratio of
    0; for a language model, tokenizer.max_tokens."""
    max_extra: int = Field(default=20, ge=0, le=10_000)
    """Added to the maximum output length; see max_ratio."""
    length_penalty: float = Field(default=1.0, ge=0, le=10)
    """Beam search ranks finished hypotheses by score / length^length_penalty: 0 favours short ones."""
    cuda_graphs: bool = True
    """Whether to capture decoding steps as CUDA graphs, if on a GPU and if the model can be captured."""


class Config(Table):
    """One complete experiment."""

    description: str = ""
    """What the experiment is, in one line, for `regard presets` and the result card."""
    seed: int = Field(default=1, ge=0, le=limits.SEED)
    """Seeds initial weights, batch order and dropout."""
    init: str | None = Field(default=None, min_length=1)
    """Warm start: the folder of the run whose weights to start from. In a comparison, also a preset or
    a .toml file, which is then trained first."""
    data: one_of(SyntheticData, DatasetData, FileData, PlainText, HubData, PairsData) = (
        SyntheticData()
    )
    """What the model is trained and evaluated on."""
    tokenizer: one_of(Characters, Words, Bpe, PretrainedTokenizer) = Characters()
    """How a text is split into tokens."""
    model: one_of(Recurrent, Transformer, DecoderOnly, Pretrained) = Recurrent()
    """The architecture."""
    training: Training = Training()
    search: Search = Search()

    @model_validator(mode="before")
    @classmethod
    def _use_pretrained_tokenizer(cls, data: Any) -> Any:
        """A pretrained model brings its tokenizer: drop the vocabulary settings of [tokenizer], so that
        only [model] needs to change.
        """
        if not isinstance(data, dict) or kind_of(data.get("model")) != "pretrained":
            return data
        tokenizer = data.get("tokenizer")
        tokenizer = tokenizer.model_dump() if isinstance(tokenizer, Table) else tokenizer
        settings = tokenizer if isinstance(tokenizer, dict) else {}
        from_scratch = {name for table in (Characters, Words, Bpe) for name in table.model_fields}
        dropped = from_scratch - set(PretrainedTokenizer.model_fields) | {"joint"}
        settings = {name: settings[name] for name in settings if name not in dropped}
        return data | {"tokenizer": settings | {"kind": "pretrained"}}

    @model_validator(mode="after")
    def _check_tokenizer(self) -> "Config":
        if isinstance(self.tokenizer, PretrainedTokenizer) and not self.is_pretrained:
            raise ValueError(
                'tokenizer.kind: "pretrained" is the tokenizer of a pretrained model; for a model '
                "trained from scratch choose characters, words or bpe"
            )
        if self.tokenizer.reuse and self.init is None:
            raise ValueError("tokenizer.reuse takes the vocabulary of the run in init: give init")
        return self

    @model_validator(mode="after")
    def _check_storage(self) -> "Config":
        is_on_disk = getattr(self.data, "storage", "memory") == "disk"
        if is_on_disk and getattr(self.tokenizer, "dropout", 0):
            raise ValueError(
                "tokenizer.dropout segments all words anew in each epoch, and with "
                'data.storage = "disk" they are tokenised once: set tokenizer.dropout = 0, or '
                'data.storage = "memory"'
            )
        return self

    @model_validator(mode="after")
    def _check_source_eos(self) -> "Config":
        if isinstance(self.data, PlainText) and not getattr(self.tokenizer, "source_eos", True):
            raise ValueError(
                "tokenizer.source_eos = false leaves a language model without any source, and is for "
                "parallel data: leave it out"
            )
        return self

    @model_validator(mode="after")
    def _check_read_padding(self) -> "Config":
        reads_padding = isinstance(self.model, Recurrent) and self.model.read_padding
        if reads_padding and self.training.batching != "random":
            raise ValueError(
                "model.read_padding reproduces code that reads the padding of random batches, and "
                "bucketed batches have hardly any, or more on a GPU: set training.batching = "
                '"random"'
            )
        return self

    @model_validator(mode="after")
    def _check_max_length(self) -> "Config":
        if self.is_pretrained:
            return self  # checked once the checkpoint is loaded
        is_recurrent = isinstance(self.model, Recurrent)
        name = "model.encoder.position" if is_recurrent else "model.position"
        position = self.model.encoder.position if is_recurrent else self.model.position
        needed, formula = self.tokenizer.max_tokens + 1, "tokenizer.max_tokens + 1"
        if isinstance(self.model, DecoderOnly):
            needed, formula = 2 * needed, "2 (tokenizer.max_tokens + 1), for source and target"
        if isinstance(position, LearnedPosition) and position.max_length < needed:
            raise ValueError(
                f"{name}.max_length is {position.max_length}, and a text may need {needed} positions "
                f"({formula}): raise the first or lower the second"
            )
        return self

    @model_validator(mode="after")
    def _check_language_model(self) -> "Config":
        """A language model has no source and produces no translations."""
        if self.is_language_model and self.training.checkpoint_metric == "bleu":
            raise ValueError(
                'training.checkpoint_metric = "bleu" scores translations, and a language model has '
                'none: use "loss"'
            )
        mask = getattr(self.model, "attention_mask", "causal")
        if self.is_language_model and mask == "prefix":
            raise ValueError(
                'model.attention_mask = "prefix" is about the source, and a language model has none: use '
                '"causal"'
            )
        unused = self.search.changed("max_ratio", "max_extra") if self.is_language_model else []
        if unused:
            raise ValueError(
                f"search.{unused[0]} depends on the source length, and a language model has no source: "
                "leave it out; tokenizer.max_tokens limits its output"
            )
        return self

    @property
    def is_language_model(self) -> bool:
        """Is there a target but no source?"""
        return isinstance(self.data, PlainText) and self.data.noise is None

    @property
    def is_pretrained(self) -> bool:
        """Does the model come with its own weights and tokenizer?"""
        return isinstance(self.model, Pretrained)

    def to_toml(self) -> str:
        return tomli_w.dumps(self.model_dump(mode="json", exclude_none=True))
