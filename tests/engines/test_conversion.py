"""Every model is converted to CTranslate2 with equal probabilities, or refused for a reason."""

from dataclasses import dataclass
from typing import Any, Literal, get_args

import pytest
import torch

from regard import config
from regard.attention import HEADS, NORMALISERS, POSITIONS, SCORES
from regard.attention.positions import SCALINGS
from regard.config import Config, kinds
from regard.engines.conversion import Converter, token_names
from regard.engines.ctranslate2 import DecoderOnly, EncoderDecoder
from regard.engines.obstacles import (
    CUSTOM,
    EXPRESSIBLE,
    OBSTACLES,
    check_expressible,
    find_obstacles,
)
from regard.errors import UserError
from regard.models import build
from regard.models.layers import FEED_FORWARDS, NORMS
from regard.search import token_log_probs
from regard.text.batch import EncodedPairs
from regard.text.tokenizer import EOS, BpeTokenizer, CharacterTokenizer, TokenizerPair
from tests.models.conftest import MODELS, decoder_only, transformer

SOURCE_LENGTHS, TARGET_LENGTHS = (7, 3, 11, 1, 20), (4, 9, 15, 1, 3)
QUERY_RELATIVE = {"kind": "relative", "form": "query", "max_distance": 3}
# What is not in MODELS: combinations that only the conversion cares about.
MORE: dict[str, dict[str, Any]] = {
    f"{build_table.__name__} {name}": build_table(**changes)
    for build_table in (transformer, decoder_only)
    for name, changes in {
        "alibi, 4 heads": {"position": "alibi", "attention": {"heads": 4}},
        "alibi, 8 heads, grouped": {"position": "alibi", "attention": {"heads": 8, "kv_heads": 2}},
        "linear": {"position": {"kind": "rotary", "scaling": "linear", "factor": 3.0}},
        "ntk": {"position": {"kind": "rotary", "scaling": "ntk", "factor": 3.0}},
        "base": {"position": {"kind": "rotary", "base": 77.0}},
        "yarn": {
            "position": {"kind": "rotary", "scaling": "yarn", "factor": 3.0, "original_length": 64},
            "attention": {"head_dim": 8},
        },
        "grouped, relative": {"position": QUERY_RELATIVE, "attention": {"kv_heads": 1}},
        "grouped, bilinear": {"attention": {"heads": 6, "kv_heads": 2, "score": "bilinear"}},
        "bilinear, rotary": {"position": "rotary", "attention": {"score": "bilinear"}},
        **{
            f"{score}, relative": {"position": QUERY_RELATIVE, "attention": {"score": score}}
            for score in sorted(EXPRESSIBLE["attention.score"])
        },
    }.items()
}
TABLES = MODELS | MORE


def settings_of(table: dict[str, Any]) -> Config:
    return Config.model_validate({"model": table, "training": {"batching": "random"}})


def characters(count: int) -> CharacterTokenizer:
    return CharacterTokenizer([chr(ord("A") + i) for i in range(count)], (), False, True)


def find(table: dict[str, Any]) -> dict[str, str]:
    return find_obstacles(settings_of(table), joint=True)


@dataclass
class Example:
    model: Any
    engine: Any
    pairs: EncodedPairs


def convert(table: dict[str, Any], folder: Any) -> Example:
    is_decoder_only = table["kind"] == "decoder-only"
    target = characters(17)
    tokenizers = TokenizerPair(target if is_decoder_only else characters(13), target, 31)
    torch.manual_seed(1)
    sizes = tokenizers.source.vocab_size, tokenizers.target.vocab_size
    settings = settings_of(table)
    model = build(settings.model, *sizes, tokenizers.joint).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # so that norms are not the identity
            parameter.add_(torch.randn_like(parameter), alpha=0.15)
    spec = Converter(settings, tokenizers, model).convert()
    spec.validate()
    spec.optimize()
    spec.save(str(folder))
    engine = (DecoderOnly if is_decoder_only else EncoderDecoder)(folder, tokenizers)
    sources, targets = (
        [torch.randint(4, size, (n,)).tolist() for n in lengths]
        for size, lengths in zip(sizes, (SOURCE_LENGTHS, TARGET_LENGTHS), strict=True)
    )
    return Example(model, engine, EncodedPairs([[*ids, EOS] for ids in sources], targets))


