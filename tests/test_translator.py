"""The whole path with small untrained models: texts in, texts and attention weights out."""

import random

import pytest
import torch

import regard
from regard import presets
from regard.api import Translator
from regard.errors import UserError
from regard.models import build, pack_weights, weights
from regard.text.tokenizer import EOS, TokenizerPair

SYMBOLS = ("<U>", "<L>")
TEXTS = [
    "<U> a cab",
    "bad",
    "<L> decade faced",
    "a",
    "<U> cafe",
    "bead",
    "<L> e",
    "a a a a a a a a a",
]
SMALL = ["tokenizer.max_tokens=23", "search.max_extra=3", "search.max_ratio=1.5"]
MODELS = {
    "gru": ["model.hidden_dim=13", "model.embedding_dim=7"],
    "lstm": ["model.cell=lstm", "model.hidden_dim=13", "model.attention.score=additive"],
    "bottleneck": ["model.attention=none", "model.hidden_dim=13"],
    "transformer": ["model=transformer", "model.d_model=12", "model.attention.heads=3"],
    "decoder-only": ["model=decoder-only", "model.d_model=12", "model.attention.heads=3"],
    "state-space": ["model=decoder-only", "model.d_model=12", "model.mixer=state-space"],
    "words": ["tokenizer=words", "tokenizer.min_frequency=1", "model.hidden_dim=13"],
}


def build_translator(name: str, *settings: str) -> Translator:
    config = presets.load("case", [*SMALL, *MODELS[name], *settings])
    pairs = [(text, text.removeprefix("<U> ").removeprefix("<L> ").upper()) for text in TEXTS]
    tokenizers = TokenizerPair.train(config.tokenizer, pairs, SYMBOLS)
    torch.manual_seed(3)
    sizes = tokenizers.source.vocab_size, tokenizers.target.vocab_size
    model = build(config.model, *sizes, tokenizers.joint).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter *= 2  # a new model would repeat one token
    return Translator(config, tokenizers, model)


@pytest.fixture(params=MODELS)
def translator(request) -> Translator:
    return build_translator(request.param)


def assert_same(result: regard.Translation, reference: regard.Translation) -> None:
    assert result.text == reference.text
    assert result.source == reference.source
    assert result.target == reference.target
    assert result.score == pytest.approx(reference.score, abs=1e-5)
    assert result.attention.keys() == reference.attention.keys()
    for name, w in result.attention.items():
        torch.testing.assert_close(w, reference.attention[name], atol=1e-5, rtol=0)


def test_outputs_do_not_depend_on_order_or_batch(translator):
    expected = translator.translate(TEXTS)
    assert len({out.text for out in expected}) > 1
    for batch_tokens in (1, 17, 40):
        results = translator.translate(TEXTS, batch_tokens=batch_tokens)
        for result, reference in zip(results, expected, strict=True):
            assert_same(result, reference)
    order = random.Random(5).sample(range(len(TEXTS)), len(TEXTS))
    shuffled = translator.translate([TEXTS[row] for row in order] + [TEXTS[0]])
    for result, row in zip(shuffled, [*order, 0], strict=True):
        assert_same(result, expected[row])
    for text, reference in zip(TEXTS, expected, strict=True):
        assert_same(translator.translate([text])[0], reference)


def test_a_translation_has_tokens_and_a_score(translator):
    for text, out in zip(TEXTS, translator.translate(TEXTS), strict=True):
        source = translator.tokenizers.source
        assert out.source == [*source.ids_to_tokens(source.encode(text)), "<end>"]
        assert source.decode(source.encode(text)) == text
        vocab = translator.tokenizers.target.vocab
        ids = [vocab.index(token) for token in out.target]
        assert out.text == translator.tokenizers.target.decode(ids)
        assert "<end>" not in out.target[:-1]
        assert "<end>" not in out.text
        assert len(out.target) <= int(1.5 * len(out.source) + 3)
        assert out.score < 0
        assert out.normalised == out.score
        assert out.alternatives == []


def test_the_score_is_the_log_probability_of_the_output(translator):
    for text, out in zip(TEXTS, translator.translate(TEXTS), strict=True):
        ids = [translator.tokenizers.target.vocab.index(token) for token in out.target]
        source = torch.tensor([[*translator.tokenizers.source.encode(text), EOS]])
        target = torch.tensor([[1, *ids[:-1]]])
        with torch.no_grad():
            logits = translator.model(source, torch.ones_like(source).bool(), target)
        expected = logits[0].log_softmax(-1)[range(len(ids)), ids].sum()
        assert out.score == pytest.approx(float(expected), abs=1e-4)


def test_attention_weights_have_the_shape_of_the_tokens_and_sum_to_one(translator):
    for out in translator.translate(TEXTS):
        source, target = len(out.source), len(out.target)
        shapes = {name: tuple(w.shape) for name, w in out.attention.items()}
        if "encoder" in shapes:
            assert shapes == {
                "cross": (2, 3, target, source),
                "encoder": (2, 3, source, source),
                "decoder": (2, 3, target, target),
            }
        else:
            assert shapes in ({}, {"cross": (1, 1, target, source)})
        attention = dict(out.attention)
        if translator.config.model.kind == "decoder-only" and attention:  # one sum over both sides
            attention["decoder"] = torch.cat([attention.pop("cross"), attention["decoder"]], dim=-1)
        for w in attention.values():
            torch.testing.assert_close(w.sum(-1), torch.ones(w.shape[:-1]))


