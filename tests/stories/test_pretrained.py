"""One TOML, two models: swapping [model] is all a user does to fine-tune instead of to train."""

import importlib
import json

import pytest

from regard import files
from regard.compare import job, plan, sweep

TOML = """
{model}

[data]
kind = "files"
train = "{here}/pairs.tsv"
val = "{here}/pairs.tsv"
test = "{here}/pairs.tsv"

[tokenizer]
kind = "words"
min_frequency = 1

[training]
epochs = 2
batch_sentences = 4
learning_rate = 0.01

[search]
max_ratio = 1
max_extra = 3
"""
SCRATCH = '[model]\nkind = "transformer"\nd_model = 8\nattention = {heads = 2}'
PAIRS = [("the cat", "no, a hat"), ("a dog's hat", "the mat"), ("it was", "no"), ("the", "a")] * 4
SHAPES = {"t5": ("full", 2 * 3, 3 * 3), "llama": ("lora", 3 * 6, 3 * 6)}


def toml(here, model: str):
    path = here / f"{len(list(here.iterdir()))}.toml"
    path.write_text(TOML.format(here=here, model=model), "utf-8")
    return path


@pytest.fixture(scope="module", params=SHAPES)
def tuned(request, regard, checkpoint, tmp_path_factory):
    """(shape, run folder, what training said, its TOML)"""
    here, name = tmp_path_factory.mktemp("tuned"), checkpoint(request.param)
    (here / "pairs.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in PAIRS), "utf-8")
    tune = SHAPES[request.param][0]
    model = f'[model]\nkind = "pretrained"\nname = "{name}"\ntune = "{tune}"'
    path = toml(here, model)
    said = regard("train", path, "--run", here / "run", "--device", "cpu")
    assert said.code == 0, said.err
    return request.param, here / "run", said, path


def test_training_says_whose_tokenizer_it_is(tuned):
    _, run, said, _ = tuned
    assert "the tokenizer is the model's own, whatever [tokenizer] says" in said.out
    assert 'kind = "pretrained"' in (run / "config.toml").read_text()
    assert {path.name for path in run.iterdir()} >= {
        "architecture.json",
        "tokenizer.json",
        "model.safetensors",
        "card.json",
    }
    assert len(list((run / "examples").iterdir())) == 3


def test_it_translates_alike_one_by_one_and_from_a_file(tuned, regard, tmp_path):
    _, run, _, _ = tuned
    texts = ["the cat", "a dog's hat", "it"]
    (tmp_path / "in.txt").write_text("\n".join(texts), "utf-8")
    together = regard("translate", run, "--input", tmp_path / "in.txt", "--beam", 3)
    assert together.code == 0, together.err
    alone = [regard("translate", run, text, "--beam", 3).out for text in texts]
    assert together.out == "".join(alone)
    drawn = regard("translate", run, "the cat", "--sample", "--nbest", 2, "--json")
    assert len(json.loads(drawn.out)[0]["alternatives"]) == 1


def test_it_is_evaluated_and_ablated_like_any_other(tuned, regard):
    shape, run, _, _ = tuned
    said = regard("evaluate", run, "--beam", "1,2", "--first", 3, "--ablate", "heads", "--json")
    assert said.code == 0, said.err
    found = json.loads(said.out)
    assert found["perplexity"] > 1
    assert found["bits_per_character"] > 0
    assert [result["beam"] for result in found["results"]] == [1, 2]
    heads = found["ablations"]["rows"]
    _, encoder, decoder = SHAPES[shape]
    assert len(heads) == (encoder + 2 * decoder if shape == "t5" else decoder)
    assert sum(abs(row["loss_change"]) > 1e-6 for row in heads) > len(heads) / 2


def test_the_word_it_looks_at_most_is_hidden_like_any_others(tuned, regard):
    said = regard("evaluate", tuned[1], "--first", 5, "--ablate", "attention", "--json")
    assert said.code == 0, said.err
    rows = {row["intervention"]: row for row in json.loads(said.out)["ablations"]["rows"]}
    assert abs(rows["most-attended token masked"]["loss_change"]) > 1e-6
    end = abs(rows["EOS token masked"]["loss_change"])
    assert (end < 1e-6) == (tuned[0] == "llama")  # where the separator says it, it is not read


@pytest.mark.parametrize("tuned", ["llama"], indirect=True)
def test_another_run_starts_from_it(tuned, regard, tmp_path):
    _, run, _, path = tuned
    said = regard("train", path, "--run", tmp_path / "run", "--init", run, "--device", "cpu")
    assert said.code == 0, said.err
    assert " 0 start fresh" in said.out
    first = json.loads((run / "card.json").read_text())["figures"]["val_loss"]
    assert json.loads((tmp_path / "run" / "card.json").read_text())["figures"]["val_loss"] < first


def test_its_attention_is_drawn_every_layer_and_head(tuned, regard, tmp_path):
    _, run, _, _ = tuned
    said = regard("diagram", run, "a dog's hat", "--out", tmp_path / "all.svg")
    assert said.code == 0, said.err
    drawn = (tmp_path / "all.svg").read_text()
    assert "layer 3" in drawn
    assert "head 3" in drawn
    assert "dog" in drawn


@pytest.mark.parametrize("tuned", ["llama"], indirect=True)
def test_resuming_a_finished_run_leaves_it_as_it_is(tuned, regard, checksums):
    _, run, _, path = tuned
    before = checksums(run)
    assert regard("train", path, "--run", run, "--resume", "--device", "cpu").code == 0
    after = checksums(run)
    assert before["model.safetensors"] == after["model.safetensors"]


@pytest.mark.parametrize("tuned", ["llama"], indirect=True)
def test_scratch_and_pretrained_are_compared_as_one_plan(tuned, tmp_path, monkeypatch):
    """In this process: others would take long to import everything."""

    def inside(run, split, beams, device, jobs) -> str:
        files.write(run.folder.with_suffix(".toml"), run.config.to_toml())
        job.run_job(run.folder.with_suffix(".toml"), run.folder, device, jobs, split, list(beams))
        return ""

    path = tuned[3]
    monkeypatch.setattr(importlib.import_module("regard.compare.sweep"), "execute", inside)
    monkeypatch.setattr(importlib.import_module("regard.training.run"), "EXAMPLES", 0)
    both = [str(toml(path.parent, SCRATCH)), str(path)]
    runs = plan(both, [], ["training.epochs=1"], [1], tmp_path)
    assert sweep(runs, "test", [1], "cpu", 1, lambda line: None) == []
    for run in runs:
        found = json.loads((run.folder / "evaluation-test.json").read_text())
        assert found["bits_per_character"] > 0


def test_a_language_model_goes_on_from_a_pretrained_one(regard, checkpoint, tmp_path):
    (tmp_path / "a.txt").write_text("the cat sat\na hat\nno, no\n" * 5, "utf-8")
    name = checkpoint("gpt2")
    path = tmp_path / "text.toml"
    path.write_text(
        f'data = {{kind = "text", train = "{tmp_path}/a.txt", val = "{tmp_path}/a.txt"}}\n'
        f'model = {{kind = "pretrained", name = "{name}"}}\n'
        "training = {epochs = 30, batch_sentences = 5, learning_rate = 0.02, validate_every = 30}\n"
        "tokenizer = {max_tokens = 19}\n",
        "utf-8",
    )
    said = regard("train", path, "--run", tmp_path / "run", "--device", "cpu")
    assert said.code == 0, said.err
    found = json.loads(regard("evaluate", tmp_path / "run", "--split", "val", "--json").out)
    assert found["perplexity"] < 3  # of the three sentences it has learned one is about to come
    assert regard("translate", tmp_path / "run", "--sample").code == 0


def test_a_wrong_name_is_one_sentence(regard, tmp_path):
    words = ["train", "case", "--set", "model.kind=pretrained", "--set", "model.name=./nothing"]
    words += [word for n in ("train", "val", "test") for word in ("--set", f"data.{n}=3")]
    said = regard(*words, "--run", tmp_path / "run")
    assert said.code == 2
    assert said.err.startswith("regard: there is no folder nothing")
    assert not (tmp_path / "run").exists()
