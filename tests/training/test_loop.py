"""The training loop: validation, best weights, early stopping, errors."""

import contextlib
import json
import re
import sys
from pathlib import Path

import pytest
import torch

import regard
from regard.config import Config
from regard.errors import UserError
from regard.evaluation import Likelihood, aggregate, greedy_bleu, likelihoods
from regard.models import build
from regard.models.weights import read, state_tensors
from regard.text import corpus
from regard.text.batch import DeviceDataset, EncodedPairs
from regard.training import checkpoint, loop, step


def validations(events: list[dict]) -> list[dict]:
    return [event for event in events if event["event"] == "validation"]


def script_losses(monkeypatch: pytest.MonkeyPatch, losses: list[float]) -> list[dict]:
    """Replace the validation losses by these; return the weights at each validation."""
    remaining, validated = iter(losses), []

    def fake(model, data, _tokens):
        validated.append({name: tensor.clone() for name, tensor in state_tensors(model).items()})
        return [Likelihood(next(remaining) * 10, 10, 5)]

    monkeypatch.setattr(loop, "likelihoods", fake)
    return validated


@pytest.mark.parametrize(
    ("epochs", "every", "steps"),
    [(2.0, 5, [5, 10, 12]), (1.0, 6, [6]), (1.5, 4, [4, 8, 9]), (0.1, 3, [1]), (0.5, 100, [3])],
)
def test_validation_steps(tiny, fit, metrics, tmp_path: Path, epochs, every, steps) -> None:
    """43 sentences in batches of 8 are 6 steps per epoch; the last step is always validated."""
    fit(tiny(epochs=epochs, validate_every=every), tmp_path / "run")
    assert [event["step"] for event in validations(metrics(tmp_path / "run"))] == steps


@pytest.mark.parametrize(("min_steps", "steps"), [(2, [5, 6]), (6, [5, 6]), (17, [5, 10, 15, 17])])
def test_min_steps_repeats_a_small_corpus(
    tiny, fit, metrics, tmp_path: Path, min_steps, steps
) -> None:
    """The schedule spans all the steps: it approaches 0 at the end, not before."""
    fit(tiny(epochs=1.0, min_steps=min_steps, validate_every=5, warmup_steps=0), tmp_path / "run")
    events = validations(metrics(tmp_path / "run"))
    assert [event["step"] for event in events] == steps
    for event in events:  # the learning rate of the step, linear schedule
        assert event["learning_rate"] == pytest.approx(0.02 * (1 - (event["step"] - 1) / steps[-1]))
        assert event["epoch"] == pytest.approx(event["step"] / 6, abs=1e-4)


def test_every_epoch_has_every_pair_in_a_new_order(tiny, fit, tmp_path, monkeypatch) -> None:
    batches: list[list[int]] = []
    original = DeviceDataset.batch

    def batch(self, rows, *sizes):
        batches.append(rows.tolist())
        return original(self, rows, *sizes)

    monkeypatch.setattr(DeviceDataset, "batch", batch)
    fit(tiny(epochs=2.0), tmp_path / "run")
    first, second = batches[:6], batches[6:]
    for epoch in first, second:
        assert sorted(row for rows in epoch for row in rows) == list(range(43))
    assert first != second


def test_best_weights_are_saved(tiny, fit, metrics, tmp_path: Path, monkeypatch) -> None:
    validated = script_losses(monkeypatch, [3.0, 2.0, 2.0, 2.5])
    fit(tiny(), tmp_path / "run")
    tensors, record = read(tmp_path / "run" / "model.safetensors")
    assert (record["step"], record["loss"]) == (6, 2.0)  # of equal losses, the first
    assert all(torch.equal(tensors[name], validated[1][name]) for name in tensors)
    assert any(not torch.equal(tensors[name], validated[3][name]) for name in tensors)
    last, state = read(tmp_path / "run" / "last" / "state.safetensors")
    assert all(torch.equal(last[f"model.{name}"], validated[3][name]) for name in tensors)
    assert (state["best_loss"], state["best_step"], state["step"]) == (2.0, 6, 12)


def count_correct_letters(name: str, outputs: list[str], references: list[str]) -> float:
    """Replaces BLEU, which finds no 4-grams in text of single letters."""
    pairs = zip(outputs, references, strict=True)
    return float(
        sum(a == b for output, reference in pairs for a, b in zip(output, reference, strict=False))
    )


