"""Every choice: that it exists, that it can be set, and what is said when it cannot."""

import re
import tomllib
from itertools import permutations
from typing import get_args

import pytest
from pydantic import ValidationError

from regard import config, presets
from regard.attention import HEADS, NORMALISERS, POSITIONS, SCORES
from regard.attention.positions import SCALINGS
from regard.config import Config
from regard.errors import UserError, nearest
from regard.models.build import CELLS, DECODERS
from regard.text.tasks import TASKS
from regard.text.tokenizer import TOKENIZERS
from regard.training.schedule import SCHEDULES


def literals(table: type, field: str) -> set[str]:
    return set(get_args(table.model_fields[field].annotation))


def union(table: type, field: str) -> set[str]:
    """Every kind that the alternatives of a field answer to, a user's own aside."""
    tables = [member.__origin__ for member in get_args(table.model_fields[field].annotation)]
    return {kind for t in tables if t is not config.Custom for kind in config.kinds(t)}


@pytest.mark.parametrize(
    ("named", "registry"),
    [
        (union(config.SingleHead, "score"), SCORES),
        (union(config.MultiHead, "score"), SCORES),
        (union(config.SingleHead, "normaliser"), NORMALISERS),
        (union(config.MultiHead, "normaliser"), NORMALISERS),
        (union(config.Latent, "score"), SCORES),
        (union(config.Latent, "normaliser"), NORMALISERS),
        (union(config.Transformer, "attention"), HEADS),
        (union(config.Transformer, "position"), {*POSITIONS, "interleaved"}),
        (union(config.RecurrentEncoder, "position"), {*POSITIONS, "interleaved"}),
        (literals(config.Rotary, "scaling"), SCALINGS),
        (union(config.Config, "tokenizer"), {*TOKENIZERS, "pretrained"}),
        (literals(config.Recurrent, "cell"), CELLS),
        (literals(config.RecurrentDecoder, "kind"), DECODERS),
        (literals(config.MadeTask, "name"), TASKS),
        (literals(config.Training, "schedule"), SCHEDULES),
    ],
)
def test_a_name_in_the_config_is_a_row_of_its_registry_and_back(named, registry):
    assert named == set(registry)


@pytest.mark.parametrize("name", presets.names())
def test_a_preset_loads_and_survives_toml(name, tmp_path):
    loaded = presets.load(name)
    assert loaded.description == presets.names()[name] != ""
    path = tmp_path / "config.toml"
    path.write_text(loaded.to_toml(), "utf-8")
    assert presets.load(str(path)) == loaded


def test_every_choice_survives_toml(tmp_path):
    settings = [
        "model.kind=transformer",
        "model.position=rotary",
        "model.attention.head_width=6",
        "model.attention.score={kind='location', max_length=31}",
        "training.patience=3",
        "tokenizer=words",
        'description="a \\"quoted\\" é"',
    ]
    changed = presets.load("case", settings)
    path = tmp_path / "config.toml"
    path.write_text(changed.to_toml(), "utf-8")
    assert presets.load(str(path)) == changed
    assert changed.model.head_width == 6
    assert changed.model.attention.score == config.Location(max_length=31)
    assert changed.training.patience == 3


def test_frozen_to_the_bottom():
    loaded = Config()
    for table, field in [
        (loaded, "seed"),
        (loaded.model, "hidden"),
        (loaded.model.encoder, "layers"),
    ]:
        with pytest.raises(ValidationError, match="frozen"):
            setattr(table, field, 3)


def test_setting_a_kind_resets_its_table():
    table = {"model": {"kind": "recurrent", "hidden": 7, "attention": {"kq_width": 3}}, "seed": 5}
    changed = presets.check(presets.override(table, ["model.kind=transformer"]), "x")
    assert changed.model == config.Transformer()
    assert changed.seed == 5
    inner = {
        "model": {"attention": {"kq_width": 3, "score": {"kind": "location", "max_length": 5}}}
    }
    changed = presets.check(presets.override(inner, ["model.attention.score.kind=dot"]), "x")
    assert changed.model.attention.score.kind == "dot"
    assert changed.model.attention.kq_width == 3
    same = presets.override(inner, ["model.attention.score.kind=location"])
    assert presets.check(same, "x").model.attention.score.max_length == 5


