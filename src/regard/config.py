"""Every choice a user can make, each default once. Loads no model code, so it is there at once.

A table that has a `kind` is one of several alternatives. A kind may stand alone, as a string:
`score = "additive"` means `score = {kind = "additive"}`.
"""

# pyright: reportInvalidTypeForm=false

from functools import reduce
from importlib import metadata
from operator import or_
from typing import Annotated, Any, Literal, get_args

import tomli_w
from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, model_validator

# Kinds that users add, by extension point: `regard.register` writes here. Packages add theirs as
# entry points of the group `regard.score`, `regard.position`, ...
EXTENSIONS: dict[str, set[str]] = {"score": set(), "normaliser": set(), "position": set()}


class Table(BaseModel):
    """A TOML table: frozen, unknown keys refused."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False
    )

    @model_validator(mode="before")
    @classmethod
    def _kind_alone(cls, data: Any) -> Any:
        return {"kind": data} if isinstance(data, str) and "kind" in cls.model_fields else data

    @property
    def options(self) -> dict[str, Any]:
        """What the kind leaves to choose."""
        return self.model_dump(exclude={"kind"})


class Custom(Table):
    """A kind that a user registered; its other keys go to its constructor."""

    model_config = ConfigDict(extra="allow")
    kind: str


def kinds(table: type[Table]) -> tuple[str, ...]:
    """The names a table answers to."""
    return get_args(table.model_fields["kind"].annotation)


def extensions(point: str | None) -> set[str]:
    """Names that users and installed packages have added at an extension point."""
    if not point:
        return set()
    packaged = {entry.name for entry in metadata.entry_points(group=f"regard.{point}")}
    return EXTENSIONS[point] | packaged


def one_of(*tables: type[Table], extension: str | None = None) -> Any:
    """The type of a field that is one of `tables`, told apart by kind; without one, the first."""
    table_of = {kind: table for table in tables for kind in kinds(table)}
    default = next(iter(table_of))

    def tag(value: Any) -> str:
        if isinstance(value, dict):
            value = value.get("kind", default)
        kind = value if isinstance(value, str) else getattr(value, "kind", None)
        if kind in table_of:
            return "kind:" + kinds(table_of[kind])[0]
        return "kind:custom" if kind in extensions(extension) else f"kind:{kind}"

    members: list[Any] = [Annotated[table, Tag("kind:" + kinds(table)[0])] for table in tables]
    if extension:
        members.append(Annotated[Custom, Tag("kind:custom")])
    # What users add is not known yet: whoever shows the message looks it up by the extension's name.
    discriminator = Discriminator(
        tag,
        custom_error_type="kind",
        custom_error_message=", ".join(table_of),
        custom_error_context={"extension": extension or ""},
    )
    return Annotated[reduce(or_, members) if len(members) > 1 else members[0], discriminator]


# --- data -----------------------------------------------------------------------------------------


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


# --- attention ------------------------------------------------------------------------------------


class PlainScore(Table):
    kind: Literal["scaled-dot", "dot", "additive", "bilinear", "mean", "dummy"] = "scaled-dot"


class Location(Table):
    kind: Literal["location"] = "location"
    max_length: int = Field(default=256, ge=1)
    """The largest number of places it can look at."""


class PlainNormaliser(Table):
    kind: Literal["softmax", "argmax", "sparsemax", "none"] = "softmax"


class NoPosition(Table):
    kind: Literal["none"] = "none"


class Sinusoidal(Table):
    kind: Literal["sinusoidal"] = "sinusoidal"
    base: float = Field(default=10_000.0, gt=0)
    """The slowest wave is almost this many times slower than the fastest."""


class LearnedPosition(Table):
    kind: Literal["learned"] = "learned"
    max_length: int = Field(default=1024, ge=1)
    """Places in the table; what stands beyond them is refused."""


class Relative(Table):
    kind: Literal["relative"] = "relative"
    form: Literal["bias", "query"] = "bias"
    """What a distance adds to a score: a number for each head, or a vector that the query meets."""
    max_distance: int = Field(default=32, ge=1)
    """Whatever stands further away counts as this far."""


class Alibi(Table):
    kind: Literal["alibi"] = "alibi"


class Turning(Table):
    """Pairs turned by the position, at a ladder of frequencies."""

    base: float = Field(default=10_000.0, gt=0)
    scaling: Literal["none", "linear", "ntk", "yarn"] = "none"
    """How the frequencies are slowed down for longer texts, ..."""
    factor: float = Field(default=1.0, ge=1)
    """... how many times longer, ..."""
    original_length: int = Field(default=512, ge=1)
    """... and longer than what: the length without scaling, in tokens (only yarn asks)."""

    @model_validator(mode="after")
    def _factor(self) -> "Turning":
        if self.scaling != "none" and self.factor == 1:
            raise ValueError(f'the scaling "{self.scaling}" does nothing without a factor above 1')
        return self


class Rotary(Turning):
    kind: Literal["rotary"] = "rotary"


class Interleaved(Turning):
    """Rotary in most layers, no positions in every n-th (iRoPE)."""

    kind: Literal["interleaved"] = "interleaved"
    every: int = Field(default=4, ge=2)
    """The n: with 4, the fourth layer of a stack goes without, the eighth, ..."""

    @property
    def rotary(self) -> Rotary:
        """What the other layers have."""
        return Rotary(**self.model_dump(exclude={"kind", "every"}))


Score = one_of(PlainScore, Location, extension="score")
Normaliser = one_of(PlainNormaliser, extension="normaliser")
Position = one_of(
    NoPosition,
    Sinusoidal,
    LearnedPosition,
    Relative,
    Alibi,
    Rotary,
    Interleaved,
    extension="position",
)


class NoAttention(Table):
    """The bottleneck: the decoder sees the encoder's last state and nothing else."""

    kind: Literal["none"] = "none"