def test_best_weights_by_bleu(tiny, fit, metrics, tmp_path, family, monkeypatch) -> None:
    monkeypatch.setattr(sys.modules["regard.evaluation.evaluate"], "score", count_correct_letters)
    config = tiny(family, checkpoint_metric="bleu", epochs=4.0, ema_decay=0.9, learning_rate=0.05)
    output = fit(config, tmp_path / "run")
    events = validations(metrics(tmp_path / "run"))
    scores = [event["bleu_lower"] for event in events]
    best = max(events, key=lambda event: (event["bleu_lower"], -event["loss"]))
    assert len(set(scores)) > 1
    assert f"BLEU {max(scores):.2f}  best" in output
    assert f"BLEU {min(scores):.2f}" in output
    record = read(tmp_path / "run" / "model.safetensors")[1]
    assert (record["step"], record["loss"]) == (best["step"], best["loss"])
    translator, pairs = regard.load(tmp_path / "run"), corpus.load(config.data)["val"]
    encoded = EncodedPairs.from_pairs(pairs, translator.tokenizers)
    assert greedy_bleu(translator, pairs, encoded) == max(scores)
    card = json.loads((tmp_path / "run" / "card.json").read_text())
    assert card["figures"]["val_loss"] == best["loss"]


def test_loss_breaks_ties_of_bleu(tiny, fit, metrics, tmp_path, monkeypatch) -> None:
    """BLEU is 0 at first, and always in text of single letters."""
    script_losses(monkeypatch, [3.0, 2.0, 2.5, 2.0])
    fit(tiny(checkpoint_metric="bleu"), tmp_path / "run")
    assert {event["bleu_lower"] for event in validations(metrics(tmp_path / "run"))} == {0.0}
    record = read(tmp_path / "run" / "model.safetensors")[1]
    assert (record["step"], record["loss"]) == (6, 2.0)


def test_bleu_is_rejected_for_a_language_model() -> None:
    table = {"data": {"kind": "text", "name": "multi30k-captions", "language": ["en"]}}
    table["model"] = {"kind": "decoder-only"}
    assert Config.model_validate(table).is_language_model
    with pytest.raises(ValueError, match='checkpoint_metric = "bleu" scores translations'):
        Config.model_validate(table | {"training": {"checkpoint_metric": "bleu"}})


def test_early_stopping(tiny, fit, metrics, tmp_path: Path, monkeypatch) -> None:
    script_losses(monkeypatch, [3.0, 3.1, 2.0, 2.2, 2.1, 1.0])
    output = fit(tiny(epochs=20.0, patience=2), tmp_path / "run")
    assert [event["step"] for event in validations(metrics(tmp_path / "run"))] == [3, 6, 9, 12, 15]
    assert "early stopping: no improvement in 2 validations" in output
    assert fit(tiny(epochs=20.0, patience=2), tmp_path / "run", True).count("val ") == 0


def test_validation_is_unsmoothed_and_without_dropout(tiny, fit, metrics, tmp_path, family) -> None:
    config = tiny(family, label_smoothing=0.4, epochs=1.0, validate_every=6)
    fit(config, tmp_path / "run")
    model = regard.load(tmp_path / "run")
    encoded = EncodedPairs.from_pairs(corpus.load(config.data)["val"], model.tokenizers)
    nats = tokens = 0.0
    for source, target in zip(encoded.source, encoded.target, strict=True):
        ids = torch.tensor([source]), torch.ones(1, len(source), dtype=torch.bool)
        logits = model.model(*ids, torch.tensor([[1, *target]])).detach()
        labels = torch.tensor([[*target, 2]])
        nats -= float(logits.log_softmax(-1).gather(-1, labels[..., None]).sum())
        tokens += labels.numel()
    [event] = validations(metrics(tmp_path / "run"))
    assert event["loss"] == pytest.approx(nats / tokens, rel=1e-5)
    assert event["perplexity"] == pytest.approx(2.718281828 ** (nats / tokens), rel=1e-4)
    assert read(tmp_path / "run" / "model.safetensors")[1]["loss"] == event["loss"]


def test_validation_does_not_change_training(tiny, fit, tmp_path: Path, family: str) -> None:
    """Validating more often must not advance the random generators or leave dropout disabled."""
    fit(tiny(family, validate_every=1), tmp_path / "often")
    fit(tiny(family, validate_every=12), tmp_path / "once")
    often, once = (
        read(tmp_path / name / "last/state.safetensors")[0] for name in ("often", "once")
    )
    assert all(torch.equal(often[name], once[name]) for name in often)


def test_training_lowers_the_loss(tiny, fit, metrics, tmp_path: Path, family: str) -> None:
    fit(tiny(family, epochs=12.0), tmp_path / "run")
    losses = [event["loss"] for event in validations(metrics(tmp_path / "run"))]
    assert losses[-1] < losses[0] - 0.3


