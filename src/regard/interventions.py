"""Interventions: what happens to a translation if something in the model is changed?

    Force(step=2, token="dog")                        the output has this token at this step
    Mask(keys=[3])                                    the decoder may not attend to source token 3
    SetWeights(weights={4: 1.0}, layer=2, step=1)     a row of attention weights is replaced
    Ablate(mechanism="encoder", layer=0, head=5)      a head's context is zero

Everything counts from 0, as in `Translation.attention[mechanism][layer, head, query, key]`. A place that is
not given means all of them: `layer=None` is every layer, `step=None` every step.
"""

from typing import Annotated, Literal

from pydantic import Field

from regard.config.table import Table

Index = Annotated[int, Field(ge=0)]
Mechanism = Literal["cross", "encoder", "decoder"]


class Force(Table):
    """The output has this token at this step, whatever its probability; the model goes on from there.

    In beam search and sampling every hypothesis has it.
    """

    what: Literal["force"] = "force"
    step: Index
    """The output token to replace, from 0."""
    token: str
    """A token as in `Translation.target`."""


class Place(Table):
    """Where in a model: rows of attention weights."""

    mechanism: Mechanism = "cross"
    """cross: output to source; encoder: source to source; decoder: output to output. In a decoder-only
    model cross is the part of its attention from output tokens to source tokens."""
    layer: Index | None = None
    head: Index | None = None
    step: Index | None = None
    """The query: the output token that is produced, or for the encoder the source token."""


class Mask(Place):
    """Keys get no weight: their scores are -inf before normalisation."""

    what: Literal["mask"] = "mask"
    keys: tuple[Index, ...] = Field(min_length=1)
    """Positions in `Translation.source`; for the decoder positions of its input, where 0 is BOS."""


class SetWeights(Place):
    """A row of weights is these, and 0 elsewhere, instead of the normalised scores."""

    what: Literal["weights"] = "weights"
    weights: dict[Index, Annotated[float, Field(ge=0)]] = Field(min_length=1)
    """Weight by key. They need not sum to 1."""


class Ablate(Place):
    """All weights are 0, so the context of these heads is zero."""

    what: Literal["ablate"] = "ablate"


Intervention = Annotated[Force | Mask | SetWeights | Ablate, Field(discriminator="what")]
