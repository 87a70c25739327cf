"""What a run does on its way: looks, the best weights, stopping, and failing well."""

import contextlib
import json
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
from regard.training import checkpoint, loop, update


def looks(events: list[dict]) -> list[dict]:
    return [event for event in events if event["event"] == "validation"]


def scripted(monkeypatch: pytest.MonkeyPatch, losses: list[float]) -> list[dict]:
    """Validation losses by script; returns the weights seen at each look."""
    script, seen = iter(losses), []

    def fake(model, data, _tokens):
        seen.append({name: tensor.clone() for name, tensor in state_tensors(model).items()})
        return [Likelihood(next(script) * 10, 10, 5)]

    monkeypatch.setattr(loop, "likelihoods", fake)
    return seen


@pytest.mark.parametrize(
    ("epochs", "every", "steps"),
    [(2.0, 5, [5, 10, 12]), (1.0, 6, [6]), (1.5, 4, [4, 8, 9]), (0.1, 3, [1]), (0.5, 100, [3])],
)
def test_looks_fall_where_asked(tiny, fit, metrics, tmp_path: Path, epochs, every, steps) -> None:
    """43 sentences in batches of 8 are 6 steps an epoch; the last step is always looked at."""
    fit(tiny(epochs=epochs, validate_every=every), tmp_path / "run")
    assert [look["step"] for look in looks(metrics(tmp_path / "run"))] == steps


@pytest.mark.parametrize(("least", "steps"), [(2, [5, 6]), (6, [5, 6]), (17, [5, 10, 15, 17])])
def test_a_small_text_is_passed_over_until_there_were_so_many_steps(
    tiny, fit, metrics, tmp_path: Path, least, steps
) -> None:
    """And the schedule reaches over all of them: it is nearly over at the end, and not before."""
    fit(tiny(epochs=1.0, min_steps=least, validate_every=5, warmup_steps=0), tmp_path / "run")
    events = looks(metrics(tmp_path / "run"))
    assert [look["step"] for look in events] == steps
    for look in events:  # the rate of a step, from 0, in a linear schedule
        assert look["rate"] == pytest.approx(0.02 * (1 - (look["step"] - 1) / steps[-1]))
        assert look["epoch"] == pytest.approx(look["step"] / 6, abs=1e-4)


def test_every_epoch_reads_every_pair_in_a_new_order(tiny, fit, tmp_path, monkeypatch) -> None:
    read: list[list[int]] = []
    original = DeviceDataset.batch

    def batch(self, rows, *sizes):
        read.append(rows.tolist())
        return original(self, rows, *sizes)

    monkeypatch.setattr(DeviceDataset, "batch", batch)
    fit(tiny(epochs=2.0), tmp_path / "run")
    first, second = read[:6], read[6:]
    for epoch in first, second:
        assert sorted(row for rows in epoch for row in rows) == list(range(43))
    assert first != second


def test_best_weights_are_kept(tiny, fit, metrics, tmp_path: Path, monkeypatch) -> None:
    seen = scripted(monkeypatch, [3.0, 2.0, 2.0, 2.5])
    fit(tiny(), tmp_path / "run")
    tensors, record = read(tmp_path / "run" / "model.safetensors")
    assert record == {"step": 6, "loss": 2.0}  # of equal losses, the first
    assert all(torch.equal(tensors[name], seen[1][name]) for name in tensors)
    assert any(not torch.equal(tensors[name], seen[3][name]) for name in tensors)
    last, state = read(tmp_path / "run" / "last" / "state.safetensors")
    assert all(torch.equal(last[f"model.{name}"], seen[3][name]) for name in tensors)
    assert (state["best_loss"], state["best_step"], state["step"]) == (2.0, 6, 12)


def letters_right(outputs: list[str], references: list[str]) -> float:
    """In the place of BLEU, which finds no words in a text of letters."""
    pairs = zip(outputs, references, strict=True)
    return float(sum(a == b for said, right in pairs for a, b in zip(said, right, strict=False)))


