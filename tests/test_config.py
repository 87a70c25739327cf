"""Config tables and presets: every setting exists, can be set, and has a helpful error."""

import re
import tomllib
from itertools import permutations
from pathlib import Path
from typing import get_args

import pytest
from pydantic import ValidationError

from regard import config, presets
from regard.attention import HEADS, NORMALISERS, POSITIONS, SCORES
from regard.attention.positions import SCALINGS
from regard.config import Config, renamed
from regard.config.reference import list_settings
from regard.errors import UserError, suggest
from regard.models.build import CELLS, DECODERS
from regard.presets.errors import describe_error
from regard.text.tasks import TASKS
from regard.text.tokenizer import TOKENIZERS
from regard.training.schedule import SCHEDULES


def literals(table: type, field: str) -> set[str]:
    return set(get_args(table.model_fields[field].annotation))


def union(table: type, field: str) -> set[str]:
    """Every kind of the alternatives of a field, without user-registered ones."""
    tables = [member.__origin__ for member in get_args(table.model_fields[field].annotation)]
    return {kind for t in tables if t is not config.Custom for kind in config.kinds(t)}


@pytest.mark.parametrize(
    ("kinds", "registry"),
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
        (literals(config.SyntheticData, "name"), TASKS),
        (literals(config.Training, "schedule"), SCHEDULES),
    ],
)
def test_config_kinds_equal_the_registry_keys(kinds, registry):
    assert kinds == set(registry)


@pytest.mark.parametrize("name", presets.names())
def test_preset_round_trips_through_toml(name, tmp_path):
    loaded = presets.load(name)
    assert loaded.description == presets.names()[name] != ""
    path = tmp_path / "config.toml"
    path.write_text(loaded.to_toml(), "utf-8")
    assert presets.load(str(path)) == loaded


def test_overrides_round_trip_through_toml(tmp_path):
    settings = [
        "model.kind=transformer",
        "model.position=rotary",
        "model.attention.head_dim=6",
        "model.attention.score={kind='location', max_length=31}",
        "training.patience=3",
        "tokenizer=words",
        'description="a \\"quoted\\" é"',
    ]
    changed = presets.load("case", settings)
    path = tmp_path / "config.toml"
    path.write_text(changed.to_toml(), "utf-8")
    assert presets.load(str(path)) == changed
    assert changed.model.head_dim == 6
    assert changed.model.attention.score == config.Location(max_length=31)
    assert changed.training.patience == 3


def test_all_tables_are_frozen():
    loaded = Config()
    for table, field in [
        (loaded, "seed"),
        (loaded.model, "hidden_dim"),
        (loaded.model.encoder, "layers"),
    ]:
        with pytest.raises(ValidationError, match="frozen"):
            setattr(table, field, 3)


def test_setting_a_kind_resets_its_table():
    table = {"model": {"kind": "recurrent", "hidden_dim": 7, "attention": {"kq_dim": 3}}, "seed": 5}
    changed = presets.validate(presets.override(table, ["model.kind=transformer"]), "x")
    assert changed.model == config.Transformer()
    assert changed.seed == 5
    inner = {"model": {"attention": {"kq_dim": 3, "score": {"kind": "location", "max_length": 5}}}}
    changed = presets.validate(presets.override(inner, ["model.attention.score.kind=dot"]), "x")
    assert changed.model.attention.score.kind == "dot"
    assert changed.model.attention.kq_dim == 3
    same = presets.override(inner, ["model.attention.score.kind=location"])
    assert presets.validate(same, "x").model.attention.score.max_length == 5


def test_override_does_not_change_its_argument():
    table = {"model": {"kind": "recurrent", "encoder": {"layers": 3}}}
    presets.override(table, ["model.encoder.layers=2", "model.kind=transformer", "seed=9"])
    assert table == {"model": {"kind": "recurrent", "encoder": {"layers": 3}}}


