"""A server in a thread of the test, on a free port, with the shipped model."""

import http.client
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import regard
from regard.serve.server import create_server, listen
from regard.serve.settings import Limits, Settings

COMPARISON = Path(__file__).parents[2] / "results" / "families"
LIMITS = Limits(characters=400, texts=8, beam=8, nbest=8, body=20_000, seconds=20, queue=64)
SENTENCES = [
    "Ein Mann schläft auf einer grünen Bank.",
    "Guten Morgen!",
    "Ich habe gestern ein Buch gekauft, das ich noch nicht gelesen habe.",
    "Weil es regnet, bleiben wir heute zu Hause und lesen.",
    "Ja.",
]


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class Client:
    port: int
    token: str | None = None

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)

    def send(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> Answer:
        given = {"Content-Type": "application/json"} if body is not None else {}
        given |= {"Authorization": f"Bearer {self.token}"} if self.token else {}
        data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        connection = self.connect()
        connection.request(method, path, data, given | (headers or {}))
        response = connection.getresponse()
        answer = Answer(
            response.status, {k.lower(): v for k, v in response.getheaders()}, response.read()
        )
        connection.close()
        return answer

    def get(self, path: str, **headers: str) -> Answer:
        return self.send("GET", path, headers=headers)

    def post(self, path: str, **body: Any) -> Answer:
        return self.send("POST", path, body)


@contextmanager
def serve(settings: Settings) -> Iterator[Client]:
    with listen("127.0.0.1", 0) as listener:
        server = create_server(settings)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        try:
            while not server.started:
                assert thread.is_alive()
                time.sleep(0.01)
            yield Client(listener.getsockname()[1], settings.token)
        finally:
            server.should_exit = True
            thread.join(30)
            assert not thread.is_alive(), "the server does not stop"


@pytest.fixture(scope="session")
def client() -> Iterator[Client]:
    settings = Settings((Path("de-en"),), (COMPARISON,), limits=LIMITS)
    with serve(settings) as client:
        yield client


@pytest.fixture(scope="session")
def offline() -> Any:
    return regard.load("de-en")
