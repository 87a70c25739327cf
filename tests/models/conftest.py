"""Small models of every family, one for each option; every invariant is tested on all of them."""

import copy
import json
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from regard.attention import NORMALISERS, POSITIONS, SCORES, Position
from regard.config import Config
from regard.models import Ensemble, Model, build, load_pretrained
from regard.models.build import CELLS, DECODERS, FEED_FORWARDS

SOURCE_VOCAB, TARGET_VOCAB = 23, 19
ARCHITECTURES = ("gpt2", "llama", "marian", "t5")
LENGTHS = (11, 3, 7, 1, 5)
TARGET_LENGTH = 17  # longer than the first buffer of a KV cache


def recurrent(**changes: Any) -> dict[str, Any]:
    encoder = {"layers": 1, "bidirectional": True} | changes.pop("encoder", {})
    decoder = {"kind": changes.pop("form", "parallel"), "layers": changes.pop("decoder_layers", 1)}
    attention = changes.pop("attention", {})
    if attention != "none":
        attention = {"kq_dim": 13} | attention
    table = {"embedding_dim": 7, "hidden_dim": 29, "dropout": 0.3}
    parts = {"encoder": encoder, "decoder": decoder, "attention": attention}
    return {"kind": "recurrent"} | table | parts | changes


def transformer(**changes: Any) -> dict[str, Any]:
    attention = {"heads": 3, "head_dim": 4} | changes.pop("attention", {})
    layers = {"encoder": {"layers": 2}, "decoder": {"layers": 2}}
    table = {"d_model": 13, "d_ff": 31, "dropout": 0.3, "attention": attention}
    return {"kind": "transformer"} | table | layers | changes


LATENT = {"kind": "latent", "latent_dim": 7, "rope_dim": 2}


def decoder_only(**changes: Any) -> dict[str, Any]:
    table = transformer(**changes)
    del table["encoder"]
    if "mixer" in changes:  # a state space: the config rejects an attention table
        del table["attention"]
    return table | {"kind": "decoder-only"}


# Three factors in the source and four with the target of the example.
DYNAMIC_NTK = {"kind": "rotary", "scaling": "dynamic-ntk", "original_length": 3}
POSITION_TABLES = {
    "interleaved": {"kind": "interleaved", "nope_interval": 2},
    "relative-query": {"kind": "relative", "form": "query", "max_distance": 3},
    "relative-clipped": {"kind": "relative", "max_distance": 3},
    "rotary-yarn": {"kind": "rotary", "scaling": "yarn", "factor": 4.0},
    "rotary-dynamic-ntk": DYNAMIC_NTK,
}
VARIANTS: dict[str, dict[str, Any]] = {
    "post-norm": {"norm_position": "post"},
    "post-norm-rms": {"norm_position": "post", "norm": "rms"},
    "rms": {"norm": "rms"},
    **{kind: {"activation": kind} for kind in FEED_FORWARDS},
    "untied": {"tie_embeddings": False},
    "llama": {"norm": "rms", "activation": "swiglu", "position": "rotary"},
    "state-space": {"mixer": {"kind": "state-space", "state_dim": 5, "conv_kernel": 3}},
    "state-space-nope": {"mixer": {"kind": "state-space", "conv_kernel": 1}, "position": "none"},
    "state-space-llama": {"mixer": "state-space", "norm": "rms", "activation": "swiglu"},
}

