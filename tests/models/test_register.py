"""User-defined kinds, and the builder's error messages for a table that cannot be built."""

import pytest
import torch

import regard
from regard import config, presets
from regard.attention import NORMALISERS, POSITIONS, SCORES, Position, Score
from regard.errors import UserError
from regard.models import build
from regard.models.build import EXTENSION_POINTS, lookup


@pytest.fixture(autouse=True)
def _restore_registries():
    before = {point: dict(registry) for point, registry in EXTENSION_POINTS.items()}
    names = {point: set(known) for point, known in config.EXTENSIONS.items()}
    yield
    for point, registry in EXTENSION_POINTS.items():
        registry.clear()
        registry.update(before[point])
        config.EXTENSIONS[point] = names[point]


class Sharp(Score):
    """e = sharpness * q . k"""

    def __init__(self, query_dim: int, key_dim: int, sharpness: float = 2.0) -> None:
        super().__init__(query_dim, key_dim)
        self.sharpness = sharpness

    def forward(self, query, keys):
        return self.sharpness * query @ keys.transpose(-1, -2)


class Count(Position):
    """Adds the position, times a step."""

    def __init__(self, d_model: int, heads: int, head_dim: int, step: float) -> None:
        super().__init__(d_model, heads, head_dim)
        self.step = step

    def embed(self, x, position_ids):
        return x + self.step * position_ids[..., None]


def halves(scores):
    return torch.where(scores > float("-inf"), 0.5, 0.0).to(scores.dtype)


def build_small(model: dict) -> regard.models.Model:
    torch.manual_seed(1)
    table = presets.validate({"model": model}, "test").model
    return build(table, 11, 13, joint=False)


FAMILIES = {
    "recurrent": {"kind": "recurrent", "embedding_dim": 6, "hidden_dim": 5},
    "transformer": {"kind": "transformer", "d_model": 12, "attention": {"heads": 3}},
}
SOURCE, MASK = torch.tensor([[1, 2, 3, 4]]), torch.ones(1, 4, dtype=torch.bool)
TARGET = torch.tensor([[1, 5, 6]])


@pytest.mark.parametrize("family", FAMILIES)
def test_user_defined_score_with_options(family):
    regard.register(SCORES, "sharp", Sharp)
    scores = {"sharp": {"kind": "sharp", "sharpness": 0.5}, "dot": "dot", "default": "sharp"}
    outputs = {}
    for name, score in scores.items():
        table = FAMILIES[family]
        table = table | {"attention": table.get("attention", {}) | {"score": score}}
        model = build_small(table)
        outputs[name] = model.eval()(SOURCE, MASK, TARGET)
        assert "cross" in model.attention_weights(SOURCE, MASK, TARGET)
    assert not torch.allclose(outputs["sharp"], outputs["dot"])
    assert not torch.allclose(outputs["sharp"], outputs["default"])


def test_config_with_a_user_defined_kind_round_trips_through_toml(tmp_path):
    regard.register(SCORES, "sharp", Sharp)
    settings = ["model.attention.score.sharpness=3.5", "model.attention.score.kind=sharp"]
    loaded = presets.load("case", settings)
    assert loaded.model.attention.score.options == {"sharpness": 3.5}
    path = tmp_path / "config.toml"
    path.write_text(loaded.to_toml(), "utf-8")
    assert presets.load(str(path)) == loaded


def test_unknown_option_of_a_score_raises_an_error():
    regard.register(SCORES, "sharp", Sharp)
    score = {"kind": "sharp", "sharpnes": 3.0}
    with pytest.raises(UserError, match=r'the score "sharp" does not take .*sharpnes'):
        build_small({"attention": {"score": score}})


def test_user_defined_normaliser():
    regard.register(NORMALISERS, "halves", halves)
    for table in FAMILIES.values():
        attention = table.get("attention", {}) | {"normaliser": "halves"}
        weights = build_small(table | {"attention": attention}).attention_weights(
            SOURCE, MASK, TARGET
        )
        assert (weights["cross"] == 0.5).all()
    with pytest.raises(UserError, match='the normaliser "halves" takes no options'):
        build_small({"attention": {"normaliser": {"kind": "halves", "fraction": 3}}})


def test_user_defined_position_and_a_missing_option():
    regard.register(POSITIONS, "count", Count)
    table = FAMILIES["transformer"]
    model = build_small(table | {"position": {"kind": "count", "step": 0.25}})
    plain = build_small(table | {"position": "none"})
    assert model.position.step == 0.25
    assert not torch.allclose(model.encode(SOURCE, MASK).states, plain.encode(SOURCE, MASK).states)
    encoder = {"position": {"kind": "count", "step": 0.5}}
    assert build_small({"encoder": encoder}).encoder.position.step == 0.5
    with pytest.raises(UserError, match=r'the position "count" does not take \{\}: .*step'):
        build_small(table | {"position": "count"})


