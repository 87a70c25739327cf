"""Labs for clients, in a process of their own: one at a time, ended if it takes too long.

A lab may train models, and parameters may make it slow, so a thread, which cannot be ended, will not do. The
process starts with the first request.
"""

import asyncio
import multiprocessing
import time
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from regard.serve import schema
from regard.serve.settings import RequestError

MOST_WAITING = 4  # requests


class LabProcess:
    """Runs labs, one after the other."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.process: BaseProcess | None = None
        self.connection: Connection | None = None
        self.lock = asyncio.Lock()
        self.waiting = 0

    async def run(self, name: str, seed: int, parameters: dict[str, Any]) -> schema.LabResult:
        """The result of a lab; an error if it takes too long, or too many wait."""
        if self.waiting >= MOST_WAITING:
            message = f"{self.waiting} labs are waiting: try again"
            raise RequestError(503, "queue-full", message, {"Retry-After": "5"})
        self.waiting += 1
        try:
            async with self.lock:
                return await asyncio.to_thread(self.ask, name, seed, parameters)
        finally:
            self.waiting -= 1

    def ask(self, name: str, seed: int, parameters: dict[str, Any]) -> schema.LabResult:
        connection = self.start()
        connection.send((name, seed, parameters))
        try:
            answer = connection.recv() if connection.poll(self.seconds) else None
        except EOFError:
            answer = f"lab {name} ran out of memory: choose smaller parameters"
        if answer is None:
            self.stop()
            message = (
                f"lab {name} took more than {self.seconds:g} seconds: choose smaller parameters"
            )
            raise RequestError(408, "too-slow", message)
        if isinstance(answer, str):
            raise RequestError(422, "invalid", answer)
        return schema.LabResult.model_construct(**answer)

    def start(self) -> Connection:
        if self.process is None or not self.process.is_alive() or self.connection is None:
            context = multiprocessing.get_context("spawn")
            ours, theirs = context.Pipe()
            process = context.Process(target=serve_labs, args=(theirs,), daemon=True)
            process.start()
            theirs.close()
            self.process, self.connection = process, ours
            try:
                ours.recv()  # PyTorch is imported: from here on, the time is the lab's
            except EOFError:
                self.stop()
                message = "the process for labs ended as it started: look for its error in the log"
                raise RequestError(503, "no-labs", message, {"Retry-After": "5"}) from None
        return self.connection

    def stop(self) -> None:
        if self.process is not None and self.connection is not None:
            self.process.kill()
            self.process.join()
            self.connection.close()
        self.process = self.connection = None


def serve_labs(connection: Connection) -> None:
    """Answer (name, seed, parameters) with the fields of a `LabResult`, or with an error's sentence."""
    import signal
    from contextlib import suppress

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the server ends this process
    import regard.page.labs  # noqa: F401

    connection.send("ready")
    with suppress(EOFError, OSError):
        while True:
            connection.send(run_lab(*connection.recv()))


def run_lab(name: str, seed: int, parameters: dict[str, Any]) -> dict[str, Any] | str:
    from regard.errors import UserError
    from regard.labs import LABS
    from regard.page.labs import describe_result
    from regard.page.plots import Glyphs, draw_svg

    started, lab = time.monotonic(), LABS[name]
    glyphs: Glyphs = {}
    try:
        result = lab.run(seed, **parameters)
        plot = draw_svg(lab, result, glyphs)
    except UserError as error:
        return str(error)
    except (ArithmeticError, ValueError, RuntimeError, MemoryError) as error:
        return f"lab {name} cannot be measured at these parameters: {str(error).splitlines()[0]}"
    data = result.to_dict()
    return {
        "name": name,
        "seed": seed,
        "parameters": data["parameters"],
        "passed": result.passed,
        "figures": data["figures"],
        "result": describe_result(lab, result),
        "plot": plot,
        "glyphs": glyphs,
        "seconds": time.monotonic() - started,
    }