MODELS: dict[str, dict[str, Any]] = {
    **{
        f"{cell}-{layers}-{direction}": recurrent(
            cell=cell,
            encoder={"layers": layers, "bidirectional": direction == "bidirectional"},
            decoder_layers=layers,
        )
        for cell in CELLS
        for layers in (1, 2)
        for direction in ("bidirectional", "unidirectional")
    },
    **{
        f"{cell}-{layers}-no-bridge": recurrent(
            cell=cell,
            bridge=False,
            encoder={"layers": layers, "bidirectional": False},
            decoder_layers=layers,
        )
        for cell in ("rnn", "gru")
        for layers in (1, 2)
    },
    "bottleneck-no-bridge": recurrent(
        bridge=False, encoder={"bidirectional": False}, attention="none"
    ),
    **{
        f"recurrent-output-hidden-{form}": recurrent(output_hidden_dim=11, form=form)
        for form in DECODERS
    },
    "homework-notebook": recurrent(output_hidden_dim=11, read_padding=True),
    "recurrent-layers-differ": recurrent(encoder={"layers": 3}, decoder_layers=2, cell="lstm"),
    **{
        f"recurrent-{form}": recurrent(form=form, cell="lstm", decoder_layers=2)
        for form in DECODERS
    },
    **{
        f"recurrent-{form}-{cell}-{score}": recurrent(
            form=form, cell=cell, attention={"score": score}
        )
        for form in DECODERS
        if form != "parallel"
        for cell, score in zip(CELLS, ("additive", "bilinear", "location"), strict=True)
    },
    **{f"bottleneck-{form}": recurrent(form=form, attention="none") for form in DECODERS},
    **{f"recurrent-{score}": recurrent(attention={"score": score}) for score in SCORES},
    **{f"recurrent-{kind}": recurrent(attention={"normaliser": kind}) for kind in NORMALISERS},
    **{
        f"recurrent-position-{kind}": recurrent(embedding_dim=14, encoder={"position": kind})
        for kind, position in POSITIONS.items()
        if (position.rotate, position.bias) == (Position.rotate, Position.bias)  # others raise
    },
    "recurrent-position-sinusoidal-odd": recurrent(encoder={"position": "sinusoidal"}),
    **{f"transformer-position-{kind}": transformer(position=kind) for kind in POSITIONS},
    **{
        f"transformer-position-{name}": transformer(position=table)
        for name, table in POSITION_TABLES.items()
    },
    **{f"transformer-{score}": transformer(attention={"score": score}) for score in SCORES},
    **{f"transformer-{kind}": transformer(attention={"normaliser": kind}) for kind in NORMALISERS},
    **{
        f"transformer-{name}": transformer(attention=attention, position=position)
        for name, (attention, position) in {
            "grouped": ({"heads": 6, "kv_heads": 2}, "none"),
            "grouped-relative": ({"heads": 6, "kv_heads": 3}, "relative"),
            "grouped-location": ({"heads": 6, "kv_heads": 2, "score": "location"}, "none"),
            "grouped-interleaved": (
                {"heads": 6, "kv_heads": 2},
                {"kind": "interleaved", "nope_interval": 2},
            ),
            "multi-query": ({"kv_heads": 1}, "rotary"),
            "window": ({"window": 3}, "sinusoidal"),
            "window-grouped-alibi": ({"heads": 6, "kv_heads": 2, "window": 3}, "alibi"),
            "window-location": ({"window": 3, "score": "location"}, "none"),
            "attention-dropout": ({"dropout": 0.3, "kv_heads": 1}, "sinusoidal"),
            "latent": (LATENT, "rotary"),
            "latent-narrow": (LATENT | {"latent_dim": 3, "head_dim": 5}, "rotary"),
            "latent-window": (LATENT | {"window": 3, "normaliser": "sparsemax"}, "rotary"),
            "latent-interleaved": (LATENT, {"kind": "interleaved", "nope_interval": 2}),
            "latent-dynamic-ntk": (LATENT | {"rope_dim": 4}, DYNAMIC_NTK),
            "grouped-dynamic-ntk": ({"heads": 6, "kv_heads": 2, "window": 7}, DYNAMIC_NTK),
            "additive-dynamic-ntk": (
                {"score": "additive", "normaliser": "sparsemax"},
                DYNAMIC_NTK | {"kind": "interleaved", "nope_interval": 2},
            ),
            **{
                f"latent-position-{kind}": (LATENT, kind)
                for kind in ("none", "sinusoidal", "relative")
            },
            **{
                f"latent-{score}": (LATENT | {"score": score}, "rotary")
                for score in ("additive", "location")
            },
        }.items()
    },
    "transformer-1": transformer(encoder={"layers": 1}, decoder={"layers": 1}),
    **{f"transformer-{name}": transformer(**table) for name, table in VARIANTS.items()},
    **{f"decoder-only-position-{kind}": decoder_only(position=kind) for kind in POSITIONS},
    **{
        f"decoder-only-position-{name}": decoder_only(position=table)
        for name, table in POSITION_TABLES.items()
    },
    **{f"decoder-only-{score}": decoder_only(attention={"score": score}) for score in SCORES},
    **{
        f"decoder-only-{kind}": decoder_only(attention={"normaliser": kind}) for kind in NORMALISERS
    },
    **{f"decoder-only-{name}": decoder_only(**table) for name, table in VARIANTS.items()},
    **{
        f"decoder-only-{name}": decoder_only(attention=attention, position="rotary")
        for name, attention in {
            "grouped": {"heads": 6, "kv_heads": 2},
            "window": {"window": 3},
            "latent": LATENT,
        }.items()
    },
    "decoder-only-latent-dynamic-ntk": decoder_only(
        attention=LATENT | {"rope_dim": 4}, position=DYNAMIC_NTK
    ),
    "decoder-only-1": decoder_only(decoder={"layers": 1}),
    **{
        f"decoder-only-prefix{name}": decoder_only(attention_mask="prefix", **table)
        for name, table in {
            "": {"position": "rotary"},
            "-relative": {"position": {"kind": "relative", "form": "query", "max_distance": 3}},
            "-dynamic-ntk": {"position": DYNAMIC_NTK},
            "-window": {"attention": {"window": 3}, "position": "alibi"},
            "-latent": {"attention": LATENT, "position": "rotary"},
            "-location": {"attention": {"score": "location"}},
        }.items()
    },
    **{f"pretrained-{name}": {"kind": "pretrained", "name": name} for name in ARCHITECTURES},
}

