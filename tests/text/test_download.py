"""Downloads from a local server that fails on purpose."""

import errno
import hashlib
import os
import random
import re
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest

from regard.errors import UserError
from regard.text import download
from regard.text.download import fetch

BODY = random.Random(7).randbytes(300_007)
SUM = hashlib.sha256(BODY).hexdigest()
NO_WAIT = {"pauses": (0.0, 0.0, 0.0), "timeout": 5.0}


class Handler(BaseHTTPRequestHandler):
    server: "Server"

    def do_GET(self):
        server = self.server
        server.ranges.append(self.headers.get("Range"))
        server.validators.append(self.headers.get("If-Range"))
        step = server.script.pop(0) if len(server.script) > 1 else server.script[0]
        self.close_connection = True
        step(self)

    def start(self, status, **headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), str(value))
        self.end_headers()

    def log_message(self, format, *args):  # noqa: A002
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = False  # so that closing the server waits for them
    script: list
    ranges: list

    def handle_error(self, request, client_address):
        pass  # some tests close the connection early


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    with Server(("127.0.0.1", 0), Handler) as server:
        server.script, server.ranges, server.validators = [full()], [], []
        server.stopping = threading.Event()
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        server.url = f"http://127.0.0.1:{server.server_port}/data/file.gz"
        yield server
        server.stopping.set()
        server.shutdown()
        thread.join()


def full(body=BODY, length: int | None = None, upto: int | None = None, **headers):
    """The whole body, whatever the range; or only its first bytes before the connection breaks."""

    def respond(handler):
        handler.start(200, Content_Length=length or len(body), **headers)
        handler.wfile.write(body[:upto])

    return respond


def ranged(body=BODY, upto: int | None = None, shift: int = 0, **headers):
    """The requested range, up to some byte of the body before the connection breaks."""

    def respond(handler):
        requested = re.fullmatch(r"bytes=(\d+)-", handler.headers.get("Range", ""))
        if not requested:
            return full(body, upto=upto, **headers)(handler)
        start = int(requested[1]) + shift
        span = f"bytes {start}-{len(body) - 1}/{len(body)}"
        handler.start(206, Content_Length=len(body) - start, Content_Range=span, **headers)
        return handler.wfile.write(body[start:upto])

    return respond


def status(code):
    return lambda handler: handler.start(code, Content_Length=0)


def stall(handler):
    handler.server.stopping.wait(10)


def close_connection(handler):
    handler.connection.shutdown(socket.SHUT_RDWR)


def chunked(handler):
    handler.protocol_version = "HTTP/1.1"
    handler.start(200, Transfer_Encoding="chunked")
    for start in range(0, len(BODY), 99_991):
        piece = BODY[start : start + 99_991]
        handler.wfile.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
    handler.wfile.write(b"0\r\n\r\n")


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "cache" / "file.gz"


def files_beside(path: Path) -> list[str]:
    return sorted(each.name for each in path.parent.iterdir()) if path.parent.exists() else []


# Success


def test_a_file_is_downloaded_and_progress_reported(server, path):
    reported = []

    def report(done, total):
        assert not path.exists()
        reported.append((done, total))

    assert fetch(server.url, path, sha256=SUM, report=report) == SUM
    assert path.read_bytes() == BODY
    assert files_beside(path) == ["file.gz"]
    assert reported[0] == (0, len(BODY))
    assert reported[-1] == (len(BODY), len(BODY))
    assert reported == sorted(reported)
    assert len(reported) > 3


def test_without_a_checksum_the_actual_sum_is_returned(server, path):
    assert fetch(server.url, path) == SUM


def test_an_unknown_length_is_accepted(server, path):
    server.script = [chunked]
    totals = set()
    assert fetch(server.url, path, report=lambda done, total: totals.add(total)) == SUM
    assert totals == {None}


def test_an_old_file_stays_until_the_new_one_is_complete(server, path):
    path.parent.mkdir()
    path.write_text("old")
    server.script = [status(404)]
    with pytest.raises(UserError):
        fetch(server.url, path, **NO_WAIT)
    assert path.read_text() == "old"
    server.script = [full()]
    fetch(server.url, path, sha256=SUM)
    assert path.read_bytes() == BODY


@pytest.mark.parametrize("sha256", [SUM, None])
def test_a_broken_connection_is_resumed(server, path, sha256):
    server.script = [ranged(upto=100_003), ranged(upto=200_003), ranged()]
    reported = []
    fetch(server.url, path, sha256=sha256, report=lambda *done: reported.append(done), **NO_WAIT)
    assert server.ranges == [None, "bytes=100003-", "bytes=200003-"]
    assert path.read_bytes() == BODY
    assert reported == sorted(reported)
    assert files_beside(path) == ["file.gz"]


