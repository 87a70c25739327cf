"""Ensembles: runs joined by commas, wherever a run is expected."""

import json
import re
import shutil
from pathlib import Path

import pytest
import torch

import regard as package
from regard.errors import UserError

TEXTS = ["<U> I am a student", "<L> We like tea", "<U> a"]
LM = """
training = {epochs = 1, batch_sentences = 16}
tokenizer = {kind = "characters", max_tokens = 40}
model = {kind = "recurrent", hidden_dim = 8, embedding_dim = 8}
data = {kind = "text", train = "text.txt", val = "text.txt"}
"""


@pytest.fixture(scope="module")
def runs(regard, run, small, tmp_path_factory) -> Path:
    """A folder with the runs a and b, which differ in their seed, and c, a Transformer. Do not modify it."""
    folder = tmp_path_factory.mktemp("runs")
    shutil.copytree(run, folder / "a")
    transformer = ["model=transformer", "model.d_model=16", "model.d_ff=16", "data.train=300"]
    words = [word for setting in transformer for word in ("--set", setting)]
    kept = [word for word in small[1::2] if not word.startswith("model.")]
    words += [word for setting in kept for word in ("--set", setting)]
    for name, options in {"b": [*small, "--seed", "2"], "c": words}.items():
        result = regard("train", "case", "--run", folder / name, *options, "--device", "cpu")
        assert result.code == 0, result.err
    return folder


@pytest.fixture(autouse=True)
def _in_folder(runs, monkeypatch) -> None:
    """Relative names: what users type."""
    monkeypatch.chdir(runs)


def flat(text: str) -> str:
    return " ".join(text.split())


def test_translate(regard):
    alone = [regard("translate", name, *TEXTS, "--json") for name in ("a", "b")]
    result = regard("translate", "a,b", *TEXTS, "--beam", 3, "--nbest", 2, "--json")
    assert (result.code, result.err) == (0, "")
    documents = json.loads(result.out)
    assert len(documents) == len(TEXTS)
    assert documents[0].keys() == json.loads(alone[0].out)[0].keys()
    assert all(len(document["alternatives"]) == 1 for document in documents)
    assert documents[0]["score"] not in {json.loads(one.out)[0]["score"] for one in alone}
    model = package.load(["a", "b"])
    expected = model.translate(TEXTS, beam=3, nbest=2)
    assert [document["text"] for document in documents] == [one.text for one in expected]


def test_a_run_with_itself_is_that_run(regard):
    for command in (["translate", *TEXTS], ["translate", *TEXTS, "--sample"]):
        expected = regard(command[0], "a", *command[1:])
        assert regard(command[0], "a,a", *command[1:]) == expected
    one, two = (json.loads(regard("evaluate", name, "--json").out) for name in ("a", "a,a"))
    assert (one.pop("run"), two.pop("run")) == ("a", "a,a")
    assert two.keys() == one.keys()
    assert two["loss"] == pytest.approx(one["loss"], abs=1e-6)
    assert two["perplexity"] == pytest.approx(one["perplexity"], abs=1e-4)
    assert two["cache_bytes_per_token"] == 2 * one["cache_bytes_per_token"]


def test_the_loss_is_that_of_a_proper_distribution(regard):
    """By Hoelder's inequality, the normaliser is at most 1: no worse than the mean of the losses."""
    losses = [json.loads(regard("evaluate", name, "--json").out)["loss"] for name in ("a", "c")]
    both = json.loads(regard("evaluate", "a,c", "--json").out)
    assert both["loss"] <= sum(losses) / 2 + 1e-6
    assert len(both["results"]) == 1


def test_scores_are_those_of_translate(regard, tmp_path):
    [out] = json.loads(regard("translate", "a,b,c", TEXTS[0], "--json").out)
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text(f"{TEXTS[0]}\t{out['text']}\n", "utf-8")
    scored = json.loads(regard("score", "a,b,c", "--input", pairs).out)
    of_output = scored["log_probs"][: len(out["target"])]  # an output that was cut has no EOS
    assert sum(of_output) == pytest.approx(out["score"], abs=1e-3)


def test_diagram(regard, tmp_path):
    result = regard("diagram", "a,b", TEXTS[0], "--out", tmp_path / "both.png")
    assert result.code == 0, result.err
    assert (tmp_path / "both.png").read_bytes().startswith(b"\x89PNG")
    second = regard("diagram", "a,b", TEXTS[0], "--layer", 2, "--out", tmp_path / "second.svg")
    assert second.code == 0, second.err
    result = regard("diagram", "a,b", TEXTS[0], "--layer", 3, "--out", tmp_path / "third.svg")
    assert (result.code, result.out) == (2, "")
    assert "there is no layer 3: this attention has layers 1 to 2" in flat(result.err)
    gallery = regard("diagram", "a,b", "--split", "val", "--first", 2, "--out", tmp_path / "all")
    assert gallery.code == 0, gallery.err
    assert "<title>a,b: cross-attention" in (tmp_path / "all" / "index.html").read_text("utf-8")


