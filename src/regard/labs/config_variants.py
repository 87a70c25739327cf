"""Every choice that a config leaves, one at a time: what a law about all models runs over.

Nothing is listed here: the choices are read off the config's own tables, so a new kind is tried with the
others as soon as a config can name it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations, product
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import Discriminator

from regard.config import EXTENSIONS, Custom, Table
from regard.config.extensions import load_plugins

# Sizes for quick models, by the name of the field; and numbers without which another choice means nothing.
SIZES: dict[str, int | float] = {
    "d_model": 16,
    "d_ff": 17,
    "layers": 2,
    "embedding_dim": 10,
    "hidden_dim": 7,
    "kq_dim": 5,
    "latent_dim": 7,
    "rope_dim": 2,
    "state_dim": 3,
    "max_distance": 3,
    "nope_interval": 2,
    "factor": 4.0,
    "original_length": 16,
}


@dataclass(frozen=True)
class Variant:
    """What one would have to set, by dotted key, and the table, or the plain value, that this gives."""

    settings: dict[str, Any]
    value: Any

    @property
    def name(self) -> str:
        """As one would type it."""
        return " ".join(f"{key}={value}" for key, value in self.settings.items())

    def inside(self, field: str) -> dict[str, Any]:
        """The settings, seen from the table that has this choice in a field."""
        return {f"{field}.{key}" if key else field: value for key, value in self.settings.items()}


def list_variants(wanted: Any) -> list[Variant]:
    """The values that a type leaves to choose among, the plainest first; none for a free number."""
    if get_origin(wanted) is Annotated:
        inner, *extra = get_args(wanted)
        return [*list_variants(inner), *(choice for mark in extra for choice in added(mark))]
    if get_origin(wanted) in (Union, UnionType):
        members = get_args(wanted)
        if NoneType in members:  # a number, or the default's own way: one and two will do
            return [Variant({"": value}, value) for value in (None, 1, 2)]
        return [choice for member in members for choice in list_variants(member)]
    if get_origin(wanted) is Literal:
        return [Variant({"": value}, value) for value in get_args(wanted)]
    if wanted is bool:
        return [Variant({"": value}, value) for value in (False, True)]
    is_table = isinstance(wanted, type) and issubclass(wanted, Table) and wanted is not Custom
    return list(table_variants(wanted)) if is_table else []


def added(mark: Any) -> Iterator[Variant]:
    """The kinds that users have registered where a config lets them."""
    load_plugins()
    context = mark.custom_error_context if isinstance(mark, Discriminator) else None
    point = str((context or {}).get("extension"))
    for kind in sorted(EXTENSIONS.get(point, ())):
        yield Variant({"kind": kind}, {"kind": kind})


Open = dict[str, list[Variant]]


def fields(wanted: type[Table]) -> Open:
    """What each field of a table leaves to choose."""
    found = {
        name: list_variants(Annotated[field.annotation, *field.metadata, "a field"])
        for name, field in wanted.model_fields.items()
    }
    return {name: these for name, these in found.items() if these}


def table_variants(wanted: type[Table]) -> Iterator[Variant]:
    """A table with the plainest of everything, then with each other choice, one at a time."""
    left = fields(wanted)
    yield (plain := plainest(wanted, left))
    for name, found in left.items():
        for choice in found[1:]:
            yield changed(plain, {name: choice})


def kind_pairs(wanted: type[Table]) -> Iterator[Variant]:
    """The plainest with two other kinds at a time: latent heads with rotary positions, say."""
    left = fields(wanted)
    plain = plainest(wanted, left)
    others = [
        [(name, choice) for choice in found[1:] if set(choice.settings) == {"kind"}]
        for name, found in left.items()
    ]
    for these, those in combinations(others, 2):
        for one, other in product(these, those):
            yield changed(plain, dict([one, other]))


def plainest(wanted: type[Table], left: Open) -> Variant:
    """The first of every choice, and small sizes."""
    named = left["kind"][0].inside("kind") if "kind" in left else {}
    sizes = {name: SIZES[name] for name in wanted.model_fields if name in SIZES}
    return Variant(named, sizes | {name: found[0].value for name, found in left.items()})


def changed(plain: Variant, chosen: dict[str, Variant]) -> Variant:
    """A table with some of its fields chosen otherwise."""
    settings = {key: value for name, c in chosen.items() for key, value in c.inside(name).items()}
    values = {name: choice.value for name, choice in chosen.items()}
    return Variant(plain.settings | settings, plain.value | values)
