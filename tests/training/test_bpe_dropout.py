"""Runs with BPE-dropout: new segmentations in each epoch, exact resume, nothing else changes."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import regard
from regard.errors import UserError
from regard.models.weights import read
from regard.text import corpus
from regard.text.batch import EncodedPairs
from regard.training import build, checkpoint, loop, run
from regard.training.step import TrainStep

BPE = {"kind": "bpe", "vocab_size": 330}
DROPOUT = BPE | {"dropout": 0.3}


class Killed(BaseException):
    pass


def kill_at_step(patch: pytest.MonkeyPatch, step: int) -> None:
    original = loop.TrainingLoop.step

    def wrapped(self: loop.TrainingLoop) -> None:
        original(self)
        if self.progress.step == step:
            raise Killed

    patch.setattr(loop.TrainingLoop, "step", wrapped)


@pytest.mark.parametrize("killed_at", [5, 6, 11])
def test_resumed_run_equals_an_uninterrupted_one(
    tiny, fit, same_run, tmp_path: Path, monkeypatch, family: str, killed_at: int
) -> None:
    """In the middle of an epoch and at its end, together with R-Drop and averages."""
    settings = {"r_drop": 1.5, "average_checkpoints": 2, "ema_decay": 0.9, "label_smoothing": 0.1}
    config = tiny(family, tokenizer=DROPOUT, **settings)
    output = fit(config, tmp_path / "uninterrupted")
    assert "regularisation: R-Drop 1.5 (two passes over each batch), BPE-dropout 0.3 (" in output
    with monkeypatch.context() as patch:
        kill_at_step(patch, killed_at)
        with pytest.raises(Killed):
            fit(config, tmp_path / "run")
    torch.manual_seed(99)
    fit(config, tmp_path / "run", resume=True)
    same_run(tmp_path / "run", tmp_path / "uninterrupted")


@pytest.mark.parametrize("bucket_shapes", [None, 2])
def test_every_epoch_is_trained_on_its_own_segmentations(
    tiny, fit, tmp_path: Path, monkeypatch, bucket_shapes
) -> None:
    """What a step reads is what the epoch of its number holds, also in batches of fixed shapes."""
    if bucket_shapes:  # as on a GPU
        original = build.BatchSampler
        monkeypatch.setattr(
            build, "BatchSampler", lambda *a: original(*a[:4], bucket_shapes=bucket_shapes)
        )
    seen: list[tuple[Any, set[Any]]] = []
    step = TrainStep.__call__

    def record(self: TrainStep, batches: Any, *rest: Any) -> None:
        [spec] = batches
        rows = torch.tensor([row for row in spec.rows if row < self.data.num_pairs])
        batch = self.data.batch(rows, spec.source_length, spec.target_length)
        pairs = zip(batch.source.tolist(), batch.labels.tolist(), strict=True)
        by_row = {int(row): pair for row, pair in zip(rows, pairs, strict=True)}
        seen.append(((len(spec.rows), spec.source_length, spec.target_length), by_row))
        step(self, batches, *rest)

    monkeypatch.setattr(TrainStep, "__call__", record)
    config = tiny(tokenizer=DROPOUT, epochs=4.0, validate_every=100)
    fit(config, tmp_path / "run")
    tokenizers = regard.load(tmp_path / "run").tokenizers
    pairs = corpus.load(config.data)["train"]
    segmentations: dict[int, list[Any]] = {}
    for _, by_row in seen:
        for row, (source, labels) in by_row.items():
            assert tokenizers.source.decode(source) == pairs[row][0]
            assert tokenizers.target.decode(labels) == pairs[row][1]
            segmentations.setdefault(row, []).append([i for i in source if i])
    assert sorted(segmentations) == list(range(43))
    assert {len(found) for found in segmentations.values()} == {4}  # once in each epoch
    assert sum(len(set(map(str, found))) > 1 for found in segmentations.values()) > 30
    if bucket_shapes:
        assert len({shape for shape, _ in seen}) == 2


def test_validation_and_the_run_folder_have_no_dropout(tiny, fit, metrics, tmp_path: Path) -> None:
    """The same vocabulary; validation data as the tokenizer of the run segments it."""
    fit(tiny(tokenizer=DROPOUT), tmp_path / "with")
    fit(tiny(tokenizer=BPE), tmp_path / "without")
    one, two = ((tmp_path / name / "tokenizer.json").read_bytes() for name in ("with", "without"))
    assert one == two
    weights = [read(tmp_path / name / checkpoint.FILE)[0] for name in ("with", "without")]
    assert any(not torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    translator = regard.load(tmp_path / "with")
    pairs = corpus.load(tiny().data)["val"]
    encoded = EncodedPairs.from_pairs(pairs, translator.tokenizers)
    loss = regard.evaluation.aggregate(regard.evaluation.likelihoods(translator.model, encoded))
    card = json.loads((tmp_path / "with" / "card.json").read_text())
    assert loss.loss == pytest.approx(card["figures"]["val_loss"], rel=1e-5)
    assert card["config"]["tokenizer"]["dropout"] == 0.3


@pytest.mark.parametrize("joint", [True, False])
def test_a_reused_vocabulary(tiny, fit, tmp_path: Path, joint: bool) -> None:
    """Dropout is no part of a vocabulary, so the run that it comes from need not have had any."""
    fit(tiny(tokenizer=BPE | {"joint": joint}), tmp_path / "first")
    reused = DROPOUT | {"joint": joint, "reuse": True}
    output = fit(tiny(tokenizer=reused, init=str(tmp_path / "first")), tmp_path / "second")
    assert "BPE-dropout 0.3" in output
    one, two = ((tmp_path / name / "tokenizer.json").read_bytes() for name in ("first", "second"))
    assert one == two


@pytest.mark.parametrize("noise", [None, {"copies": 2}])
def test_language_models_and_denoising(tiny, fit, tmp_path: Path, noise: Any) -> None:
    train = tmp_path / "train.txt"
    texts = ["the lowest tower and the newer river", "lower the widest tower", "a new river"]
    train.write_text("\n".join(texts * 7))
    config = tiny("transformer" if noise else "decoder-only", tokenizer=DROPOUT).model_dump()
    config["data"] = {"kind": "text", "train": str(train), "val": str(train), "noise": noise}
    output = fit(regard.config.Config.model_validate(config), tmp_path / "run")
    assert "BPE-dropout 0.3" in output


def test_another_kind_of_vocabulary_in_the_folder(tiny, fit, tmp_path: Path, monkeypatch) -> None:
    """Settings and tokenizer.json were edited: an error, not a crash."""
    original = run.load_tokenizers
    other = tiny(tokenizer={"kind": "words"})
    monkeypatch.setattr(run, "load_tokenizers", lambda _, *rest: original(other, *rest))
    with pytest.raises(UserError, match=r"tokenizer\.dropout leaves out merges of BPE.*words"):
        fit(tiny(tokenizer=DROPOUT), tmp_path / "run")


def test_dropout_is_a_setting_of_bpe_only(tiny) -> None:
    with pytest.raises(ValueError, match="dropout"):
        tiny(tokenizer={"kind": "words", "dropout": 0.1})
    with pytest.raises(ValueError, match="less than 1"):
        tiny(tokenizer=BPE | {"dropout": 1.0})