def test_resuming_requests_the_same_version(server, path):
    server.script = [ranged(upto=10_007, ETag='"v1"'), ranged(BODY[::-1], ETag='"v2"')]
    # A server that ignores If-Range mixes two versions; the checksum detects it.
    with pytest.raises(UserError, match="sha256"):
        fetch(server.url, path, sha256=SUM, **NO_WAIT)
    assert server.validators == [None, '"v1"']


def test_a_weak_etag_does_not_identify_a_version(server, path):
    day = "Wed, 21 Oct 2015 07:28:00 GMT"
    server.script = [ranged(upto=10_007, ETag='W/"v1"', Last_Modified=day), ranged()]
    assert fetch(server.url, path, **NO_WAIT) == SUM
    assert server.validators == [None, day]


def test_a_file_that_grew_is_downloaded_again(server, path):
    longer = BODY + b"more"
    server.script = [ranged(upto=100_003), ranged(longer)]
    assert fetch(server.url, path, **NO_WAIT) == hashlib.sha256(longer).hexdigest()
    assert server.ranges == [None, "bytes=100003-", None]


def test_a_part_from_an_earlier_call_is_resumed(server, path):
    path.parent.mkdir()
    Path(f"{path}.part").write_bytes(BODY[:200_003])
    server.script = [ranged()]
    fetch(server.url, path, sha256=SUM)
    assert server.ranges == ["bytes=200003-"]
    assert path.read_bytes() == BODY


def test_a_complete_part_needs_no_network(server, path):
    path.parent.mkdir()
    Path(f"{path}.part").write_bytes(BODY)
    fetch(server.url, path, sha256=SUM)
    assert server.ranges == []
    assert files_beside(path) == ["file.gz"]


def test_a_part_without_a_checksum_is_not_resumed(server, path):
    path.parent.mkdir()
    Path(f"{path}.part").write_bytes(b"another version")
    server.script = [ranged()]
    assert fetch(server.url, path) == SUM
    assert server.ranges == [None]


def test_a_server_that_ignores_range_starts_over(server, path):
    server.script = [full(upto=100_003), full()]
    fetch(server.url, path, sha256=SUM, **NO_WAIT)
    assert server.ranges == [None, "bytes=100003-"]
    assert path.read_bytes() == BODY


@pytest.mark.parametrize("wrong", [ranged(shift=1), ranged(shift=-1), status(206), status(416)])
def test_a_wrong_range_starts_over(server, path, wrong):
    server.script = [full(upto=100_003), wrong, full()]
    fetch(server.url, path, sha256=SUM, **NO_WAIT)
    assert server.ranges == [None, "bytes=100003-", None]
    assert path.read_bytes() == BODY


@pytest.mark.parametrize("first", [status(500), status(503), status(429), close_connection])
def test_transient_failures_are_retried(server, path, first):
    server.script = [first, full()]
    assert fetch(server.url, path, sha256=SUM, **NO_WAIT) == SUM
    assert len(server.ranges) == 2


def test_pauses_between_retries(server, path, monkeypatch):
    slept = []
    clock = SimpleNamespace(sleep=slept.append, monotonic=time.monotonic)
    monkeypatch.setattr(download, "time", clock)
    server.script = [status(503)]
    with pytest.raises(UserError):
        fetch(server.url, path, pauses=(3.0, 5.0))
    assert slept == [3.0, 5.0]


# Failure


def expect_error(server, path, match, sha256: str | None = SUM, **options) -> str:
    with pytest.raises(UserError, match=match) as caught:
        fetch(options.pop("url", server.url), path, sha256=sha256, **{**NO_WAIT, **options})
    assert not path.exists()
    return str(caught.value)


@pytest.mark.parametrize(
    ("step", "match", "attempts"),
    [
        (status(404), "404 Not Found", 1),
        (status(403), "403 Forbidden", 1),
        (status(500), "500 Internal Server Error", 4),
        (close_connection, "no connection", 4),
    ],
)
def test_persistent_failures(server, path, step, match, attempts):
    server.script = [step]
    message = expect_error(server, path, match)
    assert server.url in message
    assert f'save it in {path.parent} as "file.gz"' in message
    assert len(server.ranges) == attempts
    assert files_beside(path) == []


def test_a_connection_that_always_breaks_keeps_the_part(server, path):
    server.script = [full(upto=100_003)]
    expect_error(server, path, "broke after 100003 of 300007 bytes")
    assert len(server.ranges) == 4
    assert files_beside(path) == ["file.gz.part"]
    server.script = [ranged()]
    fetch(server.url, path, sha256=SUM)
    assert server.ranges[-1] == "bytes=100003-"


def test_a_part_without_a_checksum_is_not_kept(server, path):
    server.script = [full(upto=100_003)]
    expect_error(server, path, "broke after 100003 of 300007 bytes", sha256=None)
    assert files_beside(path) == []


def test_a_wrong_content_length(server, path):
    server.script = [full(length=len(BODY) + 11)]
    expect_error(server, path, "broke after 300007 of 300018 bytes", sha256=None)
    server.script = [full(length=len(BODY) - 11)]
    expect_error(server, path, "sha256")
    assert files_beside(path) == []


