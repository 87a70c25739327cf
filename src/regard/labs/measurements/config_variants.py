"""All variants of a config table, one changed field at a time: for properties that hold for every model.

Nothing is listed by hand: variants are derived from the config's type annotations, so a new kind is
included as soon as a config accepts it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations, product
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import Discriminator

from regard.config import EXTENSIONS, Custom, Table
from regard.config.extensions import load_plugins

# Sizes for small models by field name, and values that other fields need to be allowed or to have an effect.
BASE: dict[str, int | float] = {
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
    "output_hidden_dim": 11,
    "bridge": True,
}


@dataclass(frozen=True)
class Variant:
    """Settings by dotted key, and the table or value they produce."""

    settings: dict[str, Any]
    value: Any

    @property
    def name(self) -> str:
        """The settings as written on the command line."""
        return " ".join(f"{key}={value}" for key, value in self.settings.items())

    def settings_under(self, field: str) -> dict[str, Any]:
        """The settings relative to a table that has this variant as a field."""
        return {f"{field}.{key}" if key else field: value for key, value in self.settings.items()}


def list_variants(annotation: Any) -> list[Variant]:
    """The variants that a type annotation allows, the simplest first; none for an unconstrained number."""
    if get_origin(annotation) is Annotated:
        inner, *metadata = get_args(annotation)
        return [
            *list_variants(inner),
            *(variant for item in metadata for variant in extension_variants(item)),
        ]
    if get_origin(annotation) in (Union, UnionType):
        members = get_args(annotation)
        if NoneType in members:  # an optional number: try 1 and 2
            return [Variant({"": value}, value) for value in (None, 1, 2)]
        return [variant for member in members for variant in list_variants(member)]
    if get_origin(annotation) is Literal:
        return [Variant({"": value}, value) for value in get_args(annotation)]
    if annotation is bool:
        return [Variant({"": value}, value) for value in (False, True)]
    is_table = (
        isinstance(annotation, type) and issubclass(annotation, Table) and annotation is not Custom
    )
    return list(table_variants(annotation)) if is_table else []


def extension_variants(metadata: Any) -> Iterator[Variant]:
    """The kinds that users have registered at an extension point."""
    load_plugins()
    context = metadata.custom_error_context if isinstance(metadata, Discriminator) else None
    point = str((context or {}).get("extension"))
    for kind in sorted(EXTENSIONS.get(point, ())):
        yield Variant({"kind": kind}, {"kind": kind})


FieldVariants = dict[str, list[Variant]]


def field_variants(table: type[Table]) -> FieldVariants:
    """The variants of each field of a table; fields without any are left out."""
    by_field = {
        name: list_variants(Annotated[field.annotation, *field.metadata, "a field"])
        for name, field in table.model_fields.items()
    }
    for name in BASE.keys() & by_field.keys():
        by_field[name] = prefer_value(by_field[name], BASE[name])
    return {name: variants for name, variants in by_field.items() if variants}


def prefer_value(variants: list[Variant], value: int | float) -> list[Variant]:
    """The variants with this value first; for an optional number, None and this value."""
    preferred = Variant({"": value}, value)
    if variants and variants[0].value is None:
        return [variants[0], preferred]
    others = [variant for variant in variants if variant.value != value]
    return [preferred, *others] if variants else []


def table_variants(table: type[Table]) -> Iterator[Variant]:
    """The base variant of a table, then each other variant of one field at a time."""
    by_field = field_variants(table)
    yield (base := base_variant(table, by_field))
    for name, variants in by_field.items():
        for variant in variants[1:]:
            yield replace_fields(base, {name: variant})


def kind_pairs(table: type[Table]) -> Iterator[Variant]:
    """The base variant with two other kinds at a time: latent heads with rotary positions, for example."""
    by_field = field_variants(table)
    base = base_variant(table, by_field)
    kinds = [
        [(name, variant) for variant in variants[1:] if set(variant.settings) == {"kind"}]
        for name, variants in by_field.items()
    ]
    for first_field, second_field in combinations(kinds, 2):
        for first, second in product(first_field, second_field):
            yield replace_fields(base, dict([first, second]))


def base_variant(table: type[Table], by_field: FieldVariants) -> Variant:
    """The first variant of every field, and small sizes."""
    kind = by_field["kind"][0].settings_under("kind") if "kind" in by_field else {}
    sizes = {name: BASE[name] for name in table.model_fields if name in BASE}
    values = {name: variants[0].value for name, variants in by_field.items()}
    return Variant(kind, sizes | values)


def replace_fields(base: Variant, replaced: dict[str, Variant]) -> Variant:
    """The base variant with some of its fields replaced."""
    settings = dict(base.settings)
    for name, variant in replaced.items():
        settings |= variant.settings_under(name)
    return Variant(settings, base.value | {name: v.value for name, v in replaced.items()})