class SingleHead(Table):
    kind: Literal["single-head"] = "single-head"
    score: Score = PlainScore()
    normaliser: Normaliser = PlainNormaliser()
    kq_width: int = Field(default=128, ge=1)
    """Common width of projected queries and keys."""


class ManyHeads(Table):
    """What all kinds of heads leave to choose."""

    heads: int = Field(default=4, ge=1)
    head_width: int | None = Field(default=None, ge=1)
    """Width of one head; the model's width divided by the number of heads if not given."""
    score: Score = PlainScore()
    normaliser: Normaliser = PlainNormaliser()
    window: int | None = Field(default=None, ge=1)
    """Self-attention sees only what stands less than this many places away; everything if not given."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Share of the weights that training leaves out."""


class MultiHead(ManyHeads):
    kind: Literal["multi-head"] = "multi-head"
    key_value_heads: int | None = Field(default=None, ge=1)
    """Keys and values, each shared by equally many heads: 1 is multi-query, some are grouped-query;
    as many as there are heads if not given."""

    @model_validator(mode="after")
    def _groups(self) -> "MultiHead":
        if self.key_value_heads and self.heads % self.key_value_heads:
            allowed = ", ".join(str(n) for n in range(1, self.heads + 1) if self.heads % n == 0)
            raise ValueError(
                f"{self.heads} heads cannot share {self.key_value_heads} keys and values equally: "
                f"key_value_heads may be {allowed}"
            )
        return self


class Latent(ManyHeads):
    """Keys and values made from one small vector that all heads share (DeepSeek-V2)."""

    kind: Literal["latent"] = "latent"
    latent: int = Field(default=128, ge=1)
    """Width of that vector, the only thing of a token that a cache holds, ..."""
    rope: int = Field(default=16, ge=2)
    """... beside a key of this width, shared too, which the position turns; none where it turns none."""

    @model_validator(mode="after")
    def _pairs(self) -> "Latent":
        if self.rope % 2:
            raise ValueError(f"rotary turns pairs, so rope must be even, not {self.rope}")
        return self


# --- models ---------------------------------------------------------------------------------------


class RecurrentEncoder(Table):
    layers: int = Field(default=1, ge=1)
    bidirectional: bool = True
    position: Position = NoPosition()
    """Added to the embedded source."""

    @model_validator(mode="after")
    def _position_speaks(self) -> "RecurrentEncoder":
        if self.position.kind in {"relative", "alibi", "rotary", "interleaved"}:
            raise ValueError(
                f'the position "{self.position.kind}" speaks in self-attention, which a recurrent '
                "encoder has not: choose none, sinusoidal or learned"
            )
        return self


class RecurrentDecoder(Table):
    kind: Literal["parallel", "input-feeding", "tutorial"] = "parallel"
    """Where the attention's result goes; see `regard.models.recurrent_decoder`."""
    layers: int = Field(default=1, ge=1)


