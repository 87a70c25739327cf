"""A reader's file in a process of its own: it answers the checker's questions, and can do little else.

    python -P sandbox_worker.py FILE_DESCRIPTOR SECONDS

The two sides speak JSON over a socket, each message led by its length; tensors travel as their bytes, so
neither side ever unpickles what the other sent. The law is held by the checker alone: nothing that a file
does in here can make a wrong answer right.

The fence keeps out what readers do by accident and what a prank would do: other processes, the network,
files that are written or removed, memory and time without end. It is no prison for someone who
knows Python's insides. This file needs PyTorch alone, which saves the child the import of all labs.
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

LARGEST = 4 << 20  # bytes of one message
SPOKEN = 1 << 20  # bytes that an answer may print
MEMORY = 2 << 30  # bytes beyond what PyTorch takes
DIMENSIONS = 16
DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        *(torch.float16, torch.float32, torch.float64, torch.complex64, torch.complex128),
        *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    )
}


@dataclass(frozen=True)
class Unsupported:
    """Something that does not travel; only what it is called does."""

    kind: str


def encode(value: Any) -> Any:
    """A value as JSON: numbers and strings as they are, the rest as [kind, content]."""
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
            return ["foreign", f"a tensor of {value.dtype}"]
        case _ if type(value).__module__ == "numpy":
            return encode(torch.as_tensor(value))
        case int():
            return ["foreign", "a whole number of more than 64 bits"]
        case _:
            return ["foreign", f"a thing of type {type(value).__name__}"[:80]]


def decode(value: Any) -> Any:
    """What `encode` was given. ValueError for anything that `encode` does not write."""
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
            return _tensor(DTYPES[kind], shape, base64.b64decode(text, validate=True))
        case ["foreign", str(kind)]:
            return Unsupported(kind[:80])
        case _:
            raise ValueError("not an encoded value")


def _tensor(dtype: torch.dtype, shape: list[Any], data: bytes) -> Tensor:
    sizes = [size for size in shape if type(size) is int and 0 <= size <= LARGEST]
    if len(sizes) != len(shape) or len(shape) > DIMENSIONS:
        raise ValueError("not a shape")
    if math.prod(sizes) * dtype.itemsize != len(data):
        raise ValueError("not as many bytes as the shape needs")
    flat = torch.frombuffer(bytearray(data), dtype=dtype) if data else torch.empty(0, dtype=dtype)
    return flat.reshape(sizes)


def send(channel: socket.socket, message: dict[str, Any]) -> None:
    """One message, or ValueError where it is too large."""
    data = json.dumps(message).encode()
    if len(data) > LARGEST:
        raise ValueError(f"that is more than the {LARGEST >> 20} MiB that one answer may hold")
    channel.sendall(struct.pack("!Q", len(data)) + data)


def receive(channel: socket.socket, until: float = math.inf) -> dict[str, Any]:
    """The next message; EOFError when there is none, TimeoutError when the clock says `until`."""
    (size,) = struct.unpack("!Q", _read(channel, 8, until))
    if size > LARGEST:
        raise ValueError("a message that is too large")
    message = json.loads(_read(channel, size, until))
    if not isinstance(message, dict):
        raise ValueError("a message that is no table")
    return message


def _read(channel: socket.socket, size: int, until: float) -> bytes:
    data = bytearray()
    while len(data) < size:
        if until < math.inf:
            channel.settimeout(max(1e-3, until - time.monotonic()))
        part = channel.recv(min(size - len(data), 1 << 16))
        if not part:
            raise EOFError
        data += part
    return bytes(data)


# ---- the child

REFUSED = (
    *("os.fork", "os.exec", "os.posix_spawn", "os.spawn", "os.system", "os.kill", "subprocess."),
    *("signal.pthread_kill", "pty.", "socket.", "ctypes.dlopen", "ctypes.dlsym", "resource."),
    *("os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.link", "os.symlink", "os.truncate"),
    *("os.chmod", "os.chown", "os.utime", "os.setxattr", "os.removexattr", "shutil.", "tempfile."),
)
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def _guard(event: str, arguments: tuple[Any, ...]) -> None:
    """Refuses what an answer has no need of. Python gives no way to take such a hook off again."""
    if event == "open" and isinstance(arguments[2], int) and arguments[2] & WRITES:
        raise PermissionError("an answer may not write files")
    if event.startswith(REFUSED):
        raise PermissionError(f"an answer may not use {event}")


def _fence(seconds: float) -> None:
    """Limits that the kernel keeps, then Python's own. Where a limit is unknown, the others remain."""
    with contextlib.suppress(ImportError):
        import resource

        cpu = math.ceil(time.process_time() + seconds) + 1
        limits = {"CPU": cpu, "FSIZE": SPOKEN, "CORE": 0, "NPROC": 0}
        with contextlib.suppress(OSError), open("/proc/self/statm") as pages:
            taken = int(pages.read().split()[0]) * resource.getpagesize()
            limits["AS"] = taken + MEMORY
        for name, limit in limits.items():
            with contextlib.suppress(ValueError, OSError, AttributeError):
                resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (limit, limit))
    signal.setitimer(signal.ITIMER_REAL, seconds + 5)  # should the checker itself be gone by then
    sys.addaudithook(_guard)


def _trouble(error: BaseException, file: str) -> dict[str, Any]:
    """An exception as its kind, its words, and the last line of the reader's file that it passed."""
    line = error.lineno if isinstance(error, SyntaxError) else None
    trace = error.__traceback__
    while trace:
        if trace.tb_frame.f_code.co_filename == file:
            line = trace.tb_lineno
        trace = trace.tb_next
    try:
        words = error.msg if isinstance(error, SyntaxError) else str(error)
        if isinstance(error, OSError) and error.errno == errno.EFBIG:
            words = f"it printed more than {SPOKEN >> 20} MiB"
    except BaseException:
        words = ""
    return {"error": type(error).__name__[:80], "words": str(words)[:500], "line": line}


def _load(source: str, file: str, function: str) -> tuple[Any, dict[str, Any]]:
    """The function that the reader wrote, and what to tell the checker about it."""
    module = types.ModuleType("worksheet")
    module.__file__ = file
    sys.modules["worksheet"] = module  # as an import would: dataclasses look there
    try:
        exec(compile(source, file, "exec"), module.__dict__)
    except BaseException as error:
        return None, _trouble(error, file)
    written = vars(module).get(function)
    if callable(written):
        return written, {"ready": True}
    names = [name for name, value in vars(module).items() if isinstance(value, types.FunctionType)]
    return None, {"functions": names[:50]}


def main(descriptor: int, seconds: float) -> None:
    """Load the reader's file, then answer one question after the other."""
    channel = socket.socket(fileno=descriptor)
    send(channel, {"awake": True})
    first = receive(channel)
    file = first["file"]
    _fence(seconds)
    written, told = _load(first["source"], file, first["function"])
    send(channel, told)
    while written:
        asked = decode(receive(channel)["call"])
        try:
            send(channel, {"answer": encode(written(*asked))})
        except BaseException as error:
            send(channel, _trouble(error, file))


if __name__ == "__main__":
    with contextlib.suppress(EOFError, OSError):
        main(int(sys.argv[1]), float(sys.argv[2]))
    os._exit(0)  # nothing that an answer left to be done at the end is done
