"""`regard export --to hub`: the folder translates bit by bit as the run does; its card invents nothing."""

import json
import re
import shutil

import pytest
import torch

import regard
from regard import files
from regard.errors import UserError
from regard.evaluation import evaluate
from regard.export import EXPORTS, Evaluation, export
from regard.export.scores import bootstrap_bleu
from regard.models import llama, weights
from regard.text import corpus
from tests.export.conftest import LLAMA

NO_BLEU = Evaluation(skip=True)
TEXTS = ["<U> abc de", "<L> Hello", "<U> x"]
MODELS = {
    "recurrent": {"kind": "recurrent", "hidden_dim": 13, "embedding_dim": 7},
    "transformer": {"kind": "transformer", "d_model": 12, "d_ff": 17},
    "llama": LLAMA,
    "llama-untied": LLAMA | {"tie_embeddings": False},
    "gpt": {"kind": "decoder-only", "d_model": 12, "d_ff": 17},
}


def outputs(run):
    translations = regard.load(run).translate(TEXTS, beam=3)
    return [(out.text, out.score, out.attention) for out in translations]


@pytest.mark.parametrize("name", MODELS)
def test_translates_bit_by_bit_as_the_run_does(name, make_run, tmp_path):
    run = make_run(model=MODELS[name])
    export(run, "hub", tmp_path / "out", NO_BLEU)
    for one, other in zip(outputs(run), outputs(tmp_path / "out"), strict=True):
        assert one[:2] == other[:2]
        for mechanism, attention in one[2].items():
            assert torch.equal(attention, other[2][mechanism])


@pytest.mark.parametrize("name", ["transformer", "llama-untied"])
def test_an_exported_run_can_be_exported_again(name, make_run, tmp_path):
    run = make_run(model=MODELS[name])
    export(run, "hub", tmp_path / "once", NO_BLEU)
    export(tmp_path / "once", "hub", tmp_path / "twice", NO_BLEU)
    paths = (tmp_path / name / "model.safetensors" for name in ("once", "twice"))
    (once, record), (twice, other_record) = map(weights.read, paths)
    assert record == other_record
    assert all(torch.equal(once[name], twice[name]) for name in once.keys() | twice.keys())


def test_folder_holds_what_a_reader_needs_and_no_more(make_run, tmp_path):
    record = export(make_run(), "hub", tmp_path / "out", NO_BLEU)
    names = ["README.md", "card.json", "config.json", "config.toml", "model.safetensors"]
    assert record["files"] == [*names, "tokenizer.json"]
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    tokenizers = regard.load(tmp_path / "out").tokenizers
    assert config["model_type"] == "regard"
    assert config["vocab_size"] == tokenizers.target.vocab_size
    assert config["model"]["hidden_dim"] == 128


# --- LLaMA's form ---------------------------------------------------------------------------------


@torch.no_grad()
@pytest.mark.parametrize("name", ["llama", "llama-untied"])
def test_logits_equal_those_of_hugging_faces_llama(name, make_run, tmp_path):
    transformers = pytest.importorskip("transformers", reason="needs the extra `pretrained`")
    run = make_run(model=MODELS[name])
    record = export(run, "hub", tmp_path / "out", NO_BLEU)
    assert record["transformers"] is True
    theirs, info = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "out", output_loading_info=True
    )
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    model = regard.load(run)
    for source, target in [("<U> abc de", "ABC DE"), ("<L> X", "x")]:
        source_ids = torch.tensor([model.tokenizers.encode_source(source)])
        target_ids = torch.tensor([[1, *model.tokenizers.target.encode(target)]])
        logits = model.model(source_ids, torch.ones_like(source_ids).bool(), target_ids)
        expected = theirs.eval()(torch.cat([source_ids, target_ids], dim=1)).logits
        assert float(logits.abs().max()) > 0.5
        difference = logits - expected[:, source_ids.shape[1] :]
        assert float(difference.abs().max()) < 1e-4


def change(path, value):
    """LLAMA with one setting changed."""
    table = {**LLAMA, "attention": dict(LLAMA["attention"]), "position": dict(LLAMA["position"])}
    target = table
    for key in path[:-1]:
        target = target[key]
    target[path[-1]] = value
    return table


