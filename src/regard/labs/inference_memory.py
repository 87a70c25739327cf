"""Inference memory: the bytes that a decoder keeps for each token that it generates."""

import math
from collections.abc import Callable, Iterator
from typing import ClassVar, Self

import torch
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter
from pydantic import Field, model_validator
from torch import Generator

from regard.diagrams.themes import Theme
from regard.labs.lab import Check, Exercise, Findings, Lab, Parameters, Result, ResultTable, Value
from regard.labs.measurements.state_bytes import (
    FLOAT,
    Family,
    Generation,
    Sizes,
    build_model,
    generate,
    make_families,
)
from regard.labs.plotting import add_legend, add_subplots

SAVED = 2  # sharing keys and values counts if it halves the bytes, or better
ROUNDING = 1e-4  # of logits: above that of attention over fewer keys, far below a missing key
CONSTANT = ("gru", "lstm", "gru + attention", "state space", "window")
SHARED = ("grouped-query", "multi-query", "latent")


class InferenceMemoryParameters(Parameters):
    tokens: int = Field(48, ge=4, le=512)
    """n, number of generated tokens."""
    source: int = Field(6, ge=1, le=128)
    """S, number of source tokens."""
    layers: int = Field(2, ge=1, le=8)
    """L, number of decoder layers."""
    heads: int = Field(4, ge=1, le=16)
    """h, number of heads; the model dimension is d = h d_h."""
    groups: int = Field(2, ge=1, le=16)
    """g, number of key/value heads in grouped-query attention; must divide h."""
    head_dim: int = Field(8, ge=2, le=64, multiple_of=2)
    """d_h, dimension of one head."""
    latent_dim: int = Field(16, ge=1, le=512)
    """c, dimension of the vector that latent attention caches; a rotary key of r = 4 comes on top."""
    window: int = Field(8, ge=3, le=512)
    """w, tokens in a sliding window, of which the last is the one that attends."""

    @model_validator(mode="after")
    def _check_groups(self) -> Self:
        if self.heads % self.groups:
            raise ValueError(
                f"{self.heads} heads cannot be divided into {self.groups} key/value groups"
            )
        return self

    @property
    def sizes(self) -> Sizes:
        return Sizes(**self.model_dump(exclude={"tokens"}))


# --- the exercise ---------------------------------------------------------------------------------


def cache_bytes(tokens: int, layers: int, heads: int, groups: int, head_dim: int) -> int:
    """2 L g d_h n numbers of 4 bytes"""
    return 2 * layers * groups * head_dim * tokens * FLOAT


def grade(answer: Callable[..., int]) -> Iterator[Check]:
    """The answer must equal the bytes in the library's KV cache."""
    for tokens, layers, heads, groups, head_dim in (
        (3, 1, 1, 1, 2),
        (5, 3, 4, 4, 2),
        (7, 2, 6, 2, 4),
        (4, 5, 3, 1, 2),
    ):
        sizes = Sizes(layers, heads, groups, head_dim, latent_dim=1, window=1, source=1)
        model = build_model(make_families(sizes)["grouped-query"])
        measured = generate(model, 1, tokens - 1, torch.Generator().manual_seed(0))
        call = f"cache_bytes({tokens=}, {layers=}, {heads=}, {groups=}, {head_dim=})"
        yield Check(
            call,
            answer(tokens, layers, heads, groups, head_dim),
            "=",
            measured.used[-1],
            hint="Each layer keeps a key and a value for each token and key/value head, d_h numbers of 4 "
            "bytes each. Queries are not kept, so the number of query heads does not matter.",
        )


