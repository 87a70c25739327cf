"""Many clients at once: requests per second, latency, memory, and whether every answer is the offline one.

Each contender is a server in a process of its own. They take turns, so that a busy machine slows all of them.
A client sends a request, waits for the answer, and sends the next; some hang up early.
"""

import asyncio
import json
import os
import random
import re
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from regard import documents
from regard.api import load
from regard.errors import UserError
from regard.page.pack import EXAMPLES

BEAMS = (1, 1, 2, 4)
HANG_UP = 0.1  # fraction of requests
PATIENCE = 0.05  # seconds at most until a client hangs up
NEAR = 1e-3  # of scores, between batches of other sizes
WARM_UP = 2.0  # seconds
TEXTS = [" ".join(parts) for count in (1, 2, 3) for parts in product(EXAMPLES["de"], repeat=count)]
PEER = "regard.serve.peer"


@dataclass
class Seen:
    """What the clients of a contender saw."""

    seconds: float = 0.0
    latencies: list[float] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)
    hung_up: int = 0
    answers: dict[tuple[str, int], list[dict[str, Any]]] = field(default_factory=dict)
    """By text and beam."""
    memory: list[tuple[float, float]] = field(default_factory=list)
    """(seconds under load, MiB)"""

    def summarize(self) -> dict[str, Any]:
        quantiles = statistics.quantiles(self.latencies, n=100)
        later = [(at, mib) for at, mib in self.memory if at > self.seconds / 2]
        slope = statistics.linear_regression(*zip(*later, strict=True)) if len(later) > 2 else None
        return {
            "requests_per_second": len(self.latencies) / self.seconds,
            "p50_milliseconds": 1000 * quantiles[49],
            "p99_milliseconds": 1000 * quantiles[98],
            "answered": len(self.latencies),
            "statuses": dict(self.statuses),
            "hung_up": self.hung_up,
            "memory_mib": self.memory[-1][1] if self.memory else None,
            "memory_mib_per_minute": slope and 60 * slope.slope,  # of the second half
            "memory": [(round(at, 1), round(mib, 1)) for at, mib in self.memory],
        }


@dataclass
class Contender:
    """A server in a process of its own."""

    name: str
    options: Sequence[str] = ()
    module: str = "regard"
    seen: Seen = field(default_factory=Seen)
    process: Any = None
    port: int = 0

    @property
    def is_ours(self) -> bool:
        return self.module == "regard"

    def start(self, run: str, log: Path) -> None:
        """Wait until it listens; its log goes to a file, since a full pipe would stop it."""
        command = [sys.executable, "-m", self.module, "serve", run, "--port", "0", *self.options]
        with log.open("wb") as file:
            self.process = subprocess.Popen(command, stderr=file)
        while not (found := re.findall(r'"event": "start".*"port": (\d+)', log.read_text())):
            if self.process.poll() is not None:
                raise UserError(f"{self.name}: the server did not start: {log.read_text().strip()}")
            time.sleep(0.1)
        self.port = int(found[0])

    def stop(self) -> None:
        if self.process is not None:
            self.process.terminate()
            self.process.wait()

    def read_memory(self) -> float | None:
        """Resident memory in MiB, where the system says it (Linux)."""
        try:
            status = Path(f"/proc/{self.process.pid}/status").read_text()
        except OSError:
            return None
        return int(re.findall(r"VmRSS:\s+(\d+)", status)[0]) / 1024


# --- clients --------------------------------------------------------------------------------------


async def run_client(port: int, seen: Seen, until: float, seed: str) -> None:
    """Ask until the time is over."""
    generator = random.Random(seed)
    connection = None
    while time.monotonic() < until:
        connection = connection or await asyncio.open_connection("127.0.0.1", port)
        text, beam = generator.choice(TEXTS), generator.choice(BEAMS)
        started = time.monotonic()
        send(connection[1], {"texts": [text], "decoding": {"beam": beam}})
        if generator.random() < HANG_UP:
            await asyncio.sleep(generator.uniform(0, PATIENCE))
            connection[1].close()
            connection, seen.hung_up = None, seen.hung_up + 1
            continue
        status, body = await receive(connection[0])
        seen.statuses[status] += 1
        if status == 200:
            seen.latencies.append(time.monotonic() - started)
            seen.answers.setdefault((text, beam), []).append(body[0])
        else:
            await asyncio.sleep(1)  # as Retry-After says
    if connection:
        connection[1].close()