def test_best_weights_by_what_they_translate(
    tiny, fit, metrics, tmp_path, family, monkeypatch
) -> None:
    monkeypatch.setattr(sys.modules["regard.evaluation.evaluate"], "bleu_lower", letters_right)
    config = tiny(family, checkpoint_metric="bleu", epochs=4.0, ema_decay=0.9, learning_rate=0.05)
    said = fit(config, tmp_path / "run")
    found = looks(metrics(tmp_path / "run"))
    scores = [look["bleu_lower"] for look in found]
    best = max(found, key=lambda look: (look["bleu_lower"], -look["loss"]))
    assert len(set(scores)) > 1
    assert f"BLEU {max(scores):.2f}  best" in said
    assert f"BLEU {min(scores):.2f}" in said
    record = read(tmp_path / "run" / "model.safetensors")[1]
    assert record == {"step": best["step"], "loss": best["loss"]}
    translator, pairs = regard.load(tmp_path / "run"), corpus.load(config.data)["val"]
    encoded = EncodedPairs.from_pairs(pairs, translator.tokenizers)
    assert greedy_bleu(translator, pairs, encoded) == max(scores)
    card = json.loads((tmp_path / "run" / "card.json").read_text())
    assert card["figures"]["val_loss"] == best["loss"]


def test_of_equal_translations_the_lower_loss(tiny, fit, metrics, tmp_path, monkeypatch) -> None:
    """BLEU is 0 for a while, and for ever in a text of single letters."""
    scripted(monkeypatch, [3.0, 2.0, 2.5, 2.0])
    fit(tiny(checkpoint_metric="bleu"), tmp_path / "run")
    assert {look["bleu_lower"] for look in looks(metrics(tmp_path / "run"))} == {0.0}
    assert read(tmp_path / "run" / "model.safetensors")[1] == {"step": 6, "loss": 2.0}


def test_a_language_model_is_judged_by_its_loss() -> None:
    table = {"data": {"kind": "text", "name": "multi30k-captions", "language": ["en"]}}
    table["model"] = {"kind": "decoder-only"}
    assert Config.model_validate(table).is_language_model
    with pytest.raises(ValueError, match='checkpoint_metric = "bleu" scores translations'):
        Config.model_validate(table | {"training": {"checkpoint_metric": "bleu"}})


def test_patience(tiny, fit, metrics, tmp_path: Path, monkeypatch) -> None:
    scripted(monkeypatch, [3.0, 3.1, 2.0, 2.2, 2.1, 1.0])
    said = fit(tiny(epochs=20.0, patience=2), tmp_path / "run")
    assert [look["step"] for look in looks(metrics(tmp_path / "run"))] == [3, 6, 9, 12, 15]
    assert "nothing better in 2 looks: stopping" in said
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
        wanted = torch.tensor([[*target, 2]])
        nats -= float(logits.log_softmax(-1).gather(-1, wanted[..., None]).sum())
        tokens += wanted.numel()
    [look] = looks(metrics(tmp_path / "run"))
    assert look["loss"] == pytest.approx(nats / tokens, rel=1e-5)
    assert look["perplexity"] == pytest.approx(2.718281828 ** (nats / tokens), rel=1e-4)
    assert read(tmp_path / "run" / "model.safetensors")[1]["loss"] == look["loss"]


def test_a_look_changes_no_training(tiny, fit, tmp_path: Path, family: str) -> None:
    """Looking more often must not move the random numbers or leave dropout switched off."""
    fit(tiny(family, validate_every=1), tmp_path / "often")
    fit(tiny(family, validate_every=12), tmp_path / "once")
    often, once = (
        read(tmp_path / name / "last/state.safetensors")[0] for name in ("often", "once")
    )
    assert all(torch.equal(often[name], once[name]) for name in often)