@pytest.mark.parametrize("top", ["model.kind=transformer", "model=transformer"])
@pytest.mark.parametrize("middle", ["score.kind=location", "score=location"])
def test_order_of_settings_does_not_matter(top, middle):
    settings = [
        top,
        f"model.attention.{middle}",
        "model.attention.score.max_length=31",
        "model.attention.heads=8",
        "model.d_model=64",
    ]
    table = {"model": {"kind": "recurrent", "hidden_dim": 7, "attention": {"score": "additive"}}}
    results = [
        presets.validate(presets.override(table, order), "x") for order in permutations(settings)
    ]
    assert all(result == results[0] for result in results)
    attention = results[0].model.attention
    assert (attention.heads, attention.score.max_length, results[0].model.d_model) == (8, 31, 64)


@pytest.mark.parametrize(
    ("short", "long"),
    [
        ({"attention": {"score": "additive"}}, {"attention": {"score": {"kind": "additive"}}}),
        ({"attention": "none"}, {"attention": {"kind": "none"}}),
        ({"encoder": {"position": "learned"}}, {"encoder": {"position": {"kind": "learned"}}}),
    ],
)
def test_a_kind_may_be_written_as_a_string(short, long):
    models = [Config.model_validate({"model": table}).model for table in (short, long)]
    assert models[0] == models[1] != config.Recurrent()
    assert Config.model_validate({"model": "transformer"}).model == config.Transformer()
    assert Config.model_validate({"tokenizer": "words"}).tokenizer == config.Words()


def test_default_kind_is_the_first():
    assert Config.model_validate({"model": {"hidden_dim": 3}}).model == config.Recurrent(
        hidden_dim=3
    )


def test_a_run_folder_with_the_name_of_a_preset():
    assert presets.folder_argument(Path("case")) == "./case"
    assert presets.folder_argument(Path("runs/case")) == "runs/case"


def test_setting_values_are_toml_or_a_bare_word():
    assert presets.parse_setting("a.b = 3") == (["a", "b"], 3)
    assert presets.parse_setting("a=1e-3") == (["a"], 1e-3)
    assert presets.parse_setting("a=true") == (["a"], True)
    assert presets.parse_setting('a="3"') == (["a"], "3")
    assert presets.parse_setting("a=scaled-dot") == (["a"], "scaled-dot")
    assert presets.parse_setting("a=b=c") == (["a"], "b=c")
    assert presets.parse_setting("a=[1, 2]") == (["a"], [1, 2])


