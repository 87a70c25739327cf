"""Builds models from configs: besides `config`, the only module that selects classes by name."""

from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

from torch import nn

from regard import config
from regard.attention import (
    HEADS,
    NORMALISERS,
    POSITIONS,
    SCORES,
    MultiHeadBase,
    Position,
    Score,
    SingleHead,
)
from regard.attention.normalise import Normaliser
from regard.errors import UserError, join_names
from regard.models.cells import CELLS
from regard.models.decoder_only import DecoderOnly
from regard.models.interface import Model
from regard.models.layers import FEED_FORWARDS, NORMS, Block, CrossBlock
from regard.models.load_pretrained import rebuild
from regard.models.memory import check_memory
from regard.models.mixers import (
    BidirectionalStateSpace,
    CausalStateSpace,
    SelfAttention,
    TokenMixer,
)
from regard.models.recurrent import Encoder, Recurrent
from regard.models.recurrent_decoder import DECODERS
from regard.models.state_space import StateSpace
from regard.models.transformer import Transformer

TransformerConfig = config.Transformer | config.DecoderOnly

# Extension points: the name in a package's entry points, and the registry.
EXTENSION_POINTS: dict[str, dict[str, Any]] = {
    "score": SCORES,
    "normaliser": NORMALISERS,
    "position": POSITIONS,
}
RESERVED = {("position", "interleaved")}  # composed here from other kinds, so in no registry


def register(registry: dict[str, Any], name: str, kind: Any) -> None:
    """Add your own kind: `register(SCORES, "mine", Mine)`. A config can then name it like a built-in."""
    point = next((point for point, known in EXTENSION_POINTS.items() if known is registry), None)
    if point is None:
        raise UserError("register takes one of regard.attention's SCORES, NORMALISERS or POSITIONS")
    if (point, name) in RESERVED or (name in registry and registry[name] is not kind):
        raise UserError(f'there is a {point} "{name}" already: choose another name')
    registry[name] = kind
    config.EXTENSIONS[point].add(name)


def lookup(point: str, name: str) -> Any:
    """The kind registered under a name; an installed package's kind is loaded on first use."""
    registry = EXTENSION_POINTS[point]
    if name not in registry:
        for entry in metadata.entry_points(group=f"regard.{point}", name=name):
            register(registry, name, entry.load())
    if name not in registry:
        raise UserError(f'no {point} "{name}" is installed. Known: {join_names(registry)}')
    return registry[name]


def build_kind(point: str, table: Any, *arguments: Any) -> Any:
    """The object that a table describes. Only a user-defined kind can reject its options."""
    kind = lookup(point, table.kind)
    try:
        return kind(*arguments, **table.options)
    except TypeError as error:
        raise UserError(
            f'the {point} "{table.kind}" does not take {table.options}: {error}'
        ) from error


def build_score(table: Any, query_dim: int, key_dim: int, kq_dim: int) -> Score:
    """A score of projected queries and keys or, if it is not `projected`, of the original ones."""
    projected = lookup("score", table.kind).projected
    dims = (kq_dim, kq_dim) if projected else (query_dim, key_dim)
    return build_kind("score", table, *dims)


def build_normaliser(table: Any) -> Normaliser:
    """A normaliser is a plain function without options."""
    if table.options:
        raise UserError(f'the normaliser "{table.kind}" takes no options: got {table.options}')
    return lookup("normaliser", table.kind)


def check_embeds(table: Any) -> Any:
    """The table of a position, checked for a model without self-attention: it must act in `embed`."""
    kind = lookup("position", table.kind)
    if kind is not Position and kind.embed is Position.embed:
        raise UserError(
            f'the position "{table.kind}" acts in self-attention, and this model has none: choose '
            "one that is added to the embedding"
        )
    return table


def build_embedding_position(table: Any, d_model: int, heads: int, head_dim: int) -> Position:
    """The position added to the embeddings: none, for the kinds that act in self-attention."""
    table = config.NoPosition() if isinstance(table, config.RotaryBase) else table
    return build_position(table, ("embed",), d_model, heads, head_dim)


def layer_position(table: Any, layer: int | None) -> Any:
    """The position table of a layer's self-attention; cross-attention (layer None) has none."""
    if layer is None:
        return config.NoPosition()
    if isinstance(table, config.Interleaved):
        return config.NoPosition() if (layer + 1) % table.nope_interval == 0 else table.rotary
    return table


def build_position(table: Any, methods: tuple[str, ...], *sizes: int) -> Position:
    """The position, if it overrides one of `methods`; otherwise its parameters would get no gradient."""
    position = build_kind("position", table, *sizes)
    acts = any(getattr(type(position), name) is not getattr(Position, name) for name in methods)
    return position if acts else Position(*sizes)


def build_recurrent(table: config.Recurrent, source_vocab: int, target_vocab: int) -> Recurrent:
    cell = CELLS[table.cell]
    position = check_embeds(table.encoder.position)
    encoder = Encoder(
        build_embedding(source_vocab, table),
        cell,
        table.hidden_dim,
        table.encoder.layers,
        table.encoder.bidirectional,
        build_embedding_position(position, table.embedding_dim, 1, table.embedding_dim),
        table.dropout,
    )
    decoder_class = DECODERS[table.decoder.kind]
    attention = None
    if isinstance(table.attention, config.SingleHead):
        query_dim = decoder_class.query_dim(table.embedding_dim, table.hidden_dim)
        dims = (query_dim, encoder.output_dim, table.attention.kq_dim)
        score = build_score(table.attention.score, *dims)
        attention = SingleHead(*dims, score, build_normaliser(table.attention.normaliser))
    sizes = (table.embedding_dim, table.hidden_dim, table.decoder.layers)
    decoder = decoder_class(cell, *sizes, attention, encoder.output_dim, table.dropout)
    embedding = build_embedding(target_vocab, table)
    return Recurrent(
        encoder,
        embedding,
        decoder,
        target_vocab,
        table.dropout,
        table.bridge,
        table.output_hidden_dim,
        table.read_padding,
    )


