"""The worker process of the sandbox: it runs a user's answer file and evaluates its function on request.

    python -P sandbox_worker.py FILE_DESCRIPTOR SECONDS

Both sides exchange length-prefixed JSON over a socket; tensors are sent as raw bytes, so neither side ever
unpickles data from the other. Grading happens in the parent process only: nothing that an answer file does
here can make a wrong answer pass.

The sandbox stops accidents and pranks: subprocesses, network access, writing or deleting files, unbounded
memory and time. It is not a security boundary against someone who knows Python's internals. This module
imports nothing from regard, so that the worker does not load all labs.
"""

import base64
import contextlib
import errno
import json
import math
import os
import signal
import socket
import struct
import sys
import time
import types
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

MAX_MESSAGE = 4 << 20  # bytes
MAX_PRINTED = 1 << 20  # bytes
MAX_MEMORY = 2 << 30  # bytes, beyond what PyTorch itself uses
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


# ---- the worker

FORBIDDEN_EVENTS = (
    *("os.fork", "os.exec", "os.posix_spawn", "os.spawn", "os.system", "os.kill", "subprocess."),
    *("signal.pthread_kill", "pty.", "socket.", "ctypes.dlopen", "ctypes.dlsym", "resource."),
    *("os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.link", "os.symlink", "os.truncate"),
    *("os.chmod", "os.chown", "os.utime", "os.setxattr", "os.removexattr", "shutil.", "tempfile."),
)
WRITE_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    """Audit hook that forbids what an answer does not need. Python cannot remove an audit hook."""
    if event == "open" and isinstance(arguments[2], int) and arguments[2] & WRITE_FLAGS:
        raise PermissionError("an answer may not write files")
    if event.startswith(FORBIDDEN_EVENTS):
        raise PermissionError(f"an answer may not use {event}")


def _restrict(seconds: float) -> None:
    """Set the kernel's resource limits, then the audit hook. Limits unknown to this system are skipped."""
    with contextlib.suppress(ImportError):
        import resource

        cpu = math.ceil(time.process_time() + seconds) + 1
        limits = {"CPU": cpu, "FSIZE": MAX_PRINTED, "CORE": 0, "NPROC": 0}
        with contextlib.suppress(OSError), open("/proc/self/statm") as statm:
            used = int(statm.read().split()[0]) * resource.getpagesize()
            limits["AS"] = used + MAX_MEMORY
        for name, limit in limits.items():
            with contextlib.suppress(ValueError, OSError, AttributeError):
                resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (limit, limit))
    signal.setitimer(signal.ITIMER_REAL, seconds + 5)  # in case the parent process has died
    sys.addaudithook(_audit)


def _describe_error(error: BaseException, file: str) -> dict[str, Any]:
    """An exception as its type, its message, and the innermost line of the answer file in its traceback."""
    line = error.lineno if isinstance(error, SyntaxError) else None
    trace = error.__traceback__
    while trace:
        if trace.tb_frame.f_code.co_filename == file:
            line = trace.tb_lineno
        trace = trace.tb_next
    try:
        message = error.msg if isinstance(error, SyntaxError) else str(error)
        if isinstance(error, OSError) and error.errno == errno.EFBIG:
            message = f"it printed more than {MAX_PRINTED >> 20} MiB"
    except BaseException:
        message = ""
    return {"error": type(error).__name__[:80], "message": str(message)[:500], "line": line}


def _load_function(source: str, file: str, function: str) -> tuple[Any, dict[str, Any]]:
    """The function from the answer file, and the reply to the parent process."""
    module = types.ModuleType("worksheet")
    module.__file__ = file
    sys.modules["worksheet"] = module  # as an import would: dataclasses look it up there
    try:
        exec(compile(source, file, "exec"), module.__dict__)
    except BaseException as error:
        return None, _describe_error(error, file)
    loaded = vars(module).get(function)
    if callable(loaded):
        return loaded, {"ready": True}
    names = [name for name, value in vars(module).items() if isinstance(value, types.FunctionType)]
    return None, {"functions": names[:50]}


def main(descriptor: int, seconds: float) -> None:
    """Load the answer file, then evaluate its function on one request after another."""
    channel = socket.socket(fileno=descriptor)
    send(channel, {"started": True})
    request = receive(channel)
    file = request["file"]
    _restrict(seconds)
    function, reply = _load_function(request["source"], file, request["function"])
    send(channel, reply)
    while function:
        arguments = decode(receive(channel)["call"])
        try:
            send(channel, {"answer": encode(function(*arguments))})
        except BaseException as error:
            send(channel, _describe_error(error, file))


if __name__ == "__main__":
    with contextlib.suppress(EOFError, OSError):
        main(int(sys.argv[1]), float(sys.argv[2]))
    os._exit(0)  # skips exit handlers that an answer may have registered
