"""Run answers: start with PyTorch imported, then fork a confined process for each answer.

`main` talks to the checker over a socket. For each answer the checker sends another socket, a file for what
the answer prints, and a request; later it asks for the end of the answer's process.

Grading happens in the checker only, and neither our solutions nor expected values are ever in this process:
nothing that an answer does here can make a wrong result pass.
"""

import contextlib
import errno
import os
import signal
import socket
import sys
import time
import traceback
import types
from pathlib import Path
from typing import Any, NoReturn

from .confine import MAX_PRINTED, confine
from .wire import decode, encode, receive, send

FOLDER = Path(__file__).parents[1]  # of `worker`, as the checker put it on the path
PACKAGE = FOLDER.parents[1]  # regard
RULES = "an answer may only compute: no writing, programs or network, and no files but Python's"


def main(descriptor: int) -> None:
    """Run one answer after another, until the checker closes the socket."""
    with contextlib.suppress(EOFError, OSError):
        run_answers(socket.socket(fileno=descriptor))


def run_answers(control: socket.socket) -> None:
    send(control, {"started": True})
    while True:
        data, descriptors, _, _ = socket.recv_fds(control, 1, 2)
        if not data:
            return
        request = receive(control)
        process = os.fork() if request["fork"] else 0
        if not process:
            control.close()
            serve(descriptors[0], descriptors[1], request)
        with contextlib.suppress(OSError):
            os.setpgid(process, process)
        for descriptor in descriptors:
            os.close(descriptor)
        send(control, {"code": end(process, receive(control)["grace"])})


def end(process: int, grace: float) -> int | None:
    """The exit code of a process that ends within `grace` seconds; else it is killed. So is its group."""
    deadline = time.monotonic() + grace
    while not (ended := os.waitpid(process, os.WNOHANG))[0] and time.monotonic() < deadline:
        time.sleep(0.005)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process, signal.SIGKILL)
    if ended[0]:
        return os.waitstatus_to_exitcode(ended[1])
    os.waitpid(process, 0)
    return None


def serve(descriptor: int, output: int, request: dict[str, Any]) -> NoReturn:
    """Load the answer file, then evaluate its function on one request after another."""
    try:
        channel = isolate(descriptor, output)
        active = confine(request["protections"], request["seconds"], PACKAGE)
        send(channel, {"protections": active})
        answer = receive(channel)
        file = answer["file"]
        function, reply = load_function(answer["source"], file, answer["function"])
        send(channel, reply)
        while function:
            arguments = decode(receive(channel)["call"])
            try:
                send(channel, {"answer": encode(function(*arguments))})
            except BaseException as error:
                send(channel, describe_error(error, file))
    except (EOFError, OSError):  # the checker has closed the socket
        os._exit(0)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)  # skips exit handlers that an answer may have registered


def isolate(descriptor: int, output: int) -> socket.socket:
    """A process group, no environment, and no open file but the answer's own; its socket."""
    with contextlib.suppress(OSError):  # without a fork, it leads a group already
        os.setpgid(0, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.closerange(3, descriptor)
    os.closerange(descriptor + 1, os.sysconf("SC_OPEN_MAX"))
    os.environ.clear()
    sys.argv[:] = [""]
    sys.path.remove(str(FOLDER))
    return socket.socket(fileno=descriptor)


def load_function(source: str, file: str, function: str) -> tuple[Any, dict[str, Any]]:
    """The function from the answer file, and the reply to the checker."""
    module = types.ModuleType("worksheet")
    module.__file__ = file
    sys.modules["worksheet"] = module  # as an import would: dataclasses look it up there
    try:
        exec(compile(source, file, "exec"), module.__dict__)
    except BaseException as error:
        return None, describe_error(error, file)
    loaded = vars(module).get(function)
    if callable(loaded):
        return loaded, {"ready": True}
    names = [name for name, value in vars(module).items() if isinstance(value, types.FunctionType)]
    return None, {"functions": names[:50]}


def describe_error(error: BaseException, file: str) -> dict[str, Any]:
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
        if isinstance(error, PermissionError):
            message = f"{message} ({RULES})"
    except BaseException:
        message = ""
    return {"error": type(error).__name__[:80], "message": str(message)[:500], "line": line}
