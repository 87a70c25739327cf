"""The whole path with small untrained models: text in, text and weights out, whatever the batch."""

import random

import pytest
import torch

import regard
from regard import presets
from regard.errors import UserError
from regard.models import build, weights
from regard.text.tokenizer import EOS, TokenizerPair
from regard.translator import Translator

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


def make(name: str, *settings: str) -> Translator:
    config = presets.load("case", [*SMALL, *MODELS[name], *settings])
    pairs = [(text, text.removeprefix("<U> ").removeprefix("<L> ").upper()) for text in TEXTS]
    tokenizers = TokenizerPair.train(config.tokenizer, pairs, SYMBOLS)
    torch.manual_seed(3)
    sizes = tokenizers.source.vocab_size, tokenizers.target.vocab_size
    model = build(config.model, *sizes, tokenizers.joint).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter *= 2  # livelier than a fresh model, which says one word for ever
    return Translator(config, tokenizers, model)


@pytest.fixture(params=MODELS)
def translator(request) -> Translator:
    return make(request.param)


def same(one: regard.Translation, other: regard.Translation) -> None:
    assert (one.text, one.source, one.target) == (other.text, other.source, other.target)
    assert one.score == pytest.approx(other.score, abs=1e-5)
    assert one.attention.keys() == other.attention.keys()
    for name, found in one.attention.items():
        torch.testing.assert_close(found, other.attention[name], atol=1e-5, rtol=0)


def test_neither_order_nor_batch_changes_an_output(translator):
    wanted = translator.translate(TEXTS)
    assert len({out.text for out in wanted}) > 1
    for batch_tokens in (1, 17, 40):
        for one, other in zip(
            translator.translate(TEXTS, batch_tokens=batch_tokens), wanted, strict=True
        ):
            same(one, other)
    order = random.Random(5).sample(range(len(TEXTS)), len(TEXTS))
    shuffled = translator.translate([TEXTS[row] for row in order] + [TEXTS[0]])
    for found, row in zip(shuffled, [*order, 0], strict=True):
        same(found, wanted[row])
    for text, other in zip(TEXTS, wanted, strict=True):
        same(translator.translate([text])[0], other)


def test_a_translation_tells_its_tokens_and_its_score(translator):
    for text, out in zip(TEXTS, translator.translate(TEXTS), strict=True):
        source = translator.tokenizers.source
        assert out.source == [*source.ids_to_tokens(source.encode(text)), "<end>"]
        assert source.decode(source.encode(text)) == text
        names = translator.tokenizers.target.vocab
        ids = [names.index(token) for token in out.target]
        assert out.text == translator.tokenizers.target.decode(ids)
        assert "<end>" not in out.target[:-1]
        assert "<end>" not in out.text
        assert len(out.target) <= int(1.5 * len(out.source) + 3)
        assert out.score < 0
        assert out.normalised == out.score
        assert out.alternatives == []


def test_the_score_is_the_outputs_log_probability(translator):
    for text, out in zip(TEXTS, translator.translate(TEXTS), strict=True):
        ids = [translator.tokenizers.target.vocab.index(token) for token in out.target]
        source = torch.tensor([[*translator.tokenizers.source.encode(text), EOS]])
        target = torch.tensor([[1, *ids[:-1]]])
        with torch.no_grad():
            logits = translator.model(source, torch.ones_like(source).bool(), target)
        wanted = logits[0].log_softmax(-1)[range(len(ids)), ids].sum()
        assert out.score == pytest.approx(float(wanted), abs=1e-4)


def test_attention_has_the_shape_of_the_tokens(translator):
    for out in translator.translate(TEXTS):
        source, target = len(out.source), len(out.target)
        shapes = {name: tuple(found.shape) for name, found in out.attention.items()}
        if "encoder" in shapes:
            assert shapes == {
                "cross": (2, 3, target, source),
                "encoder": (2, 3, source, source),
                "decoder": (2, 3, target, target),
            }
        else:
            assert shapes in ({}, {"cross": (1, 1, target, source)})
        shown = dict(out.attention)
        if translator.config.model.kind == "decoder-only" and shown:  # one look, over both sides
            shown["decoder"] = torch.cat([shown.pop("cross"), shown["decoder"]], dim=-1)
        for found in shown.values():
            torch.testing.assert_close(found.sum(-1), torch.ones(found.shape[:-1]))