MISTAKES = {
    "model.celll=gru": 'case: model.celll: unknown key. Did you mean "cell"? Known here: kind, cell,',
    "model.cell=gruu": 'model.cell: got "gruu"; choose gru, lstm, rnn. Did you mean "gru"?',
    "model.kind=transfromer": 'model.kind: got "transfromer"; choose recurrent, transformer, '
    'decoder-only, pretrained. Did you mean "transformer"?',
    "model.kind=pretrained": "case: model.name: required, and missing. A model name on the Hug",
    "data.kind=files": "data.val: required, and missing",
    "data={kind='files', val='v.tsv', train=['a.tsv']}": "data.train.1: required, and missing",
    "data={kind='files', val='v.tsv', train=3}": "data.train: got 3; it should be a list, as in",
    "data={kind='text', name='multi30k', exclude=[{splits=['val']}]}": "data.exclude.0.name: "
    "required, and missing",
    "data={kind='text', name='multi30k', exclude=[{name='x', split='val'}]}": "data.exclude.0.split: unknown "
    'key. Did you mean "splits"?',
    "data={kind='text', name='multi30k', noise={mask_rato=0.5}}": "data.noise.mask_rato: "
    'unknown key. Did you mean "mask_ratio"?',
    "model={kind='pretrained', name='x', tune={kind='lora', rnak=3}}": "model.tune.rnak: unknown key. "
    'Did you mean "rank"?',
    "model={kind='pretrained', name='x', tune={kind='lora', target_modules='q_proj'}}": "model.tune."
    'target_modules: got "q_proj"; it should be a list, as in ["a", "b"]',
    "model={kind='pretrained', name=''}": "case: model.name: empty",
    "tokenizer.kind=pretrained": 'tokenizer.kind: "pretrained" is the tokenizer of a pretrained model',
    "model.attention.score=adittive": 'model.attention.score.kind: got "adittive"; choose scaled-dot, '
    'dot, additive, bilinear, mean, dummy, location. Did you mean "additive"?',
    "model.attention.normaliser.kind=max": "model.attention.normaliser.kind: got "
    '"max"; choose softmax, argmax, sparsemax, none. Did you mean "argmax"?',
    "model.encoder.position.kind=rotray": 'position.kind: got "rotray"; choose none, sinusoidal, '
    'learned, relative, alibi, rotary, interleaved. Did you mean "rotary"?',
    "model.encoder.position=rotary": 'model.encoder: the position "rotary" acts in self-attention, '
    "and a recurrent encoder has none: choose none, sinusoidal or learned",
    "model.encoder.position=interleaved": 'the position "interleaved" acts in self-attention',
    "model.encoder.position={kind='learned', max_length=256}": "model.encoder.position.max_length is "
    "256, and a text may need 257 positions (tokenizer.max_tokens + 1): raise the first or lower",
    "model.hidden_dim=0": "model.hidden_dim: got 0; it should be greater than or equal to 1",
    "model.hidden_dim=wide": 'model.hidden_dim: got "wide"; it should be a valid integer',
    "model.encoder.bidirectional=perhaps": 'model.encoder.bidirectional: got "perhaps"; it should be',
    "model.dropout=1": "model.dropout: got 1; it should be less than 1",
    "model=3": 'model.kind: got "3"; choose recurrent, transformer, decoder-only, pretrained.',
    "model.encoder=3": "model.encoder: got 3; it should be a valid dictionary",
    "data.kind=web": 'data.kind: got "web"; choose synthetic, dataset, ',
    "trainin.epochs=3": 'trainin: unknown key. Did you mean "training"?',
    "model.attention.score.max_length=3": "model.attention.score.max_length: unknown key. It is a key of "
    'model.attention.score.kind = "location", and the kind here is "scaled-dot". Known here: kind',
    "data.min_length=99": "case: data.min_length is above data.max_length",
    "layers=4": "layers: unknown key. Known here: description, seed, init, data",
    "seed=x": 'seed: got "x"; it should be a valid integer',
    "nothing": '"nothing" is not a setting: write key=value, as in model.decoder.layers=4',
    "=3": '"=3" is not a setting: write key=value',
    "model..cell=gru": '"model..cell=gru" is not a setting',
}


@pytest.mark.parametrize("setting", MISTAKES)
def test_an_error_names_the_path_the_value_and_the_choices(setting):
    with pytest.raises(UserError, match=re.escape(MISTAKES[setting])):
        presets.load("case", [setting])


def misplaced_keys() -> dict[tuple[str, str, str], set[str]]:
    """(table, kind, key of other kinds only) -> the kinds that have it, for the tables of a config."""
    choices: dict[str, list[str]] = {}
    having: dict[tuple[str, str], set[str]] = {}
    for setting in list_settings():
        table, _, name = setting.key.rpartition(".")
        if name == "kind" and not setting.kinds:
            choices[table] = setting.type.split(" | ")
        elif list(setting.kinds) == [f"{table}.kind"]:
            having.setdefault((table, name), set()).update(setting.kinds[f"{table}.kind"])
    return {
        (table, kind, name): kinds
        for (table, name), kinds in having.items()
        for kind in choices[table]
        if kind not in kinds
    }


