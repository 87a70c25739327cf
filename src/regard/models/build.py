"""Config to model. The only place, beside `config` itself, where kinds are told apart by name."""

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
    ManyHeads,
    Position,
    Score,
    SingleHead,
)
from regard.attention.normalise import Normaliser
from regard.errors import UserError, join_names
from regard.models.adopt import rebuilt
from regard.models.cells import CELLS
from regard.models.decoder_only import DecoderOnly
from regard.models.interface import Model
from regard.models.layers import FEEDS, NORMS, Block, CrossBlock
from regard.models.mixers import BothWays, Causal, Mixer, SelfAttention
from regard.models.recurrent import Encoder, Recurrent
from regard.models.recurrent_decoder import DECODERS
from regard.models.state_space import StateSpace
from regard.models.transformer import Transformer

# Where a user may add a kind of their own: the point's name in a package's entry points, its dict.
POINTS: dict[str, dict[str, Any]] = {
    "score": SCORES,
    "normaliser": NORMALISERS,
    "position": POSITIONS,
}
TAKEN = {("position", "interleaved")}  # made here from other kinds, so in no dict


def register(registry: dict[str, Any], name: str, kind: Any) -> None:
    """Add a kind of your own: `register(SCORES, "mine", Mine)`; then name it in a TOML like ours."""
    point = next((point for point, known in POINTS.items() if known is registry), None)
    if point is None:
        raise UserError("register takes one of regard.attention's SCORES, NORMALISERS or POSITIONS")
    if (point, name) in TAKEN or (name in registry and registry[name] is not kind):
        raise UserError(f'there is a {point} "{name}" already: choose another name')
    registry[name] = kind
    config.EXTENSIONS[point].add(name)


def find(point: str, name: str) -> Any:
    """What is registered under a name; an installed package's kind is loaded when first named."""
    registry = POINTS[point]
    if name not in registry:
        for entry in metadata.entry_points(group=f"regard.{point}", name=name):
            register(registry, name, entry.load())
    if name not in registry:
        raise UserError(f'no {point} "{name}" is installed here. Known: {join_names(registry)}')
    return registry[name]


def make(point: str, table: Any, *arguments: Any) -> Any:
    """The object a table asks for. Only a user's own kind can disagree with its table."""
    kind = find(point, table.kind)
    try:
        return kind(*arguments, **table.options)
    except TypeError as error:
        raise UserError(
            f'the {point} "{table.kind}" does not take {table.options}: {error}'
        ) from error


def score(table: Any, query_width: int, key_width: int, kq_dim: int) -> Score:
    """A score that is given projected queries and keys, or, if it wants, the plain ones."""
    projected = find("score", table.kind).projected
    widths = (kq_dim, kq_dim) if projected else (query_width, key_width)
    return make("score", table, *widths)


def normaliser(table: Any) -> Normaliser:
    """A normaliser is a plain function: it has nothing to choose."""
    if table.options:
        raise UserError(f'the normaliser "{table.kind}" takes no options: got {table.options}')
    return find("normaliser", table.kind)


def heard(table: Any) -> Any:
    """The table of a position that a model without self-attention can use: one that embeds, or none."""
    kind = find("position", table.kind)
    if kind is not Position and kind.embed is Position.embed:
        raise UserError(
            f'the position "{table.kind}" speaks in self-attention, which this model has not: choose '
            "one that is added to the embedding"
        )
    return table


def position_of_embedding(table: Any, width: int, heads: int, head_dim: int) -> Position:
    """What the model adds to its embeddings: nothing, for the kinds that speak elsewhere."""
    table = config.NoPosition() if isinstance(table, config.RotaryBase) else table
    return position(table, ("embed",), width, heads, head_dim)


def position_of_layer(table: Any, layer: int | None) -> Any:
    """The position that a layer's self-attention has; cross-attention (no layer) has none."""
    if layer is None:
        return config.NoPosition()
    if isinstance(table, config.Interleaved):
        return config.NoPosition() if (layer + 1) % table.nope_interval == 0 else table.rotary
    return table


def position(table: Any, places: tuple[str, ...], *sizes: int) -> Position:
    """The kind, if it speaks in one of these places; if not, its parameters would never learn."""
    made = make("position", table, *sizes)
    speaks = any(getattr(type(made), place) is not getattr(Position, place) for place in places)
    return made if speaks else Position(*sizes)


def recurrent(table: config.Recurrent, source_vocab: int, target_vocab: int) -> Recurrent:
    cell = CELLS[table.cell]
    encoder = Encoder(
        embedding(source_vocab, table),
        cell,
        table.hidden_dim,
        table.encoder.layers,
        table.encoder.bidirectional,
        position_of_embedding(
            heard(table.encoder.position), table.embedding_dim, 1, table.embedding_dim
        ),
        table.dropout,
    )
    form = DECODERS[table.decoder.kind]
    attention = None
    if isinstance(table.attention, config.SingleHead):
        wanted = table.attention
        query_width = form.query_width(table.embedding_dim, table.hidden_dim)
        widths = (query_width, encoder.width, wanted.kq_dim)
        attention = SingleHead(*widths, score(wanted.score, *widths), normaliser(wanted.normaliser))
    layers, context = table.decoder.layers, encoder.width
    sizes = (table.embedding_dim, table.hidden_dim, layers)
    decoder = form(cell, *sizes, attention, context, table.dropout)
    target = embedding(target_vocab, table)
    return Recurrent(encoder, target, decoder, target_vocab, table.dropout)