def test_a_wrong_body_is_deleted(server, path):
    wrong = BODY[:-1] + b"?"
    server.script = [full(wrong)]
    message = expect_error(server, path, "expected sha256")
    assert SUM in message
    assert hashlib.sha256(wrong).hexdigest() in message
    assert files_beside(path) == []


def test_a_body_that_fails_the_callers_check_is_deleted(server, path):
    def check(part):
        assert part.read_bytes() == BODY
        raise UserError("not a zip")

    expect_error(server, path, "not a zip", check=check)
    assert files_beside(path) == []


@pytest.mark.parametrize("step", [stall, lambda handler: (full(upto=9)(handler), stall(handler))])
def test_a_server_that_stops_sending(server, path, step):
    server.script = [step]
    expect_error(server, path, "no answer within 0.2|no data for 0.2", timeout=0.2, pauses=(0.0,))


def test_a_refused_connection(server, path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, not listening: refused
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/file.gz"
        message = expect_error(server, path, "refused the connection", url=url)
    assert url in message
    assert files_beside(path) == []


def test_an_unknown_host(server, path, monkeypatch):
    def unknown(*args, **kwargs):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    expect_error(
        server, path, "the server was not found .Name or service", url="http://nowhere.test/f"
    )


@pytest.mark.parametrize("url", ["file:///etc/hosts", "ftp://127.0.0.1/f", "data.gz"])
def test_only_http_is_allowed(server, path, url):
    expect_error(server, path, "starts with http:// or https://", url=url)
    assert files_beside(path) == []


@pytest.mark.parametrize("url", ["http://", "http://127.0.0.1:port/x", "http://a b/"])
def test_invalid_urls(server, path, url):
    expect_error(server, path, "could not be downloaded", url=url)


# Disk errors


def test_a_full_disk_leaves_no_files(server, path, monkeypatch):
    def full(self, chunk):
        if self.size > 100_000:
            raise OSError(errno.ENOSPC, "No space left on device")
        add(self, chunk)

    add = download._Part.add
    monkeypatch.setattr(download._Part, "add", full)
    message = expect_error(
        server, path, "cannot be written: No space left on device. Free some space"
    )
    assert str(path) in message
    assert files_beside(path) == []


def test_a_disk_that_is_full_at_the_final_sync(server, path, monkeypatch):
    def full(handle):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    expect_error(server, path, "No space left")
    assert files_beside(path) == []


def test_a_folder_that_cannot_be_created(server, tmp_path):
    (tmp_path / "taken").write_text("a file")
    expect_error(server, tmp_path / "taken" / "file.gz", "cannot be written: .* REGARD_CACHE")
    assert server.ranges == []


def test_concurrent_downloads_are_rejected(server, path):
    path.parent.mkdir()
    with download._open_locked(Path(f"{path}.part"), server.url):
        expect_error(server, path, "by another process")
        assert files_beside(path) == ["file.gz.part"]
    assert fetch(server.url, path, sha256=SUM) == SUM


def test_datasets_do_not_import_torch(tmp_path):
    import subprocess
    import sys

    code = (
        "import sys, regard.text.datasets, regard.text.pairs, regard.text.download;"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=tmp_path).returncode == 0


# --- bounds ---------------------------------------------------------------------------------------


def endless(handler):
    """Bytes without a length, as fast as they are read."""
    handler.start(200)
    while not handler.server.stopping.wait(0):
        handler.wfile.write(b"x" * 10_000)


def drip(handler):
    """A byte now and then: the connection never times out."""
    handler.start(200, Content_Length=len(BODY))
    while not handler.server.stopping.wait(0.02):
        handler.wfile.write(b"x")


@pytest.mark.parametrize("answer", [full(), endless, full(length=1 << 50)])
def test_a_file_that_is_too_large_is_not_kept(server, tmp_path, answer):
    server.script = [answer]
    with pytest.raises(UserError, match="could not be downloaded: it is larger than 0 MiB"):
        fetch(server.url, tmp_path / "a.gz", max_bytes=100_003, **NO_WAIT)
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_is_too_slow_is_given_up(server, tmp_path, monkeypatch):
    monkeypatch.setattr(download, "PATIENCE", 0.2)
    server.script = [drip]
    with pytest.raises(UserError, match=r"the server is too slow: \d+ bytes in 0 seconds"):
        fetch(server.url, tmp_path / "a.gz", **NO_WAIT)
    assert list(tmp_path.iterdir()) == []


def test_a_download_has_a_time_limit(server, tmp_path, monkeypatch):
    monkeypatch.setattr(download, "MAX_SECONDS", 0.0)
    with pytest.raises(UserError, match="the server is too slow"):
        fetch(server.url, tmp_path / "a.gz", **NO_WAIT)