def test_a_key_of_another_kind_names_that_kind():
    misplaced = misplaced_keys()
    assert len(misplaced) > 50
    for (table, kind, name), kinds in misplaced.items():
        with pytest.raises(ValidationError) as caught:
            Config.model_validate({table: {"kind": kind, name: 1}})
        messages = [describe_error(error) for error in caught.value.errors()]
        [message] = [m for m in messages if m.startswith(f"{table}.{name}: unknown key.")]
        listed = message.partition(f"It is a key of {table}.kind = ")[2].partition(", and")[0]
        assert set(re.findall(r'"([^"]+)"', listed)) == kinds
        assert f'the kind here is "{kind}"' in message


def test_a_key_below_a_number_is_an_error(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text("seed = 3\n[model]\nhidden_dim = 5\n", "utf-8")
    with pytest.raises(
        UserError, match=r"model.hidden_dim: got \{'x': 1\}; it should be a valid integer"
    ):
        presets.load(str(path), ["model.hidden_dim.x=1"])


def test_all_mistakes_are_listed_at_once():
    wrong = [
        "model.celll=gru",
        "model.hidden_dim=0",
        "training.learning_rate=-1",
        "tokenizer.kind=wrods",
    ]
    with pytest.raises(UserError, match=r"^case: 4 mistakes\n") as caught:
        presets.load("case", wrong)
    lines = str(caught.value).splitlines()
    assert len(lines) == 5
    paths = {"model.celll", "model.hidden_dim", "training.learning_rate", "tokenizer.kind"}
    assert {line.split(":")[0].strip() for line in lines[1:]} == paths


THREE_HEADS = {"kind": "transformer", "attention": {"heads": 3}}


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (
            THREE_HEADS | {"d_model": 7},
            "model: d_model (7) is not divisible by attention.heads (3): change",
        ),
        (THREE_HEADS | {"d_model": 9, "position": "rotary"}, "head_dim must be even, not 3"),
        (
            THREE_HEADS | {"d_model": 9, "position": {"kind": "interleaved", "nope_interval": 2}},
            "head_dim must be even, not 3",
        ),
    ],
)
def test_incompatible_head_dimensions_are_rejected(model, message):
    with pytest.raises(UserError, match=re.escape(message)):
        presets.validate({"model": model}, "mine.toml")
    explicit = {"heads": 3, "head_dim": 4}
    assert presets.validate({"model": model | {"attention": explicit}}, "x").model.head_dim == 4


@pytest.mark.parametrize(
    ("attention", "message"),
    [
        (
            {"heads": 6, "kv_heads": 4},
            "model.attention: kv_heads (4) does not divide heads (6): kv_heads may be 1, 2, 3, 6",
        ),
        (
            {"kv_heads": 0},
            "attention.kv_heads: got 0; it should be greater than or equal to 1",
        ),
        ({"window": 0}, "attention.window: got 0; it should be greater than or equal to 1"),
        ({"dropout": 1.0}, "attention.dropout: got 1.0; it should be less than 1"),
        (
            {"kind": "latent", "rope_dim": 3},
            "model.attention: rotary needs pairs, so rope_dim must be even, not 3",
        ),
        ({"kind": "latent", "kv_heads": 2}, "attention.kv_heads: unknown key."),
        (
            {"latent_dim": 32},
            'model.attention.latent_dim: unknown key. It is a key of model.attention.kind = "latent"',
        ),
        (
            "latnet",
            'attention.kind: got "latnet"; choose multi-head, latent. Did you mean "latent"?',
        ),
        ({"kind": "latent", "heads": 3}, "d_model (128) is not divisible by attention.heads (3)"),
    ],
)
def test_impossible_heads_are_rejected(attention, message):
    with pytest.raises(UserError, match=re.escape(message)):
        presets.validate({"model": {"kind": "transformer", "attention": attention}}, "mine.toml")