class InferenceMemory(Lab):
    """Bytes in the decoder state against the number of generated tokens, for each family of models."""

    name = "inference-memory"
    claim = (
        "RNN, state space and window keep a constant number of bytes; a KV cache grows with each token, "
        "divided by the heads that share it"
    )
    derivation = """
To generate token n + 1, a decoder keeps, in each of L layers (d = h d_h, numbers of 4 bytes, S source
tokens):

    RNN              the last state, d (LSTM: 2 d); with attention also the source: S (k + d) once
    state space      a state of constant size: 2 d (8 + 3) for 8 states per channel and a kernel of 4
    attention        a key and a value for each token and head: 2 h d_h (S + n)
    grouped-query    g key/value heads instead of h: 2 g d_h (S + n); multi-query: g = 1
    latent           one vector and one rotary key for all heads: (c + r) (S + n)
    window           a token attends to itself and the w - 1 before it: 2 h d_h (w - 1), once S + n >= w - 1

So a recurrent state is O(1) in n, a KV cache O(n), and sharing divides it: by h / g, by h, or by
2 h d_h / (c + r). An encoder-decoder keeps keys and values of the source, for cross-attention, and of the
target: as many as a decoder-only model of the same sizes.

We generate with the library's models, token by token, and add up the tensors in their states. A state that
keeps too little cannot have the right logits: they must equal those of one forward pass over all tokens,
which keeps nothing.
"""
    parameters = InferenceMemoryParameters
    absent: ClassVar[dict[str, Value]] = {"heads": 1, "groups": 1}
    exercise = Exercise(
        starter='''
def cache_bytes(tokens, layers, heads, groups, head_dim):
    """Return the bytes in the KV cache of a decoder-only Transformer after `tokens` tokens.

    Each of `layers` layers has `heads` query heads of dimension `head_dim`, which share `groups` key/value
    heads: groups = heads is multi-head attention, groups = 1 is multi-query attention. Numbers are float32.
    Return an int.
    """
    raise NotImplementedError
''',
        solution=cache_bytes,
        grade=grade,
        background="""
When token n + 1 is generated, its query attends to the keys and values of all tokens before it. They are
computed once, when the token is read, and kept: the KV cache. A float32 has 4 bytes.
""",
    )

    def measure(self, params: InferenceMemoryParameters, generator: Generator) -> Findings:
        families = make_families(params.sizes)
        seed = int(torch.randint(2**31, (), generator=generator))

        def run(family: Family) -> Generation:
            tokens = torch.Generator().manual_seed(seed)  # the same for every model
            return generate(build_model(family), params.source, params.tokens, tokens)

        return summarise(families, {name: run(family) for name, family in families.items()})

    def draw(self, result: Result, figure: Figure, colours: Theme) -> None:
        data, params = result.figures, InferenceMemoryParameters.model_validate(result.parameters)
        left, right = add_subplots(figure, colours, columns=2)
        families = make_families(params.sizes)
        grid = range(params.tokens + 1)
        markers = grid[:: max(1, params.tokens // 8)]
        for panel, names in ((left, CONSTANT), (right, ("multi-head", *SHARED))):
            for i, name in enumerate(names):
                used = data["used"][data["families"].index(name)]
                colour = colours.series[i % len(colours.series)]
                panel.plot(
                    grid, [families[name].bytes_after(n) for n in grid], color=colour, label=name
                )
                panel.plot(markers, [used[n] for n in markers], "o", ms=4, color=colour)
            panel.plot([], [], "o", color=colours.dimmed, label="measured")
            panel.set(
                xlabel="$n$, generated tokens", ylabel="bytes in the decoder state", ylim=(0, None)
            )
            panel.yaxis.set_major_formatter(EngFormatter("B"))
            add_legend(panel, colours, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=3)


def summarise(families: dict[str, Family], kept: dict[str, Generation]) -> Findings:
    """Law: bytes by formula at every step. Effect: what does not grow, and what sharing saves."""
    used = {name: generation.used for name, generation in kept.items()}
    tokens = len(used["gru"]) - 1
    growth = {name: sizes[-1] - sizes[-2] for name, sizes in used.items()}
    factors = {name: growth["multi-head"] / (growth[name] or math.nan) for name in SHARED}
    law = [
        *(
            Check.worst(
                f"{name}: bytes minus formula, after 0 .. {tokens} tokens",
                (size - family.bytes_after(n) for n, size in enumerate(used[name])),
                "=",
                0,
            )
            for name, family in families.items()
        ),
        Check.worst(
            "bytes by the library's cache_bytes(), minus ours",
            (
                theirs - ours
                for generation in kept.values()
                for theirs, ours in zip(generation.by_library, generation.used, strict=True)
            ),
            "=",
            0,
        ),
        Check.worst(
            "change of the logits when all tokens are read at once, largest",
            (float((g.logits - g.logits_at_once).abs().max()) for g in kept.values()),
            "<=",
            ROUNDING,
        ),
    ]
    effect = [
        Check.worst(
            f"bytes for the last token: {', '.join(CONSTANT)}, largest",
            (growth[name] for name in CONSTANT),
            "<=",
            0,
            hint="The window is not full yet: generate more tokens.",
        ),
        Check("bytes for the last token, multi-head", growth["multi-head"], ">=", 1),
        *(
            Check(
                f"bytes for each token, multi-head / {name}",
                factor,
                ">=",
                SAVED,
                hint="Nothing is shared, or too little to matter.",
            )
            for name, factor in factors.items()
        ),
    ]
    return Findings(
        figures={
            "families": list(families),
            "orders": [family.order for family in families.values()],
            "used": list(used.values()),
            "allocated": [generation.allocated for generation in kept.values()],
            "growth": list(growth.values()),
            "factors": list(factors.values()),
        },
        law=law,
        effect=effect,
        table=ResultTable(
            [
                "decoder",
                "memory",
                "bytes per token",
                "by formula",
                f"bytes, n = {tokens // 2}",
                f"n = {tokens}",
                "allocated",
            ],
            [
                [
                    name,
                    family.order,
                    growth[name],
                    family.bytes_after(tokens) - family.bytes_after(tokens - 1),
                    used[name][tokens // 2],
                    used[name][tokens],
                    kept[name].allocated[-1],
                ]
                for name, family in families.items()
            ],
        ),
        notes=[
            "allocated: the library's KV cache grows by doubling, so that its buffers are larger than what "
            "they hold; one of a window is replaced by a new one when it is full.",
            "gru, lstm: the library keeps the encoder states, O(S d), also where no attention reads them.",
        ],
    )
