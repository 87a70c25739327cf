"""The engine knows every kind that Python knows, or says why not; no setting is overlooked."""

from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

import pytest

from regard import config
from regard.attention import HEADS, NORMALISERS, POSITIONS, SCORES
from regard.attention.positions import SCALINGS
from regard.config import Table, kinds
from regard.interventions import Intervention
from regard.models.cells import CELLS
from regard.models.layers import FEED_FORWARDS, NORMS
from regard.models.recurrent_decoder import DECODERS
from regard.page.pack import UNSUPPORTED
from regard.text.tokenizer import SAVED
from tests.page.conftest import SUPPORTED

MODEL_KINDS = (config.Recurrent, config.Transformer, config.DecoderOnly, config.Pretrained)


def literals(table: type[Table], field: str) -> set[str]:
    return set(get_args(table.model_fields[field].annotation))


# Names by setting: registries where there is one, otherwise what the config allows.
KNOWN: dict[str, set[str]] = {
    "model": {kind for table in MODEL_KINDS for kind in kinds(table)},
    "tokenizer": set(SAVED),
    "score": set(SCORES),
    "normaliser": set(NORMALISERS),
    "position": set(POSITIONS) | set(kinds(config.Interleaved)),
    "form": literals(config.Relative, "form"),
    "scaling": set(SCALINGS),
    "heads": set(HEADS),
    "attention": {*kinds(config.SingleHead), *kinds(config.NoAttention)},
    "cell": set(CELLS),
    "decoder": set(DECODERS),
    "mixer": {*kinds(config.AttentionMixer), *kinds(config.StateSpaceMixer)},
    "activation": set(FEED_FORWARDS),
    "norm": set(NORMS),
    "norm_position": literals(config.TransformerBase, "norm_position"),
    "attention_mask": literals(config.DecoderOnly, "attention_mask"),
}
# Settings without effect on a trained model.
TRAINING_ONLY = {"dropout", "embedding_std", "read_padding"}
# Settings that the engine finds in the shapes of the weights.
IN_THE_WEIGHTS = {"d_ff", "hidden_dim", "kq_dim", "latent_dim", "max_length"}


@pytest.fixture(scope="module")
def registries(engine) -> dict[str, dict[str, Any]]:
    return engine.call("registries")


@pytest.mark.parametrize("setting", KNOWN)
def test_every_kind_is_implemented_or_unsupported_for_a_reason(registries, setting):
    implemented = set(registries["REGISTRIES"][setting])
    unsupported = registries["UNSUPPORTED"].get(setting, {})
    assert implemented | unsupported.keys() == KNOWN[setting]
    assert not implemented & unsupported.keys()
    assert all(len(reason) > 20 for reason in unsupported.values())


def test_python_rejects_what_the_engine_cannot_run(registries):
    assert registries["UNSUPPORTED"] == UNSUPPORTED
    assert registries["REGISTRIES"].keys() == KNOWN.keys()


def fields_of(table: type[Table]) -> Iterator[tuple[str, Any]]:
    """(name, type) of every field of a table, and of the tables that it may hold."""
    for name, field in table.model_fields.items():
        yield name, field.annotation
        yield from fields_inside(field.annotation)


def fields_inside(annotation: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(annotation, type) and issubclass(annotation, Table):
        yield from fields_of(annotation)
    for argument in get_args(annotation):
        yield from fields_inside(argument)


SUPPORTED_MODELS = [table for table in MODEL_KINDS if kinds(table)[0] != "pretrained"]
STATE_SPACE = set(config.StateSpaceMixer.model_fields)


def test_every_choice_of_a_setting_is_covered():
    """A new Literal in a model's tables must be added above, and so to the engine."""
    covered = set().union(*KNOWN.values())
    fields = [each for table in SUPPORTED_MODELS for each in fields_of(table)]
    choices = {v for _, kind in fields if get_origin(kind) is Literal for v in get_args(kind)}
    assert choices <= covered


def test_every_setting_is_read(engine, load_both):
    """Over all small models, the engine reads every setting that could matter."""
    for name in SUPPORTED:
        load_both(name)
        engine.call("read", model=name, source=[5, 2], target=[5, 2])
    wanted = {name for table in SUPPORTED_MODELS for name, _ in fields_of(table)}
    read = set(engine.call("fields_read"))
    assert wanted - TRAINING_ONLY - IN_THE_WEIGHTS - (STATE_SPACE - {"kind"}) <= read


def test_every_intervention_is_known(engine, load_both):
    load_both("transformer-1")
    members = get_args(get_args(Intervention)[0])
    values = {"step": 0, "token": "a", "keys": [0], "weights": {"0": 1}}
    for fields in (member.model_fields for member in members):
        own = {name: value for name, value in values.items() if name in fields}
        one = {"what": fields["what"].default} | own
        request = {"model": "transformer-1", "text": "ABC", "interventions": [one]}
        assert engine.request("translate", **request)["target"]