def test_error_for_an_unknown_kind_lists_registered_kinds():
    attention = {"score": "shrap", "normaliser": "halvse"}
    with pytest.raises(UserError, match=r"score\.kind: .*dummy, location\.") as before:
        build_small({"attention": attention})
    assert "Did you mean" not in str(before.value)
    regard.register(SCORES, "sharp", Sharp)
    regard.register(SCORES, "dot", SCORES["dot"])  # registered twice, listed once
    regard.register(NORMALISERS, "halves", halves)
    with pytest.raises(UserError) as error:
        build_small({"attention": attention})
    message = str(error.value)
    assert 'got "shrap"; choose scaled-dot, dot, additive' in message
    assert 'location, sharp. Did you mean "sharp"?' in message
    assert 'choose softmax, argmax, sparsemax, none, halves. Did you mean "halves"?' in message
    with pytest.raises(
        UserError, match=r"choose recurrent, transformer, decoder-only, pretrained\."
    ):
        build_small({"kind": "telepathy"})


def test_registering_another_kind_under_the_same_name_raises_an_error():
    regard.register(SCORES, "sharp", Sharp)
    regard.register(SCORES, "sharp", Sharp)
    with pytest.raises(UserError, match='there is a score "dot" already: choose another name'):
        regard.register(SCORES, "dot", Sharp)
    assert SCORES["dot"] is not Sharp


def test_register_takes_a_registry():
    with pytest.raises(UserError, match="SCORES, NORMALISERS or POSITIONS"):
        regard.register({}, "mine", Sharp)


def test_lookup_of_an_unknown_kind_raises_an_error():
    with pytest.raises(UserError, match=r'no score "shrap" is installed. Known: dummy, mean,'):
        lookup("score", "shrap")


def test_reserved_name_cannot_be_registered():
    with pytest.raises(UserError, match='there is a position "interleaved" already'):
        regard.register(POSITIONS, "interleaved", Count)


class Everywhere(Count):
    """Acts in `embed` and `bias`, with a parameter in both."""

    def __init__(self, d_model: int, heads: int, head_dim: int, step: float = 0.5) -> None:
        super().__init__(d_model, heads, head_dim, step)
        self.strength = torch.nn.Parameter(torch.ones(()))

    def embed(self, x, position_ids):
        return x + self.strength * position_ids[..., None]

    def bias(self, query, query_position_ids, key_position_ids):
        bias = self.strength * (
            key_position_ids[:, None, None, :] - query_position_ids[:, None, :, None]
        )
        return bias.expand(-1, query.shape[1], -1, -1)


def test_a_layer_has_only_the_positions_that_act_in_it():
    regard.register(POSITIONS, "count", Count)
    regard.register(POSITIONS, "everywhere", Everywhere)
    table = FAMILIES["transformer"]
    for kind, (in_embedding, in_layers) in {
        "count": (True, False),
        "everywhere": (True, True),
    }.items():
        model = build_small(table | {"position": {"kind": kind, "step": 0.5}})
        layers = [block.mixer.attention.position for block in (*model.encoder, *model.decoder)]
        assert isinstance(model.position, Count) == in_embedding
        assert {isinstance(layer, Count) for layer in layers} == {in_layers}
        assert all(type(block.cross_attention.position) is Position for block in model.decoder)


@pytest.mark.parametrize("nope_interval", [2, 3])
def test_interleaved_has_no_position_in_every_nth_layer(nope_interval):
    position = {
        "kind": "interleaved",
        "nope_interval": nope_interval,
        "base": 100.0,
        "scaling": "ntk",
        "factor": 2.0,
    }
    layers = {"encoder": {"layers": 7}, "decoder": {"layers": 2}}
    model = build_small(FAMILIES["transformer"] | layers | {"position": position})
    kinds = [type(block.mixer.attention.position) for block in model.encoder]
    assert kinds == [
        Position if n % nope_interval == 0 else POSITIONS["rotary"] for n in range(1, 8)
    ]
    assert type(model.decoder[0].mixer.attention.position) is POSITIONS["rotary"]
    assert (type(model.decoder[1].mixer.attention.position) is Position) == (nope_interval == 2)
    assert type(model.position) is Position
    options = {k: v for k, v in position.items() if k not in ("kind", "nope_interval")}
    rotary = POSITIONS["rotary"](12, 3, 4, **config.Rotary(**options).options)
    assert torch.equal(model.encoder[0].mixer.attention.position.omega, rotary.omega)


class Distance(Position):
    """Acts in self-attention only."""

    def bias(self, query, query_position_ids, key_position_ids):
        distance = query_position_ids[:, None, :, None] - key_position_ids[:, None, None, :]
        return distance.to(query.dtype).expand(-1, query.shape[1], -1, -1)


@pytest.mark.parametrize(
    "table",
    [
        {"kind": "recurrent", "encoder": {"position": "distance"}},
        {"kind": "decoder-only", "mixer": "state-space", "position": "distance"},
        {"kind": "transformer", "mixer": "state-space", "position": "distance"},
    ],
)
def test_position_that_needs_self_attention_raises_an_error_without_it(table):
    regard.register(POSITIONS, "distance", Distance)
    with pytest.raises(UserError, match='the position "distance" acts in self-attention, and this'):
        build_small(table)
    model = build_small({"kind": "decoder-only", "d_model": 12, "position": "distance"})
    assert model(SOURCE, MASK, TARGET).shape == (1, 3, 13)
