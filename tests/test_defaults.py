"""Settings that follow the number of training pairs: only where nobody set them, and only on own files."""

import tomllib
from itertools import pairwise

import pytest

from regard import presets
from regard.config import Bpe, Characters, Config, Recurrent, Words
from regard.config.defaults import chosen_values, follow_data, follows_data

FILES = {"kind": "files", "train": "train.tsv", "val": "val.tsv"}
SIZES = (10, 500, 1000, 2000, 4000, 8000, 29_000, 64_000, 164_000, 200_000, 10**6)


def own(**tables) -> Config:
    return presets.validate({"data": FILES} | tables, "test")


def test_the_point_that_was_measured():
    resolved = follow_data(own(), 2000)
    assert isinstance(resolved.tokenizer, Bpe)
    assert isinstance(resolved.model, Recurrent)
    assert resolved.tokenizer.vocab_size == 1000
    assert resolved.model.hidden_dim == resolved.model.embedding_dim == 128
    assert (resolved.training.epochs, resolved.training.batch_sentences) == (30, 32)


def test_the_rule_meets_the_presets_of_larger_corpora():
    multi30k, tatoeba = (follow_data(own(), pairs) for pairs in (29_000, 164_000))
    assert multi30k.model.hidden_dim == presets.load("multi30k-gru-cpu").model.hidden_dim
    assert tatoeba.model.hidden_dim == presets.load("tatoeba-de-en-gru").model.hidden_dim
    assert abs(multi30k.training.epochs - presets.load("multi30k-gru-bpe").training.epochs) <= 1
    assert abs(tatoeba.training.epochs - presets.load("tatoeba-de-en-gru").training.epochs) <= 2


@pytest.mark.parametrize("kind", ["recurrent", "transformer", "decoder-only"])
def test_more_pairs_make_a_larger_model_with_more_steps(kind):
    configs = [follow_data(own(model=kind), pairs) for pairs in SIZES]
    widths = [getattr(c.model, "hidden_dim", None) or c.model.d_model for c in configs]
    steps = [
        max(c.training.epochs * pairs / c.training.batch_sentences, c.training.min_steps)
        for c, pairs in zip(configs, SIZES, strict=True)
    ]
    for values in (widths, steps, [c.tokenizer.vocab_size for c in configs]):
        assert all(before <= after for before, after in pairwise(values)), values
    assert (min(widths), max(widths)) == (128, 416)


@pytest.mark.parametrize(
    ("table", "key", "value"),
    [
        ("tokenizer", "vocab_size", 700),
        ("tokenizer", "lowercase", True),
        ("model", "hidden_dim", 128),  # set to its default is set
        ("model", "dropout", 0.0),
        ("training", "batch_sentences", 128),
        ("training", "learning_rate", 1e-3),
    ],
)
def test_a_value_that_is_set_is_kept(table, key, value):
    given = {"kind": "bpe", key: value} if key == "vocab_size" else {key: value}
    resolved = follow_data(own(**{table: given}), 100_000)
    assert getattr(getattr(resolved, table), key) == value
    assert isinstance(resolved.tokenizer, Bpe)


@pytest.mark.parametrize("pairs", SIZES)
def test_r_drop_trains_for_twice_as_long(pairs):
    plain = follow_data(own(), pairs).training
    assert follow_data(own(training={"r_drop": 2.5}), pairs).training.epochs == 2 * plain.epochs
    assert follow_data(own(training={"r_drop": 2.5, "epochs": 7}), pairs).training.epochs == 7


def test_epochs_that_are_set_have_no_minimum_of_steps():
    training = follow_data(own(training={"epochs": 1}), 600).training
    assert (training.epochs, training.min_steps) == (1, 0)


def test_another_tokenizer_is_kept():
    assert follow_data(own(tokenizer="words"), 2000).tokenizer == Words()
    characters = follow_data(own(tokenizer={"min_frequency": 3}), 2000).tokenizer
    assert characters == Characters(min_frequency=3)


@pytest.mark.parametrize("heads", [1, 2, 16, 64, 128])
def test_heads_divide_the_width(heads):
    model = {"kind": "transformer", "position": "rotary", "attention": {"heads": heads}}
    if heads == 128:
        model |= {"position": "none"}
    for pairs in SIZES:
        assert follow_data(own(model=model), pairs).model.d_model % heads == 0


def test_d_model_that_is_set_keeps_d_ff():
    model = follow_data(own(model={"kind": "transformer", "d_model": 16}), 2000).model
    assert (model.d_model, model.d_ff) == (16, 512)


def test_a_saved_config_no_longer_follows():
    resolved = follow_data(own(model="transformer"), 2000)
    saved = presets.validate(tomllib.loads(resolved.to_toml()), "saved")
    assert saved == resolved
    assert follow_data(saved, 150_000) == resolved


def test_chosen_values_are_what_nobody_set():
    given = own(model={"hidden_dim": 7})
    chosen = chosen_values(given, follow_data(given, 2000))
    assert chosen["tokenizer.vocab_size"] == 1000
    assert chosen["model.embedding_dim"] == 128
    assert "model.hidden_dim" not in chosen
    assert chosen_values(given, given) == {}


@pytest.mark.parametrize("name", presets.names())
def test_no_preset_follows_the_data(name):
    assert not follows_data(presets.load(name))


def test_own_files_follow_unless_the_model_is_pretrained():
    assert follows_data(own())
    assert follows_data(own(data={"kind": "text", "train": "a.txt", "val": "b.txt"}))
    assert follows_data(own(data={"kind": "hf", "name": "hf:user/name"}))
    assert follows_data(own(data={"kind": "pairs"}))
    assert not follows_data(own(data={"kind": "text", "name": "multi30k"}))
    assert not follows_data(own(model={"kind": "pretrained", "name": "x"}))