def test_kinds_of_heads_round_trip_through_toml(tmp_path):
    settings = ["model.kind=transformer", "model.attention.kv_heads=2"]
    grouped = presets.load("case", [*settings, "model.attention.window=5"])
    latent = presets.load("case", ["model.kind=transformer", "model.attention=latent"])
    assert grouped.model.attention == config.MultiHead(kv_heads=2, window=5)
    assert latent.model.attention == config.Latent()
    for changed in (grouped, latent):
        path = tmp_path / "config.toml"
        path.write_text(changed.to_toml(), "utf-8")
        assert presets.load(str(path)) == changed


def test_latent_heads_of_odd_head_dim_may_be_rotary_since_they_rotate_rope_dim():
    table = {"kind": "transformer", "d_model": 9, "position": "rotary"}
    attention = {"kind": "latent", "heads": 3}
    assert presets.validate({"model": table | {"attention": attention}}, "x").model.head_dim == 3


@pytest.mark.parametrize(
    ("position", "message"),
    [
        (
            "interleaved",
            "model: position.nope_interval (4) exceeds the number of layers (2)",
        ),
        (
            {"kind": "interleaved", "nope_interval": 1},
            "nope_interval: got 1; it should be greater than or equal to 2",
        ),
        (
            {"kind": "rotary", "scaling": "yarn"},
            'model.position: the scaling "yarn" does nothing without a factor above 1',
        ),
        ({"kind": "rotary", "factor": 0.5}, "factor: got 0.5; it should be greater than or equal"),
        ({"kind": "relative", "form": "key"}, 'form: got "key"; choose bias, query.'),
        (
            {"kind": "learned", "max_length": 31},
            "model.position.max_length is 31, and a text may need 257 positions",
        ),
    ],
)
def test_positions_without_effect_are_rejected(position, message):
    with pytest.raises(UserError, match=re.escape(message)):
        presets.validate({"model": {"kind": "transformer", "position": position}}, "mine.toml")


DECODER_ONLY = {"kind": "decoder-only", "d_model": 7, "mixer": "state-space"}


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (
            {"kind": "decoder-only", "position": {"kind": "learned", "max_length": 512}},
            "a text may need 514 positions (2 (tokenizer.max_tokens + 1), for source and target)",
        ),
        (
            DECODER_ONLY | {"d_model": 8, "position": "rotary"},
            'the position "rotary" acts in self',
        ),
        (
            DECODER_ONLY | {"kind": "transformer"},
            "d_model (7) is not divisible by attention.heads (4)",
        ),
        (DECODER_ONLY | {"mixer": "mamba"}, "choose attention, state-space."),
        (
            DECODER_ONLY | {"attention": {"heads": 7}},
            "model: the mixer is a state space and this model has no cross-attention, so "
            "model.attention has no effect: leave it out",
        ),
        (DECODER_ONLY | {"attention": "latent"}, "model.attention has no effect"),
        (
            DECODER_ONLY | {"kind": "transformer", "attention": {"heads": 7, "window": 3}},
            "attention.window restricts self-attention, and the mixer is a state space",
        ),
        (
            {"kind": "transformer", "norm_position": "first"},
            'norm_position: got "first"; choose pre, post',
        ),
        ({"kind": "transformer", "activation": "selu"}, "choose relu, gelu, swiglu."),
        (
            DECODER_ONLY | {"attention_mask": "prefix"},
            'attention_mask = "prefix" lets source tokens attend to later ones, and the mixer is a state '
            "space",
        ),
        (
            {"kind": "decoder-only", "attention_mask": "full"},
            'attention_mask: got "full"; choose causal, prefix.',
        ),
        ({"kind": "transformer", "attention_mask": "prefix"}, "attention_mask"),
    ],
)
def test_impossible_transformers_are_rejected(model, message):
    with pytest.raises(UserError, match=re.escape(message)):
        presets.validate({"model": model}, "mine.toml")
    # Without attention there are no heads that d_model must be divisible by.
    assert presets.validate({"model": DECODER_ONLY}, "mine.toml").model.d_model == 7


