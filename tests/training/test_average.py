"""Checkpoint averaging: the mean of the last weights, kept if it is as good, after any interruption."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import regard
from regard.errors import UserError
from regard.evaluation import Likelihood, aggregate, likelihoods
from regard.models.weights import read, state_tensors
from regard.text import corpus
from regard.text.batch import EncodedPairs
from regard.training import average, build, checkpoint, loop, run, snapshots
from regard.training.writer import Writer

LAST = "last/weights-{}.safetensors"


def read_card(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "card.json").read_text())


def script_losses(monkeypatch: pytest.MonkeyPatch, losses: list[float]) -> list[dict]:
    """Replace the validation losses by these, the last of the average; return what was validated."""
    remaining, validated = iter(losses), []

    def fake(model, data, _tokens):
        validated.append({name: tensor.clone() for name, tensor in state_tensors(model).items()})
        return [Likelihood(next(remaining) * 10, 10, 5)]

    monkeypatch.setattr(loop, "likelihoods", fake)
    return validated


def mean(tensors: list[dict[str, torch.Tensor]], name: str) -> torch.Tensor:
    return torch.stack([each[name].double() for each in tensors]).mean(0).float()


@pytest.mark.parametrize("ema_decay", [None, 0.9])
def test_average_is_the_mean_of_the_last_weights(
    tiny, fit, metrics, tmp_path: Path, family: str, monkeypatch, ema_decay
) -> None:
    """Of their moving averages, with ema_decay: of what was validated."""
    validated = script_losses(monkeypatch, [3.0, 2.0, 2.5, 2.25, 2.0])
    config = tiny(family, average_checkpoints=3, ema_decay=ema_decay)
    output = fit(config, tmp_path / "run")
    *singles, averaged = validated
    assert len(singles) == 4
    assert any(not torch.equal(singles[1][name], singles[3][name]) for name in averaged)
    tensors, record = read(tmp_path / "run" / "model.safetensors")
    for name in averaged:
        assert torch.equal(averaged[name], mean(singles[1:], name)), name
        assert torch.equal(averaged[name], tensors[name]), name
    assert (record["step"], record["loss"], record["averaged_steps"]) == (12, 2.0, [6, 9, 12])
    assert (
        "average of 3 checkpoints  val 2.0000  perplexity 7.389  saved: 0.0000 lower than the best "
        "checkpoint, of step 6" in output
    )
    assert "regularisation: average of the last 3 checkpoints\n" in output
    card = read_card(tmp_path / "run")
    assert card["average"] == {
        "steps": [6, 9, 12],
        "is_saved": True,
        "val_loss": 2.0,
        "val_bleu_lower": None,
        "best": {"step": 6, "val_loss": 2.0, "val_bleu_lower": None},
    }
    assert (card["figures"]["val_loss"], card["figures"]["best_step"]) == (2.0, 12)
    [event] = [event for event in metrics(tmp_path / "run") if event["event"] == "average"]
    assert (event["step"], event["steps"], event["is_saved"]) == (12, [6, 9, 12], True)


def test_an_average_that_is_worse_is_not_saved(tiny, fit, tmp_path: Path, monkeypatch) -> None:
    validated = script_losses(monkeypatch, [3.0, 2.0, 2.5, 2.25, 2.125])
    output = fit(tiny(average_checkpoints=2), tmp_path / "run")
    tensors, record = read(tmp_path / "run" / "model.safetensors")
    assert (record["step"], record["loss"]) == (6, 2.0)
    assert all(torch.equal(tensors[name], validated[1][name]) for name in tensors)
    assert "not saved: 0.1250 higher than the best checkpoint, of step 6" in output
    card = read_card(tmp_path / "run")
    assert not card["average"]["is_saved"]
    assert (card["average"]["steps"], card["average"]["val_loss"]) == ([9, 12], 2.125)
    assert (card["figures"]["val_loss"], card["figures"]["best_step"]) == (2.0, 6)


@pytest.mark.parametrize(("bleu", "is_saved"), [(7.0, True), (6.5, False)])
def test_average_by_bleu(tiny, fit, tmp_path, monkeypatch, bleu: float, is_saved: bool) -> None:
    """The loss does not matter, unless training.checkpoint_metric says so."""
    script_losses(monkeypatch, [3.0, 2.0, 2.5, 2.25, 2.9])
    scores = iter([5.0, 6.0, 7.0, 6.0, bleu])
    monkeypatch.setattr(build, "greedy_bleu", lambda *_: next(scores))
    output = fit(tiny(average_checkpoints=2, checkpoint_metric="bleu"), tmp_path / "run")
    word = "saved: 0.00 BLEU more" if is_saved else "not saved: 0.50 BLEU less"
    assert f"BLEU {bleu:.2f}  {word} than the best checkpoint, of step 9" in output
    card = read_card(tmp_path / "run")
    assert card["average"]["best"] == {"step": 9, "val_loss": 2.5, "val_bleu_lower": 7.0}
    assert card["average"]["val_bleu_lower"] == bleu
    assert card["figures"]["val_bleu_lower"] == 7.0
    assert card["figures"]["val_loss"] == (2.9 if is_saved else 2.5)


def test_the_saved_average_has_the_loss_on_the_card(tiny, fit, tmp_path: Path, family) -> None:
    config = tiny(family, average_checkpoints=3, epochs=4.0)
    fit(config, tmp_path / "run")
    translator = regard.load(tmp_path / "run")
    pairs = corpus.load(config.data)["val"]
    encoded = EncodedPairs.from_pairs(pairs, translator.tokenizers)
    card = read_card(tmp_path / "run")
    loss = aggregate(likelihoods(translator.model, encoded)).loss
    assert loss == pytest.approx(card["figures"]["val_loss"], rel=1e-5)
    assert card["average"]["is_saved"] == (
        card["average"]["val_loss"] <= card["average"]["best"]["val_loss"]
    )


def test_training_is_the_same_without(tiny, fit, tmp_path: Path) -> None:
    fit(tiny(average_checkpoints=2), tmp_path / "with")
    fit(tiny(), tmp_path / "without")
    one, two = (read(tmp_path / name / checkpoint.FILE)[0] for name in ("with", "without"))
    assert all(torch.equal(one[name], two[name]) for name in two)
    assert read_card(tmp_path / "without")["average"] is None


def test_fewer_validations_than_checkpoints(tiny, fit, tmp_path: Path, monkeypatch) -> None:
    validated = script_losses(monkeypatch, [3.0, 2.0, 1.0])
    output = fit(tiny(average_checkpoints=7, epochs=1.0), tmp_path / "run")
    assert "average of 2 checkpoints" in output
    tensors = read(tmp_path / "run" / "model.safetensors")[0]
    assert all(torch.equal(tensors[name], mean(validated[:2], name)) for name in tensors)
    monkeypatch.undo()
    output = fit(tiny(average_checkpoints=7, epochs=0.5), tmp_path / "one")
    assert "average of 1 checkpoint " in output
    assert "saved: 0.0000 lower" in output


def test_early_stopping(tiny, fit, tmp_path: Path, monkeypatch) -> None:
    script_losses(monkeypatch, [3.0, 3.1, 2.0, 2.2, 2.1, 1.5])
    output = fit(tiny(epochs=20.0, patience=2, average_checkpoints=2), tmp_path / "run")
    assert "early stopping" in output
    assert "average of 2 checkpoints  val 1.5000" in output
    assert read_card(tmp_path / "run")["average"]["steps"] == [12, 15]


@pytest.mark.parametrize("keep_last", [True, False])
def test_files_of_the_last_weights(tiny, fit, tmp_path: Path, keep_last: bool) -> None:
    """As many as are averaged and one, which the checkpoint before the last needed; or none."""
    fit(tiny(average_checkpoints=2, keep_last=keep_last), tmp_path / "run")
    names = {path.name for path in (tmp_path / "run").glob("last/*")}
    steps = [f"weights-{step}.safetensors" for step in (6, 9, 12)]
    assert names == ({"state.safetensors", *steps} if keep_last else set())


# --- interruptions --------------------------------------------------------------------------------


class Killed(BaseException):
    pass


MOMENTS = {
    "between validations": (loop.TrainingLoop, "step", 8),
    "before a snapshot": (snapshots, "save", 3),
    "before the deletion of the oldest": (snapshots.files, "remove", 2),
    "before a checkpoint": (checkpoint, "save", 3),
    "the average": (snapshots, "read_mean", 1),
    "the average is saved": (average, "describe", 1),
    "the card": (run, "build_card", 1),
    "the files are deleted": (run, "clean_up", 1),
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_resumed_run_equals_an_uninterrupted_one(
    tiny, fit, same_run, tmp_path: Path, monkeypatch, moment: str
) -> None:
    # As good as the best: the average is saved, and a resumed run must not compare it with itself.
    monkeypatch.setattr(loop, "likelihoods", lambda *_: [Likelihood(20.0, 10, 5)])
    config = tiny(average_checkpoints=2, epochs=4.0)
    fit(config, tmp_path / "uninterrupted")
    owner, name, call = MOMENTS[moment]
    original, calls = getattr(owner, name), iter(range(1, 10**6))

    def kill(*args: Any, **kwargs: Any) -> Any:
        if next(calls) == call:
            raise Killed
        return original(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, kill)
        with pytest.raises(Killed):
            fit(config, tmp_path / "run")
    torch.manual_seed(99)
    fit(config, tmp_path / "run", resume=True)
    same_run(tmp_path / "run", tmp_path / "uninterrupted")
    one, two = (read_card(tmp_path / name)["average"] for name in ("run", "uninterrupted"))
    assert one == two
    assert (one["steps"], one["is_saved"], one["best"]["step"]) == ([21, 24], True, 3)


@pytest.mark.parametrize("damage", ["absent", "damaged", "other"])
def test_weights_that_are_not_complete_are_noticed_at_once(
    tiny, fit, tmp_path: Path, monkeypatch, damage: str
) -> None:
    """Not at the end of the resumed training."""
    folder = tmp_path / "run"
    config = tiny(average_checkpoints=3)
    original, calls = checkpoint.save, iter(range(1, 100))

    def save(*args: Any) -> None:
        original(*args)
        if next(calls) == 3:
            raise Killed

    monkeypatch.setattr(checkpoint, "save", save)
    with pytest.raises(Killed):
        fit(config, folder)
    path = folder / LAST.format(6)
    if damage == "absent":
        path.unlink()
        message = r"there is no file .*weights-6\.safetensors"
    elif damage == "damaged":
        content = bytearray(path.read_bytes())
        content[-5] ^= 1
        path.write_bytes(content)
        message = r"weights-6\.safetensors is damaged"
    else:
        shutil.copy(folder / checkpoint.FILE, path)
        message = r"weights-6\.safetensors does not match this run"
    with pytest.raises(UserError, match=message):
        fit(config, folder, resume=True)
    assert read(folder / checkpoint.FILE)[1]["step"] == 9


def test_weights_of_the_last_checkpoint_are_kept_until_the_next(tmp_path: Path) -> None:
    """A writer on a GPU may not yet have written the checkpoint that no longer needs them."""
    writer = Writer(torch.device("cpu"))
    for step, earlier in ((1, []), (2, [1]), (3, [1, 2]), (4, [2, 3])):
        tensors = {"weight": torch.full((2,), float(step))}
        snapshots.save(tmp_path, writer, tensors, {"step": step}, earlier)
        found = {path.name for path in tmp_path.glob("last/*")}
        assert found == {Path(LAST.format(each)).name for each in (*earlier, step)}
    assert snapshots.read_mean(tmp_path, [2, 4])["weight"].tolist() == [3.0, 3.0]