def test_logged_learning_rate_follows_the_schedule(tiny, fit, metrics, tmp_path: Path) -> None:
    fit(tiny(schedule="linear", warmup_steps=4, learning_rate=0.02), tmp_path / "run")
    rates = {
        event["step"]: event["learning_rate"] for event in validations(metrics(tmp_path / "run"))
    }
    for number, rate in rates.items():
        done = number - 1  # steps before this one
        assert rate == pytest.approx(0.02 * min(1, (done + 1) / 4) * (1 - done / 12))


@pytest.mark.parametrize("name", ["learning_rate", "grad_clip"])
def test_settings_reach_the_optimizer(tiny, fit, tmp_path: Path, name: str) -> None:
    fit(tiny(epochs=0.5), tmp_path / "one")
    fit(tiny(epochs=0.5, **{name: 0.001}), tmp_path / "two")
    one, two = (read(tmp_path / run / "model.safetensors")[0] for run in ("one", "two"))
    assert any(not torch.equal(one[key], two[key]) for key in one)


def test_no_weight_decay_on_biases_and_norms(tiny, family: str) -> None:
    config = tiny(family, weight_decay=0.5)
    model = build(config.model, 11, 13, False)
    decays = {
        id(p): group["weight_decay"]
        for group in step.build_optimizer(model, config.training).param_groups
        for p in group["params"]
    }
    for name, parameter in model.named_parameters():
        decayed = parameter.ndim > 1 and not name.endswith("A_log")  # decay rates of a state space
        assert decays.pop(id(parameter)) == (0.5 if decayed else 0.0), name
    assert not decays


# --- errors ---------------------------------------------------------------------------------------


def test_loss_that_is_not_finite(tiny, fit, metrics, tmp_path: Path, monkeypatch) -> None:
    """The error says what to change; the checkpoints saved before are intact."""
    original, calls = step.objective, iter(range(1, 1000))

    def broken(*args):
        loss = original(*args)
        return loss * float("nan") if next(calls) == 5 else loss

    monkeypatch.setattr(step, "objective", broken)
    with pytest.raises(
        UserError, match=r"became nan before step 6.*training\.learning_rate \(now 0\.02\)"
    ):
        fit(tiny(), tmp_path / "run")
    assert [event["step"] for event in validations(metrics(tmp_path / "run"))] == [3]
    for name in ("model.safetensors", "last/state.safetensors"):
        tensors, record = read(tmp_path / "run" / name)
        assert record["step"] == 3
        assert all(bool(t.isfinite().all()) for t in tensors.values() if t.is_floating_point())
    assert regard.load(tmp_path / "run").translate(["I am"])[0].text is not None


def test_weights_that_are_not_finite_are_not_saved(tiny, fit, tmp_path: Path, monkeypatch) -> None:
    """The last step before a validation breaks the weights, after its loss was computed."""
    original = loop.TrainingLoop.step

    def step_then_break(self):
        original(self)
        if self.progress.step == 6:
            with torch.no_grad():
                next(self.train_step.model.parameters()).fill_(float("nan"))

    monkeypatch.setattr(loop.TrainingLoop, "step", step_then_break)
    with pytest.raises(UserError, match="validation loss became nan at step 6"):
        fit(tiny(), tmp_path / "run")
    assert read(tmp_path / "run/last/state.safetensors")[1]["step"] == 3


def test_huge_learning_rate(tiny, fit, tmp_path: Path, family: str) -> None:
    """A learning rate of 1e30 raises an error or trains finite weights; NaN is never saved."""
    with contextlib.suppress(UserError):
        fit(tiny(family, learning_rate=1e30, warmup_steps=0, epochs=6.0), tmp_path / "run")
    for path in (tmp_path / "run").rglob("*.safetensors"):
        for name, tensor in read(path)[0].items():
            assert name.startswith("rng") or bool(tensor.isfinite().all()), name


@pytest.mark.parametrize(
    "message",
    [
        "CUDA out of memory. Tried to allocate 20.00 MiB.",
        "CUDA error: out of memory\nCUDA kernel",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate(handle)",
        "DefaultCPUAllocator: can't allocate memory: you tried to allocate 7 bytes.",
    ],
)
def test_out_of_memory(tiny, fit, tmp_path, monkeypatch, message) -> None:
    def allocate(*_: object) -> None:
        raise RuntimeError(message)

    monkeypatch.setattr(step.TrainStep, "_step", allocate)
    with pytest.raises(
        UserError, match=r"out of memory: lower training\.batch_tokens \(now 4,096\)"
    ):
        fit(tiny(), tmp_path / "run")