def test_only_what_a_model_has_is_shown():
    assert make("bottleneck").translate(["bad"])[0].attention == {}
    assert list(make("gru").translate(["bad"])[0].attention) == ["cross"]
    assert set(make("transformer").translate(["bad"])[0].attention) == {
        "cross",
        "encoder",
        "decoder",
    }


def test_weights_that_were_not_asked_for_say_how_to_get_them(translator):
    out = translator.translate(["bad"], attention=False)[0]
    assert out.text == translator.translate(["bad"])[0].text
    with pytest.raises(UserError, match=r"ask for the weights: translate\(texts, attention=True\)"):
        _ = out.attention


def test_nothing_to_translate_gives_nothing(translator):
    assert translator.translate([]) == []


def test_an_output_has_at_least_one_token_whatever_the_limits():
    translator = make("gru", "search.max_ratio=0.01", "search.max_extra=0")
    together = translator.translate(TEXTS)
    assert [len(out.target) for out in together] == [1] * len(TEXTS)
    assert all(out.attention["cross"].shape[2] == 1 for out in together)


@pytest.mark.parametrize("text", ["", " ", "\n\t"])
def test_an_empty_text_is_refused_by_number(text):
    with pytest.raises(UserError, match="text 2 is empty: there is nothing to translate"):
        make("gru").translate(["bad", text])


def test_a_text_that_is_too_long_is_refused_by_number():
    translator = make("gru")
    assert translator.translate(["a" * 23])[0].source == ["a"] * 23 + ["<end>"]
    message = r"text 1 has 24 tokens and this model reads at most 23 \(tokenizer.max_tokens\)"
    with pytest.raises(UserError, match=message):
        translator.translate(["a" * 24])


def test_a_character_never_seen_is_refused_with_what_is_known():
    message = (
        r'text 3 holds "z", "!", which this model never saw in training; it knows ABCDEFabcdef'
    )
    with pytest.raises(UserError, match=message):
        make("gru").translate(["bad", "cab", "zaz!"])


def test_a_model_that_met_unknown_words_reads_them():
    translator = make("words", "tokenizer.min_frequency=2")
    assert translator.translate(["never seen"])[0].source == ["<unk>", "<unk>", "<end>"]


def test_a_text_instead_of_a_list_is_refused():
    with pytest.raises(UserError, match=r"takes a list of texts: write translate\(\[text\]\)"):
        make("gru").translate("bad")


def save(translator: Translator, folder) -> None:
    (folder / "config.toml").write_text(translator.config.to_toml(), "utf-8")
    translator.tokenizers.save(folder / "tokenizer.json")
    weights.save(folder / "model.safetensors", weights.state_tensors(translator.model.float()), {})


def test_a_run_folder_is_all_that_is_needed(translator, tmp_path):
    save(translator, tmp_path)
    loaded = regard.load(tmp_path)
    assert loaded.config == translator.config
    for one, other in zip(loaded.translate(TEXTS), translator.translate(TEXTS), strict=True):
        same(one, other)


def test_a_run_folder_that_is_not_whole_says_what_is_missing(tmp_path):
    with pytest.raises(UserError, match=r"there is no run folder .*runs: train one"):
        regard.load(tmp_path / "runs")
    with pytest.raises(UserError, match=r"is not a run folder: it has no config\.toml"):
        regard.load(tmp_path)
    (tmp_path / "config.json").touch()
    with pytest.raises(
        UserError, match=r"run folder: .* a checkpoint is trained first, with model ="
    ):
        regard.load(tmp_path)
    save(make("gru"), tmp_path)
    path = tmp_path / "model.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[:50])
    with pytest.raises(UserError, match=r"model\.safetensors is damaged or not a safetensors file"):
        regard.load(tmp_path)
    save(make("lstm"), tmp_path)
    path.write_bytes(whole)
    with pytest.raises(
        UserError, match=r"does not match this run's config.toml and tokenizer.json"
    ):
        regard.load(tmp_path)
    path.unlink()
    with pytest.raises(UserError, match="holds no trained model yet"):
        regard.load(tmp_path)