def embedding(vocab: int, table: config.Recurrent) -> nn.Embedding:
    made = nn.Embedding(vocab, table.embedding_dim)
    nn.init.normal_(made.weight, std=table.embedding_std)
    return made


def heads(table: config.Transformer | config.DecoderOnly, layer: int | None) -> ManyHeads:
    """The self-attention of a layer, or (no layer) a cross-attention: no positions, no window."""
    wanted, depth = table.attention, table.head_dim
    place = position_of_layer(table.position, layer)
    if isinstance(wanted, config.Latent):
        turns = find("position", place.kind).rotate is not Position.rotate
        rope = wanted.rope_dim if turns else 0
        own = {"latent_dim": wanted.latent_dim, "rope_dim": rope}
        depth, spoken = depth + rope, rope or depth
    else:
        own, spoken = {"kv_heads": wanted.kv_heads}, depth
    return HEADS[wanted.kind](
        table.d_model,
        wanted.heads,
        table.head_dim,
        position=position(place, ("rotate", "bias"), table.d_model, wanted.heads, spoken),
        score=score(wanted.score, depth, depth, depth),
        normalise=normaliser(wanted.normaliser),
        window=None if layer is None else wanted.window,
        dropout=wanted.dropout,
        **own,
    )


class Parts:
    """What Transformers of both kinds are made of, as their table asks."""

    def __init__(self, table: config.Transformer | config.DecoderOnly) -> None:
        self.table, self.width = table, table.d_model
        self.before = table.norm_position == "pre"

    def mixer(self, layer: int, causal: bool) -> Mixer:
        wanted = self.table.mixer
        if isinstance(wanted, config.StateSpaceMixer):
            space = partial(StateSpace, self.width, **wanted.options)
            return Causal(space()) if causal else BothWays(space(), space())
        return SelfAttention(heads(self.table, layer))

    def rest(self) -> tuple[Any, ...]:
        """Of a block, what every kind has: feed-forward, norms, dropout."""
        table = self.table
        feed = FEEDS[table.activation](self.width, table.d_ff, table.dropout)
        return feed, partial(NORMS[table.norm], self.width), self.before, table.dropout

    def block(self, layer: int, causal: bool) -> Block:
        return Block(self.mixer(layer, causal), *self.rest())

    def cross_block(self, layer: int) -> CrossBlock:
        return CrossBlock(self.mixer(layer, causal=True), heads(self.table, None), *self.rest())

    def last_norm(self) -> nn.Module:
        """Behind the last block; one that ends with a norm needs no other."""
        return NORMS[self.table.norm](self.width) if self.before else nn.Identity()

    def embeddings(
        self, source_vocab: int, target_vocab: int, joint: bool
    ) -> tuple[nn.Embedding, nn.Embedding, Position]:
        target = nn.Embedding(target_vocab, self.width)
        source = target if joint else nn.Embedding(source_vocab, self.width)
        sizes = (self.width, self.table.attention.heads, self.table.head_dim)
        mixes = isinstance(self.table.mixer, config.StateSpaceMixer)
        place = heard(self.table.position) if mixes else self.table.position
        return source, target, position_of_embedding(place, *sizes)


def transformer(table: config.Transformer, *vocabularies: Any) -> Transformer:
    parts = Parts(table)
    encoder = [parts.block(layer, causal=False) for layer in range(table.encoder.layers)]
    decoder = [parts.cross_block(layer) for layer in range(table.decoder.layers)]
    embeddings = parts.embeddings(*vocabularies)
    norms = (parts.last_norm(), parts.last_norm())
    return Transformer(*embeddings, encoder, decoder, norms, table.tie_embeddings, table.dropout)


def decoder_only(table: config.DecoderOnly, *vocabularies: Any) -> DecoderOnly:
    parts = Parts(table)
    decoder = [parts.block(layer, causal=True) for layer in range(table.decoder.layers)]
    embeddings = parts.embeddings(*vocabularies)
    return DecoderOnly(*embeddings, decoder, parts.last_norm(), table.tie_embeddings, table.dropout)


def build(
    table: Any, source_vocab: int, target_vocab: int, joint: bool, folder: Path | None = None
) -> Model:
    """The model that a config's [model] table asks for, for vocabularies of these sizes.

    A pretrained one is what the run in `folder` began with.
    """
    if isinstance(table, config.Pretrained):
        assert folder is not None, "a pretrained model is adopted first, into a folder"
        return rebuilt(table, folder)
    if isinstance(table, config.Recurrent):
        return recurrent(table, source_vocab, target_vocab)
    if isinstance(table, config.DecoderOnly):
        return decoder_only(table, source_vocab, target_vocab, joint)
    return transformer(table, source_vocab, target_vocab, joint)