def build_embedding(vocab: int, table: config.Recurrent) -> nn.Embedding:
    embedding = nn.Embedding(vocab, table.embedding_dim)
    nn.init.normal_(embedding.weight, std=table.embedding_std)
    return embedding


def build_heads(table: TransformerConfig, layer: int | None) -> MultiHeadBase:
    """The self-attention of a layer, or (layer None) cross-attention: no positions, no window."""
    attention, score_dim = table.attention, table.head_dim
    position = layer_position(table.position, layer)
    if isinstance(attention, config.Latent):
        rotates = lookup("position", position.kind).rotate is not Position.rotate
        rope_dim = attention.rope_dim if rotates else 0
        options = {"latent_dim": attention.latent_dim, "rope_dim": rope_dim}
        score_dim, position_dim = score_dim + rope_dim, rope_dim or score_dim
    else:
        options, position_dim = {"kv_heads": attention.kv_heads}, score_dim
    sizes = (table.d_model, attention.heads, position_dim)
    return HEADS[attention.kind](
        table.d_model,
        attention.heads,
        table.head_dim,
        position=build_position(position, ("rotate", "bias"), *sizes),
        score=build_score(attention.score, score_dim, score_dim, score_dim),
        normalise=build_normaliser(attention.normaliser),
        window=None if layer is None else attention.window,
        dropout=attention.dropout,
        **options,
    )


class TransformerParts:
    """Builds the parts of a Transformer from its table."""

    def __init__(self, table: TransformerConfig) -> None:
        self.table, self.d_model = table, table.d_model
        self.pre_norm = table.norm_position == "pre"

    def mixer(self, layer: int, causal: bool) -> TokenMixer:
        mixer = self.table.mixer
        if isinstance(mixer, config.StateSpaceMixer):
            space = partial(StateSpace, self.d_model, **mixer.options)
            return (
                CausalStateSpace(space()) if causal else BidirectionalStateSpace(space(), space())
            )
        return SelfAttention(build_heads(self.table, layer))

    def block_arguments(self) -> tuple[Any, ...]:
        """The arguments of every block: feed-forward network, norm, norm position, dropout."""
        table = self.table
        feed_forward = FEED_FORWARDS[table.activation](self.d_model, table.d_ff, table.dropout)
        norm = partial(NORMS[table.norm], self.d_model)
        return feed_forward, norm, self.pre_norm, table.dropout

    def block(self, layer: int, causal: bool) -> Block:
        return Block(self.mixer(layer, causal), *self.block_arguments())

    def cross_block(self, layer: int) -> CrossBlock:
        mixer = self.mixer(layer, causal=True)
        return CrossBlock(mixer, build_heads(self.table, None), *self.block_arguments())

    def final_norm(self) -> nn.Module:
        """After the last block; a post-norm block ends with a norm already."""
        return NORMS[self.table.norm](self.d_model) if self.pre_norm else nn.Identity()

    def embeddings(
        self, source_vocab: int, target_vocab: int, joint: bool
    ) -> tuple[nn.Embedding, nn.Embedding, Position]:
        target = nn.Embedding(target_vocab, self.d_model)
        source = target if joint else nn.Embedding(source_vocab, self.d_model)
        sizes = (self.d_model, self.table.attention.heads, self.table.head_dim)
        position = self.table.position
        if isinstance(self.table.mixer, config.StateSpaceMixer):
            check_embeds(position)
        return source, target, build_embedding_position(position, *sizes)


def build_transformer(table: config.Transformer, *vocabularies: Any) -> Transformer:
    parts = TransformerParts(table)
    encoder = [parts.block(layer, causal=False) for layer in range(table.encoder.layers)]
    decoder = [parts.cross_block(layer) for layer in range(table.decoder.layers)]
    embeddings = parts.embeddings(*vocabularies)
    norms = (parts.final_norm(), parts.final_norm())
    return Transformer(*embeddings, encoder, decoder, norms, table.tie_embeddings, table.dropout)


def build_decoder_only(table: config.DecoderOnly, *vocabularies: Any) -> DecoderOnly:
    parts = TransformerParts(table)
    decoder = [parts.block(layer, causal=True) for layer in range(table.decoder.layers)]
    embeddings = parts.embeddings(*vocabularies)
    norm = parts.final_norm()
    options = (table.tie_embeddings, table.dropout, table.attention_mask == "prefix")
    return DecoderOnly(*embeddings, decoder, norm, *options)


def build(
    table: Any, source_vocab: int, target_vocab: int, joint: bool, folder: Path | None = None
) -> Model:
    """The model for a config's [model] table, for vocabularies of these sizes.

    A pretrained model is rebuilt from the architecture saved in the run's `folder`.
    """
    if isinstance(table, config.Pretrained):
        assert folder is not None, (
            "load_pretrained saves the architecture into the run folder first"
        )
        return rebuild(table, folder)
    construct = partial(build_scratch, table, source_vocab, target_vocab, joint)
    check_memory(table, max(source_vocab, target_vocab), construct)
    return construct()


def build_scratch(table: Any, source_vocab: int, target_vocab: int, joint: bool) -> Model:
    """A model with random weights."""
    if isinstance(table, config.Recurrent):
        return build_recurrent(table, source_vocab, target_vocab)
    if isinstance(table, config.DecoderOnly):
        return build_decoder_only(table, source_vocab, target_vocab, joint)
    return build_transformer(table, source_vocab, target_vocab, joint)
