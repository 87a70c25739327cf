"""Interventions: what happens to a translation if something in the model is changed?

    Force(step=2, token="dog")                        the output has this token at this step
    Mask(keys=[3])                                    the decoder may not attend to source token 3
    SetWeights(weights={4: 1.0}, layer=2, step=1)     a row of attention weights is replaced
    Ablate(mechanism="encoder", layer=0, head=5)      a head's context is zero

Everything counts from 0, as in `Translation.attention[mechanism][layer, head, query, key]`. A place that is
not given means all of them: `layer=None` is every layer, `step=None` every step.

Masks act on scores, before normalisation; then the other interventions act on weights, in the order of the
list, so that the last one counts.
"""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, get_args

from pydantic import Field, ValidationError

from regard.config import limits
from regard.config.table import Table
from regard.errors import UserError, join_names, suggest
from regard.presets.errors import describe_error

Index = Annotated[int, Field(ge=0, le=limits.COUNT)]
Mechanism = Literal["cross", "encoder", "decoder"]
MAX_WEIGHT = 1000.0
"""Far above any weight of a model, and far below what makes its output infinite."""
MECHANISMS: tuple[Mechanism, ...] = get_args(Mechanism)


class Base(Table):
    """An intervention; a wrong value is a `UserError`."""

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            # A misspelled key first: it is why another is missing.
            first, *_ = sorted(error.errors(), key=lambda one: one["type"] != "extra_forbidden")
            kind = type(self)
            raise UserError(f"{kind.__name__}: {describe_error(first, kind)}") from None


class Force(Base):
    """The output has this token at this step, whatever its probability; the model goes on from there.

    In beam search and sampling every hypothesis has it. So no output ends before.
    """

    what: Literal["force"] = "force"
    step: Index
    """The output token to replace, from 0."""
    token: str
    """A token as in `Translation.target`. If several look alike, any of them: greedy search takes the most
    probable."""


class AttentionIntervention(Base):
    """A change of rows of attention weights, and where in the model they are."""

    mechanism: Mechanism = "cross"
    """cross: output to source; encoder: source to source; decoder: output to output. In a decoder-only
    model cross is the part of its attention from output tokens to source tokens."""
    layer: Index | None = None
    head: Index | None = None
    step: Index | None = None
    """The query: the output token that is produced, or for the encoder the source token."""


class Mask(AttentionIntervention):
    """Keys get no weight: their scores are -inf before normalisation."""

    what: Literal["mask"] = "mask"
    keys: tuple[Index, ...] = Field(min_length=1)
    """Positions in `Translation.source`; for the decoder positions of its input, where 0 is BOS."""


class SetWeights(AttentionIntervention):
    """A row of weights is these, and 0 elsewhere, instead of the normalised scores.

    A key that the query cannot attend to (a later token, or one outside a window) gets none.
    """

    what: Literal["weights"] = "weights"
    weights: dict[Index, Annotated[float, Field(ge=0, le=MAX_WEIGHT)]] = Field(min_length=1)
    """Weight by key, at most 1,000. They need not sum to 1."""


class Ablate(AttentionIntervention):
    """All weights are 0, so the context of these heads is zero."""

    what: Literal["ablate"] = "ablate"


Intervention = Annotated[Force | Mask | SetWeights | Ablate, Field(discriminator="what")]
KINDS: dict[str, type[Intervention]] = {
    "force": Force,
    "mask": Mask,
    "weights": SetWeights,
    "ablate": Ablate,
}


def parse(interventions: Iterable[Any] | None) -> tuple[Intervention, ...]:
    """Interventions, each given as an object or as a dict: {"what": "mask", "keys": [3]}."""
    if interventions is None:
        return ()
    if isinstance(interventions, Base | Mapping | str) or not isinstance(interventions, Iterable):
        raise UserError(f"interventions are a list, as in [Mask(keys=[3])]: got {interventions!r}")
    return tuple(map(parse_one, interventions))


def parse_one(given: Any) -> Intervention:
    if isinstance(given, tuple(KINDS.values())):
        return given
    if not isinstance(given, Mapping):
        raise UserError(
            f"an intervention is {join_names(kind.__name__ for kind in KINDS.values())}, or a dict such as "
            f'{{"what": "mask", "keys": [3]}}: got {given!r}'
        )
    what = given.get("what")
    if not isinstance(what, str) or what not in KINDS:
        hint = suggest(str(what), KINDS)
        raise UserError(f"what: got {what!r}; choose {join_names(KINDS)}.{hint}")
    return KINDS[what](**{str(name): value for name, value in given.items()})