def test_attention_has_only_the_mechanisms_of_the_model():
    assert build_translator("bottleneck").translate(["bad"])[0].attention == {}
    assert list(build_translator("gru").translate(["bad"])[0].attention) == ["cross"]
    assert set(build_translator("transformer").translate(["bad"])[0].attention) == {
        "cross",
        "encoder",
        "decoder",
    }


def test_missing_attention_weights_raise_an_error_with_the_fix(translator):
    out = translator.translate(["bad"], attention=False)[0]
    assert out.text == translator.translate(["bad"])[0].text
    with pytest.raises(
        UserError, match=r"no attention weights: call translate\(texts, attention=True\)"
    ):
        _ = out.attention


def test_an_empty_list_gives_an_empty_list(translator):
    assert translator.translate([]) == []


def test_an_output_has_at_least_one_token():
    translator = build_translator("gru", "search.max_ratio=0.01", "search.max_extra=0")
    outputs = translator.translate(TEXTS)
    assert [len(out.target) for out in outputs] == [1] * len(TEXTS)
    assert all(out.attention["cross"].shape[2] == 1 for out in outputs)


@pytest.mark.parametrize("text", ["", " ", "\n\t"])
def test_an_empty_text_is_rejected_with_its_number(text):
    with pytest.raises(UserError, match="text 2 is empty: there is nothing to translate"):
        build_translator("gru").translate(["bad", text])


def test_a_text_that_is_too_long_is_rejected_with_its_number():
    translator = build_translator("gru")
    assert translator.translate(["a" * 23])[0].source == ["a"] * 23 + ["<end>"]
    message = r"text 1 has 24 tokens and this model reads at most 23 \(tokenizer.max_tokens\)"
    with pytest.raises(UserError, match=message):
        translator.translate(["a" * 24])


def test_an_unknown_character_is_rejected_with_the_known_ones():
    message = (
        r'text 3 contains "z", "!", which is not in this model\'s vocabulary; it knows ABCDEFabcdef'
    )
    with pytest.raises(UserError, match=message):
        build_translator("gru").translate(["bad", "cab", "zaz!"])


def test_a_model_trained_with_unknown_words_reads_them():
    translator = build_translator("words", "tokenizer.min_frequency=2")
    assert translator.translate(["never seen"])[0].source == ["<unk>", "<unk>", "<end>"]


def test_a_string_instead_of_a_list_is_rejected():
    with pytest.raises(UserError, match=r"takes a list of texts: write translate\(\[text\]\)"):
        build_translator("gru").translate("bad")


def save(translator: Translator, folder) -> None:
    (folder / "config.toml").write_text(translator.config.to_toml(), "utf-8")
    translator.tokenizers.save(folder / "tokenizer.json")
    weights.save(folder / "model.safetensors", weights.state_tensors(translator.model.float()), {})


def test_a_saved_run_folder_loads_and_translates_the_same(translator, tmp_path):
    save(translator, tmp_path)
    loaded = regard.load(tmp_path)
    assert loaded.config == translator.config
    pack_weights(translator.model)  # as those of a loaded model: the same kernels
    references = translator.translate(TEXTS)
    for result, reference in zip(loaded.translate(TEXTS), references, strict=True):
        assert_same(result, reference)


def test_an_incomplete_run_folder_raises_an_error_that_names_what_is_missing(tmp_path):
    with pytest.raises(UserError, match=r"there is no run folder .*runs: train one"):
        regard.load(tmp_path / "runs")
    with pytest.raises(UserError, match=r"is not a run folder: it has no config\.toml"):
        regard.load(tmp_path)
    (tmp_path / "config.json").touch()
    message = r"run folder: .* looks like a Hugging Face checkpoint: fine-tune it with model = "
    with pytest.raises(UserError, match=message):
        regard.load(tmp_path)
    save(build_translator("gru"), tmp_path)
    path = tmp_path / "model.safetensors"
    content = path.read_bytes()
    path.write_bytes(content[:50])
    with pytest.raises(UserError, match=r"model\.safetensors is damaged or not a safetensors file"):
        regard.load(tmp_path)
    save(build_translator("lstm"), tmp_path)
    path.write_bytes(content)
    with pytest.raises(
        UserError, match=r"does not match this run's config.toml and tokenizer.json"
    ):
        regard.load(tmp_path)
    path.unlink()
    with pytest.raises(UserError, match="contains no trained model yet"):
        regard.load(tmp_path)


SCORE_MISTAKES = {
    "a text": ("a b", r"score takes pairs as in .* not 'a b'"),
    "texts": (["a b", "c"], "pairs: item 1 is 'a b'"),
    "three": ([("a", "b"), ("a", "b", "c")], r"pairs: item 2 is \('a', 'b', 'c'\)"),
    "no string": ([("a", None)], "pairs: item 1 is"),
    "no source": ([("a", "b"), (" ", "b")], "text 2 is empty"),
}


@pytest.mark.parametrize("mistake", SCORE_MISTAKES)
def test_score_takes_pairs(mistake) -> None:
    pairs, message = SCORE_MISTAKES[mistake]
    with pytest.raises(UserError, match=message):
        build_translator("gru").score(pairs)