def test_training_learns(tiny, fit, metrics, tmp_path: Path, family: str) -> None:
    fit(tiny(family, epochs=12.0), tmp_path / "run")
    losses = [look["loss"] for look in looks(metrics(tmp_path / "run"))]
    assert losses[-1] < losses[0] - 0.3


def test_logged_rate_follows_the_schedule(tiny, fit, metrics, tmp_path: Path) -> None:
    fit(tiny(schedule="linear", warmup_steps=4, learning_rate=0.02), tmp_path / "run")
    rates = {look["step"]: look["rate"] for look in looks(metrics(tmp_path / "run"))}
    for step, rate in rates.items():  # the rate that made this step: of the place before it
        done = step - 1
        assert rate == pytest.approx(0.02 * min(1, (done + 1) / 4) * (1 - done / 12))


@pytest.mark.parametrize("name", ["learning_rate", "grad_clip"])
def test_settings_reach_the_optimizer(tiny, fit, tmp_path: Path, name: str) -> None:
    fit(tiny(epochs=0.5), tmp_path / "one")
    fit(tiny(epochs=0.5, **{name: 0.001}), tmp_path / "two")
    one, two = (read(tmp_path / run / "model.safetensors")[0] for run in ("one", "two"))
    assert any(not torch.equal(one[key], two[key]) for key in one)


def test_weight_decay_spares_biases_and_norms(tiny, family: str) -> None:
    config = tiny(family, weight_decay=0.5)
    model = build(config.model, 11, 13, False)
    decays = {
        id(p): group["weight_decay"]
        for group in update.optimizer_for(model, config.training).param_groups
        for p in group["params"]
    }
    for name, parameter in model.named_parameters():
        pulled = parameter.ndim > 1 and not name.endswith(
            "A_log"
        )  # the decay rates of a state space
        assert decays.pop(id(parameter)) == (0.5 if pulled else 0.0), name
    assert not decays


# --- failing well ---------------------------------------------------------------------------------


def test_loss_that_is_no_number(tiny, fit, metrics, tmp_path: Path, monkeypatch) -> None:
    """Told with what to change; what was saved before is whole and can be loaded."""
    original, calls = update.objective, iter(range(1, 1000))

    def broken(*args):
        loss = original(*args)
        return loss * float("nan") if next(calls) == 5 else loss

    monkeypatch.setattr(update, "objective", broken)
    with pytest.raises(
        UserError, match=r"became nan before step 6.*training\.learning_rate \(now 0\.02\)"
    ):
        fit(tiny(), tmp_path / "run")
    assert [look["step"] for look in looks(metrics(tmp_path / "run"))] == [3]
    for name in ("model.safetensors", "last/state.safetensors"):
        tensors, record = read(tmp_path / "run" / name)
        assert record["step"] == 3
        assert all(bool(t.isfinite().all()) for t in tensors.values() if t.is_floating_point())
    assert regard.load(tmp_path / "run").translate(["I am"])[0].text is not None


def test_weights_that_are_no_numbers_are_not_saved(tiny, fit, tmp_path: Path, monkeypatch) -> None:
    """The last update before a look breaks the weights: no training loss has shown it yet."""
    original = loop.Loop.step

    def step(self):
        original(self)
        if self.progress.step == 6:
            with torch.no_grad():
                next(self.update.model.parameters()).fill_(float("nan"))

    monkeypatch.setattr(loop.Loop, "step", step)
    with pytest.raises(UserError, match="validation loss became nan at step 6"):
        fit(tiny(), tmp_path / "run")
    assert read(tmp_path / "run/last/state.safetensors")[1]["step"] == 3


