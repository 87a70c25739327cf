"""Save a model's weights to a safetensors file, and load them. No pickle is ever loaded.

A file may hold its matrices in int8, a quarter of the size, with a scale for each row:

    W[r, c] ≈ s[r] q[r, c],    q = round(W / s),    s[r] = max |W[r]| / 127

`read` dequantizes them, so a model computes in float32 all the same (`models/int8.py` computes in int8).
"""

import hashlib
import json
from pathlib import Path

import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from regard import files
from regard.errors import UserError
from regard.models.int8 import quantize
from regard.models.interface import Model

QUANTIZATION = "quantization"  # key of the file's metadata; absent in a float32 file
SCALES = ".scales"  # "NAME.scales" belongs to the int8 matrix "NAME"


def state_tensors(model: Model) -> dict[str, Tensor]:
    """Every parameter once, under its first name, even if two modules share it."""
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def saved_tensors(model: Model) -> dict[str, Tensor]:
    """What the model.safetensors of a run folder holds."""
    names = model.saved_names
    return {
        name: tensor
        for name, tensor in state_tensors(model).items()
        if names is None or name in names
    }


def checksum(tensors: dict[str, Tensor]) -> str:
    """SHA-256 of names and values."""
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(name.encode())
        values = tensor.detach().contiguous().cpu().flatten().view(torch.uint8)
        digest.update(memoryview(values.numpy()))  # type: ignore[arg-type]
    return digest.hexdigest()


def save(
    path: Path, tensors: dict[str, Tensor], record: dict[str, object], *, int8: bool = False
) -> None:
    """Write tensors and a JSON record to one file, atomically; with `int8`, matrices quantized."""
    contiguous = {name: tensor.detach().contiguous().cpu() for name, tensor in tensors.items()}
    metadata = {"regard": json.dumps(record)}
    if int8:
        contiguous, metadata = quantize_tensors(contiguous), metadata | {QUANTIZATION: "int8"}
    # Not save_file, which writes to a file of its own: neither ours to lock, to sync nor to clean up.
    files.write(path, safetensors.torch.save(contiguous, metadata))


def quantize_tensors(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Each matrix as int8 values and float32 scales; all other tensors as they are."""
    quantized = {}
    for name, tensor in tensors.items():
        if tensor.ndim == 2:
            quantized[name], quantized[name + SCALES] = quantize(tensor.float())
        else:
            quantized[name] = tensor
    return quantized


def dequantize_tensors(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The inverse of `quantize_tensors`, up to rounding: at most half a scale for each weight."""
    matrices = {name for name, tensor in tensors.items() if tensor.dtype == torch.int8}
    scales = {name + SCALES for name in matrices}
    return {
        name: tensor * tensors[name + SCALES] if name in matrices else tensor
        for name, tensor in tensors.items()
        if name not in scales
    }


def read(path: Path) -> tuple[dict[str, Tensor], dict]:
    """(tensors, record) of a file that `save` wrote."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            record = json.loads(metadata["regard"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        quantization = metadata.get(QUANTIZATION)
        if quantization == "int8":
            tensors = dequantize_tensors(tensors)
    except FileNotFoundError:
        raise UserError(f"there is no file {path}") from None
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path} is damaged or not a safetensors file: {error}") from None
    except (KeyError, ValueError):
        raise UserError(f"{path} was not written by regard") from None
    if quantization not in (None, "int8"):
        raise UserError(
            f'{path} is quantized to "{quantization}", not int8: a newer regard wrote it'
        )
    return tensors, record


def read_record(path: Path) -> dict:
    """The record alone, without the tensors; empty if the file is missing or not ours."""
    try:
        with safe_open(path, framework="pt") as file:
            return json.loads((file.metadata() or {})["regard"])
    except (SafetensorError, OSError, KeyError, ValueError):
        return {}


def load_tensors(model: Model, tensors: dict[str, Tensor], path: Path) -> None:
    """Copy the tensors, read from `path`, into the model's parameters."""
    parameters = saved_tensors(model)
    missing = [name for name in parameters if name not in tensors]
    unexpected = [name for name in tensors if name not in parameters]
    mismatched = [
        name for name, p in parameters.items() if name in tensors and p.shape != tensors[name].shape
    ]
    if missing or unexpected or mismatched:
        example = (missing + unexpected + mismatched)[0]
        raise UserError(
            f"{path} does not match this run's config.toml and tokenizer.json: {len(missing)} tensors "
            f"missing, {len(unexpected)} unexpected, {len(mismatched)} of another shape (for example "
            f'"{example}"). It belongs to another run, or another version of regard wrote it'
        )
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(tensors[name])
