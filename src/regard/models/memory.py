"""Whether a model fits into memory, before it is allocated."""

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from regard.config import Table
from regard.errors import UserError

BYTES = 4  # of a float32 weight
SMALL = 10**8  # see `is_small`
CONTROL_GROUP = Path("/sys/fs/cgroup/memory.max")


def check_memory(table: Table, vocab: int, build: Callable[[], nn.Module]) -> None:
    """Raise an error if the weights of the model that `build` returns need more memory than there is."""
    memory = memory_bytes()
    if memory is None or is_small(table, vocab):
        return
    with torch.device("meta"):  # shapes without values
        count = sum(parameter.numel() for parameter in build().parameters())
    if count * BYTES > memory:
        raise UserError(
            f"this model has {count:,} parameters, which need {count * BYTES / 2**30:,.1f} GiB, and this "
            f"machine has {memory / 2**30:,.1f} GiB of memory: lower the dimensions or layers in [model], or "
            "the vocabulary size"
        )


def is_small(table: Table, vocab: int) -> bool:
    """Whether a rough estimate finds a model small, which spares the second or so of a count.

    No side of a matrix is larger than the largest setting, or product of two that belong together, and a
    layer has about ten matrices.
    """
    numbers = dict(integers(table.model_dump()))
    layers = sum(number for path, number in numbers.items() if path.endswith("layers"))
    largest = max(
        *numbers.values(),
        numbers.get("attention.heads", 0) * numbers.get("attention.head_dim", 0),
        numbers.get("d_model", 0) * numbers.get("mixer.expand", 0),
    )
    return largest**2 * layers + largest * vocab < SMALL


def integers(table: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, int]]:
    """Every integer in nested tables, by its dotted name."""
    for name, value in table.items():
        if isinstance(value, Mapping):
            yield from integers(value, f"{path}{name}.")
        elif isinstance(value, int):
            yield f"{path}{name}", value


def memory_bytes() -> int | None:
    """The memory of this machine, or of the container that this process runs in; None if unknown."""
    try:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # Windows
        return None
    try:
        return min(memory, int(CONTROL_GROUP.read_text("ascii")))
    except (OSError, ValueError):  # "max", or no such group
        return memory