@pytest.mark.parametrize(
    ("path", "value", "reason"),
    [
        (["norm"], "layer", 'model.norm is "layer", not "rms"'),
        (["norm_position"], "post", 'model.norm_position is "post", not "pre"'),
        (["activation"], "gelu", 'model.activation is "gelu", not "swiglu"'),
        (["position"], "alibi", 'model.position is "alibi", not "rotary"'),
        (
            ["position"],
            {"kind": "interleaved", "nope_interval": 2},
            'model.position is "interleaved"',
        ),
        (
            ["position"],
            {"kind": "rotary", "scaling": "ntk", "factor": 2.0},
            'model.position.scaling is "ntk"',
        ),
        (["attention"], "latent", 'model.attention is "latent", not "multi-head"'),
        (["attention", "window"], 3, 'model.attention.window is "3", not none'),
        (["attention", "score"], "dot", 'model.attention.score is "dot", not "scaled-dot"'),
        (["attention", "normaliser"], "sparsemax", 'model.attention.normaliser is "sparsemax"'),
        (["attention_mask"], "prefix", 'model.attention_mask is "prefix", not "causal"'),
    ],
)
def test_what_is_not_of_llamas_form_says_why(path, value, reason, make_run, tmp_path):
    run = make_run(model=change(path, value))
    record = export(run, "hub", tmp_path / "out", NO_BLEU)
    assert record["transformers"] is False
    assert reason in record["why_not_transformers"]
    assert reason in (tmp_path / "out" / "README.md").read_text()
    assert outputs(run)[0][:2] == outputs(tmp_path / "out")[0][:2]


def test_separate_vocabularies_are_not_of_llamas_form(make_run, tmp_path):
    run = make_run(model=LLAMA, tokenizer={"kind": "words", "min_frequency": 1})
    record = export(run, "hub", tmp_path / "out", NO_BLEU)
    assert "a vocabulary each" in record["why_not_transformers"]


@pytest.mark.parametrize("d_model", [24, 16, 7])
def test_division_is_exact(d_model):
    x = torch.randn(50_000) * torch.tensor([1e-6, 1.0, 1e6]).repeat_interleave(16_667)[:50_000]
    product = x * d_model**0.5
    assert torch.equal(llama.divide_exactly(product, d_model**0.5) * d_model**0.5, product)


def test_weights_of_another_model_are_a_user_error(make_run, tmp_path):
    export(make_run("a", model=LLAMA), "hub", tmp_path / "out", NO_BLEU)
    other = make_run("b", model=LLAMA | {"d_model": 20})
    shutil.copy(tmp_path / "out" / "model.safetensors", other)
    with pytest.raises(UserError, match=r"does not match this run's config.toml"):
        regard.load(other)


# --- the model card -------------------------------------------------------------------------------


def test_card_states_bleu_with_signature_and_interval(make_run, tmp_path):
    run = make_run()
    record = export(run, "hub", tmp_path / "out", Evaluation("test", beam=2))
    scores = record["scores"]
    model = regard.load(run)
    pairs = corpus.load(model.config.data)["test"]
    (expected,) = evaluate(model, pairs, [2])["results"]
    assert scores["bleu"] == expected["bleu"]
    assert scores["sentences"] == 17
    assert re.fullmatch(r"nrefs:1\|bs:1000\|seed:12345\|case:mixed\|.*", scores["signature"])
    card = (tmp_path / "out" / "README.md").read_text()
    assert f"| test | 17 | 2 | {expected['bleu']:.2f} | " in card
    assert scores["signature"] in card
    assert "measured when the model was exported" in card
    assert f'"value": {round(expected["bleu"], 2)}' in card
    assert "Validation loss: 1.2500" in card


def test_interval_surrounds_bleu_and_narrows_with_more_sentences():
    references = [f"the cat number {n} sat on mat {n % 3}" for n in range(200)]
    outputs = [text if n % 3 else text[4:] + " x" for n, text in enumerate(references)]
    (low, high), _ = bootstrap_bleu(outputs, references)
    (fewer_low, fewer_high), _ = bootstrap_bleu(outputs[:20], references[:20])
    assert 0 <= fewer_low < low < high < fewer_high <= 100
    assert bootstrap_bleu(references, references)[0] == pytest.approx((100, 100))


