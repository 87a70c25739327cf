"""What the checker and an answer's process exchange: length-prefixed JSON, with tensors as raw bytes.

Neither side ever unpickles data from the other. This module imports nothing from regard, so that the
process that runs answers does not contain the labs.
"""

import base64
import json
import math
import socket
import struct
import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

MAX_MESSAGE = 4 << 20  # bytes
MAX_DIMENSIONS = 16
DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        *(torch.float16, torch.float32, torch.float64, torch.complex64, torch.complex128),
        *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    )
}


@dataclass(frozen=True)
class Unsupported:
    """A value that cannot be sent; only the description of its type is."""

    description: str


def encode(value: Any) -> Any:
    """A value as JSON: numbers and strings as they are, everything else as [kind, content]."""
    match value:
        case None | bool() | str():
            return value
        case int() if -(2**63) <= value < 2**63:
            return int(value)
        case float():
            return float(value) if math.isfinite(value) else ["float", str(float(value))]
        case complex():
            return ["complex", str(complex(value))]
        case list() | tuple():
            kind = "list" if isinstance(value, list) else "tuple"
            return [kind, [encode(part) for part in value]]
        case dict() if all(isinstance(key, str) for key in value):
            return ["dict", {key: encode(part) for key, part in value.items()}]
        case Tensor() if str(value.dtype).removeprefix("torch.") in DTYPES:
            plain = value.detach().resolve_conj().resolve_neg().to_dense().contiguous()
            data = plain.reshape(-1).view(torch.uint8).numpy().tobytes()
            kind = str(plain.dtype).removeprefix("torch.")
            return ["tensor", [kind, list(plain.shape), base64.b64encode(data).decode()]]
        case Tensor():
            return ["unsupported", f"a tensor of {value.dtype}"]
        case _ if type(value).__module__ == "numpy":
            return encode(torch.as_tensor(value))
        case int():
            return ["unsupported", "an integer of more than 64 bits"]
        case _:
            return ["unsupported", f"a value of type {type(value).__name__}"[:80]]


def decode(value: Any) -> Any:
    """The inverse of `encode`. ValueError for anything that `encode` does not produce."""
    match value:
        case None | bool() | str() | float():
            return value
        case int() if -(2**63) <= value < 2**63:
            return value
        case ["float", str(text)]:
            return float(text)
        case ["complex", str(text)]:
            return complex(text)
        case ["list", list(parts)]:
            return [decode(part) for part in parts]
        case ["tuple", list(parts)]:
            return tuple(decode(part) for part in parts)
        case ["dict", dict(parts)]:
            return {key: decode(part) for key, part in parts.items()}
        case ["tensor", [str(kind), list(shape), str(text)]] if kind in DTYPES:
            return _decode_tensor(DTYPES[kind], shape, base64.b64decode(text, validate=True))
        case ["unsupported", str(description)]:
            return Unsupported(description[:80])
        case _:
            raise ValueError("not an encoded value")


def _decode_tensor(dtype: torch.dtype, shape: list[Any], data: bytes) -> Tensor:
    sizes = [size for size in shape if type(size) is int and 0 <= size <= MAX_MESSAGE]
    if len(sizes) != len(shape) or len(shape) > MAX_DIMENSIONS:
        raise ValueError("not a valid shape")
    if math.prod(sizes) * dtype.itemsize != len(data):
        raise ValueError("the number of bytes does not match the shape")
    flat = torch.frombuffer(bytearray(data), dtype=dtype) if data else torch.empty(0, dtype=dtype)
    return flat.reshape(sizes)


def send(channel: socket.socket, message: dict[str, Any]) -> None:
    """Send one message. ValueError if it is too large."""
    data = json.dumps(message).encode()
    if len(data) > MAX_MESSAGE:
        raise ValueError(
            f"an answer may have at most {MAX_MESSAGE >> 20} MiB, not {len(data) / 2**20:.1f} MiB"
        )
    channel.sendall(struct.pack("!Q", len(data)) + data)


def receive(channel: socket.socket, deadline: float = math.inf) -> dict[str, Any]:
    """The next message. EOFError if the channel is closed, TimeoutError after the deadline."""
    (size,) = struct.unpack("!Q", _read_bytes(channel, 8, deadline))
    if size > MAX_MESSAGE:
        raise ValueError("the message is too large")
    message = json.loads(_read_bytes(channel, size, deadline))
    if not isinstance(message, dict):
        raise ValueError("the message is not a JSON object")
    return message


def _read_bytes(channel: socket.socket, size: int, deadline: float) -> bytes:
    data = bytearray()
    while len(data) < size:
        if deadline < math.inf:
            channel.settimeout(max(1e-3, deadline - time.monotonic()))
        chunk = channel.recv(min(size - len(data), 1 << 16))
        if not chunk:
            raise EOFError
        data += chunk
    return bytes(data)