def test_the_table_given_is_left_as_it_was():
    table = {"model": {"kind": "recurrent", "encoder": {"layers": 3}}}
    presets.override(table, ["model.encoder.layers=2", "model.kind=transformer", "seed=9"])
    assert table == {"model": {"kind": "recurrent", "encoder": {"layers": 3}}}


@pytest.mark.parametrize("top", ["model.kind=transformer", "model=transformer"])
@pytest.mark.parametrize("middle", ["score.kind=location", "score=location"])
def test_the_order_of_settings_does_not_matter(top, middle):
    settings = [
        top,
        f"model.attention.{middle}",
        "model.attention.score.max_length=31",
        "model.attention.heads=8",
        "model.width=64",
    ]
    table = {"model": {"kind": "recurrent", "hidden": 7, "attention": {"score": "additive"}}}
    found = [presets.check(presets.override(table, order), "x") for order in permutations(settings)]
    assert all(made == found[0] for made in found)
    attention = found[0].model.attention
    assert (attention.heads, attention.score.max_length, found[0].model.width) == (8, 31, 64)


@pytest.mark.parametrize(
    ("short", "long"),
    [
        ({"attention": {"score": "additive"}}, {"attention": {"score": {"kind": "additive"}}}),
        ({"attention": "none"}, {"attention": {"kind": "none"}}),
        ({"encoder": {"position": "learned"}}, {"encoder": {"position": {"kind": "learned"}}}),
    ],
)
def test_a_kind_alone_may_be_a_string(short, long):
    models = [Config.model_validate({"model": table}).model for table in (short, long)]
    assert models[0] == models[1] != config.Recurrent()
    assert Config.model_validate({"model": "transformer"}).model == config.Transformer()
    assert Config.model_validate({"tokenizer": "words"}).tokenizer == config.Words()


def test_without_a_kind_a_table_is_the_first_of_its_kinds():
    assert Config.model_validate({"model": {"hidden": 3}}).model == config.Recurrent(hidden=3)


def test_values_are_toml_or_a_bare_word():
    assert presets.split("a.b = 3") == (["a", "b"], 3)
    assert presets.split("a=1e-3") == (["a"], 1e-3)
    assert presets.split("a=true") == (["a"], True)
    assert presets.split('a="3"') == (["a"], "3")
    assert presets.split("a=scaled-dot") == (["a"], "scaled-dot")
    assert presets.split("a=b=c") == (["a"], "b=c")
    assert presets.split("a=[1, 2]") == (["a"], [1, 2])