# Their members, of MODELS.
ENSEMBLES: dict[str, tuple[str, ...]] = {
    "ensemble-recurrent": ("gru-2-bidirectional", "recurrent-tutorial", "bottleneck-parallel"),
    "ensemble-transformer": ("transformer-window", "transformer-latent", "transformer-1"),
    "ensemble-attention": ("recurrent-additive", "gru-1-bidirectional"),
    "decoder-only-ensemble-prefix-window": ("decoder-only-prefix-window", "decoder-only-window"),
    "decoder-only-ensemble-state-space": ("decoder-only-state-space", "decoder-only-latent"),
    "pretrained-ensemble": ("pretrained-t5", "pretrained-t5"),
    "ensemble-mixed": ("decoder-only-llama", "transformer-post-norm"),
    "ensemble-bottleneck-transformer": ("bottleneck-parallel", "transformer-position-rotary"),
}


@dataclass
class Example:
    """A padded batch of sentences of different lengths."""

    source: Tensor
    mask: Tensor
    target: Tensor
    lengths: tuple[int, ...] = LENGTHS

    def unpadded(self, row: int) -> tuple[Tensor, Tensor, Tensor]:
        """One row as a batch, without padding."""
        length = self.lengths[row]
        one = slice(row, row + 1)
        return self.source[one, :length], self.mask[one, :length], self.target[one]


def make(table: dict[str, Any], seed: int = 1, joint: bool = False) -> Model:
    torch.manual_seed(seed)
    config = Config.model_validate({"model": table, "training": {"batching": "random"}})
    model = build(config.model, SOURCE_VOCAB, TARGET_VOCAB, joint)
    return model.double().eval()


@pytest.fixture(scope="session")
def pretrained(checkpoint):
    """A pretrained model from its table, named by architecture; in float32, which its layers require."""

    @cache
    def load(table: str) -> Model:
        table = json.loads(table)
        table["name"] = str(checkpoint(table["name"]))
        torch.manual_seed(1)
        config = Config.model_validate({"model": table})
        return load_pretrained(config.model, config.tokenizer).model.eval()

    return lambda table: copy.deepcopy(load(json.dumps(table)))


@pytest.fixture(scope="session")
def load_model(pretrained):
    """A model of MODELS by name, built once. Do not modify it: copy it."""

    @cache
    def load(name: str) -> Model:
        if name in ENSEMBLES:
            return Ensemble([copy.deepcopy(load(member)) for member in ENSEMBLES[name]]).eval()
        table = MODELS[name]
        return pretrained(table) if table["kind"] == "pretrained" else make(table)

    return load


@pytest.fixture(params=[*MODELS, *ENSEMBLES])
def named_model(request, load_model) -> tuple[str, Model]:
    return request.param, load_model(request.param)


def select_attention_models() -> list[str]:
    """One model of MODELS for each kind of attention in each place: cells or norms do not matter."""
    by_parts = {}
    for name, table in MODELS.items():
        parts = [table["kind"], table.get("decoder", {}).get("kind"), "mixer" in table]
        attention = table["name"] if table["kind"] == "pretrained" else table.get("attention")
        if attention not in (None, "none"):
            by_parts[json.dumps([*parts, attention])] = name
    return list(by_parts.values())


# Those on which interventions are possible.
ATTENTIVE_ENSEMBLES = [
    "ensemble-transformer",
    "ensemble-attention",
    "decoder-only-ensemble-prefix-window",
    "decoder-only-ensemble-state-space",
    "ensemble-bottleneck-transformer",
]


@pytest.fixture(params=[*select_attention_models(), *ATTENTIVE_ENSEMBLES])
def attentive_model(request, load_model) -> tuple[str, Model]:
    return request.param, load_model(request.param)


@pytest.fixture
def model(named_model) -> Model:
    return named_model[1]


@pytest.fixture(name="make")
def make_fixture():
    """Builds a model from a table, or from its name in MODELS."""
    return lambda table, **kw: make(MODELS[table] if isinstance(table, str) else table, **kw)


@pytest.fixture(
    params=[
        "gru-2-bidirectional",
        "transformer-position-rotary",
        "decoder-only-llama",
        "decoder-only-state-space",
    ]
)
def family(request) -> Model:
    """One model of each family, for tests that do not depend on its options."""
    return make(MODELS[request.param])


@pytest.fixture
def tables() -> dict[str, dict[str, Any]]:
    return MODELS


@pytest.fixture
def example() -> Example:
    generator = torch.Generator().manual_seed(2)
    batch, longest = len(LENGTHS), max(LENGTHS)
    mask = torch.arange(longest) < torch.tensor(LENGTHS)[:, None]
    source = torch.randint(1, SOURCE_VOCAB, (batch, longest), generator=generator) * mask
    target = torch.randint(1, TARGET_VOCAB, (batch, TARGET_LENGTH), generator=generator)
    return Example(source, mask, target)
