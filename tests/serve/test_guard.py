"""Who may ask: host, origin, token, size and time; and what the log and the metrics say."""

import json
import logging
import re
import socket
import time
from dataclasses import replace
from pathlib import Path

import pytest

from regard.errors import UserError
from regard.serve.guard import HEADERS
from regard.serve.settings import Settings, check_token
from regard.serve.telemetry import JsonFormatter
from tests.serve.conftest import LIMITS, serve

TOKEN = "a-long-token"


@pytest.fixture(scope="module")
def guarded():
    """A server without models: nothing here needs one."""
    limits = replace(LIMITS, seconds=1.0, body=1000)
    settings = Settings((), token=TOKEN, hosts=("models.example",), limits=limits)
    with serve(settings) as client:
        yield client


def test_the_token_covers_all_but_health_and_page(guarded):
    stranger = replace(guarded, token=None)
    assert stranger.get("/healthz").status == stranger.get("/").status == 200
    for path in ("/api/models", "/api/openapi.json", "/metrics", "/api/nothing"):
        answer = stranger.get(path)
        assert (answer.status, answer.json["code"]) == (401, "no-token")
        assert answer.headers["www-authenticate"] == "Bearer"
        assert replace(guarded, token="a-wrong-token").get(path).status == 401
        assert stranger.get(path, Authorization=f"Basic {TOKEN}").status == 401
        assert guarded.get(path).status in (200, 404)


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "", "[::1", "localhost.evil"]
)
def test_an_unknown_host_is_refused(guarded, host):
    answer = guarded.get("/api/models", Host=host)
    assert (answer.status, answer.json["code"]) == (421, "unknown-host")


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:81", "192.0.2.7", "[::1]:8000", "Models.example:443"]
)
def test_addresses_and_known_names_are_hosts(guarded, host):
    assert guarded.get("/api/models", Host=host).status == 200


def test_pages_of_other_origins_are_refused(guarded):
    own = f"127.0.0.1:{guarded.port}"
    for origin in (
        "http://evil.example",
        "null",
        "http://localhost",
        f"http://{own}.evil.example",
        "x",
    ):
        answer = guarded.get("/api/models", Origin=origin)
        assert (answer.status, answer.json["code"]) == (403, "foreign-origin")
        assert "access-control-allow-origin" not in answer.headers
    assert guarded.get("/api/models", Origin=f"http://{own}").status == 200
    assert guarded.send("OPTIONS", "/api/translate").status == 405  # no preflight succeeds


def test_every_answer_has_the_headers(guarded):
    for path in ("/", "/healthz", "/api/models", "/api/nothing"):
        headers = guarded.get(path).headers
        assert headers.keys() >= HEADERS.keys()
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert "server" not in headers


def test_large_bodies_are_refused_unread(guarded):
    answer = guarded.send("POST", "/api/translate", b"x" * 1001)
    assert (answer.status, answer.json["code"]) == (413, "body-too-large")
    chunk = b"258\r\n" + b"x" * 600 + b"\r\n"
    with open_request(guarded, "Transfer-Encoding: chunked") as connection:
        connection.sendall(2 * chunk)
        assert connection.recv(100).startswith(b"HTTP/1.1 413")


def open_request(client, header: str) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", client.port), timeout=5)
    head = f"POST /api/translate HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n"
    connection.sendall(f"{head}{header}\r\n\r\n".encode())
    return connection


def test_a_body_that_does_not_come_is_not_waited_for(guarded):
    with open_request(guarded, "Content-Length: 9") as connection:
        connection.sendall(b"{")
        started = time.monotonic()
        assert connection.recv(100).startswith(b"HTTP/1.1 408")
        assert time.monotonic() - started < 4


def test_a_server_without_models_says_so(guarded):
    answer = guarded.post("/api/translate", texts=["ja"])
    assert (answer.status, answer.json["error"]) == (404, "this server has no model")


# --- logs and metrics -----------------------------------------------------------------------------


@pytest.fixture
def lines():
    """What the server logs."""
    lines: list[str] = []
    handler, logger = logging.Handler(), logging.getLogger("regard.serve")
    handler.emit = lambda record: lines.append(JsonFormatter().format(record))
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield lines
    logger.removeHandler(handler)
    logger.setLevel(level)


@pytest.mark.parametrize("log_text", [False, True])
def test_the_log_has_texts_only_if_asked(log_text, lines):
    settings = Settings((Path("de-en-gru"),), log_text=log_text, limits=LIMITS)
    with serve(settings) as client:
        assert client.post("/api/translate", texts=["Guten Morgen!"]).status == 200
        client.get("/api/runs/Geheimnis?after=Geheimnis")
    requests = [json.loads(line) for line in lines if '"request"' in line]
    # Another server of these tests may still log the refusal of a request.
    answered = [one for one in requests if (one["path"], one["status"]) == ("/api/translate", 200)]
    [first] = answered
    assert first["texts"] == 1
    assert first.get("text") == (["Guten Morgen!"] if log_text else None)
    assert not any("Geheimnis" in line for line in lines)


def test_metrics_are_prometheus_text(client):
    client.post("/api/translate", texts=["Guten Morgen!"])
    answer = client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    sample = r"[a-z_]+(\{([a-z]+=\"[^\"]*\",?)*\})? [0-9.e+-]+"
    for line in answer.body.decode().splitlines():
        assert re.fullmatch(
            rf"# HELP [a-z_]+ .+|# TYPE [a-z_]+ (counter|gauge|histogram)|{sample}", line
        )
    text = answer.body.decode()
    counts = [
        int(n)
        for n in re.findall(r'regard_request_seconds_bucket{path="/api/translate",.*} (\d+)', text)
    ]
    assert counts == sorted(counts)
    assert counts[-1] == int(re.findall(r'_count{path="/api/translate"} (\d+)', text)[0]) > 0
    assert 'regard_queue_texts{model="de-en"} 0' in text


# --- settings -------------------------------------------------------------------------------------


def test_a_server_for_other_machines_needs_a_token():
    for host in ("0.0.0.0", "::", "192.0.2.7", "models.example"):
        with pytest.raises(UserError, match="give --token or set REGARD_TOKEN"):
            check_token(host, None, False)
        check_token(host, TOKEN, False)
        check_token(host, None, True)
    for host in ("127.0.0.1", "127.9.9.9", "::1", "localhost"):
        check_token(host, None, False)
    with pytest.raises(UserError, match="not both"):
        check_token("127.0.0.1", TOKEN, True)


@pytest.mark.parametrize("token", ["short", "ümlaut-token", "line\nbreak-token"])
def test_a_token_is_long_and_plain(token):
    with pytest.raises(UserError, match="8 or more printable"):
        Settings((), token=token)


def test_the_token_is_not_in_the_representation():
    assert TOKEN not in repr(Settings((), token=TOKEN))