def test_interventions_and_ablations(regard):
    before = regard("translate", "a,b", TEXTS[0], "--json")
    mask = '{what = "mask", layer = 1, keys = [2]}'
    after = regard("translate", "a,b", TEXTS[0], "--json", "--intervene", mask)
    assert after.code == 0, after.err
    assert after.out != before.out
    force = '{what = "force", step = 0, token = "a"}'
    [forced] = json.loads(regard("translate", "a,c", "--intervene", force, TEXTS[0], "--json").out)
    assert forced["text"].startswith("a")
    result = regard("evaluate", "a,b", "--split", "val", "--ablate", "heads", "--json")
    rows = json.loads(result.out)["ablations"]["rows"]
    assert [row["layer"] for row in rows] == [1, 2]


def test_members_with_different_numbers_of_heads(regard, tmp_path):
    for words in (
        ["diagram", "a,c", TEXTS[0], "--out", tmp_path / "one.png"],
        ["translate", "a,c", TEXTS[0], "--intervene", '{what = "mask", keys = [2]}'],
        ["evaluate", "a,c", "--ablate", "heads"],
    ):
        result = regard(*words)
        assert (result.code, result.out) == (2, "")
        assert "have different numbers of heads in cross attention (1, 4)" in flat(result.err)


def test_int8(regard):
    assert regard("translate", "a,b", TEXTS[0], "--int8").code == 0
    assert package.load("a,b", int8=True).is_int8 == package.load("a", int8=True).is_int8
    result = regard("translate", "a,b", TEXTS[0], "--bfloat16", "--device", "cpu")
    assert result.code == 2
    assert "bfloat16 is for a GPU" in result.err


def test_other_data_is_a_warning(regard, runs, small, tmp_path):
    settings = [*small, "--set", "data.test=30", "--seed", "3"]
    result = regard("train", "case", "--run", tmp_path / "d", *settings, "--device", "cpu")
    assert result.code == 0, result.err
    names = f"{runs / 'a'},{tmp_path / 'd'}"
    message = "have different [data]: the split is that of the first"
    result = regard("evaluate", names, "--json")
    assert message in flat(result.err)
    assert json.loads(result.out)["sentences"] == 40
    diagram = ["diagram", names, "--split", "val", "--first", 1, "--out", tmp_path / "gallery"]
    assert message in flat(regard(*diagram).err)
    assert message not in regard("evaluate", "a,b", "--json").err


def test_shipped_models_count(regard, tmp_path):
    german = "Ein Mann schläft auf einer grünen Bank."
    result = regard("translate", "de-en,de-en", german)
    assert result.out == "A man is sleeping on a green bench.\n"
    result = regard("translate", "de-en,de-en-gru", german)
    assert result.code == 2
    assert (
        "de-en and de-en-gru cannot be members of one ensemble, as their vocabularies differ: the vocabulary "
        "has 5,996 and 3,996 tokens"
    ) in flat(result.err)


def test_language_models_are_ensembled_with_language_models_only(regard, runs, tmp_path):
    (tmp_path / "text.txt").write_text("a sentence, and one more\n" * 30, "utf-8")
    (tmp_path / "lm.toml").write_text(LM, "utf-8")
    for seed in (1, 2):
        words = ["--run", tmp_path / f"lm{seed}", "--seed", seed, "--device", "cpu"]
        result = regard("train", tmp_path / "lm.toml", *words)
        assert result.code == 0, result.err
    both = f"{tmp_path / 'lm1'},{tmp_path / 'lm2'}"
    losses = [
        json.loads(regard("evaluate", run, "--split", "val", "--json").out)["loss"]
        for run in both.split(",")
    ]
    document = json.loads(regard("evaluate", both, "--split", "val", "--json").out)
    assert document["results"] == []
    assert document["loss"] <= sum(losses) / 2 + 1e-6
    assert regard("translate", both, "--sample").code == 0
    result = regard("translate", f"{runs / 'a'},{tmp_path / 'lm1'}", "a text")
    assert result.code == 2
    message = r"lm1 is a language model and \S+a is not: an ensemble is of one sort or the other"
    assert re.search(message, flat(result.err))


