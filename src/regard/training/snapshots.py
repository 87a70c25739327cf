"""Checkpoint averaging: the mean of the weights at the last n validations (Vaswani et al., 2017).

The weights of each validation are a file beside the checkpoint, until n later ones have replaced it. The
checkpoint names those that it needs, so a resumed run averages the same.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from regard import files
from regard.models import weights
from regard.training.writer import Writer

PATTERN = "last/weights-*.safetensors"


def path_of(folder: Path, step: int) -> Path:
    return folder / PATTERN.replace("*", str(step))


def save(
    folder: Path,
    writer: Writer,
    tensors: Mapping[str, Tensor],
    record: dict[str, Any],
    earlier: Sequence[int],
) -> None:
    """Write the weights of step record["step"], and delete all but those of the `earlier` steps."""
    path = path_of(folder, record["step"])
    # The writer has now completed the checkpoint before this one, which needs those of `earlier`.
    writer.save(path, tensors, record)
    kept = {path, *(path_of(folder, step) for step in earlier)}
    for other in set(folder.glob(PATTERN)) - kept:
        files.remove(other)


def read_mean(folder: Path, steps: Sequence[int]) -> dict[str, Tensor]:
    """The mean of the weights of these steps, summed in float64."""
    total: dict[str, Tensor] = {}
    tensors: dict[str, Tensor] = {}
    for step in steps:
        tensors, _ = weights.read(path_of(folder, step))
        total = {name: total.get(name, 0) + tensor.double() for name, tensor in tensors.items()}
    return {name: (total[name] / len(steps)).to(tensors[name].dtype) for name in total}


def drop(folder: Path) -> None:
    """Delete the weights of all steps."""
    for path in folder.glob(PATTERN):
        files.remove(path)
