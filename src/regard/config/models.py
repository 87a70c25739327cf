"""Model settings: recurrent, Transformer, decoder-only, pretrained."""

# pyright: reportInvalidTypeForm=false

from typing import ClassVar, Literal

from pydantic import Field, model_validator

from regard.config import limits
from regard.config.attention import (
    IN_ATTENTION,
    Interleaved,
    Latent,
    MultiHead,
    NoAttention,
    NoPosition,
    Position,
    RotaryBase,
    SingleHead,
    Sinusoidal,
)
from regard.config.table import Table, one_of


class RecurrentEncoder(Table):
    layers: int = Field(default=1, ge=1, le=limits.LAYERS)
    """Number of layers of the encoder."""
    bidirectional: bool = True
    """Read the source in both directions."""
    position: Position = NoPosition()
    """Position encoding added to the source embeddings."""

    @model_validator(mode="after")
    def _check_position(self) -> "RecurrentEncoder":
        if isinstance(self.position, IN_ATTENTION):
            raise ValueError(
                f'the position "{self.position.kind}" acts in self-attention, and a recurrent encoder '
                "has none: choose none, sinusoidal or learned"
            )
        return self


class RecurrentDecoder(Table):
    kind: Literal["parallel", "input-feeding", "tutorial"] = "parallel"
    """Where the context vector enters; see `regard.models.recurrent_decoder`."""
    layers: int = Field(default=1, ge=1, le=limits.LAYERS)
    """Number of layers of the decoder."""


class Recurrent(Table):
    """Recurrent encoder-decoder, with or without attention."""

    kind: Literal["recurrent"] = "recurrent"
    cell: Literal["gru", "lstm", "rnn"] = "gru"
    """The recurrent cell; rnn is the plain tanh cell."""
    embedding_dim: int = Field(default=128, ge=1, le=limits.DIM)
    """Size of the token embeddings."""
    embedding_std: float = Field(default=1.0, gt=0, le=1000)
    """Standard deviation of the initial embeddings. Small embeddings barely change a cell's state at
    first, which helps without attention, where the state must hold the whole sentence."""
    hidden_dim: int = Field(default=128, ge=1, le=limits.DIM)
    """Size of the hidden state, per direction."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Dropout on embeddings, between layers and before the output projection."""
    encoder: RecurrentEncoder = RecurrentEncoder()
    decoder: RecurrentDecoder = RecurrentDecoder()
    attention: one_of(SingleHead, NoAttention) = SingleHead()
    """Attention of the decoder to the source."""
    bridge: bool = True
    """The decoder starts from ReLU(W s + b), where s is the encoder's last state. Without a bridge it
    starts from s itself, each layer from the same layer of an encoder with one direction."""
    output_hidden_dim: int | None = Field(default=None, ge=1, le=limits.DIM)
    """Size of a hidden layer with ReLU before the output projection. Dropout then applies to it, and not
    to its input."""
    read_padding: bool = False
    """Reproduces a common mistake, to measure it: in training, the encoder reads the padding of a batch
    and attention attends to it. Needs random batches, each padded to its longest sentence. Evaluation and
    translation mask padding, so they never depend on the batch."""

    @model_validator(mode="after")
    def _check_bridge(self) -> "Recurrent":
        if self.bridge:
            return self
        reason = None
        if self.encoder.bidirectional:
            reason = "the encoder has two directions: set encoder.bidirectional = false"
        elif self.cell == "lstm":
            reason = "an LSTM's state is more than its output: choose rnn or gru"
        elif self.encoder.layers != self.decoder.layers:
            reason = (
                f"the encoder has {self.encoder.layers} layers and the decoder {self.decoder.layers}: "
                "give both the same number"
            )
        if reason:
            raise ValueError(
                f"without a bridge the decoder starts from the encoder's last state, but {reason}, or "
                "keep the bridge"
            )
        return self


class TransformerStack(Table):
    layers: int = Field(default=2, ge=1, le=limits.LAYERS)
    """Number of layers of this stack."""


class AttentionMixer(Table):
    kind: Literal["attention"] = "attention"


class StateSpaceMixer(Table):
    """A selective state-space layer (Mamba): linear in length, with a state of constant size."""

    kind: Literal["state-space"] = "state-space"
    state_dim: int = Field(default=16, ge=1, le=limits.DIM)
    """State size per channel."""
    expand: int = Field(default=2, ge=1, le=64)
    """Channels / d_model."""
    conv_kernel: int = Field(default=4, ge=1, le=1024)
    """Kernel size of the causal convolution."""


