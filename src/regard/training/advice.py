"""What to change after a run that was too short, or overfitted."""

from math import ceil
from pathlib import Path

from regard import documents, schemas
from regard.training.loop import TrainingLoop

FEW_STEPS = 1000
"""A model trained from scratch on fewer steps has hardly learned to use its source."""
LAST_PART = 1 / 5
CHANGE = 0.02
"""The validation loss counts as falling if it lost this fraction in the last part of a run, and as many nats:
near 0, as for a synthetic task, a fraction says nothing. So it counts as rising since its lowest value."""


def advise(loop: TrainingLoop, from_scratch: bool) -> list[str]:
    """What to change if a finished run had few steps, or its loss was still falling, or rose again."""
    if loop.fraction_done < 1:
        return []  # early stopping ended it: longer would not be better
    step, epochs = loop.progress.step, loop.epochs_done
    if from_scratch and step < FEW_STEPS:
        needed = ceil(epochs * FEW_STEPS / step)
        return [
            f"the run had only {step:,} steps, and training from scratch takes {FEW_STEPS:,} or more: set "
            f"training.epochs={needed} (it had {epochs:.3g}), or a smaller training.batch_sentences"
        ]
    losses = read_losses(loop.folder)
    if falling := find_drop(losses):
        return [
            f"the validation loss was still falling, from {falling[0]:.3f} to {falling[1]:.3f} in the "
            "last fifth of the run: train longer, as with "
            f"training.epochs={ceil(2 * epochs)} (it had {epochs:.3g})"
        ]
    if from_scratch and not loop.settings.r_drop and (rise := find_rise(losses)):
        return [
            f"the model overfits: its validation loss was lowest at step {rise[0]:,}, and rose from "
            f"{rise[1]:.3f} to {losses[max(losses)]:.3f}. Try a higher model.dropout, or "
            "training.r_drop=2.5 beside it"
        ]
    return []


def find_drop(losses: dict[int, float]) -> tuple[float, float] | None:
    """The validation loss before the last part of a run and at its end, if that is its lowest by far."""
    if len(losses) < 2:
        return None
    last = max(losses)
    before = [losses[step] for step in losses if step <= (1 - LAST_PART) * last]
    is_lowest = losses[last] == min(losses.values())
    if not before or not is_lowest:
        return None
    drop = before[-1] - losses[last]
    return (before[-1], losses[last]) if drop >= CHANGE * max(1.0, before[-1]) else None


def find_rise(losses: dict[int, float]) -> tuple[int, float] | None:
    """(step, loss) of the lowest validation loss, if the loss at the end is far above it."""
    step = min(losses, key=lambda step: losses[step])
    rise = losses[max(losses)] - losses[step]
    return (step, losses[step]) if rise >= CHANGE * max(1.0, losses[step]) else None


def read_losses(folder: Path) -> dict[int, float]:
    """The validation loss by step."""
    events = documents.read_lines(folder / "metrics.jsonl", schemas.event_schema)
    return {event["step"]: event["loss"] for event in events if event["event"] == "validation"}