def test_absurd_rate(tiny, fit, tmp_path: Path, family: str) -> None:
    """A rate of 1e30 ends in a sentence, or in weights that are numbers: never in saved NaN."""
    with contextlib.suppress(UserError):
        fit(tiny(family, learning_rate=1e30, warmup_steps=0, epochs=6.0), tmp_path / "run")
    for path in (tmp_path / "run").rglob("*.safetensors"):
        for name, tensor in read(path)[0].items():
            assert name.startswith("random") or bool(tensor.isfinite().all()), name


@pytest.mark.parametrize(
    "said",
    [
        "CUDA out of memory. Tried to allocate 20.00 MiB.",
        "CUDA error: out of memory\nCUDA kernel",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate(handle)",
        "DefaultCPUAllocator: can't allocate memory: you tried to allocate 7 bytes.",
    ],
)
def test_a_full_memory_is_told_in_a_sentence(tiny, fit, tmp_path, monkeypatch, said) -> None:
    def full(*_: object) -> None:
        raise RuntimeError(said)

    monkeypatch.setattr(update.Update, "_learn", full)
    with pytest.raises(
        UserError, match=r"memory is full: lower training\.batch_tokens \(now 4,096\)"
    ):
        fit(tiny(), tmp_path / "run")


def test_other_errors_are_not_taken_for_a_full_memory(tiny, fit, tmp_path, monkeypatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    monkeypatch.setattr(update.Update, "_learn", broken)
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        fit(tiny(), tmp_path / "run")


def test_long_pairs_are_left_out_and_counted(tiny, fit, tmp_path: Path) -> None:
    config = tiny(tokenizer={"max_tokens": 9})
    data = corpus.load(config.data)
    long = {split: sum(len(text) > 9 for text, _ in data[split]) for split in ("train", "val")}
    assert all(0 < long[split] < len(data[split]) for split in long)
    said = fit(config, tmp_path / "run")
    assert f"train: {long['train']} pairs over 9 tokens left out" in said
    assert f"val: {long['val']} pairs over 9 tokens left out" in said
    assert f"{43 - long['train']} pairs, vocabulary" in said


def test_nothing_short_enough(tiny, fit, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="every pair of the train split is longer than 2 tokens"):
        fit(tiny(tokenizer={"max_tokens": 2}), tmp_path / "run")
    assert "best" in fit(tiny(), tmp_path / "run")  # the folder is free for the next try
    again = tmp_path / "again"
    again.mkdir()
    with pytest.raises(UserError, match="every pair"):
        fit(tiny(tokenizer={"max_tokens": 2}), again)
    assert again.is_dir()  # somebody else's folder is left where it is


def test_total_of_likelihoods_needs_no_gradient(tiny, fit, tmp_path: Path) -> None:
    fit(tiny(epochs=0.5), tmp_path / "run")
    model = regard.load(tmp_path / "run")
    encoded = EncodedPairs.from_pairs([("I am", "I am")], model.tokenizers)
    model.model.train()
    assert aggregate(likelihoods(model.model, encoded)).tokens == 5
    assert model.model.training  # as it was found


# --- TensorBoard ----------------------------------------------------------------------------------


@pytest.mark.parametrize("killed", [None, 2])
def test_tensorboard_shows_the_same_figures(
    tiny, fit, metrics, tmp_path: Path, monkeypatch, killed: int | None
) -> None:
    """Also when the run was killed between a look's log line and its checkpoint."""
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
    shown = {point.step: point.value for point in board.Scalars(name)}
    logged = {look["step"]: look["loss"] for look in looks(metrics(tmp_path / "run"))}
    assert shown == pytest.approx(logged, rel=1e-6)


def test_tensorboard_missing(tiny, fit, tmp_path: Path, monkeypatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(UserError, match=r"regard\[tensorboard\]"):
        fit(tiny(tensorboard=True), tmp_path / "run")


def test_no_tensorboard_unless_asked(tiny, fit, tmp_path: Path) -> None:
    fit(tiny(epochs=0.5), tmp_path / "run")
    assert not list((tmp_path / "run").rglob("*tfevents*"))
