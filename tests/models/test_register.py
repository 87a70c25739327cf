"""A user's own kinds, and what the builder says when a table cannot be built."""

import pytest
import torch

import regard
from regard import config, presets
from regard.attention import NORMALISERS, POSITIONS, SCORES, Position, Score
from regard.errors import UserError
from regard.models import build
from regard.models.build import POINTS, find


@pytest.fixture(autouse=True)
def _clean():
    """Every registry as it was."""
    before = {point: dict(registry) for point, registry in POINTS.items()}
    names = {point: set(known) for point, known in config.EXTENSIONS.items()}
    yield
    for point, registry in POINTS.items():
        registry.clear()
        registry.update(before[point])
        config.EXTENSIONS[point] = names[point]


class Sharp(Score):
    """e = sharpness * q . k"""

    def __init__(self, query_width: int, key_width: int, sharpness: float = 2.0) -> None:
        super().__init__(query_width, key_width)
        self.sharpness = sharpness

    def forward(self, query, keys):
        return self.sharpness * query @ keys.transpose(-1, -2)


class Count(Position):
    """Adds the place itself, times a step."""

    def __init__(self, width: int, heads: int, head_dim: int, step: float) -> None:
        super().__init__(width, heads, head_dim)
        self.step = step

    def embed(self, x, at):
        return x + self.step * at[..., None]


def halves(scores):
    return torch.where(scores > float("-inf"), 0.5, 0.0).to(scores.dtype)


def small(model: dict) -> regard.models.Model:
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
def test_a_score_of_ones_own_is_named_in_a_table_with_its_options(family):
    regard.register(SCORES, "sharp", Sharp)
    scores = {"sharp": {"kind": "sharp", "sharpness": 0.5}, "dot": "dot", "default": "sharp"}
    outputs = {}
    for name, score in scores.items():
        table = FAMILIES[family]
        table = table | {"attention": table.get("attention", {}) | {"score": score}}
        model = small(table)
        outputs[name] = model.eval()(SOURCE, MASK, TARGET)
        assert "cross" in model.attention_weights(SOURCE, MASK, TARGET)
    assert not torch.allclose(outputs["sharp"], outputs["dot"])
    assert not torch.allclose(outputs["sharp"], outputs["default"])


def test_a_config_with_a_kind_of_ones_own_survives_toml(tmp_path):
    regard.register(SCORES, "sharp", Sharp)
    settings = ["model.attention.score.sharpness=3.5", "model.attention.score.kind=sharp"]
    made = presets.load("case", settings)
    assert made.model.attention.score.options == {"sharpness": 3.5}
    path = tmp_path / "config.toml"
    path.write_text(made.to_toml(), "utf-8")
    assert presets.load(str(path)) == made


def test_an_option_the_score_does_not_take_is_refused():
    regard.register(SCORES, "sharp", Sharp)
    score = {"kind": "sharp", "sharpnes": 3.0}
    with pytest.raises(UserError, match=r'the score "sharp" does not take .*sharpnes'):
        small({"attention": {"score": score}})


def test_a_normaliser_of_ones_own():
    regard.register(NORMALISERS, "halves", halves)
    for table in FAMILIES.values():
        attention = table.get("attention", {}) | {"normaliser": "halves"}
        weights = small(table | {"attention": attention}).attention_weights(SOURCE, MASK, TARGET)
        assert (weights["cross"] == 0.5).all()
    with pytest.raises(UserError, match='the normaliser "halves" takes no options'):
        small({"attention": {"normaliser": {"kind": "halves", "share": 3}}})


def test_a_position_of_ones_own_and_a_missing_option():
    regard.register(POSITIONS, "count", Count)
    table = FAMILIES["transformer"]
    model = small(table | {"position": {"kind": "count", "step": 0.25}})
    plain = small(table | {"position": "none"})
    assert model.position.step == 0.25
    assert not torch.allclose(model.encode(SOURCE, MASK).states, plain.encode(SOURCE, MASK).states)
    encoder = {"position": {"kind": "count", "step": 0.5}}
    assert small({"encoder": encoder}).encoder.position.step == 0.5
    with pytest.raises(UserError, match=r'the position "count" does not take \{\}: .*step'):
        small(table | {"position": "count"})


def test_a_wrong_kind_is_told_of_those_that_were_registered():
    attention = {"score": "shrap", "normaliser": "halvse"}
    with pytest.raises(UserError, match=r"score\.kind: .*dummy, location\.") as before:
        small({"attention": attention})
    assert "Did you mean" not in str(before.value)
    regard.register(SCORES, "sharp", Sharp)
    regard.register(SCORES, "dot", SCORES["dot"])  # again: it is not listed twice
    regard.register(NORMALISERS, "halves", halves)
    with pytest.raises(UserError) as error:
        small({"attention": attention})
    said = str(error.value)
    assert 'got "shrap"; choose scaled-dot, dot, additive' in said
    assert 'location, sharp. Did you mean "sharp"?' in said
    assert 'choose softmax, argmax, sparsemax, none, halves. Did you mean "halves"?' in said
    with pytest.raises(
        UserError, match=r"choose recurrent, transformer, decoder-only, pretrained\."
    ):
        small({"kind": "telepathy"})