class Recurrent(Table):
    """Recurrent encoder and decoder, with attention or without."""

    kind: Literal["recurrent"] = "recurrent"
    cell: Literal["gru", "lstm", "rnn"] = "gru"
    embedding: int = Field(default=128, ge=1)
    embedding_std: float = Field(default=1.0, gt=0)
    """Spread of the embeddings before training. Small ones leave a cell's state alone at first, which
    helps where everything must be remembered (no attention)."""
    hidden: int = Field(default=128, ge=1)
    """Width of the state, in each direction."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    encoder: RecurrentEncoder = RecurrentEncoder()
    decoder: RecurrentDecoder = RecurrentDecoder()
    attention: one_of(SingleHead, NoAttention) = SingleHead()


class TransformerStack(Table):
    layers: int = Field(default=2, ge=1)


class AttentionMixer(Table):
    kind: Literal["attention"] = "attention"


class StateSpaceMixer(Table):
    """A selective state space (Mamba): linear in length, and a state of constant size."""

    kind: Literal["state-space"] = "state-space"
    state: int = Field(default=16, ge=1)
    """Numbers that each channel remembers."""
    expand: int = Field(default=2, ge=1)
    """Channels, in widths of the model."""
    kernel: int = Field(default=4, ge=1)
    """Tokens that the convolution before it sees."""


class Stack(Table):
    """What Transformers of both kinds choose."""

    width: int = Field(default=128, ge=1)
    feed_forward: int = Field(default=512, ge=1)
    """Width inside the position-wise network, ..."""
    activation: Literal["relu", "gelu", "swiglu"] = "relu"
    """... and what bends it there; swiglu has three maps where the others have two."""
    norm: Literal["layer", "rms"] = "layer"
    norm_at: Literal["before", "after"] = "before"
    """Normalise what a part reads, or what it leaves (as in 2017)."""
    tied: bool = True
    """Is the output map the target embedding, transposed, or one of its own?"""
    dropout: float = Field(default=0.1, ge=0, lt=1)
    decoder: TransformerStack = TransformerStack()
    mixer: one_of(AttentionMixer, StateSpaceMixer) = AttentionMixer()
    """What lets a token know of the others on its side."""
    attention: one_of(MultiHead, Latent) = MultiHead()
    position: Position = Sinusoidal()

    @property
    def head_width(self) -> int:
        return self.attention.head_width or max(1, self.width // self.attention.heads)

    @property
    def attends(self) -> bool:
        """Is there any attention?"""
        return isinstance(self.mixer, AttentionMixer)

    @property
    def deepest(self) -> int:
        return self.decoder.layers

    @model_validator(mode="after")
    def _heads_fit(self) -> "Stack":
        uneven = self.attention.head_width is None and self.width % self.attention.heads
        if self.attends and uneven:
            raise ValueError(
                f"a width of {self.width} does not divide into {self.attention.heads} heads: change "
                "width or attention.heads, or give attention.head_width"
            )
        whole = not isinstance(self.attention, Latent)  # which turns a part of its own
        if isinstance(self.position, Turning) and whole and self.head_width % 2:
            raise ValueError(
                f"rotary turns pairs, so a head's width must be even, not {self.head_width}"
            )
        return self

    @model_validator(mode="after")
    def _layers_fit(self) -> "Stack":
        if isinstance(self.position, Interleaved) and self.position.every > self.deepest:
            raise ValueError(
                f"no layer would go without positions: position.every is {self.position.every}, and "
                f"there are {self.deepest} layers; lower it, add layers, or choose rotary"
            )
        return self

    @model_validator(mode="after")
    def _position_speaks(self) -> "Stack":
        spoken = {"relative", "alibi", "rotary", "interleaved"}
        if isinstance(self.mixer, StateSpaceMixer) and self.position.kind in spoken:
            raise ValueError(
                f'the position "{self.position.kind}" speaks in self-attention, and the mixer is a '
                "state space: choose none, sinusoidal or learned"
            )
        return self


class Transformer(Stack):
    """Encoder-decoder Transformer."""

    kind: Literal["transformer"] = "transformer"
    encoder: TransformerStack = TransformerStack()

    @property
    def attends(self) -> bool:
        return True  # to the source, whatever the mixer

    @property
    def deepest(self) -> int:
        return max(self.encoder.layers, self.decoder.layers)


class DecoderOnly(Stack):
    """Source and target in one sequence, each token seeing those before it."""

    kind: Literal["decoder-only"] = "decoder-only"


# --- training and search --------------------------------------------------------------------------


class Training(Table):
    epochs: float = Field(default=10.0, gt=0)
    """Passes over the training text; may be a fraction."""
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
    patience: int | None = Field(default=None, ge=1)
    """Stop after this many looks without a lower validation loss."""
    tensorboard: bool = False
    """Also write TensorBoard event files (needs the extra `tensorboard`)."""


class Search(Table):
    max_ratio: float = Field(default=2.0, gt=0)
    """An output is at most max_ratio times the source plus max_extra tokens long."""
    max_extra: int = Field(default=20, ge=0)
    length_power: float = Field(default=1.0, ge=0)
    """A beam ranks finished outputs by score / length^length_power: 0 favours short ones."""


class Config(Table):
    """One experiment, whole."""

    description: str = ""
    seed: int = Field(default=1, ge=0, lt=2**63)
    """Initial weights, order of batches, dropout."""
    data: one_of(MadeTask, Named, Files, Text) = MadeTask()
    tokenizer: one_of(Characters, Words, Bpe) = Characters()
    model: one_of(Recurrent, Transformer, DecoderOnly) = Recurrent()
    training: Training = Training()
    search: Search = Search()

    @model_validator(mode="after")
    def _places_suffice(self) -> "Config":
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

    @property
    def language_model(self) -> bool:
        """Is there nothing to read, only something to write?"""
        return isinstance(self.data, Text)

    def to_toml(self) -> str:
        return tomli_w.dumps(self.model_dump(mode="json", exclude_none=True))