MISTAKES = {
    "model.celll=gru": 'case: model.celll: unknown key. Did you mean "cell"? Known here: kind, cell,',
    "model.cell=gruu": 'model.cell: got "gruu"; choose gru, lstm, rnn. Did you mean "gru"?',
    "model.kind=transfromer": 'model.kind: got "transfromer"; choose recurrent, transformer, '
    'decoder-only, pretrained. Did you mean "transformer"?',
    "model.kind=pretrained": "case: model.name: it is missing, and has no default. A name on the Hug",
    "data.kind=files": "data.val: it is missing, and has no default",
    "data={kind='files', val='v.tsv', train=['a.tsv']}": "data.train.1: it is missing, and has no default",
    "data={kind='files', val='v.tsv', train=3}": "data.train: got 3; it should be a list, as in",
    "data={kind='text', name='multi30k', without=[{splits=['val']}]}": "data.without.0.name: it is missing",
    "data={kind='text', name='multi30k', without=[{name='x', split='val'}]}": "data.without.0.split: unknown "
    'key. Did you mean "splits"?',
    "data={kind='text', name='multi30k', noise={maks=0.5}}": "data.noise.maks: unknown key. "
    'Did you mean "mask"?',
    "model={kind='pretrained', name='x', tune={kind='lora', rnak=3}}": "model.tune.rnak: unknown key. "
    'Did you mean "rank"?',
    "model={kind='pretrained', name='x', tune={kind='lora', targets='q_proj'}}": "model.tune.targets: got "
    '"q_proj"; it should be a list, as in ["a", "b"]',
    "model={kind='pretrained', name=''}": "case: model.name: it is empty",
    "tokenizer.kind=pretrained": 'tokenizer.kind: "pretrained" is what a pretrained model brings along',
    "model.attention.score=adittive": 'model.attention.score.kind: got "adittive"; choose scaled-dot, '
    'dot, additive, bilinear, mean, dummy, location. Did you mean "additive"?',
    "model.attention.normaliser.kind=max": "model.attention.normaliser.kind: got "
    '"max"; choose softmax, argmax, sparsemax, none. Did you mean "argmax"?',
    "model.encoder.position.kind=rotray": 'position.kind: got "rotray"; choose none, sinusoidal, '
    'learned, relative, alibi, rotary, interleaved. Did you mean "rotary"?',
    "model.encoder.position=rotary": 'model.encoder: the position "rotary" speaks in self-attention, '
    "which a recurrent encoder has not: choose none, sinusoidal or learned",
    "model.encoder.position=interleaved": 'the position "interleaved" speaks in self-attention',
    "model.encoder.position={kind='learned', max_length=256}": "model.encoder.position.max_length is "
    "256, and a text may need 257 places (tokenizer.max_tokens and one): raise the first or lower",
    "model.hidden=0": "model.hidden: got 0; it should be greater than or equal to 1",
    "model.hidden=wide": 'model.hidden: got "wide"; it should be a valid integer',
    "model.encoder.bidirectional=perhaps": 'model.encoder.bidirectional: got "perhaps"; it should be',
    "model.dropout=1": "model.dropout: got 1; it should be less than 1",
    "model=3": 'model.kind: got "3"; choose recurrent, transformer, decoder-only, pretrained.',
    "model.encoder=3": "model.encoder: got 3; it should be a valid dictionary",
    "data.kind=web": 'data.kind: got "web"; choose task, ',
    "trainin.epochs=3": 'trainin: unknown key. Did you mean "training"?',
    "model.attention.score.max_length=3": "model.attention.score.max_length: unknown key. Known here: kind",
    "data.min_length=99": "case: data.min_length is above data.max_length",
    "layers=4": "layers: unknown key. Known here: description, seed, init, data",
    "seed=x": 'seed: got "x"; it should be a valid integer',
    "nothing": '"nothing" sets nothing: write key=value, as in model.decoder.layers=4',
    "=3": '"=3" sets nothing: write key=value',
    "model..cell=gru": '"model..cell=gru" sets nothing',
}


@pytest.mark.parametrize("setting", MISTAKES)
def test_a_mistake_names_the_path_the_value_and_the_choices(setting):
    with pytest.raises(UserError, match=re.escape(MISTAKES[setting])):
        presets.load("case", [setting])


def test_a_key_below_a_number_is_a_mistake_like_others(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text("seed = 3\n[model]\nhidden = 5\n", "utf-8")
    with pytest.raises(
        UserError, match=r"model.hidden: got \{'x': 1\}; it should be a valid integer"
    ):
        presets.load(str(path), ["model.hidden.x=1"])


def test_all_mistakes_at_once():
    wrong = ["model.celll=gru", "model.hidden=0", "training.rate=-1", "tokenizer.kind=wrods"]
    with pytest.raises(UserError, match=r"^case: 4 mistakes\n") as caught:
        presets.load("case", wrong)
    lines = str(caught.value).splitlines()
    assert len(lines) == 5
    paths = {"model.celll", "model.hidden", "training.rate", "tokenizer.kind"}
    assert {line.split(":")[0].strip() for line in lines[1:]} == paths


HEADS = {"kind": "transformer", "attention": {"heads": 3}}


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (HEADS | {"width": 7}, "model: a width of 7 does not divide into 3 heads: change width"),
        (HEADS | {"width": 9, "position": "rotary"}, "a head's width must be even, not 3"),
        (
            HEADS | {"width": 9, "position": {"kind": "interleaved", "every": 2}},
            "a head's width must be even, not 3",
        ),
    ],
)
def test_what_does_not_fit_together_is_said(model, message):
    with pytest.raises(UserError, match=re.escape(message)):
        presets.check({"model": model}, "mine.toml")
    free = {"heads": 3, "head_width": 4}
    assert presets.check({"model": model | {"attention": free}}, "x").model.head_width == 4


