"""Fine-tuning a pretrained model: only [model] differs from training from scratch."""

import importlib
import json

import pytest

from regard import files
from regard.compare import job
from regard.compare.plan import plan
from regard.compare.processes import JobPool
from regard.compare.sweep import sweep
from tests.stories.conftest import with_examples

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


def write_toml(here, model: str):
    path = here / f"{len(list(here.iterdir()))}.toml"
    path.write_text(TOML.format(here=here, model=model), "utf-8")
    return path


@pytest.fixture(scope="module", params=SHAPES)
def tuned(request, regard, checkpoint, tmp_path_factory):
    """(shape, run folder, result of `regard train`, TOML)"""
    here, name = tmp_path_factory.mktemp("tuned"), checkpoint(request.param)
    (here / "pairs.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in PAIRS), "utf-8")
    tune = SHAPES[request.param][0]
    model = f'[model]\nkind = "pretrained"\nname = "{name}"\ntune = "{tune}"'
    path = write_toml(here, model)
    with with_examples():
        result = regard("train", path, "--run", here / "run", "--device", "cpu")
    assert result.code == 0, result.err
    return request.param, here / "run", result, path


def test_tokenizer_of_the_pretrained_model_is_used(tuned):
    _, run, result, _ = tuned
    assert (
        "using the tokenizer of the pretrained model: the vocabulary of [tokenizer] is ignored"
        in result.out
    )
    assert 'kind = "pretrained"' in (run / "config.toml").read_text()
    assert {path.name for path in run.iterdir()} >= {
        "architecture.json",
        "tokenizer.json",
        "model.safetensors",
        "card.json",
    }
    assert len(list((run / "examples").iterdir())) == 3


def test_arguments_and_file_give_the_same_output(tuned, regard, tmp_path):
    _, run, _, _ = tuned
    texts = ["the cat", "a dog's hat", "it"]
    (tmp_path / "in.txt").write_text("\n".join(texts), "utf-8")
    from_file = regard("translate", run, "--input", tmp_path / "in.txt", "--beam", 3)
    assert from_file.code == 0, from_file.err
    one_by_one = [regard("translate", run, text, "--beam", 3).out for text in texts]
    assert from_file.out == "".join(one_by_one)
    sampled = regard("translate", run, "the cat", "--sample", "--nbest", 2, "--json")
    assert len(json.loads(sampled.out)[0]["alternatives"]) == 1


def test_evaluate_and_ablate_heads(tuned, regard):
    shape, run, _, _ = tuned
    command = regard("evaluate", run, "--beam", "1,2", "--first", 3, "--ablate", "heads", "--json")
    assert command.code == 0, command.err
    report = json.loads(command.out)
    assert report["perplexity"] > 1
    assert report["bits_per_character"] > 0
    assert [result["beam"] for result in report["results"]] == [1, 2]
    heads = report["ablations"]["rows"]
    _, encoder, decoder = SHAPES[shape]
    assert len(heads) == (encoder + 2 * decoder if shape == "t5" else decoder)
    assert sum(abs(row["loss_change"]) > 1e-6 for row in heads) > len(heads) / 2


def test_masking_the_most_attended_token(tuned, regard):
    result = regard("evaluate", tuned[1], "--first", 5, "--ablate", "attention", "--json")
    assert result.code == 0, result.err
    rows = {row["intervention"]: row for row in json.loads(result.out)["ablations"]["rows"]}
    assert abs(rows["most-attended token masked"]["loss_change"]) > 1e-6
    eos_change = abs(rows["EOS token masked"]["loss_change"])
    assert (eos_change < 1e-6) == (tuned[0] == "llama")  # it reads a separator instead of EOS


@pytest.mark.parametrize("tuned", ["llama"], indirect=True)
def test_warm_start_from_a_fine_tuned_run(tuned, regard, tmp_path):
    _, run, _, path = tuned
    result = regard("train", path, "--run", tmp_path / "run", "--init", run, "--device", "cpu")
    assert result.code == 0, result.err
    assert " 0 are newly initialised" in result.out
    first = json.loads((run / "card.json").read_text())["figures"]["val_loss"]
    assert json.loads((tmp_path / "run" / "card.json").read_text())["figures"]["val_loss"] < first


def test_diagram_of_every_layer_and_head(tuned, regard, tmp_path):
    _, run, _, _ = tuned
    result = regard("diagram", run, "a dog's hat", "--out", tmp_path / "all.svg")
    assert result.code == 0, result.err
    picture = (tmp_path / "all.svg").read_text()
    assert "layer 3" in picture
    assert "head 3" in picture
    assert "dog" in picture


@pytest.mark.parametrize("tuned", ["llama"], indirect=True)
def test_resuming_a_finished_run_keeps_its_weights(tuned, regard, checksums):
    _, run, _, path = tuned
    before = checksums(run)
    assert regard("train", path, "--run", run, "--resume", "--device", "cpu").code == 0
    after = checksums(run)
    assert before["model.safetensors"] == after["model.safetensors"]


@pytest.mark.parametrize("tuned", ["llama"], indirect=True)
def test_compare_scratch_and_pretrained(tuned, tmp_path, monkeypatch):
    """Runs in this process: importing everything in others takes long."""

    def execute_in_process(run, split, beams, device, jobs, pool) -> str:
        files.write(run.folder.with_suffix(".toml"), run.config.to_toml())
        job.run_job(run.folder.with_suffix(".toml"), run.folder, device, jobs, split, list(beams))
        return ""

    path = tuned[3]
    monkeypatch.setattr(
        importlib.import_module("regard.compare.sweep"), "execute", execute_in_process
    )
    presets = [str(write_toml(path.parent, SCRATCH)), str(path)]
    runs = plan(presets, [], ["training.epochs=1"], [1], tmp_path)
    assert sweep(runs, "test", [1], "cpu", JobPool(1), lambda line: None) == []
    for run in runs:
        evaluation = json.loads((run.folder / "evaluation-test.json").read_text())
        assert evaluation["bits_per_character"] > 0


def test_fine_tuning_a_language_model(regard, checkpoint, tmp_path):
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
    result = regard("train", path, "--run", tmp_path / "run", "--device", "cpu")
    assert result.code == 0, result.err
    report = json.loads(regard("evaluate", tmp_path / "run", "--split", "val", "--json").out)
    assert report["perplexity"] < 3  # it has memorised three sentences
    assert regard("translate", tmp_path / "run", "--sample").code == 0


def test_wrong_name_is_a_user_error(regard, tmp_path):
    arguments = ["train", "case", "--set", "model.kind=pretrained", "--set", "model.name=./nothing"]
    arguments += [word for n in ("train", "val", "test") for word in ("--set", f"data.{n}=3")]
    result = regard(*arguments, "--run", tmp_path / "run")
    assert result.code == 2
    assert result.err.startswith("regard: there is no folder nothing")
    assert not (tmp_path / "run").exists()