class TransformerBase(Table):
    """Settings common to encoder-decoder and decoder-only Transformers."""

    d_model: int = Field(default=128, ge=1, le=limits.DIM)
    """Size of the token representations."""
    d_ff: int = Field(default=512, ge=1, le=2**20)
    """Inner dimension of the feed-forward network."""
    activation: Literal["relu", "gelu", "swiglu"] = "relu"
    """Of the feed-forward network; swiglu has three weight matrices instead of two."""
    norm: Literal["layer", "rms"] = "layer"
    """LayerNorm, or RMSNorm, which does not centre."""
    norm_position: Literal["pre", "post"] = "pre"
    """Normalise the input of each sublayer (pre-norm), or the residual sum (post-norm, as in 2017)."""
    tie_embeddings: bool = True
    """Use the target embedding as the output projection."""
    dropout: float = Field(default=0.1, ge=0, lt=1)
    """Dropout on embeddings and on the output of each sublayer."""
    decoder: TransformerStack = TransformerStack()
    mixer: one_of(AttentionMixer, StateSpaceMixer) = AttentionMixer()
    """Token mixer of each layer: self-attention or a state space."""
    attention: one_of(MultiHead, Latent) = MultiHead()
    """Attention heads: separate, grouped or shared keys and values, or latent ones."""
    position: Position = Sinusoidal()
    """Position encoding."""

    @property
    def head_dim(self) -> int:
        return self.attention.head_dim or max(1, self.d_model // self.attention.heads)

    @property
    def has_attention(self) -> bool:
        return isinstance(self.mixer, AttentionMixer)

    @property
    def max_layers(self) -> int:
        """Depth of the deeper stack."""
        return self.decoder.layers

    @model_validator(mode="after")
    def _check_heads(self) -> "TransformerBase":
        uneven = self.attention.head_dim is None and self.d_model % self.attention.heads
        if self.has_attention and uneven:
            raise ValueError(
                f"d_model ({self.d_model}) is not divisible by attention.heads "
                f"({self.attention.heads}): change either, or set attention.head_dim"
            )
        rotates_head = not isinstance(self.attention, Latent)  # latent rotates its rope_dim instead
        if isinstance(self.position, RotaryBase) and rotates_head and self.head_dim % 2:
            raise ValueError(f"rotary needs pairs, so head_dim must be even, not {self.head_dim}")
        return self

    @model_validator(mode="after")
    def _check_attention_used(self) -> "TransformerBase":
        """Settings that would have no effect are rejected."""
        if not self.has_attention and self.changed("attention"):
            raise ValueError(
                "the mixer is a state space and this model has no cross-attention, so "
                "model.attention has no effect: leave it out, or set mixer to attention"
            )
        if isinstance(self.mixer, StateSpaceMixer) and self.attention.window is not None:
            raise ValueError(
                "attention.window restricts self-attention, and the mixer is a state space: leave it out"
            )
        return self

    @model_validator(mode="after")
    def _check_interval(self) -> "TransformerBase":
        position = self.position
        if isinstance(position, Interleaved) and position.nope_interval > self.max_layers:
            raise ValueError(
                f"position.nope_interval ({position.nope_interval}) exceeds the number of layers "
                f"({self.max_layers}), so every layer would be rotary: lower it, add layers, or choose "
                "rotary"
            )
        return self

    @model_validator(mode="after")
    def _check_position(self) -> "TransformerBase":
        if isinstance(self.mixer, StateSpaceMixer) and isinstance(self.position, IN_ATTENTION):
            raise ValueError(
                f'the position "{self.position.kind}" acts in self-attention, and the mixer is a '
                "state space: choose none, sinusoidal or learned"
            )
        return self


class Transformer(TransformerBase):
    """Encoder-decoder Transformer."""

    kind: Literal["transformer"] = "transformer"
    encoder: TransformerStack = TransformerStack()

    @property
    def has_attention(self) -> bool:
        return True  # cross-attention, whatever the mixer

    @property
    def max_layers(self) -> int:
        return max(self.encoder.layers, self.decoder.layers)


class DecoderOnly(TransformerBase):
    """Source and target in one sequence with causal self-attention."""

    kind: Literal["decoder-only"] = "decoder-only"
    attention_mask: Literal["causal", "prefix"] = "causal"
    """Over the source: causal, or fully visible (prefix LM), so that each source token attends to the whole
    source. Over the target it is causal."""

    @model_validator(mode="after")
    def _check_attention_mask(self) -> "DecoderOnly":
        if self.attention_mask == "prefix" and not self.has_attention:
            raise ValueError(
                'attention_mask = "prefix" lets source tokens attend to later ones, and the mixer is a '
                'state space, which reads forward only: use "causal"'
            )
        return self


class Full(Table):
    """Train all parameters."""

    usual_learning_rate: ClassVar[float] = 1e-4
    kind: Literal["full"] = "full"


class Frozen(Table):
    """Freeze the embeddings and the first layers."""

    usual_learning_rate: ClassVar[float] = 1e-4
    kind: Literal["frozen"] = "frozen"
    layers: int = Field(default=0, ge=0, le=limits.LAYERS)
    """Number of frozen layers, in the encoder and in the decoder each."""


class Lora(Table):
    """W + (alpha / rank) B A: W is frozen, the low-rank A and B are trained (Hu et al., 2021)."""

    usual_learning_rate: ClassVar[float] = 1e-3
    kind: Literal["lora"] = "lora"
    rank: int = Field(default=16, ge=1, le=limits.DIM)
    """Rank of the update B A."""
    alpha: float = Field(default=32.0, gt=0, le=1e6)
    """Scale of the update: alpha / rank."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Dropout on the input of A."""
    target_modules: tuple[str, ...] = ()
    """Names of the linear layers to adapt, such as q_proj; all but the output projection by default."""
    adapter_only: bool = False
    """Save only A and B (`regard train --adapter-only`): a small run folder, but one that needs the
    pretrained checkpoint to load. By default a run folder holds all weights."""


class Pretrained(Table):
    """A Hugging Face checkpoint with its tokenizer; needs the extra `pretrained`.

    An encoder-decoder model reads prefix + source. A decoder-only model reads prefix + source +
    separator and continues with the target.
    """

    kind: Literal["pretrained"] = "pretrained"
    name: str = Field(min_length=1)
    """A model name on the Hugging Face hub, a folder, or a .gguf file."""
    tune: one_of(Full, Frozen, Lora) = Full()
    """Which parameters are trained."""
    prefix: str = ""
    """Text before every source."""
    separator: str = Field(default="\n", min_length=1)
    """Text between source and target (decoder-only models)."""
    source_language: str | None = Field(default=None, min_length=1)
    """Source language of a multilingual checkpoint (NLLB, M2M-100, mBART), in its own codes, such as
    deu_Latn, de or de_DE."""
    target_language: str | None = Field(default=None, min_length=1)
    """Target language of a multilingual checkpoint, like source_language."""
