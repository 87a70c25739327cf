"""Save a model's weights to a safetensors file, and load them. No pickle is ever loaded.

A file may hold its matrices in int8, a quarter of the size, with a scale for each row:

    W[r, c] ≈ s[r] q[r, c],    q = round(W / s),    s[r] = max |W[r]| / 127

`read` dequantizes them, so a model computes in float32 all the same (`models/int8.py` computes in int8).

A record has a SHA-256 of all that its file holds, which `read` verifies; those of version 0.2 have none.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import safe_open
from torch import Tensor

from regard import documents, files
from regard.errors import UserError, is_rust_error
from regard.models.int8 import quantize
from regard.models.interface import Model
from regard.schemas import Record

RECORD = "regard"  # key of the file's metadata
CHECKSUM = "checksum"  # key of the record: metadata of several keys would have no fixed order
QUANTIZATION = "quantization"  # absent in a float32 file
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


def hash_content(
    tensors: dict[str, Tensor], record: Mapping[str, Any], metadata: Mapping[str, str]
) -> str:
    """SHA-256 of all that a file holds: tensors with names, dtypes and shapes, record, other metadata."""
    names = [(name, str(one.dtype), list(one.shape)) for name, one in sorted(tensors.items())]
    facts = [
        {key: value for key, value in one.items() if key not in (RECORD, CHECKSUM)}
        for one in (record, metadata)
    ]
    content = documents.dumps([names, *facts, checksum(tensors)], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()


def save(
    path: Path,
    tensors: dict[str, Tensor],
    record: dict[str, Any],
    *,
    int8: bool = False,
    **metadata: str,
) -> None:
    """Write tensors and a JSON record to one file, atomically; with `int8`, matrices quantized."""
    contiguous = {name: tensor.detach().contiguous().cpu() for name, tensor in tensors.items()}
    if int8:
        contiguous, metadata[QUANTIZATION] = quantize_tensors(contiguous), "int8"
    record = record | {CHECKSUM: hash_content(contiguous, record, metadata)}
    metadata[RECORD] = documents.dumps(record)
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


def read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """(tensors, record) of a file that `save` wrote."""
    tensors, metadata = read_file(path)
    record = parse_record(path, metadata)
    saved = record.pop(CHECKSUM, None)
    if saved is not None and saved != hash_content(tensors, record, metadata):
        raise documents.damaged(path, "its content does not match its checksum", Record)
    quantization = metadata.get(QUANTIZATION)
    if quantization not in (None, "int8"):
        raise UserError(
            f'{path} is quantized to "{quantization}", not int8: a newer regard wrote it'
        )
    try:
        return dequantize_tensors(tensors) if quantization else tensors, record
    except (KeyError, RuntimeError):  # no scales, or too few
        raise documents.damaged(path, "its int8 matrices have no scales", Record) from None


def read_record(path: Path) -> dict[str, Any]:
    """The record alone, without the tensors; empty if the file is missing, damaged or not ours."""
    try:
        return parse_record(path, read_file(path, with_tensors=False)[1])
    except UserError:
        return {}


def read_file(path: Path, with_tensors: bool = True) -> tuple[dict[str, Tensor], dict[str, str]]:
    """(tensors, metadata) of a safetensors file, unverified."""
    try:
        with safe_open(path, framework="pt") as file:
            names = list(file.keys()) if with_tensors else []
            return {name: file.get_tensor(name) for name in names}, file.metadata() or {}
    except FileNotFoundError:
        raise UserError(f"there is no file {path}") from None
    except BaseException as error:
        if not is_rust_error(error):
            raise
        reason = str(error).partition("\n")[0]
        raise UserError(
            f"{path} is damaged or not a safetensors file: {reason}. Restore it from a copy"
        ) from None


def parse_record(path: Path, metadata: dict[str, str]) -> dict[str, Any]:
    if RECORD not in metadata:
        raise UserError(f"{path} was not written by regard")
    try:
        return documents.check(documents.parse(metadata[RECORD]), Record)
    except ValueError as error:
        raise documents.damaged(path, f"its record: {error}", Record) from None


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
    for name, tensor in tensors.items():
        if not tensor.is_floating_point():
            dtype = str(tensor.dtype).removeprefix("torch.")
            raise documents.damaged(path, f'"{name}" is of type {dtype}, not float', Record)
        if not bool(tensor.isfinite().all()):
            raise UserError(
                f'{path} has NaN or infinity in "{name}": it is damaged, or training diverged. Restore it '
                "from a copy, or train again with a lower training.learning_rate"
            )
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(tensors[name])
