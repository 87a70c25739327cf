"""The preset `homework-notebook`: its form, and what of it reaches a training run."""

import math

import pytest
import torch
from torch.nn.functional import cross_entropy

from regard import presets
from regard.config import Config
from regard.loading import load
from regard.models import build
from regard.text.batch import BatchSampler, EncodedPairs
from regard.text.tokenizer import BOS, EOS, PAD
from regard.training import build as training_build
from regard.training import run, step
from regard.training.build import can_capture_graphs

SMALL = ["model.embedding_dim=5", "model.hidden_dim=7", "model.output_hidden_dim=3"]
COPY = ["data.kind=synthetic", "data.name=copy", "data.train=43", "data.val=11", "data.test=5"]
SHORT = [
    "training.epochs=2",
    "training.batch_sentences=8",
    "training.validate_every=6",
    "training.keep_last=true",
]


@pytest.fixture(scope="module")
def notebook() -> Config:
    return presets.load("homework-notebook", [*SMALL, *COPY, *SHORT, "data.max_length=13"])


def test_layers_have_the_notebooks_sizes():
    with torch.device("meta"):
        model = build(presets.load("homework-notebook").model, 17, 19, joint=False)
    shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    assert shapes["encoder.embedding.weight"] == (17, 256)
    assert shapes["bridge.weight"] == (512, 1024)
    assert shapes["decoder.attention.query.weight"] == (64, 512)
    assert shapes["decoder.attention.key.weight"] == (64, 1024)
    assert shapes["output_hidden.weight"] == (512, 1536)
    assert shapes["output.weight"] == (19, 512)


def test_it_trains_validates_each_epoch_and_translates(notebook, fit, metrics, tmp_path):
    fit(notebook, tmp_path / "run")
    validations = [e for e in metrics(tmp_path / "run") if e["event"] == "validation"]
    assert [event["epoch"] for event in validations] == [1.0, 2.0]
    assert [event["learning_rate"] for event in validations] == pytest.approx([1e-3, 1e-3])
    translator = load(tmp_path / "run")
    [one] = translator.translate(["abc"])
    assert one.source == ["<unk>"]  # one word, and no end token
    assert len(one.target) <= 50
    texts = ["abc", "abc def ghi jkl mno", "a b c d e f g"]
    alone = [translator.translate([text])[0].score for text in texts]
    together = [translation.score for translation in translator.translate(texts)]
    assert alone == pytest.approx(together, abs=1e-5)  # padding is masked outside training


def test_a_resumed_run_is_the_same(notebook, fit, same_run, tmp_path, monkeypatch):
    fit(notebook, tmp_path / "whole")
    validate = run.TrainingLoop.validate

    def stop(loop, is_last):
        validate(loop, is_last)
        raise KeyboardInterrupt

    monkeypatch.setattr(run.TrainingLoop, "validate", stop)
    with pytest.raises(KeyboardInterrupt):
        fit(notebook, tmp_path / "half")
    monkeypatch.undo()
    monkeypatch.setattr(run, "draw_examples", lambda *_: None)
    fit(notebook, tmp_path / "half", resume=True)
    same_run(tmp_path / "whole", tmp_path / "half")


def test_random_batches_are_neither_bucketed_nor_captured(notebook, fit, tmp_path, monkeypatch):
    samplers = []
    monkeypatch.setattr(
        training_build, "BatchSampler", lambda *a: samplers.append(BatchSampler(*a)) or samplers[0]
    )
    fit(notebook, tmp_path / "run")
    assert samplers[0].random
    model = build(notebook.model, 17, 19, joint=False)
    assert not can_capture_graphs(notebook.training, model)
    bucketed = presets.load("case").training
    assert can_capture_graphs(bucketed, model)
    assert not can_capture_graphs(bucketed.model_copy(update={"cuda_graphs": False}), model)
    model.supports_cuda_graphs = False
    assert not can_capture_graphs(bucketed, model)


def test_optimizer_is_plain_adam(notebook):
    model = build(notebook.model, 17, 19, joint=False)
    optimizer = step.build_optimizer(model, notebook.training)
    assert optimizer.defaults["betas"] == (0.9, 0.999)
    assert {group["weight_decay"] for group in optimizer.param_groups} == {0.0}
    default = step.build_optimizer(model, presets.load("case").training)
    assert default.defaults["betas"] == (0.9, 0.98)


def test_the_notebooks_loss_is_a_function_of_ours():
    """(n NLL + m ln V) / (n + m) for m sentences with n target tokens: see results/README.md.

    The notebook puts the logits of position t into row t of a tensor of zeros, begin token included, and
    drops the first sentence of a batch where it means to drop the first token.
    """
    torch.manual_seed(1)
    vocab, targets = 11, [[5, 6, 7], [8], [9, 4, 5, 6, 7], [4, 4]]
    batch = EncodedPairs([[4]] * len(targets), targets).batch(range(len(targets)))
    logits = torch.randn(*batch.labels.shape, vocab, dtype=torch.float64)
    padded = torch.cat([torch.zeros_like(logits[:, :1]), logits], dim=1)
    labels = torch.cat([batch.target[:, :1], batch.labels], dim=1)
    assert labels[:, 0].tolist() == [BOS] * len(targets)
    assert labels[1].tolist() == [BOS, 8, EOS, *[PAD] * 4]
    theirs = cross_entropy(padded[1:].flatten(0, 1), labels[1:].flatten(), ignore_index=PAD)

    kept = batch.target_mask[1:]  # the first sentence is dropped
    nll = cross_entropy(logits[1:][kept], batch.labels[1:][kept])
    tokens, sentences = int(kept.sum()), len(targets) - 1
    ours = (tokens * nll + sentences * math.log(vocab)) / (tokens + sentences)
    torch.testing.assert_close(theirs, ours)


def test_an_epoch_of_multi30k_has_as_many_steps_as_one_validation_waits_for():
    training = presets.load("homework-notebook").training
    data = EncodedPairs([[4] * 45] * 29_000, [[4] * 41] * 29_000)  # the longest pairs
    limits = (training.batch_tokens, training.batch_sentences)
    assert len(BatchSampler(data, *limits, 1, random=True).epoch(0)) == training.validate_every
