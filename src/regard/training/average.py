"""The end of a run with checkpoint averaging: is the average as good as the best checkpoint?"""

import copy
from typing import Any

from regard.evaluation import Likelihood
from regard.models import weights
from regard.training import snapshots
from regard.training.loop import TrainingLoop


def validate_average(loop: TrainingLoop) -> dict[str, Any] | None:
    """Validate the average of the last weights, and save it if it is at least as good as the best ones.

    Returns what the card says about it; None: nothing is averaged. The checkpoint stays as it is, so that
    a run that is killed here does the same again.
    """
    progress, steps = loop.progress, loop.progress.averaged_steps
    if not steps:
        return None
    tensors = snapshots.read_mean(loop.folder, steps)
    train_step = loop.train_step
    model = copy.deepcopy(train_step.whole_model or train_step.ema_model).to(train_step.device)
    weights.load_tensors(model, tensors, snapshots.path_of(loop.folder, steps[-1]))
    likelihood, bleu = loop.validate_model(model)
    score = -likelihood.loss if bleu is None else bleu
    gain = score - progress.best_score
    scores = {} if bleu is None else {"bleu_lower": bleu}
    result = {"steps": steps, "is_saved": gain >= 0}
    loop.log(event="average", step=progress.step, loss=likelihood.loss, **scores, **result)
    loop.display.print(describe(len(steps), likelihood, bleu, gain, progress.best_step))
    best = {"step": progress.best_step, "val_loss": progress.best_loss}
    best["val_bleu_lower"] = None if bleu is None else progress.best_score
    if gain >= 0:
        record = {"step": progress.step, "loss": likelihood.loss, "averaged_steps": steps}
        record |= {"files": dict(loop.file_checksums)}
        weights.save(loop.folder / "model.safetensors", tensors, record)
        progress.best_score, progress.best_loss = score, likelihood.loss
        progress.best_step = progress.step
    return result | {"val_loss": likelihood.loss, "val_bleu_lower": bleu, "best": best}


def describe(
    count: int, likelihood: Likelihood, bleu: float | None, gain: float, best_step: int
) -> str:
    """One line: how good the average is, whether it is saved, and by how much it is better or worse."""
    if bleu is None:
        comparison = f"{abs(gain):.4f} {'lower' if gain >= 0 else 'higher'}"
    else:
        comparison = f"{abs(gain):.2f} BLEU {'more' if gain >= 0 else 'less'}"
    return (
        f"average of {count} checkpoint{'s' * (count != 1)}  val {likelihood.loss:.4f}  "
        f"perplexity {likelihood.perplexity:.3f}{'' if bleu is None else f'  BLEU {bleu:.2f}'}  "
        f"{'saved' if gain >= 0 else 'not saved'}: {comparison} than the best checkpoint, of step "
        f"{best_step}"
    )