def test_register_twice_is_fine_with_the_same_kind_and_refused_with_another():
    regard.register(SCORES, "sharp", Sharp)
    regard.register(SCORES, "sharp", Sharp)
    with pytest.raises(UserError, match='there is a score "dot" already: choose another name'):
        regard.register(SCORES, "dot", Sharp)
    assert SCORES["dot"] is not Sharp


def test_register_wants_a_registry():
    with pytest.raises(UserError, match="SCORES, NORMALISERS or POSITIONS"):
        regard.register({}, "mine", Sharp)


def test_a_kind_that_is_not_installed_is_named():
    with pytest.raises(UserError, match=r'no score "shrap" is installed here. Known: dummy, mean,'):
        find("score", "shrap")


def test_a_name_that_the_builder_keeps_is_taken():
    with pytest.raises(UserError, match='there is a position "interleaved" already'):
        regard.register(POSITIONS, "interleaved", Count)


class Everywhere(Count):
    """Speaks in two places, with something to learn in each."""

    def __init__(self, width: int, heads: int, head_dim: int, step: float = 0.5) -> None:
        super().__init__(width, heads, head_dim, step)
        self.strength = torch.nn.Parameter(torch.ones(()))

    def embed(self, x, at):
        return x + self.strength * at[..., None]

    def bias(self, query, query_position_ids, key_position_ids):
        bias = self.strength * (
            key_position_ids[:, None, None, :] - query_position_ids[:, None, :, None]
        )
        return bias.expand(-1, query.shape[1], -1, -1)


def test_a_layer_holds_only_the_positions_that_speak_in_it():
    regard.register(POSITIONS, "count", Count)
    regard.register(POSITIONS, "everywhere", Everywhere)
    table = FAMILIES["transformer"]
    for kind, spoken in {"count": (True, False), "everywhere": (True, True)}.items():
        model = small(table | {"position": {"kind": kind, "step": 0.5}})
        layers = [block.mixer.attention.position for block in (*model.encoder, *model.decoder)]
        assert isinstance(model.position, Count) == spoken[0]
        assert {isinstance(layer, Count) for layer in layers} == {spoken[1]}
        assert all(type(block.cross_attention.position) is Position for block in model.decoder)


@pytest.mark.parametrize("every", [2, 3])
def test_interleaved_leaves_out_every_nth_layer(every):
    place = {
        "kind": "interleaved",
        "nope_interval": every,
        "base": 100.0,
        "scaling": "ntk",
        "factor": 2.0,
    }
    stacks = {"encoder": {"layers": 7}, "decoder": {"layers": 2}}
    model = small(FAMILIES["transformer"] | stacks | {"position": place})
    kinds = [type(block.mixer.attention.position) for block in model.encoder]
    wanted = [Position if n % every == 0 else POSITIONS["rotary"] for n in range(1, 8)]
    assert kinds == wanted
    assert type(model.decoder[0].mixer.attention.position) is POSITIONS["rotary"]
    assert (type(model.decoder[1].mixer.attention.position) is Position) == (every == 2)
    assert type(model.position) is Position
    alone = config.Rotary(**{k: v for k, v in place.items() if k not in ("kind", "every")})
    rotary = POSITIONS["rotary"](12, 3, 4, **alone.options)
    assert torch.equal(model.encoder[0].mixer.attention.position.omega, rotary.omega)


class Farness(Position):
    """Speaks in self-attention alone."""

    def bias(self, query, query_position_ids, key_position_ids):
        distance = query_position_ids[:, None, :, None] - key_position_ids[:, None, None, :]
        return distance.to(query.dtype).expand(-1, query.shape[1], -1, -1)


@pytest.mark.parametrize(
    "table",
    [
        {"kind": "recurrent", "encoder": {"position": "farness"}},
        {"kind": "decoder-only", "mixer": "state-space", "position": "farness"},
        {"kind": "transformer", "mixer": "state-space", "position": "farness"},
    ],
)
def test_a_position_that_could_not_be_heard_is_refused(table):
    regard.register(POSITIONS, "farness", Farness)
    with pytest.raises(UserError, match='the position "farness" speaks in self-attention, which'):
        small(table)
    attends = small({"kind": "decoder-only", "d_model": 12, "position": "farness"})
    assert attends(SOURCE, MASK, TARGET).shape == (1, 3, 13)
