"""The state that an exact resume needs, in one file that is replaced atomically.

It is dropped once a run is finished, unless training.keep_last asks to keep it.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

import torch
from torch import Tensor
from torch.optim import AdamW

from regard import checksums, documents, files, schemas
from regard.errors import UserError
from regard.models import Model, weights
from regard.training import sharding, snapshots
from regard.training.device import get_rng_states, set_rng_states
from regard.training.step import TrainStep
from regard.training.writer import Writer

FILE = Path("last") / "state.safetensors"
# Prefixes of tensor names: what another device or precision does not have.
RNG, EXTRA = "rng.", "extra."


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
    averaged_steps: list[int] = field(default_factory=list)
    """The last validations, whose weights are averaged at the end: see `regard.training.snapshots`."""


def save(
    folder: Path,
    progress: Progress,
    train_step: TrainStep,
    writer: Writer,
    file_checksums: Mapping[str, str] | None = None,
) -> None:
    """Write weights, their EMA, optimizer state, random generator states and progress."""
    record = {**asdict(progress), "loss_steps": train_step.loss_steps}
    record["files"] = dict(file_checksums or {})
    tensors = sharding.gather_all(collect_tensors(train_step), train_step.world.is_main)
    writer.save(folder / FILE, tensors, record)


def restore(folder: Path, train_step: TrainStep) -> Progress:
    """Load what `save` wrote into `train_step` and the random generators; return the progress.

    Everything is checked before anything is changed.
    """
    path = folder / FILE
    tensors, record = weights.read(path)
    if "loss_steps" not in record and "loss_sum" not in tensors:  # version 0.2.0: averaged anew
        record["loss_steps"], tensors["loss_sum"] = 0, torch.zeros(())
    record.setdefault("averaged_steps", [])  # an earlier version did not average
    check_tensors(path, tensors, collect_tensors(train_step))
    try:
        documents.check(record, schemas.Progress)
        check_snapshots(folder, record["averaged_steps"], train_step)
        set_rng_states(train_step.device, select_prefix(tensors, RNG))
    except UserError:
        raise
    except (ValueError, TypeError, RuntimeError) as error:
        raise UserError(f"{path} is not a checkpoint of this version of regard: {error}") from None
    with torch.no_grad():
        for name, tensor in live_tensors(train_step).items():
            sharding.copy_part(tensor, tensors[name])
    train_step.load_extra_state(select_prefix(tensors, EXTRA))
    train_step.loss_steps = record["loss_steps"]
    train_step.sync_compute_model()
    checksums.warn_of_changed_config(folder, record.get("files", {}))
    # A score before the first validation is infinite, for which JSON has no number: its default.
    names = {each.name for each in fields(Progress) if record[each.name] is not None}
    return Progress(**{name: record[name] for name in names})


def check_snapshots(folder: Path, steps: Sequence[int], train_step: TrainStep) -> None:
    """Raise an error unless the weights of all these steps are complete, now and not at the end."""
    expected = weights.saved_tensors(train_step.ema_model)
    for step in steps:
        path = snapshots.path_of(folder, step)
        check_tensors(path, weights.read(path)[0], expected)


def verify_files(folder: Path) -> None:
    """Raise an error if the tokenizer or the architecture has changed since the state was saved."""
    checksums.verify_run(folder, weights.read_record(folder / FILE).get("files", {}))


def drop(folder: Path) -> None:
    """Delete the state: a finished run is used without it."""
    snapshots.drop(folder)
    files.remove(folder / FILE)
    with suppress(OSError):  # it has other files, which are not ours
        (folder / FILE).parent.rmdir()


def collect_tensors(train_step: TrainStep) -> dict[str, Tensor]:
    """Every tensor of a checkpoint, by name; of a sharded one, its part in this process."""
    states = add_prefix(RNG, get_rng_states(train_step.device))
    return live_tensors(train_step) | states | add_prefix(EXTRA, train_step.extra_state())


def live_tensors(train_step: TrainStep) -> dict[str, Tensor]:
    """The tensors that `train_step` updates, not copies: weights, their EMA, optimizer state, loss."""
    tensors = {
        f"{prefix}.{name}": tensor
        for prefix, model in models_by_prefix(train_step).items()
        for name, tensor in weights.state_tensors(model).items()
    }
    for name, parameter in train_step.model.named_parameters():
        if parameter.requires_grad:
            for key, value in optimizer_state(train_step.optimizer, parameter).items():
                tensors[f"optimizer.{key}.{name}"] = value
    return tensors | {"loss_sum": train_step.loss_sum}


def optimizer_state(optimizer: AdamW, parameter: Tensor) -> dict[str, Tensor]:
    """AdamW's state of a parameter, created as its first step would if there was none yet."""
    state = optimizer.state[parameter]
    if not state:
        # The fused optimizer needs its step counters, too, on the device of the parameters.
        state["step"] = torch.zeros((), device=parameter.device)
        state["exp_avg"] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
        state["exp_avg_sq"] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
    return state


def check_tensors(path: Path, tensors: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    """Raise an error unless names, shapes and dtypes are as expected."""
    # A run may be resumed on another kind of device, with another generator and precision.
    optional = {name for name in expected.keys() ^ tensors.keys() if name.startswith((RNG, EXTRA))}
    for name in [*expected, *tensors]:
        if name in optional - {f"{RNG}cpu"}:
            continue
        given, wanted = (describe(side.get(name)) for side in (tensors, expected))
        if given != wanted:
            raise UserError(
                f'{path} does not match this run: "{name}" is {given}, and should be {wanted}. It '
                "belongs to another run, or another version of regard wrote it"
            )


def describe(tensor: Tensor | None) -> str:
    if tensor is None:
        return "absent"
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"


def models_by_prefix(train_step: TrainStep) -> dict[str, Model]:
    """Every model whose weights an exact resume needs, under the prefix of its tensor names."""
    if train_step.ema_model is train_step.model:
        return {"model": train_step.model}
    return {"model": train_step.model, "ema": train_step.ema_model}


def add_prefix(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {f"{prefix}{name}": tensor for name, tensor in tensors.items()}


def select_prefix(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
