"""What a captured or traced step depends on besides its inputs."""

from dataclasses import dataclass
from typing import Any

import torch

from regard.models.interface import Model
from regard.torch_private import all_modules, has_hooks, own_tensors, version

PATCHED = ("normalise", "backend")  # attributes of any module
REPLACED = ("encode", "init_state", "step", "project")  # methods of the model


@dataclass(frozen=True)
class Fingerprint:
    """Where the weights are and, if versions matter, how often they were modified; and what is patched."""

    precision: str
    is_training: bool
    weights: tuple[tuple[int, int | float], ...]
    functions: tuple["Identity", ...]

    @classmethod
    def of(cls, model: Model[Any, Any], versions: bool = False) -> "Fingerprint | None":
        """None: the model has hooks, which neither a graph nor a trace would call."""
        modules = all_modules(model)
        if any(map(has_hooks, modules)):
            return None
        patched = [vars(module).get(name) for module in modules for name in PATCHED]
        models = dict.fromkeys((model, *model.members))
        replaced = [vars(one).get(name) for one in models for name in REPLACED]
        return cls(
            torch.get_float32_matmul_precision(),
            model.training,
            tuple(
                (tensor.data_ptr(), count_versions(tensor) if versions else 0)
                for module in modules
                for tensor in own_tensors(module)
            ),
            tuple(Identity(value) for value in (*patched, *replaced) if value is not None),
        )


def count_versions(tensor: torch.Tensor) -> int | float:
    return 0 if tensor.is_inference() else version(tensor)


class Identity:
    """An object that equals only itself, and is kept alive, so that no other gets its id."""

    def __init__(self, value: object) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Identity) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)