@pytest.mark.parametrize("name", [name for name, table in TABLES.items() if not find(table)])
def test_probabilities_are_equal(name, tmp_path):
    """Of given targets, read at once; and of CTranslate2's own outputs, generated step by step."""
    example = convert(TABLES[name], tmp_path)
    engine, pairs = example.engine, example.pairs
    for row, log_probs in enumerate(token_log_probs(example.model, pairs)):
        [score] = engine.score(pairs.source[row], [[*pairs.target[row], EOS]])
        assert score == pytest.approx(sum(log_probs), abs=1e-4)
    options = {"beam_size": 3, "length_penalty": 0, "return_end_token": True, "return_scores": True}
    outputs = [engine.generate([source], 17, options)[0][0] for source in pairs.source]
    targets = [[i for i in ids if i != EOS] for ids, _ in outputs]
    all_log_probs = token_log_probs(example.model, EncodedPairs(pairs.source, targets))
    for (ids, score), log_probs in zip(outputs, all_log_probs, strict=True):
        assert score == pytest.approx(sum(log_probs[: len(ids)]), abs=1e-4)


@pytest.mark.parametrize("name", [name for name, table in TABLES.items() if find(table)])
def test_other_models_are_refused_with_their_settings(name):
    reasons = find(TABLES[name])
    with pytest.raises(UserError, match="CTranslate2 cannot express this model: ") as error:
        check_expressible(settings_of(TABLES[name]), joint=True)
    assert all(f"{setting} ({reason})" in str(error.value) for setting, reason in reasons.items())


@pytest.mark.parametrize(
    "name",
    [
        "decoder-only-prefix",
        "transformer-position-alibi",
        "decoder-only-position-alibi",
        "transformer-position-rotary-dynamic-ntk",
        "transformer-additive",
        "transformer-argmax",
        "transformer-sparsemax",
        "transformer-window",
        "decoder-only-window",
        "decoder_only bilinear, rotary",
    ],
)
def test_refused_models_would_give_other_probabilities(name, tmp_path):
    try:
        example = convert(TABLES[name], tmp_path)
        scores = [
            example.engine.score(source, [[*target, EOS]])[0]
            for source, target in zip(example.pairs.source, example.pairs.target, strict=True)
        ]
    except ValueError:  # CTranslate2 rejects it
        return
    ours = [sum(log_probs) for log_probs in token_log_probs(example.model, example.pairs)]
    assert max(abs(a - b) for a, b in zip(ours, scores, strict=True)) > 1e-3


def literals(table: type[config.Table], field: str) -> set[str]:
    annotation = table.model_fields[field].annotation
    assert getattr(annotation, "__origin__", None) is Literal
    return set(get_args(annotation))


KNOWN: dict[str, set[str]] = {
    "model": {
        kind
        for table in (config.Recurrent, config.Transformer, config.DecoderOnly, config.Pretrained)
        for kind in kinds(table)
    },
    "mixer": {*kinds(config.AttentionMixer), *kinds(config.StateSpaceMixer)},
    "attention": set(HEADS),
    "attention.score": set(SCORES),
    "attention.normaliser": set(NORMALISERS),
    "attention_mask": literals(config.DecoderOnly, "attention_mask"),
    "position": set(POSITIONS) | set(kinds(config.Interleaved)),
    "position.form": literals(config.Relative, "form"),
    "position.scaling": set(SCALINGS),
    "activation": set(FEED_FORWARDS),
    "norm": set(NORMS),
    "norm_position": literals(config.TransformerBase, "norm_position"),
}


def test_every_kind_of_every_registry_is_expressible_or_has_a_reason():
    assert EXPRESSIBLE.keys() == KNOWN.keys()
    for setting, known in KNOWN.items():
        refused = OBSTACLES.get(setting, {})
        assert EXPRESSIBLE[setting] | refused.keys() == known
        assert not EXPRESSIBLE[setting] & refused.keys()


def test_every_reason_names_the_setting():
    assert find(MODELS["transformer-latent"]) == {
        'model.attention.kind = "latent"': "CTranslate2 has no compressed keys and values"
    }
    assert list(find(MODELS["recurrent-additive"])) == ['model.kind = "recurrent"']
    assert list(find(MODELS["pretrained-t5"])) == ['model.kind = "pretrained"']
    assert list(find(MODELS["decoder-only-window"])) == ["model.attention.window = 3"]
    two_vocabularies = find_obstacles(settings_of(MODELS["decoder-only-1"]), joint=False)
    assert list(two_vocabularies) == ["tokenizer.joint = false"]


def test_a_kind_of_the_user_is_refused(monkeypatch):
    monkeypatch.setitem(SCORES, "own", SCORES["dot"])
    monkeypatch.setitem(config.EXTENSIONS, "score", {"own"})
    found = find(transformer(attention={"score": "own"}))
    assert found == {'model.attention.score.kind = "own"': CUSTOM}


def test_names_of_tokens_are_unique():
    pieces = ["a", "<end>", "<pad>"]
    tokenizer = BpeTokenizer([*pieces], (), False, False, merges=[])
    names = token_names(tokenizer)
    assert names == ["<pad>", "<begin>", "<end>", "<unk>", "a", "<end>#5", "<pad>#6"]
