"""Many clients at once: requests per second, latency, memory, and whether every answer is the offline one.

Each contender is a server in a process of its own. Rounds of the contenders take turns, so that a busy machine
slows all of them. A client sends a request, waits for the answer, and sends the next; some hang up early.
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
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

from regard.api import load
from regard.errors import UserError
from regard.page.pack import EXAMPLES
from regard.statistics import fit_line

BEAMS = (1, 1, 2, 4)
HANG_UP = 0.1  # fraction of requests
PATIENCE = 0.05  # seconds at most until a client hangs up
NEAR = 1e-3  # of scores, between batches of other sizes
TEXTS = [" ".join(parts) for count in (1, 2, 3) for parts in product(EXAMPLES["de"], repeat=count)]

PEER = "regard.serve.peer"


@dataclass
class Contender:
    """A server, and what its clients saw."""

    name: str
    options: Sequence[str]
    module: str = "regard"
    is_ours: bool = True
    process: Any = None
    port: int = 0
    seconds: float = 0.0
    latencies: list[float] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)
    hung_up: int = 0
    answers: dict[tuple[str, int], list[dict[str, Any]]] = field(default_factory=dict)
    memory: list[tuple[float, float]] = field(default_factory=list)
    """(seconds under load, MiB)"""

    def start(self, run: str) -> None:
        command = [sys.executable, "-m", self.module, "serve", run, "--port", "0", *self.options]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        lines = iter(self.process.stderr.readline, "")
        events = (json.loads(line) for line in lines if line.startswith("{"))
        start = next((event for event in events if event["event"] == "start"), None)
        if start is None:
            raise UserError(f"the server `regard serve {run}` did not start")
        self.port = start["port"]

    def stop(self) -> None:
        if self.process is not None:
            self.process.terminate()
            self.process.communicate()

    def read_memory(self) -> float | None:
        """Resident memory in MiB, where the system says it (Linux)."""
        try:
            status = Path(f"/proc/{self.process.pid}/status").read_text()
        except OSError:
            return None
        return int(re.findall(r"VmRSS:\s+(\d+)", status)[0]) / 1024

    def summarize(self) -> dict[str, Any]:
        quantiles = statistics.quantiles(self.latencies, n=100)
        slope = fit_line(*zip(*self.memory, strict=True)) if len(self.memory) > 2 else None
        return {
            "contender": self.name,
            "requests_per_second": len(self.latencies) / self.seconds,
            "p50_milliseconds": 1000 * quantiles[49],
            "p99_milliseconds": 1000 * quantiles[98],
            "answered": len(self.latencies),
            "statuses": dict(self.statuses),
            "hung_up": self.hung_up,
            "memory_mib": self.memory[-1][1] if self.memory else None,
            "memory_slope_mib_per_minute": None if slope is None else 60 * slope,
        }


# --- clients --------------------------------------------------------------------------------------


async def run_client(contender: Contender, until: float, seed: str) -> None:
    """Ask until the time is over."""
    generator = random.Random(seed)
    connection = None
    while time.monotonic() < until:
        connection = connection or await asyncio.open_connection("127.0.0.1", contender.port)
        text, beam = generator.choice(TEXTS), generator.choice(BEAMS)
        hangs_up = generator.random() < HANG_UP
        started = time.monotonic()
        send(connection[1], {"texts": [text], "decoding": {"beam": beam}})
        if hangs_up:
            await asyncio.sleep(generator.uniform(0, PATIENCE))
            connection[1].close()
            connection, contender.hung_up = None, contender.hung_up + 1
            continue
        status, body = await receive(connection[0])
        contender.statuses[status] += 1
        if status == 200:
            contender.latencies.append(time.monotonic() - started)
            contender.answers.setdefault((text, beam), []).append(body[0])
        else:
            await asyncio.sleep(1)
    if connection:
        connection[1].close()


def send(writer: asyncio.StreamWriter, given: dict[str, Any]) -> None:
    body = json.dumps(given).encode()
    head = "POST /api/translate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)


async def receive(reader: asyncio.StreamReader) -> tuple[int, Any]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    [length] = re.findall(r"content-length: (\d+)", head, re.IGNORECASE)
    return int(head.split()[1]), json.loads(await reader.readexactly(int(length)))


async def run_round(contender: Contender, clients: int, seconds: float, seed: int) -> None:
    """All clients of one contender for a while."""
    started = time.monotonic()
    until = started + seconds
    before = contender.seconds

    async def sample_memory() -> None:
        while time.monotonic() < until:
            if (memory := contender.read_memory()) is not None:
                contender.memory.append((before + time.monotonic() - started, memory))
            await asyncio.sleep(0.5)

    names = [f"{seed}/{number}" for number in range(clients)]
    await asyncio.gather(*(run_client(contender, until, name) for name in names), sample_memory())
    contender.seconds += time.monotonic() - started


# --- the test -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LoadTest:
    """Requests per second, latency and memory of `regard serve`, with many clients at once."""

    run_name: str = "de-en"
    clients: int = 64
    seconds: float = 60.0
    """Of each contender."""
    rounds: int = 6
    peers: bool = False
    """Whether to compare with transformers."""

    def contenders(self) -> list[Contender]:
        """Batched first: the others are compared with it."""
        single = ["--max-batch", "1", "--window", "0"]
        found = [Contender("regard serve", []), Contender("one request at a time", single)]
        if self.peers:
            found += [
                Contender("transformers, one at a time", single, PEER, is_ours=False),
                Contender("transformers, batched", [], PEER, is_ours=False),
            ]
        return found

    def run(self, report: Callable[[str], object] = lambda line: None) -> dict[str, Any]:
        """Start the servers, let the clients ask in turns, and check every answer."""
        contenders = self.contenders()
        try:
            for contender in contenders:
                contender.start(self.run_name)
                asyncio.run(run_round(contender, self.clients, 1.0, -1))  # warm-up
                contender.__dict__.update(
                    vars(Contender(contender.name, contender.options))
                    | {name: getattr(contender, name) for name in KEPT}
                )
            for number in range(self.rounds):
                for contender in contenders:
                    seconds = self.seconds / self.rounds
                    asyncio.run(run_round(contender, self.clients, seconds, number))
                report(f"round {number + 1} of {self.rounds}")
        finally:
            for contender in contenders:
                contender.stop()
        rows = [one.summarize() | {"wrong": self.count_wrong(one)} for one in contenders]
        about = {"run": self.run_name, "clients": self.clients, "cores": os.cpu_count()}
        return {**about, "seconds": self.seconds, "contenders": rows}

    def count_wrong(self, contender: Contender) -> int | None:
        """Answers that are not those of `Translator.translate`."""
        if not contender.is_ours:
            return None
        offline, wrong = load(self.run_name), 0
        for beam in set(BEAMS):
            asked = [text for text, width in contender.answers if width == beam]
            outputs = offline.translate(asked, beam=beam, attention=False)
            for text, output in zip(asked, outputs, strict=True):
                wrong += sum(
                    got["text"] != output.text or abs(got["score"] - output.score) > NEAR
                    for got in contender.answers[text, beam]
                )
        return wrong


KEPT = ("module", "is_ours", "process", "port")
