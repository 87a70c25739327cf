"""The state that an exact resume needs, in one file that is replaced atomically."""

from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

from regard.errors import UserError
from regard.models import Model, weights
from regard.training.device import get_rng_states, set_rng_states
from regard.training.step import TrainStep

FILE = Path("last") / "state.safetensors"


@dataclass
class Progress:
    """How far a run has come."""

    step: int = 0
    epoch: int = 0
    batch: int = 0
    """Batches of this epoch already trained on."""
    best_score: float = float("-inf")
    """Of the best weights: validation BLEU, or the negative validation loss. Higher is better."""
    best_loss: float = float("inf")
    """Validation loss of the best weights."""
    best_step: int = 0
    validations_since_best: int = 0
    tokens: int = 0
    """Target tokens trained on."""
    seconds: float = 0.0
    """Training time, summed over resumed sessions."""
    metrics_bytes: int = 0
    """Length of metrics.jsonl when this was written."""
    finished: bool = False


def save(folder: Path, progress: Progress, train_step: TrainStep) -> None:
    """Write weights, their EMA, optimizer state, random generator states and progress."""
    tensors = {
        f"{prefix}.{name}": tensor
        for prefix, model in models_by_prefix(train_step).items()
        for name, tensor in weights.state_tensors(model).items()
    }
    for name, parameter in train_step.model.named_parameters():
        for key, value in train_step.optimizer.state[parameter].items():
            tensors[f"optimizer.{key}.{name}"] = torch.as_tensor(value)
    tensors |= add_prefix("rng.", get_rng_states(train_step.device))
    tensors |= add_prefix("extra.", train_step.extra_state())
    weights.save(folder / FILE, tensors, asdict(progress))


def restore(folder: Path, train_step: TrainStep) -> Progress:
    """Load what `save` wrote into `train_step` and the random generators; return the progress."""
    path = folder / FILE
    tensors, progress = weights.read(path)
    for prefix, model in models_by_prefix(train_step).items():
        weights.load_tensors(model, select_prefix(tensors, f"{prefix}."), path)
    train_step.sync_compute_model()
    parameters = dict(train_step.model.named_parameters())
    try:
        for key_and_name, value in select_prefix(tensors, "optimizer.").items():
            key, name = key_and_name.split(".", 1)
            # The fused optimizer needs its step counters, too, on the device of the parameters.
            state = train_step.optimizer.state[parameters[name]]
            state[key] = value.to(parameters[name].device)
        train_step.load_extra_state(select_prefix(tensors, "extra."))
        set_rng_states(train_step.device, select_prefix(tensors, "rng."))
        return Progress(**progress)
    except (KeyError, TypeError):
        raise UserError(f"{path} is not a checkpoint of this version of regard") from None


def models_by_prefix(train_step: TrainStep) -> dict[str, Model]:
    """Every model whose weights an exact resume needs, under the prefix of its tensor names."""
    if train_step.ema_model is train_step.model:
        return {"model": train_step.model}
    return {"model": train_step.model, "ema": train_step.ema_model}


def add_prefix(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {f"{prefix}{name}": tensor for name, tensor in tensors.items()}


def select_prefix(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
