"""`regard serve` as a program: it starts, answers, and stops at a signal once it has answered."""

import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
import uvicorn

from regard import shipped
from regard.devices import KERNEL_CACHES
from regard.errors import UserError
from regard.serve.server import HttpServer, listen
from tests.serve.conftest import Client
from tests.stories.conftest import run_command


@pytest.fixture
def program():
    command = [sys.executable, "-m", "regard", "serve", "de-en", "--port", "0", "--window", "400"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


def test_sigterm_finishes_what_has_begun(program):
    lines = iter(program.stderr.readline, "")
    start = next(event for event in parse(lines) if event["event"] == "start")
    client, answers = Client(start["port"]), []
    while client_is_refused(client):
        time.sleep(0.05)

    def ask() -> None:
        answers.append(client.post("/api/translate", texts=["Guten Morgen!"]))

    thread = threading.Thread(target=ask)
    thread.start()
    time.sleep(0.2)  # within the window: the request waits for others
    os.kill(program.pid, signal.SIGTERM)
    thread.join()
    assert program.wait(20) == 0
    assert [answer.json[0]["text"] for answer in answers] == ["Good morning."]
    events = [event["event"] for event in parse(lines)]
    assert events[-1] == "stop"
    assert "request" in events


def parse(lines):
    return (json.loads(line) for line in lines if line.startswith("{"))


def client_is_refused(client) -> bool:
    try:
        return client.get("/healthz").status != 200
    except ConnectionError:
        return True


def test_mistakes_on_the_command_line(tmp_path):
    (tmp_path / "empty").mkdir()
    with listen("127.0.0.1", 0) as taken:
        taken.listen()
        port = str(taken.getsockname()[1])
        for words, message in [
            (["--host", "0.0.0.0"], "give --token or set REGARD_TOKEN"),
            (["--token", "x"], "8 or more printable"),
            (["--token", "long enough", "--no-token"], "not both"),
            (["--port", port], "cannot listen on 127.0.0.1"),
            (["--host", "192.0.2.1", "--no-token"], "cannot listen on 192.0.2.1"),
            (["--port", "0", "--compare", str(tmp_path / "empty")], "no folder of a comparison"),
            (["nothing", "--port", "0"], "there is no run folder nothing"),
        ]:
            result = run_command("serve", *words)
            assert (result.code, message in result.err) == (2, True), result.err


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setattr("regard.cli.serve.PACKAGES", ("uvicorn", "no_such_package"))
    result = run_command("serve")
    assert result.code == 2
    assert 'needs no_such_package: pip install "regard[serve]"' in result.err


def test_a_name_that_is_no_address():
    with pytest.raises(UserError, match="cannot listen on no such name"):
        listen("no such name", 8000)


@pytest.fixture
def started(monkeypatch):
    """The settings with which the command would serve."""
    found = []
    monkeypatch.setattr(
        "regard.serve.server.serve", lambda settings, on_start: found.append(settings)
    )
    for name in (*KERNEL_CACHES, "REGARD_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    yield found
    for name in KERNEL_CACHES:
        os.environ.pop(name, None)


def test_without_a_run_the_shipped_models_are_served(started):
    assert run_command("serve").code == 0
    [settings] = started
    assert [str(run) for run in settings.runs] == list(shipped.names())
    assert (settings.host, settings.token) == ("127.0.0.1", None)
    assert {name: os.environ[name] for name in KERNEL_CACHES} == KERNEL_CACHES


def test_options_and_the_token_of_the_environment(started, monkeypatch):
    monkeypatch.setenv("REGARD_TOKEN", "from-the-environment")
    monkeypatch.setenv("LRU_CACHE_CAPACITY", "7")
    words = ["runs/a", "--host", "0.0.0.0", "--window", "5", "--max-beam", "4", "--timeout", "9"]
    assert run_command("serve", *words).code == 0
    [settings] = started
    assert (settings.token, settings.window) == ("from-the-environment", 0.005)
    assert (settings.limits.beam, settings.limits.nbest, settings.limits.seconds) == (4, 4, 9)
    assert os.environ["LRU_CACHE_CAPACITY"] == "7"


def test_a_second_ctrl_c_stops_at_once(monkeypatch, capfd):
    """uvicorn cancels the application, which logged a traceback."""
    ended = []
    monkeypatch.setattr("os._exit", ended.append)
    stopped = HttpServer(uvicorn.Config("no:app"))
    stopped.handle_exit(signal.SIGTERM, None)
    stopped.handle_exit(signal.SIGTERM, None)
    assert (stopped.should_exit, ended) == (True, [])
    stopped.handle_exit(signal.SIGINT, None)
    assert ended == [130]
    assert capfd.readouterr().err == "regard: stopped by SIGINT\n"
