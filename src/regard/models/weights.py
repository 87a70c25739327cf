"""A model's weights as a safetensors file. No pickle is ever read."""

import json
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from regard import files
from regard.errors import UserError
from regard.models.interface import Model


def weights(model: Model) -> dict[str, Tensor]:
    """Every parameter once, under its first name, even if two parts of the model share it."""
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def save(path: Path, tensors: dict[str, Tensor], record: dict[str, object]) -> None:
    """Tensors and a JSON record in one file, written in one move."""
    whole = {name: tensor.detach().contiguous().cpu() for name, tensor in tensors.items()}
    metadata = {"regard": json.dumps(record)}
    try:
        files.write_with(path, lambda temporary: save_file(whole, temporary, metadata))
    except SafetensorError as error:  # a full disk, say: safetensors has errors of its own
        raise UserError(f"{path} cannot be written: {error}") from None


def read(path: Path) -> tuple[dict[str, Tensor], dict]:
    """(tensors, record) of a file that `save` wrote."""
    try:
        with safe_open(path, framework="pt") as file:
            record = json.loads((file.metadata() or {})["regard"])
            return {name: file.get_tensor(name) for name in file.keys()}, record  # noqa: SIM118
    except FileNotFoundError:
        raise UserError(f"there is no file {path}") from None
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path} is damaged or is no safetensors file: {error}") from None
    except (KeyError, ValueError):
        raise UserError(f"{path} was not written by regard") from None


def fill(model: Model, tensors: dict[str, Tensor], path: Path) -> None:
    """Put the tensors into the model, or say how they do not fit."""
    wanted = weights(model)
    missing = [name for name in wanted if name not in tensors]
    foreign = [name for name in tensors if name not in wanted]
    shapes = [n for n in wanted if n in tensors and wanted[n].shape != tensors[n].shape]
    if missing or foreign or shapes:
        example = (missing + foreign + shapes)[0]
        raise UserError(
            f"{path} does not belong to this run's config.toml and tokenizer.json: {len(missing)} "
            f"tensors missing, {len(foreign)} unknown, {len(shapes)} of another shape "
            f'(for example "{example}"). It is another run\'s, or another version of regard wrote it'
        )
    with torch.no_grad():
        for name, parameter in wanted.items():
            parameter.copy_(tensors[name])
