"""Choices of models: recurrent, Transformer, decoder-only, pretrained."""

# pyright: reportInvalidTypeForm=false

from typing import ClassVar, Literal

from pydantic import Field, model_validator

from regard.config.attention import (
    IN_ATTENTION,
    Interleaved,
    Latent,
    MultiHead,
    NoAttention,
    NoPosition,
    Position,
    SingleHead,
    Sinusoidal,
    Turning,
)
from regard.config.table import Table, one_of


class RecurrentEncoder(Table):
    layers: int = Field(default=1, ge=1)
    bidirectional: bool = True
    position: Position = NoPosition()
    """Added to the embedded source."""

    @model_validator(mode="after")
    def _position_speaks(self) -> "RecurrentEncoder":
        if isinstance(self.position, IN_ATTENTION):
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
    def _attention_is_there(self) -> "Stack":
        """What nothing would look at is refused."""
        space = isinstance(self.mixer, StateSpaceMixer)
        if not self.attends and self.changed("attention"):
            raise ValueError(
                "the mixer is a state space and there is nothing else to look at, so nothing would "
                "attend: leave model.attention out, or choose the mixer attention"
            )
        if space and self.attention.window is not None:
            raise ValueError(
                "attention.window narrows self-attention, and the mixer is a state space: leave it out"
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
        if isinstance(self.mixer, StateSpaceMixer) and isinstance(self.position, IN_ATTENTION):
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


class Full(Table):
    """Every weight learns."""

    usual_rate: ClassVar[float] = 1e-4
    kind: Literal["full"] = "full"


class Frozen(Table):
    """The embeddings and the first layers stay as they are."""

    usual_rate: ClassVar[float] = 1e-4
    kind: Literal["frozen"] = "frozen"
    layers: int = Field(default=0, ge=0)
    """How many layers stay, of the encoder and of the decoder each."""


class Lora(Table):
    """W + (alpha / rank) B A: each matrix stays, and learns a thin product beside it (Hu et al., 2021)."""

    usual_rate: ClassVar[float] = 1e-3
    kind: Literal["lora"] = "lora"
    rank: int = Field(default=16, ge=1)
    """How thin."""
    alpha: float = Field(default=32.0, gt=0)
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Share of what enters A that training leaves out."""
    targets: tuple[str, ...] = ()
    """Names of the maps that learn, such as q_proj; all linear maps but the output's if not given."""


class Pretrained(Table):
    """A checkpoint of Hugging Face's, with its own tokenizer; needs the extra `pretrained`.

    One with an encoder reads prefix + source. One without reads prefix + source + separator, and goes
    on with the target.
    """

    kind: Literal["pretrained"] = "pretrained"
    name: str = Field(min_length=1)
    """A name on the Hugging Face hub, a folder, or a .gguf file."""
    tune: one_of(Full, Frozen, Lora) = Full()
    """What learns."""
    prefix: str = ""
    """What stands before every source, ..."""
    separator: str = Field(default="\n", min_length=1)
    """... and between source and target, where they are one sequence."""
