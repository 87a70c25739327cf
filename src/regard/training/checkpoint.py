"""Everything a resume needs, in one file that is written in one move."""

from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

from regard.errors import UserError
from regard.models import Model, weights
from regard.training.update import Update

FILE = Path("last") / "state.safetensors"


@dataclass
class Progress:
    """Where a run stands."""

    step: int = 0
    epoch: int = 0
    batch: int = 0
    """Batches of this epoch already read."""
    score: float = float("-inf")
    """Of the best weights: their validation BLEU, or their loss with a minus. Higher is better."""
    best_loss: float = float("inf")
    best_step: int = 0
    looks_since_best: int = 0
    tokens: int = 0
    """Target tokens learned from."""
    seconds: float = 0.0
    """Time spent in training, over all sittings."""
    metrics_bytes: int = 0
    """Length of metrics.jsonl when this was written."""
    finished: bool = False


def save(folder: Path, progress: Progress, update: Update) -> None:
    """Weights, their running mean, optimizer, random numbers and progress."""
    tensors = {
        f"{part}.{name}": tensor
        for part, model in parts(update).items()
        for name, tensor in weights.state_tensors(model).items()
    }
    for name, parameter in update.model.named_parameters():
        for key, value in update.optimizer.state[parameter].items():
            tensors[f"optimizer.{key}.{name}"] = torch.as_tensor(value)
    tensors["random.cpu"] = torch.get_rng_state()
    if torch.cuda.is_available():
        tensors["random.cuda"] = torch.cuda.get_rng_state()
    weights.save(folder / FILE, tensors, asdict(progress))


def restore(folder: Path, update: Update) -> Progress:
    """Put everything back as `save` found it."""
    path = folder / FILE
    tensors, record = weights.read(path)
    for part, model in parts(update).items():
        weights.load_tensors(model, group(tensors, f"{part}."), path)
    update.refresh()
    parameters = dict(update.model.named_parameters())
    try:
        for place, value in group(tensors, "optimizer.").items():
            key, name = place.split(".", 1)
            # The fused optimizer wants its step counters, too, beside the parameters.
            state = update.optimizer.state[parameters[name]]
            state[key] = value.to(parameters[name].device)
        torch.set_rng_state(tensors["random.cpu"])
        if torch.cuda.is_available() and "random.cuda" in tensors:
            torch.cuda.set_rng_state(tensors["random.cuda"])
        if "best" in record:  # before weights could be judged by anything but their loss
            loss = record.pop("best")
            record |= {"score": -loss, "best_loss": loss}
        return Progress(**record)
    except (KeyError, TypeError):
        raise UserError(f"{path} is not a checkpoint of this version of regard") from None


def parts(update: Update) -> dict[str, Model]:
    """Every model whose weights an exact resume needs."""
    if update.averaged is update.model:
        return {"model": update.model}
    return {"model": update.model, "average": update.averaged}


def group(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