def test_a_saved_state_space_config_with_every_default_written_out_is_valid():
    loaded = presets.validate({"model": DECODER_ONLY}, "mine.toml")
    assert presets.validate(tomllib.loads(loaded.to_toml()), "saved") == loaded
    both = DECODER_ONLY | {"kind": "transformer", "attention": {"heads": 7}}
    assert presets.validate({"model": both}, "mine.toml").model.attention.heads == 7


def test_a_factor_without_a_scaling_is_valid_as_the_baseline_of_a_comparison():
    settings = ["model.kind=transformer", "model.position.kind=rotary", "model.position.factor=4.0"]
    for scaling in SCALINGS:
        loaded = presets.load("case", [*settings, f"model.position.scaling={scaling}"])
        assert loaded.model.position == config.Rotary(scaling=scaling, factor=4.0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["model.bridge=false"], "two directions: set encoder.bidirectional = false"),
        (["model.cell=lstm"], "an LSTM's state is more than its output: choose rnn or gru"),
        (["model.decoder.layers=2"], "the encoder has 1 layers and the decoder 2"),
    ],
)
def test_a_decoder_that_cannot_start_from_the_encoders_state_needs_a_bridge(settings, message):
    preset = "case" if "bridge" in settings[0] else "case-rnn"
    with pytest.raises(UserError, match=re.escape(message)):
        presets.load(preset, settings)


def test_reading_padding_needs_random_batches():
    assert presets.load("homework-notebook").model.read_padding
    message = 'model.read_padding .* set training.batching = "random"'
    with pytest.raises(UserError, match=message):
        presets.load("homework-notebook", ["training.batching=bucketed"])


@pytest.mark.parametrize("noise", [[], ["data.noise.mask_ratio=0.2"]])
def test_plain_text_needs_the_end_token_of_a_source(noise):
    text = ["data.kind=text", "data.train=a.txt", "data.val=a.txt", *noise]
    with pytest.raises(UserError, match=r"tokenizer\.source_eos = false leaves a language model"):
        presets.load("case", [*text, "tokenizer.source_eos=false"])


def test_a_pretrained_model_drops_source_eos():
    model = {"kind": "pretrained", "name": "gpt2"}
    loaded = presets.validate({"model": model, "tokenizer": {"source_eos": False}}, "mine.toml")
    assert not hasattr(loaded.tokenizer, "source_eos")


@pytest.mark.parametrize("setting", ["max_ratio=3", "max_extra=7"])
def test_a_language_model_rejects_settings_about_the_source(setting):
    settings = ["data.kind=text", "data.train=a.txt", "data.val=a.txt", f"search.{setting}"]
    name = setting.partition("=")[0]
    message = rf"search\.{name} depends on the source length, and a language model has no source"
    with pytest.raises(UserError, match=message):
        presets.load("case", settings)
    denoising = presets.load("case", [*settings, "data.noise.mask_ratio=0.2"])
    assert getattr(denoising.search, name) == float(setting.partition("=")[2])
    language_model = presets.load("case", [*settings[:3], "search.length_penalty=0.5"])
    assert language_model.search.length_penalty == 0.5


def test_a_language_model_has_no_source_to_make_visible():
    model = ["model.kind=decoder-only", "model.attention_mask=prefix"]
    settings = ["data.kind=text", "data.train=a.txt", "data.val=a.txt", *model]
    message = 'model.attention_mask = "prefix" is about the source, and a language model has none'
    with pytest.raises(UserError, match=re.escape(message)):
        presets.load("case", settings)
    denoising = presets.load("case", [*settings, "data.noise.mask_ratio=0.2"])
    assert denoising.model.attention_mask == "prefix"