def test_a_folder_whose_name_has_a_comma_wins(regard, runs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a,b").symlink_to(runs / "a")
    assert regard("translate", "a,b", *TEXTS) == regard("translate", runs / "a", *TEXTS)
    assert regard("info", "a,b").code == 0
    (tmp_path / "b").symlink_to(runs / "b")
    model = package.load(["a,b", "b"])  # in a list, a comma is part of a name that exists
    expected = package.load([runs / "a", runs / "b"])
    assert model.translate(TEXTS)[0].score == expected.translate(TEXTS)[0].score


SINGLE = (
    "a,b is an ensemble of 2 runs: it can translate and be evaluated, but not be trained, exported"
)
MISTAKES = {
    "info": (["info", "a,b"], SINGLE),
    "hub": (["export", "a,b", "--to", "hub", "--out", "out"], SINGLE),
    "ctranslate2": (["export", "a,b", "--to", "ctranslate2", "--out", "out"], SINGLE),
    "page": (
        ["page", "a,b", "--no-open"],
        "a,b cannot run in a page: it is an ensemble, and the page runs one model at a time",
    ),
    "export page": (
        ["export", "a,b", "--to", "page", "--out", "out.html"],
        "it is an ensemble, and the page runs one model at a time. Use it with `regard translate`",
    ),
    "resume": (["train", "--resume", "a,b"], SINGLE),
    "init": (
        ["train", "case", "--init", "a,b", "--run", "out", "--device", "cpu"],
        "an ensemble of 2",
    ),
    "compare": (
        ["compare", "case", "--vary", 'init="a,b"', "--out", "out", "--dry-run"],
        "a,b is an ensemble of 2",
    ),
    "bench": (["bench", "engines", "a,b"], SINGLE),
    "engine": (
        ["translate", "a,b", "x", "--engine", "ctranslate2"],
        "the engine ctranslate2 runs one model, not the ensemble of a, b",
    ),
    "missing": (["translate", "a,d", "x"], "there is no run folder d: train one with"),
    "nothing": (
        ["translate", "a,", "x"],
        '"a," lacks a run beside a comma: the runs of an ensemble are joined as in runs/a,runs/b',
    ),
    "hub name": (["info", "hf:user/a,hf:user/b"], "hf:user/a,hf:user/b is an ensemble of 2 runs"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_what_an_ensemble_cannot_do_is_one_sentence(regard, runs, name):
    words, message = MISTAKES[name]
    before = sorted(path.name for path in runs.iterdir())
    result = regard(*words)
    assert (result.code, result.out) == (2, "")
    assert message in flat(result.err)
    assert sorted(path.name for path in runs.iterdir()) == before


# --- Python ---------------------------------------------------------------------------------------


def test_load_takes_a_list_or_a_text():
    expected = package.load("a,b").translate(TEXTS)
    for given in (["a", "b"], ("a", Path("b")), Path("a,b"), ["a,b"]):
        assert package.load(given).translate(TEXTS) == expected
    assert repr(package.load("a,b")).startswith("Translator(ensemble of 2 models, ")
    assert package.load(["a"]).translate(TEXTS) == package.load("a").translate(TEXTS)
    for wrong in ([], 3, None, ["a", 3]):
        with pytest.raises(
            UserError, match=r"load takes a run folder or .*, or a list of them: got"
        ):
            package.load(wrong)


def test_attention_of_each_member():
    [out] = package.load("a,b").translate(TEXTS[:1])
    assert [list(weights) for weights in out.members] == [["cross"], ["cross"]]
    assert torch.equal(out.attention["cross"][0], out.members[0]["cross"][0])
    assert torch.equal(out.attention["cross"][1], out.members[1]["cross"][0])
    [alone] = package.load("a").translate(TEXTS[:1])
    assert alone.members == [alone.attention]
    [mixed] = package.load("a,c").translate(TEXTS[:1])
    assert [sorted(weights) for weights in mixed.members] == [
        ["cross"],
        ["cross", "decoder", "encoder"],
    ]
    with pytest.raises(UserError, match=r"different numbers of heads in cross attention \(1, 4\)"):
        _ = mixed.attention
    [without] = package.load("a,b").translate(TEXTS[:1], attention=False)
    with pytest.raises(UserError, match="attention=True"):
        _ = without.members


def test_the_weights_of_members_are_those_of_the_single_runs():
    pairs = [(TEXTS[0], "I AM A STUDENT")]
    model = package.load("a,c")
    [given], [scored] = model.explain(pairs), model.score(pairs, attention=True)
    for number, name in enumerate(("a", "c")):
        [alone] = package.load(name).explain(pairs)
        for mechanism, weights in alone.attention.items():
            for members in (given.members, scored.members):
                torch.testing.assert_close(members[number][mechanism], weights)


def test_states_of_the_members_are_side_by_side():
    parts = [package.load(name).encode(TEXTS[:1])[0].states for name in ("a", "c")]
    [both] = package.load("a,c").encode(TEXTS[:1])
    torch.testing.assert_close(both.states, torch.cat(parts, dim=-1))


def test_evaluate_and_move():
    model = package.load("a,c").to("cpu")
    figures = model.evaluate([(TEXTS[0], "I AM A STUDENT")], beam=[1, 3])
    assert [row["beam"] for row in figures["results"]] == [1, 3]
    assert not model.is_int8
    assert not model.is_bfloat16


def test_an_ensemble_is_no_run_folder(tmp_path):
    with pytest.raises(UserError, match="an ensemble is no run folder: keep those of its runs"):
        package.load("a,b").save(tmp_path / "new")
    with pytest.raises(UserError, match="cannot run in a page: it is an ensemble"):
        package.load("a,b").page()