def test_other_errors_are_not_reported_as_out_of_memory(tiny, fit, tmp_path, monkeypatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    monkeypatch.setattr(step.TrainStep, "_step", broken)
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        fit(tiny(), tmp_path / "run")


def test_long_pairs_are_skipped_and_counted(tiny, fit, tmp_path: Path) -> None:
    config = tiny(tokenizer={"max_tokens": 9})
    data = corpus.load(config.data)
    long = {split: sum(len(text) > 9 for text, _ in data[split]) for split in ("train", "val")}
    assert all(0 < long[split] < len(data[split]) for split in long)
    output = fit(config, tmp_path / "run")
    assert f"train: skipped {long['train']} pairs over 9 tokens" in output
    assert f"val: skipped {long['val']} pairs over 9 tokens" in output
    assert f"{43 - long['train']} training pairs, vocabulary" in output


def test_all_pairs_too_long(tiny, fit, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="every pair of the train split is longer than 2 tokens"):
        fit(tiny(tokenizer={"max_tokens": 2}), tmp_path / "run")
    assert "best" in fit(tiny(), tmp_path / "run")  # the folder is free for another run
    again = tmp_path / "again"
    again.mkdir()
    with pytest.raises(UserError, match="every pair"):
        fit(tiny(tokenizer={"max_tokens": 2}), again)
    assert again.is_dir()  # a folder that existed before is not removed


def test_likelihoods_restore_training_mode(tiny, fit, tmp_path: Path) -> None:
    fit(tiny(epochs=0.5), tmp_path / "run")
    model = regard.load(tmp_path / "run")
    encoded = EncodedPairs.from_pairs([("I am", "I am")], model.tokenizers)
    model.model.train()
    assert aggregate(likelihoods(model.model, encoded)).tokens == 5
    assert model.model.training


# --- TensorBoard ----------------------------------------------------------------------------------


@pytest.mark.parametrize("killed", [None, 2])
def test_tensorboard_has_the_logged_losses(
    tiny, fit, metrics, tmp_path: Path, monkeypatch, killed: int | None
) -> None:
    """Also if the run was killed between the log entry of a validation and its checkpoint."""
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    if killed:
        original, calls = checkpoint.save, iter(range(10))

        def save(*args) -> None:
            if next(calls) == killed:
                raise KeyboardInterrupt
            original(*args)

        with monkeypatch.context() as patch:
            patch.setattr(checkpoint, "save", save)
            with pytest.raises(KeyboardInterrupt):
                fit(tiny(tensorboard=True), tmp_path / "run")
    fit(tiny(tensorboard=True), tmp_path / "run", resume=True)
    assert list((tmp_path / "run").rglob("events.out.tfevents.*"))
    board = EventAccumulator(str(tmp_path / "run" / "tensorboard")).Reload()
    [name] = [tag for tag in board.Tags()["scalars"] if tag.split("/")[-1] in ("loss", "val_loss")]
    plotted = {point.step: point.value for point in board.Scalars(name)}
    logged = {event["step"]: event["loss"] for event in validations(metrics(tmp_path / "run"))}
    assert plotted == pytest.approx(logged, rel=1e-6)


def test_tensorboard_missing(tiny, fit, tmp_path: Path, monkeypatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(UserError, match=r"regard\[tensorboard\]"):
        fit(tiny(tensorboard=True), tmp_path / "run")


def test_no_tensorboard_by_default(tiny, fit, tmp_path: Path) -> None:
    fit(tiny(epochs=0.5), tmp_path / "run")
    assert not list((tmp_path / "run").rglob("*tfevents*"))


def test_the_first_lines_say_what_will_be_done(tiny, fit, tmp_path: Path) -> None:
    first, second, *_ = fit(tiny(patience=7), tmp_path / "run").splitlines()
    translator = regard.load(tmp_path / "run")
    assert first == (
        f"43 training pairs, vocabulary {translator.tokenizers.source.vocab_size}, recurrent model with "
        f"{translator.model.parameter_count:,} parameters"
    )
    assert second == (
        "about 12 steps (2 epochs) on cpu, validated on 11 every 3, at most: stops after 7 without "
        f"improvement; the run goes to {tmp_path / 'run'}"
    )


def test_small_data_gets_the_minimum_of_steps(tiny, fit, tmp_path: Path) -> None:
    output = fit(tiny(min_steps=15), tmp_path / "run")
    assert "about 15 steps (2.5 epochs)" in output


def test_time_left_is_printed_until_the_end(tiny, fit, tmp_path: Path) -> None:
    lines = [line for line in fit(tiny(), tmp_path / "run").splitlines() if "epoch " in line]
    lines = [line for line in lines if line.startswith("step")]
    assert [bool(re.search(r"about \d+ s left$", line)) for line in lines] == [True] * 3 + [False]