OLD_KEYS = {  # a config that uses the table, by the table's name
    "training": "training.{}=1",
    "model": "model.{}=1",
    "attention": "model.attention.{}=1",
    "position": "model.position.{}=1",
    "mixer": "model.mixer.{}=1",
    "tune": "model.tune.{}=1",
    "data": "data.{}=1",
    "noise": "data.noise.{}=1",
    "tokenizer": "tokenizer.{}=1",
    "search": "search.{}=1",
}
CONTEXTS = [  # every kind of table, so that each renamed key has one that knows its new name
    [],
    ["model=transformer", "model.position=interleaved", "model.mixer=state-space"],
    ["model=transformer", "model.attention=latent"],
    ["model={kind='pretrained', name='x', tune={kind='lora'}}"],
    ["data={kind='files', train='a.jsonl', val='a.jsonl'}", "tokenizer=bpe"],
    ["data={kind='text', train='a.txt', val='a.txt', noise={seed=1}}"],
]


@pytest.mark.parametrize("old", renamed.KEYS)
def test_the_error_for_an_old_key_names_the_new_one(old):
    table, _, key = old.partition(".")
    setting, new = OLD_KEYS[table].format(key), renamed.KEYS[old]
    messages = []
    for context in CONTEXTS:
        with pytest.raises(UserError) as caught:
            presets.load("case", [*context, setting])
        messages.append(str(caught.value))
    path = setting.partition("=")[0]
    assert any(f'{path}: unknown key. It is now called "{new}".' in text for text in messages)


@pytest.mark.parametrize("path", renamed.VALUES)
def test_the_error_for_an_old_value_names_the_new_one(path):
    for old, new in renamed.VALUES[path].items():
        messages = []
        for context in CONTEXTS:
            with pytest.raises(UserError) as caught:
                presets.load("case", [*context, f"{path}={old}"])
            messages.append(str(caught.value))
        assert any(f'It is now called "{new}".' in text for text in messages)


@pytest.mark.parametrize("old", renamed.PRESETS)
def test_the_error_for_an_old_preset_names_the_new_one(old):
    assert renamed.PRESETS[old] in presets.names()
    with pytest.raises(UserError, match=f'now called "{renamed.PRESETS[old]}"'):
        presets.load(old)


def test_base_inherits_and_a_new_kind_resets_its_table(tmp_path):
    (tmp_path / "grand.toml").write_text(
        "seed = 7\ndata = 'synthetic'\n[model]\nhidden_dim = 31\n[model.attention]\nkq_dim = 5\n",
        "utf-8",
    )
    (tmp_path / "parent.toml").write_text(
        'base = "grand.toml"\n[model]\nembedding_dim = 13\n[model.attention]\nscore = "dot"\n',
        "utf-8",
    )
    child = tmp_path / "child.toml"
    child.write_text('base = "parent.toml"\n[model.encoder]\nlayers = 3\n', "utf-8")
    loaded = presets.load(str(child))
    model = loaded.model
    assert (loaded.seed, model.hidden_dim, model.embedding_dim) == (7, 31, 13)
    assert (model.attention.kq_dim, model.attention.score.kind) == (5, "dot")
    assert model.encoder.layers == 3
    assert "base" not in tomllib.loads(loaded.to_toml())
    child.write_text('base = "parent.toml"\n[model]\nkind = "transformer"\n', "utf-8")
    assert presets.load(str(child)).model == config.Transformer()
    child.write_text('base = "case-rnn"\nseed = 3\n', "utf-8")
    assert presets.load(str(child)) == presets.load("case-rnn", ["seed=3"])


