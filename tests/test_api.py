"""Regard in Python: `regard.train`, and the methods of the model that it returns."""

import io
import json
from pathlib import Path

import pytest
import torch

import regard
from regard import presets, training
from regard.api import Translator, from_loaded
from regard.config import Config
from regard.errors import RegardWarning
from regard.models import pack_weights
from regard.terminal import Console
from regard.text import corpus
from regard.text.tokenizer import BOS, EOS
from regard.training.data import resolve_defaults
from tests.test_translator import MODELS, TEXTS, assert_same, build_translator

TINY = {
    "model": {"kind": "recurrent", "hidden_dim": 8, "embedding_dim": 8},
    "training": {"epochs": 1, "batch_sentences": 16},
    "search.max_extra": 2,
}
PAIRS = [(f"{n} and {n + 1}", str(2 * n + 1)) for n in range(60)]


@pytest.fixture(autouse=True)
def _no_examples(monkeypatch):
    monkeypatch.setattr("regard.training.examples.EXAMPLES", 0)


@pytest.fixture(scope="module")
def trained() -> Translator:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("regard.training.examples.EXAMPLES", 0)
        return regard.train(TINY, PAIRS, device="cpu", quiet=True)


@pytest.fixture(params=MODELS)
def model(request) -> Translator:
    built = build_translator(request.param)
    built.model.float()
    return from_loaded(built)


# --- train ----------------------------------------------------------------------------------------