def write_evaluation(run):
    scores = {"bleu": 12.5, "bleu_lower": 13.0, "chrf": 20.0, "exact_match": 0.5}
    signatures = {"signatures": {"bleu": "saved", "bleu_lower": "saved"}}
    result = {"beam": 5, "sentences": 17, **scores, **signatures, "outputs": ["a b c d"] * 17}
    files.write(run / "evaluation-test.json", json.dumps({"split": "test", "results": [result]}))


def test_saved_evaluation_is_used(make_run, tmp_path):
    run = make_run()
    write_evaluation(run)
    scores = export(run, "hub", tmp_path / "out", Evaluation())["scores"]
    assert scores["bleu"] == 12.5
    assert scores["source"] == "evaluation-test.json of the run"
    assert scores["interval"] is not None
    other = export(run, "hub", tmp_path / "beam", Evaluation(beam=1))["scores"]
    assert other["source"] == "measured when the model was exported"


def own_files(tmp_path):
    for name in ("train", "val", "test"):
        files.write(tmp_path / f"{name}.tsv", "a b\tc d\ne f\tg h\n" * 3)
    return {"kind": "files"} | {n: str(tmp_path / f"{n}.tsv") for n in ("train", "val", "test")}


def test_without_data_there_is_no_figure_but_a_reason(make_run, tmp_path):
    run = make_run(data=own_files(tmp_path))
    (tmp_path / "test.tsv").unlink()
    record = export(run, "hub", tmp_path / "out", Evaluation())
    card = (tmp_path / "out" / "README.md").read_text()
    assert record["scores"] is None
    assert "test.tsv" in record["why_no_scores"]
    assert "BLEU is not known" in card
    assert "model-index" not in card
    assert "Add their terms here" in card
    with pytest.raises(UserError, match=r"test\.tsv"):
        export(run, "hub", tmp_path / "asked", Evaluation("test"))
    assert not (tmp_path / "asked").exists()
    write_evaluation(run)
    scores = export(run, "hub", tmp_path / "saved", Evaluation())["scores"]
    assert (scores["bleu"], scores["interval"]) == (12.5, None)
    assert "| unknown |" in (tmp_path / "saved" / "README.md").read_text()


def test_card_states_the_terms_of_a_dataset(make_run, tmp_path, monkeypatch):
    run = make_run()
    path = run / "config.toml"
    synthetic = re.search(r"\[data\]\n(.*?)\n\n", path.read_text(), re.DOTALL)
    named = 'kind = "dataset"\nname = "tatoeba-de-en"\nsource = "de"\ntarget = "en"'
    path.write_text(path.read_text().replace(synthetic[1], named))
    monkeypatch.setenv("REGARD_DATA", str(tmp_path))
    record = export(run, "hub", tmp_path / "out", Evaluation())
    card = (tmp_path / "out" / "README.md").read_text()
    assert "Terms of the data: CC BY 2.0 FR, tatoeba.org" in card
    assert 'language: ["de", "en"]' in card
    assert "is not on this machine" in record["why_no_scores"]


# --- mistakes -------------------------------------------------------------------------------------


def test_unknown_format_is_a_user_error(make_run, tmp_path):
    with pytest.raises(
        UserError, match=r'--to: got "hubb"; choose hub, page, ctranslate2\. Did you mean "hub"\?'
    ):
        export(make_run(), "hubb", tmp_path / "out", NO_BLEU)


@pytest.mark.parametrize("to", EXPORTS)
def test_nothing_is_overwritten(to, make_run, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").touch()
    out = tmp_path / "out" / "mine" if to == "page" else tmp_path / "out"  # a page is a file
    with pytest.raises(UserError, match=r"exists already: choose another --out"):
        export(make_run(), to, out, NO_BLEU)


def test_metadata_of_the_weights_names_the_layout(make_run, tmp_path):
    export(make_run(model=LLAMA), "hub", tmp_path / "out", NO_BLEU)
    tensors, record = weights.read(tmp_path / "out" / "model.safetensors")
    assert record == {"step": 1, "layout": "llama"}
    assert "model.layers.1.self_attn.k_proj.weight" in tensors