@pytest.mark.parametrize(
    ("base", "message"),
    [
        ('"mine.toml"', r"base: .*mine\.toml -> .*mine\.toml is a cycle"),
        ('"cas"', r'mine\.toml: base: there is no preset "cas"\. Did you mean "case"'),
        ('"none.toml"', r"there is no file .*none\.toml"),
        ("3", r"base: got 3; it should be a preset or a \.toml file"),
    ],
)
def test_a_wrong_base_is_an_error(base, message, tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(f"base = {base}\n", "utf-8")
    with pytest.raises(UserError, match=message):
        presets.load(str(path))


def test_an_unknown_preset():
    with pytest.raises(UserError, match=r'no preset "cas"\. Did you mean "case"\? Presets: .*case'):
        presets.load("cas")


def test_unreadable_files(tmp_path):
    with pytest.raises(UserError, match=r"there is no file .*none\.toml"):
        presets.load(str(tmp_path / "none.toml"))
    path = tmp_path / "bad.toml"
    path.write_text("seed = = 3", "utf-8")
    with pytest.raises(UserError, match=r"bad\.toml is not valid TOML: .*line 1"):
        presets.load(str(path))
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match=r"bad\.toml is not valid TOML: byte 0 is not UTF-8"):
        presets.load(str(path))
    path.write_text("sed = 3", "utf-8")
    with pytest.raises(UserError, match=r'bad\.toml: sed: unknown key\. Did you mean "seed"\?'):
        presets.load(str(path))


def test_suggest_offers_only_a_close_spelling():
    assert suggest("ADDITVE", ["dot", "additive"]) == ' Did you mean "additive"?'
    assert suggest("zzz", ["dot", "additive"]) == ""


@pytest.mark.parametrize("kind", ["characters", "words", "bpe"])
def test_a_pretrained_model_drops_vocabulary_settings_of_the_tokenizer(kind):
    table = {"kind": kind, "lowercase": True, "max_tokens": 31, "joint": True}
    model = {"kind": "pretrained", "name": "x"}
    loaded = Config.model_validate({"tokenizer": table, "model": model})
    assert loaded.is_pretrained
    assert loaded.tokenizer == config.PretrainedTokenizer(lowercase=True, max_tokens=31)
    default = Config.model_validate({"tokenizer": kind, "model": model})
    assert default.tokenizer == config.PretrainedTokenizer()
    again = Config.model_validate({"tokenizer": loaded.tokenizer, "model": loaded.model})
    assert again.tokenizer == loaded.tokenizer


def test_an_unknown_tokenizer_key_is_rejected_whatever_the_model():
    settings = ["model={kind='pretrained', name='x'}", "tokenizer.lowr=true"]
    with pytest.raises(UserError, match=r'tokenizer\.lowr: unknown key. Did you mean "lowercase"'):
        presets.load("case", settings)


def test_every_preset_accepts_a_pretrained_model_without_other_changes():
    for name in presets.names():
        swapped = presets.load(name, ["model.kind=pretrained", "model.name=x", "model.tune=lora"])
        assert swapped.is_pretrained
        assert swapped.model.tune == config.Lora()
        assert swapped.data == presets.load(name).data


# --- paths ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_here_too", [False, True])
def test_folders_are_those_beside_the_toml_that_names_them(tmp_path, monkeypatch, is_here_too):
    toml = """
    init = "x"
    data = {kind = "hf", name = "x"}
    model = {kind = "pretrained", name = "x"}
    """
    (tmp_path / "there" / "x").mkdir(parents=True)
    (tmp_path / "there" / "a.toml").write_text(toml)
    monkeypatch.chdir(tmp_path)
    if is_here_too:
        (tmp_path / "x").mkdir()
    table = presets.read("there/a.toml")
    found = {table["init"], table["data"]["name"], table["model"]["name"]}
    assert found == {str(tmp_path / "there" / "x")}


def test_names_that_are_no_folders_stay_names(tmp_path):
    toml = """
    init = "de-en"
    data = {kind = "hf", name = "hf:user/pairs"}
    model = {kind = "pretrained", name = "user/name"}
    """
    (tmp_path / "a.toml").write_text(toml)
    table = presets.read(str(tmp_path / "a.toml"))
    assert (table["init"], table["data"]["name"]) == ("de-en", "hf:user/pairs")
    assert table["model"]["name"] == "user/name"