def test_train_returns_a_model_and_leaves_no_files(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    model = regard.train(TINY, iter(PAIRS), device="cpu")
    assert isinstance(model, regard.Translator)
    assert len(model.translate(["1 and 2"])[0].target) >= 1
    output = capsys.readouterr().out
    assert "validation: 3 of 60 pairs are held out" in output
    assert "warning: data.val: 3 pairs are few to choose the best weights by" in output
    assert list(tmp_path.iterdir()) == []


def test_callbacks_get_the_events_of_the_log(tmp_path, capsys):
    events: list[dict] = []
    run = tmp_path / "run"
    settings = TINY | {"training.validate_every": 2}
    regard.train(settings, PAIRS, callbacks=[events.append], run=run, device="cpu", quiet=True)
    logged = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert events == logged
    assert [event["event"] for event in events[:2]] == ["start", "validation"]
    assert capsys.readouterr().out == ""


def test_own_files_are_read_once(tmp_path, monkeypatch):
    (tmp_path / "pairs.tsv").write_text("".join(f"{s}\t{t}\n" for s, t in PAIRS), "utf-8")
    data = {split: str(tmp_path / "pairs.tsv") for split in ("train", "val")}
    loads, load_full = [], corpus.load_full
    monkeypatch.setattr(
        corpus, "load_full", lambda *given: loads.append(given) or load_full(*given)
    )
    regard.train(TINY | {"data": {"kind": "files"} | data}, device="cpu", quiet=True)
    assert len(loads) == 1


def test_every_kind_of_config_trains_alike(tmp_path):
    data = corpus.from_pairs(PAIRS, PAIRS[:9])
    resolved = resolve_defaults(presets.resolve(TINY, {"data.kind": "pairs"}), lambda _: data)
    (tmp_path / "tiny.toml").write_text(resolved.to_toml(), "utf-8")
    configs = [TINY, resolved, tmp_path / "tiny.toml", str(tmp_path / "tiny.toml")]
    models = [regard.train(c, PAIRS, PAIRS[:9], device="cpu", quiet=True) for c in configs]
    for other in models[1:]:
        for name, tensor in models[0].model.named_parameters():
            assert torch.equal(tensor, other.model.get_parameter(name)), name


def test_settings_of_a_dict_are_nested_or_dotted_and_may_have_a_base():
    nested = presets.resolve({"base": "case", "training": {"epochs": 3}, "model": {"cell": "lstm"}})
    dotted = presets.resolve({"base": "case", "training.epochs": 3, "model.cell": "lstm"})
    assert nested == dotted == presets.load("case", ["training.epochs=3", "model.cell=lstm"])
    assert presets.resolve("case") == presets.resolve(presets.load("case")) == presets.load("case")


def test_a_run_of_pairs_resumes_with_the_same_pairs(tmp_path):
    run = tmp_path / "run"
    first = regard.train(TINY, PAIRS, run=run, device="cpu", quiet=True)
    again = regard.train(TINY, PAIRS, run=run, device="cpu", quiet=True, resume=True)
    assert first.translate(["1 and 2"]) == again.translate(["1 and 2"])
    with pytest.raises(regard.UserError, match=r"the data has changed since"):
        regard.train(TINY, PAIRS[1:], run=run, device="cpu", quiet=True, resume=True)
    with pytest.raises(regard.UserError, match=r"already exists: resume it"):
        regard.train(TINY, PAIRS, run=run, device="cpu", quiet=True)


@pytest.mark.parametrize("kind", ["files", "pairs"])
def test_a_finished_run_is_resumed_without_its_data(tmp_path, kind):
    run, file = tmp_path / "run", tmp_path / "train.tsv"
    if kind == "files":
        file.write_text("".join(f"{source}\t{target}\n" for source, target in PAIRS), "utf-8")
        data = {"kind": "files", "train": str(file), "val": str(file)}
        regard.train(TINY | {"data": data}, run=run, device="cpu", quiet=True)
        file.unlink()
    else:
        regard.train(TINY, PAIRS, run=run, device="cpu", quiet=True)
    output = io.StringIO()
    card = training.train(None, run, "cpu", True, Console(file=output, width=200))
    assert "is finished: there is nothing to continue" in output.getvalue()
    assert card == json.loads((run / "card.json").read_text())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"config": "caes"}, r'no preset "caes". Did you mean "case"\?'),
        ({"config": 3}, "config is the name of a preset, a .toml file, a dict of settings"),
        (
            {"config": {"training.epoch": 3}},
            r'config: training.epoch: unknown key. Did you mean "epochs"',
        ),
        (
            {"pairs": "a"},
            r'train takes pairs as in \[\("a source", "its target"\), ...\], not \'a\'',
        ),
        ({"pairs": 5}, "train takes pairs"),
        ({"pairs": []}, "train got no pairs: give at least one"),
        ({"pairs": [("a", "b")]}, "train got one pair and no validation"),
        ({"pairs": [("a", "b"), ("c", "d", "e")]}, r"pairs: item 2 is \('c', 'd', 'e'\): give a"),
        ({"pairs": [("a", None), ("a", "b")]}, r"pairs: item 1 is \('a', None\): give a"),
        ({"pairs": [("", "x"), ("a", "b")]}, "pairs: item 1 has an empty source: add it, or leave"),
        ({"validation": [("a", " ")]}, "validation: item 1 has an empty target"),
        ({"validation": ["ab"]}, r"validation: item 1 is 'ab': give a \(source, target\)"),
        ({"pairs": None, "validation": PAIRS}, "validation needs pairs"),
        ({"callbacks": 5}, r"callbacks is a list of functions .* got \(5,\)"),
        ({"callbacks": [5]}, r"callbacks is a list of functions"),
        ({"run": 5}, "run is the folder to write, or None: got 5"),
        ({"device": "cuda"}, "PyTorch finds no CUDA device here: use the device cpu"),
        ({"device": "gpu"}, 'Did you mean "cuda"'),
    ],
)
def test_a_wrong_argument_of_train_is_an_error(arguments, message, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(regard.UserError, match=message):
        regard.train(**{"config": TINY, "pairs": PAIRS, "device": "cpu", "quiet": True} | arguments)


def test_the_data_of_a_run_of_pairs_is_not_in_its_folder(trained):
    from regard.text import corpus

    with pytest.raises(regard.UserError, match=r"pairs given in Python.*model\.evaluate\(pairs\)"):
        corpus.load(trained.config.data)


# --- the model ------------------------------------------------------------------------------------


def test_repr_says_what_it_is(trained):
    text = repr(trained)
    assert text.startswith("Translator(recurrent, ")
    parameters = sum(p.numel() for p in trained.model.parameters())
    assert f"{parameters:,} parameters; bpe, vocabulary " in text
    assert text.endswith("; on cpu)")
    config = presets.load("multi30k-gru")
    other = Translator(config, trained.tokenizers, trained.model)
    assert "; trained on multi30k, de to en; on cpu)" in repr(other)


def test_save_writes_a_run_folder_that_loads_bit_equal(model, tmp_path):
    model.save(tmp_path / "new" / "run")
    loaded = regard.load(tmp_path / "new" / "run")
    assert loaded.config == model.config
    for name, tensor in model.model.named_parameters():
        assert torch.equal(tensor, loaded.model.get_parameter(name)), name
    pack_weights(model.model)  # as those of a loaded model: the same kernels
    for result, reference in zip(loaded.translate(TEXTS), model.translate(TEXTS), strict=True):
        assert_same(result, reference)
    with pytest.raises(regard.UserError, match=r"run already exists: choose a new folder"):
        model.save(tmp_path / "new" / "run")


def test_save_keeps_the_result_card(trained, tmp_path):
    trained.save(tmp_path / "run")
    assert regard.load(tmp_path / "run").card == trained.card
    assert trained.card is not None
    assert trained.card["figures"]["steps"] >= 1
    (tmp_path / "run" / "card.json").write_text("{")
    assert regard.load(tmp_path / "run").card is None


def test_a_pretrained_model_is_saved_with_its_architecture(checkpoint, tmp_path):
    settings = {"model": {"kind": "pretrained", "name": str(checkpoint("marian"))}}
    settings |= {"training": {"epochs": 1}, "search.max_extra": 3, "search.max_ratio": 0.5}
    pairs = [("the cat", "a dog"), ("the mat", "a hat"), ("no cat", "no dog")]
    model = regard.train(settings, pairs, device="cpu", quiet=True)
    model.save(tmp_path / "run")
    loaded = regard.load(tmp_path / "run")
    assert loaded.translate(["the cat"])[0].score == model.translate(["the cat"])[0].score
    for name, tensor in model.model.named_parameters():
        assert torch.equal(tensor, loaded.model.get_parameter(name)), name


def test_stream_gives_what_translate_gives_and_reads_lazily(model):
    expected = model.translate(TEXTS, beam=2, attention=False)
    assert list(model.stream(TEXTS, beam=2)) == expected
    read: list[str] = []
    outputs = model.stream(read.append(text) or text for text in TEXTS * 100)
    assert not read
    assert next(outputs).text == model.translate(TEXTS)[0].text
    assert len(read) == 64


def test_stream_samples_what_translate_samples():
    model = from_loaded(build_translator("gru"))
    texts, sampling = TEXTS * 20, regard.Sampling(seed=5)  # three windows
    expected = model.translate(texts, sample=sampling, attention=False)
    streamed = list(model.stream(texts, sample=sampling))
    assert [out.text for out in streamed] == [out.text for out in expected]


def test_stream_raises_the_error_in_its_place():
    outputs = from_loaded(build_translator("gru")).stream(["bad", "cab", " ", "a"])
    assert [next(outputs).source[0], next(outputs).source[0]] == ["b", "c"]
    with pytest.raises(regard.UserError, match="text 3 is empty"):
        next(outputs)


def test_explain_gives_the_attention_and_score_of_given_pairs(model):
    pairs = [("<U> cafe", "CAB"), ("bad", "BAD"), ("<L> decade faced", "A A A A")]
    for (source, target), out in zip(pairs, model.explain(pairs), strict=True):
        assert out.text == target
        source_ids = model.tokenizers.encode_source(source)
        ids = [*model.tokenizers.target.encode(target), EOS]
        assert out.source == model.tokenizers.source.ids_to_tokens(source_ids)
        assert out.target == model.tokenizers.target.ids_to_tokens(ids)
        inputs = torch.tensor([source_ids]), torch.tensor([[BOS, *ids[:-1]]])
        mask = torch.ones_like(inputs[0], dtype=torch.bool)
        with torch.inference_mode():
            log_probs = model.model(inputs[0], mask, inputs[1])[0].log_softmax(-1)
            weights = model.model.attention_weights(inputs[0], mask, inputs[1])
        assert out.score == pytest.approx(float(log_probs[range(len(ids)), ids].sum()), abs=1e-4)
        assert out.normalised == pytest.approx(out.score / len(ids))
        assert out.attention.keys() == weights.keys()
        for name, expected in weights.items():
            torch.testing.assert_close(out.attention[name], expected[0], atol=1e-5, rtol=0)


def test_explain_gives_what_translate_gave():
    """With a bias towards the end token, so that every output has one."""
    model = from_loaded(build_translator("gru"))
    _, bias = model.model.output_projection
    assert bias is not None
    bias.data[EOS] += 4
    outputs = model.translate(TEXTS)
    assert all(out.target[-1] == "<end>" for out in outputs)
    explained = model.explain([(t, out.text) for t, out in zip(TEXTS, outputs, strict=True)])
    for result, reference in zip(explained, outputs, strict=True):
        assert_same(result, reference)
        assert reference.normalised == reference.score
    ranked = model.translate(TEXTS, beam=3)
    explained = model.explain([(t, out.text) for t, out in zip(TEXTS, ranked, strict=True)])
    for result, reference in zip(explained, ranked, strict=True):
        assert result.normalised == pytest.approx(reference.normalised, abs=1e-5)


def test_encode_gives_a_state_for_each_token_whatever_the_batch(model):
    together = model.encode(TEXTS)
    for text, encoded in zip(TEXTS, together, strict=True):
        [alone] = model.encode([text])
        assert encoded.tokens == alone.tokens == model.translate([text])[0].source
        assert encoded.states.shape[0] == len(encoded.tokens)
        torch.testing.assert_close(encoded.states, alone.states)


def test_encode_gives_the_states_that_the_decoder_reads():
    model = from_loaded(build_translator("transformer"))
    [encoded] = model.encode(["bad"])
    ids = torch.tensor([model.tokenizers.encode_source("bad")])
    with torch.inference_mode():
        memory = model.model.encode(ids, torch.ones_like(ids, dtype=torch.bool))
    torch.testing.assert_close(encoded.states, memory.states[0].float())


def test_evaluate_has_the_figures_of_the_command(trained):
    figures = trained.evaluate(PAIRS[:5], beam=[1, 2])
    assert [result["beam"] for result in figures["results"]] == [1, 2]
    assert figures["sentences"] == 5
    assert figures["perplexity"] > 1
    assert [len(result["outputs"]) for result in figures["results"]] == [5, 5]
    assert trained.evaluate(iter(PAIRS[:5]))["loss"] == figures["loss"]


def test_evaluate_warns_of_sources_that_translate_rejects(trained):
    limit = trained.tokenizers.max_tokens
    pairs = [*PAIRS[:2], ("1 2 " * limit, "3")]
    with pytest.raises(regard.UserError, match="text 3 has"):
        trained.translate([source for source, _ in pairs])
    with pytest.warns(RegardWarning, match=rf"1 of 3 sources .* {limit} tokens .*: number 3$"):
        assert trained.evaluate(pairs)["sentences"] == 3


def test_to_moves_the_model(trained, monkeypatch):
    assert trained.to("cpu") is trained
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(regard.UserError, match="no CUDA device here"):
        trained.to("cuda")
    with pytest.raises(regard.UserError, match="the device is auto, cpu, cuda"):
        trained.to("tpu")


def test_a_moved_model_multiplies_by_its_own_weights():
    """Packed copies of the weights stay behind: on "meta" nothing could be computed from them."""
    model = from_loaded(build_translator("transformer"))
    model.model.float()
    expected = model.to("cpu").translate(TEXTS[:2])
    with torch.no_grad():
        for parameter in model.model.parameters():
            parameter.data = parameter.data.clone()
    assert_same(model.to("cpu").translate(TEXTS[:2])[0], expected[0])


def test_an_int8_model_stays_on_the_cpu_and_saves_its_weights(trained, tmp_path, monkeypatch):
    trained.save(tmp_path / "run")
    model = regard.load(tmp_path / "run", int8=True)
    assert "; int8 on cpu)" in repr(model)
    monkeypatch.setattr("regard.api.resolve_device", lambda name: name)
    with pytest.raises(regard.UserError, match="int8 is for a CPU: load the model without int8"):
        model.to("cuda")
    model.save(tmp_path / "again")
    first, second = ((tmp_path / name / "model.safetensors") for name in ("run", "again"))
    assert first.read_bytes() == second.read_bytes()


WRONG = {
    "a text in stream": (lambda m: m.stream("bad"), r"takes a list of texts: write stream\(\[text"),
    "a text in encode": (lambda m: m.encode("bad"), r"write encode\(\[text\]\)"),
    "a number in encode": (lambda m: m.encode(3), "encode takes a list of texts, not 3"),
    "no string": (lambda m: m.translate(["bad", None]), "text 2 is not a string but a NoneType"),
    "beam as a string": (lambda m: m.translate(["bad"], beam="5"), "from 1 to 1,000: got '5'"),
    "beam 0": (lambda m: m.stream(["bad"], beam=0), "from 1 to 1,000: got 0"),
    "half a beam": (lambda m: m.evaluate(PAIRS, beam=[1.5]), "be integers"),
    "a number in translate": (lambda m: m.translate(5), "translate takes a list of texts, not 5"),
    "bytes in translate": (lambda m: m.translate(b"ab"), r"write translate\(\[text\]\)"),
    "no list of interventions": (
        lambda m: m.translate(["bad"], interventions=5),
        r"interventions are a list, .*: got 5",
    ),
    "a list as what": (
        lambda m: m.translate(["bad"], interventions=[{"what": ["mask"]}]),
        r"what: got \['mask'\]; choose",
    ),
    "no beam in evaluate": (lambda m: m.evaluate(PAIRS, beam=None), "from 1 to 1,000: got None"),
    "an empty beam in evaluate": (lambda m: m.evaluate(PAIRS, beam=[]), r"got \[\]"),
    "a number in load": (lambda _: regard.load(5), "load takes a run folder .*: got 5"),  # type: ignore
    "a word as top_k": (lambda _: regard.Sampling(top_k="a"), "top_k of Sampling must be a number"),  # type: ignore
    "a word as temperature": (lambda _: regard.Sampling("a"), "temperature of Sampling must be"),  # type: ignore
    "sample as a bool": (lambda m: m.translate(["bad"], sample=True), r"takes Sampling\("),
    "a text in explain": (lambda m: m.explain("bad"), "explain takes pairs as in"),
    "a pair in explain": (lambda m: m.explain(("bad", "BAD")), "item 1 is 'bad': give a"),
    "nothing in evaluate": (lambda m: m.evaluate([]), "evaluate got no pairs"),
    "an empty source": (lambda m: m.explain([(" ", "BAD")]), "text 1 is empty"),
}


@pytest.mark.parametrize("mistake", WRONG)
def test_a_wrong_argument_is_an_error(mistake):
    call, message = WRONG[mistake]
    with pytest.raises(regard.UserError, match=message):
        call(from_loaded(build_translator("gru")))


@pytest.mark.parametrize("value", ["x", -3, 0, 1.5, True])
def test_batch_tokens_is_a_positive_integer(value):
    model = from_loaded(build_translator("gru"))
    pairs = [("bad", "BAD")]
    calls = [
        (model.translate, TEXTS),
        (model.stream, TEXTS),
        (model.encode, TEXTS),
        (model.score, pairs),
        (model.explain, pairs),
        (model.evaluate, pairs),
    ]
    for call, given in calls:
        with pytest.raises(regard.UserError, match="batch_tokens must be an integer from 1 to"):
            call(given, batch_tokens=value)


def test_no_interventions_may_be_none():
    model = from_loaded(build_translator("gru"))
    assert model.translate(TEXTS, interventions=None) == model.translate(TEXTS)
    assert model.explain([("bad", "BAD")], interventions=None) == model.explain([("bad", "BAD")])


def test_the_public_names_are_those_of_the_api():
    assert regard.Translator is Translator
    assert regard.Config is Config
    assert Path(regard.train.__code__.co_filename).name == "api.py"