@pytest.mark.parametrize(
    ("attention", "message"),
    [
        (
            {"heads": 6, "key_value_heads": 4},
            "model.attention: 6 heads cannot share 4 keys and values equally: key_value_heads may be "
            "1, 2, 3, 6",
        ),
        (
            {"key_value_heads": 0},
            "attention.key_value_heads: got 0; it should be greater than or equal to 1",
        ),
        ({"window": 0}, "attention.window: got 0; it should be greater than or equal to 1"),
        ({"dropout": 1.0}, "attention.dropout: got 1.0; it should be less than 1"),
        (
            {"kind": "latent", "rope": 3},
            "model.attention: rotary turns pairs, so rope must be even, not 3",
        ),
        ({"kind": "latent", "key_value_heads": 2}, "attention.key_value_heads: unknown key."),
        ({"latent": 32}, "model.attention.latent: unknown key. Known here: heads, head_width"),
        (
            "latnet",
            'attention.kind: got "latnet"; choose multi-head, latent. Did you mean "latent"?',
        ),
        ({"kind": "latent", "heads": 3}, "a width of 128 does not divide into 3 heads"),
    ],
)
def test_heads_that_cannot_be_are_refused(attention, message):
    with pytest.raises(UserError, match=re.escape(message)):
        presets.check({"model": {"kind": "transformer", "attention": attention}}, "mine.toml")


def test_kinds_of_heads_are_set_and_survive_toml(tmp_path):
    settings = ["model.kind=transformer", "model.attention.key_value_heads=2"]
    grouped = presets.load("case", [*settings, "model.attention.window=5"])
    latent = presets.load("case", ["model.kind=transformer", "model.attention=latent"])
    assert grouped.model.attention == config.MultiHead(key_value_heads=2, window=5)
    assert latent.model.attention == config.Latent()
    for made in (grouped, latent):
        path = tmp_path / "config.toml"
        path.write_text(made.to_toml(), "utf-8")
        assert presets.load(str(path)) == made


def test_latent_heads_of_odd_width_may_be_rotary_since_they_turn_a_part_of_their_own():
    table = {"kind": "transformer", "width": 9, "position": "rotary"}
    attention = {"kind": "latent", "heads": 3}
    assert presets.check({"model": table | {"attention": attention}}, "x").model.head_width == 3


@pytest.mark.parametrize(
    ("position", "message"),
    [
        (
            "interleaved",
            "model: no layer would go without positions: position.every is 4, and there",
        ),
        (
            {"kind": "interleaved", "every": 1},
            "every: got 1; it should be greater than or equal to 2",
        ),
        (
            {"kind": "rotary", "scaling": "yarn"},
            'model.position: the scaling "yarn" does nothing without a factor above 1',
        ),
        ({"kind": "rotary", "factor": 0.5}, "factor: got 0.5; it should be greater than or equal"),
        ({"kind": "relative", "form": "key"}, 'form: got "key"; choose bias, query.'),
        (
            {"kind": "learned", "max_length": 31},
            "model.position.max_length is 31, and a text may need 257 places",
        ),
    ],
)
def test_a_position_that_cannot_do_what_it_says_is_refused(position, message):
    with pytest.raises(UserError, match=re.escape(message)):
        presets.check({"model": {"kind": "transformer", "position": position}}, "mine.toml")


DECODER_ONLY = {"kind": "decoder-only", "width": 7, "mixer": "state-space"}


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (
            {"kind": "decoder-only", "position": {"kind": "learned", "max_length": 512}},
            "a text may need 514 places (twice tokenizer.max_tokens and one, for source and target)",
        ),
        (DECODER_ONLY | {"width": 8, "position": "rotary"}, 'the position "rotary" speaks in self'),
        (DECODER_ONLY | {"kind": "transformer"}, "a width of 7 does not divide into 4 heads"),
        (DECODER_ONLY | {"mixer": "mamba"}, "choose attention, state-space."),
        (
            DECODER_ONLY | {"attention": {"heads": 7}},
            "model: the mixer is a state space and there is nothing else to look at, so nothing would "
            "attend: leave model.attention out",
        ),
        (DECODER_ONLY | {"attention": "latent"}, "leave model.attention out"),
        (
            DECODER_ONLY | {"kind": "transformer", "attention": {"heads": 7, "window": 3}},
            "attention.window narrows self-attention, and the mixer is a state space",
        ),
        ({"kind": "transformer", "norm_at": "first"}, 'norm_at: got "first"; choose before, after'),
        ({"kind": "transformer", "activation": "selu"}, "choose relu, gelu, swiglu."),
    ],
)
def test_stacks_that_cannot_be_built_are_refused(model, message):
    with pytest.raises(UserError, match=re.escape(message)):
        presets.check({"model": model}, "mine.toml")
    assert (
        presets.check({"model": DECODER_ONLY}, "no heads, so none that must fit").model.width == 7
    )