def send(writer: asyncio.StreamWriter, given: dict[str, Any]) -> None:
    body = documents.dumps(given).encode()
    head = "POST /api/translate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)


async def receive(reader: asyncio.StreamReader) -> tuple[int, Any]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    [length] = re.findall(r"content-length: (\d+)", head, re.IGNORECASE)
    return int(head.split()[1]), json.loads(await reader.readexactly(int(length)))


async def run_round(
    contender: Contender, seen: Seen, clients: int, seconds: float, seed: int
) -> None:
    """All clients of one contender for a while."""
    started = time.monotonic()
    until, before = started + seconds, seen.seconds

    async def sample_memory() -> None:
        while time.monotonic() < until:
            if (memory := contender.read_memory()) is not None:
                seen.memory.append((before + time.monotonic() - started, memory))
            await asyncio.sleep(0.5)

    names = [f"{seed}/{number}" for number in range(clients)]
    tasks = (run_client(contender.port, seen, until, name) for name in names)
    await asyncio.gather(*tasks, sample_memory())
    seen.seconds += time.monotonic() - started


# --- the test -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LoadTest:
    """Requests per second, latency and memory of `regard serve`, with many clients at once."""

    run_name: str = "de-en"
    clients: int = 64
    seconds: float = 60.0
    """Of each contender."""
    rounds: int = 6
    workers: int = 1
    """More than one: also a server with so many."""
    peers: bool = False
    """Whether to compare with transformers."""

    def contenders(self) -> list[Contender]:
        """Batched first: the others are compared with it."""
        single = ("--max-batch", "1", "--window", "0")
        found = [Contender("batched"), Contender("one at a time", single)]
        if self.workers > 1:
            name, options = f"batched, {self.workers} workers", ("--workers", str(self.workers))
            found.append(Contender(name, options))
        if self.peers:
            found += [
                Contender("transformers, one at a time", single, PEER),
                Contender("transformers, batched", (), PEER),
            ]
        return found

    def run(self, report: Callable[[str], object] = lambda line: None) -> dict[str, Any]:
        """Start the servers, let the clients ask in turns, and check every answer."""
        contenders = self.contenders()
        with ExitStack() as stack:
            folder = Path(stack.enter_context(TemporaryDirectory()))
            for number, contender in enumerate(contenders):
                stack.callback(contender.stop)
                contender.start(self.run_name, folder / f"{number}.log")
                asyncio.run(run_round(contender, Seen(), self.clients, WARM_UP, -1))
            for number in range(self.rounds):
                for contender in contenders:
                    seconds = self.seconds / self.rounds
                    round_ = run_round(contender, contender.seen, self.clients, seconds, number)
                    asyncio.run(round_)
                report(f"round {number + 1} of {self.rounds}")
        rows = [
            {"contender": one.name, **one.seen.summarize(), "wrong": self.count_wrong(one)}
            for one in contenders
        ]
        about = {"run": self.run_name, "clients": self.clients, "cores": os.cpu_count()}
        return {**about, "seconds": self.seconds, "contenders": rows}

    def count_wrong(self, contender: Contender) -> int | None:
        """Answers that are not those of `Translator.translate`; random weights have none."""
        if not contender.is_ours:
            return None
        offline, wrong = load(self.run_name), 0
        answers = contender.seen.answers
        for beam in set(BEAMS):
            asked = [text for text, width in answers if width == beam]
            outputs = offline.translate(asked, beam=beam, attention=False)
            for text, output in zip(asked, outputs, strict=True):
                wrong += sum(
                    got["text"] != output.text or abs(got["score"] - output.score) > NEAR
                    for got in answers[text, beam]
                )
        return wrong
