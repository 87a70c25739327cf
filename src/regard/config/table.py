"""Config tables: frozen, unknown keys rejected, alternatives discriminated by `kind`."""

from functools import reduce
from operator import or_
from typing import Annotated, Any, get_args

from pydantic import BaseModel, ConfigDict, Discriminator, Tag, model_validator

from regard.config.extensions import extensions


class Table(BaseModel):
    """A TOML table: frozen, unknown keys rejected."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False
    )

    @model_validator(mode="before")
    @classmethod
    def _expand_kind(cls, data: Any) -> Any:
        """`score = "additive"` is short for `score = {kind = "additive"}`."""
        return {"kind": data} if isinstance(data, str) and "kind" in cls.model_fields else data

    @property
    def options(self) -> dict[str, Any]:
        """Every field but `kind`."""
        return self.model_dump(exclude={"kind"})

    def changed(self, *names: str) -> list[str]:
        """The fields among `names` that differ from their default.

        A field that would be ignored is rejected if changed, not if merely written: a saved config
        writes out every default.
        """
        fields = type(self).model_fields
        return [name for name in names if getattr(self, name) != fields[name].default]


class Custom(Table):
    """A user-registered kind; its other keys are passed to its constructor."""

    model_config = ConfigDict(extra="allow")
    kind: str


def kinds(table: type[Table]) -> tuple[str, ...]:
    """The values that a table's `kind` may have."""
    return get_args(table.model_fields["kind"].annotation)


def kind_of(value: Any) -> str | None:
    """The `kind` of a value: a string, a raw dict, or a validated table."""
    value = value.get("kind") if isinstance(value, dict) else value
    return value if isinstance(value, str) else getattr(value, "kind", None)


def one_of(*tables: type[Table], extension: str | None = None) -> Any:
    """The type of a field that is one of `tables`, discriminated by kind; the first is the default."""
    table_of = {kind: table for table in tables for kind in kinds(table)}
    default = next(iter(table_of))

    def tag(value: Any) -> str:
        kind = kind_of({"kind": default} | value if isinstance(value, dict) else value)
        if kind in table_of:
            return "kind:" + kinds(table_of[kind])[0]
        return "kind:custom" if kind in extensions(extension) else f"kind:{kind}"

    members: list[Any] = [Annotated[table, Tag("kind:" + kinds(table)[0])] for table in tables]
    if extension:
        members.append(Annotated[Custom, Tag("kind:custom")])
    # Extensions are not loaded yet: the error formatter looks them up by the extension point's name.
    discriminator = Discriminator(
        tag,
        custom_error_type="kind",
        custom_error_message=", ".join(table_of),
        custom_error_context={"extension": extension or ""},
    )
    return Annotated[reduce(or_, members) if len(members) > 1 else members[0], discriminator]