def test_a_state_space_with_every_default_written_out_is_read_again():
    """As a run's own config is."""
    made = presets.check({"model": DECODER_ONLY}, "mine.toml")
    assert presets.check(tomllib.loads(made.to_toml()), "saved") == made
    both = DECODER_ONLY | {"kind": "transformer", "attention": {"heads": 7}}
    assert presets.check({"model": both}, "mine.toml").model.attention.heads == 7


def test_a_factor_without_a_scaling_is_the_baseline_of_a_comparison():
    settings = ["model.kind=transformer", "model.position.kind=rotary", "model.position.factor=4.0"]
    for scaling in SCALINGS:
        made = presets.load("case", [*settings, f"model.position.scaling={scaling}"])
        assert made.model.position == config.Rotary(scaling=scaling, factor=4.0)


@pytest.mark.parametrize("choice", ["max_ratio=3", "max_extra=7"])
def test_a_language_model_has_no_source_to_measure_by(choice):
    own = ["data.kind=text", "data.train=a.txt", "data.val=a.txt", f"search.{choice}"]
    name = choice.partition("=")[0]
    message = rf"search\.{name} measures an output by its source, and a language model has none"
    with pytest.raises(UserError, match=message):
        presets.load("case", own)
    mending = presets.load("case", [*own, "data.noise.mask=0.2"])
    assert getattr(mending.search, name) == float(choice.partition("=")[2])
    assert presets.load("case", [*own[:3], "search.length_power=0.5"]).search.length_power == 0.5


def test_a_preset_that_is_not_there():
    with pytest.raises(UserError, match=r'no preset "cas"\. Did you mean "case"\? Presets: .*case'):
        presets.load("cas")


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(UserError, match=r"there is no file .*none\.toml"):
        presets.load(str(tmp_path / "none.toml"))
    path = tmp_path / "bad.toml"
    path.write_text("seed = = 3", "utf-8")
    with pytest.raises(UserError, match=r"bad\.toml is not valid TOML: .*line 1"):
        presets.load(str(path))
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match=r"bad\.toml cannot be read"):
        presets.load(str(path))
    path.write_text("sed = 3", "utf-8")
    with pytest.raises(UserError, match=r'bad\.toml: sed: unknown key\. Did you mean "seed"\?'):
        presets.load(str(path))


def test_nearest_offers_a_spelling_only_when_one_is_near():
    assert nearest("ADDITVE", ["dot", "additive"]) == ' Did you mean "additive"?'
    assert nearest("zzz", ["dot", "additive"]) == ""


@pytest.mark.parametrize("kind", ["characters", "words", "bpe"])
def test_of_a_tokenizer_for_scratch_a_pretrained_model_keeps_what_is_about_the_text(kind):
    table = {"kind": kind, "lower": True, "max_tokens": 31, "joint": True}
    made = Config.model_validate({"tokenizer": table, "model": {"kind": "pretrained", "name": "x"}})
    assert made.pretrained
    assert made.tokenizer == config.PretrainedTokenizer(lower=True, max_tokens=31)
    alone = Config.model_validate({"tokenizer": kind, "model": {"kind": "pretrained", "name": "x"}})
    assert alone.tokenizer == config.PretrainedTokenizer()
    again = Config.model_validate({"tokenizer": made.tokenizer, "model": made.model})
    assert again.tokenizer == made.tokenizer


def test_a_wrong_key_for_a_tokenizer_is_refused_whatever_the_model():
    settings = ["model={kind='pretrained', name='x'}", "tokenizer.lowr=true"]
    with pytest.raises(UserError, match=r'tokenizer\.lowr: unknown key. Did you mean "lower"'):
        presets.load("case", settings)


def test_swapping_the_model_is_the_only_change():
    for name in presets.names():
        swapped = presets.load(name, ["model.kind=pretrained", "model.name=x", "model.tune=lora"])
        assert swapped.pretrained
        assert swapped.model.tune == config.Lora()
        assert swapped.data == presets.load(name).data
