"""Downloads from a server on this machine that misbehaves on purpose."""

import errno
import hashlib
import os
import random
import re
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from regard.errors import UserError
from regard.text import download
from regard.text.download import fetch

BODY = random.Random(7).randbytes(300_007)
SUM = hashlib.sha256(BODY).hexdigest()
QUICK = {"pauses": (0.0, 0.0, 0.0), "timeout": 5.0}


class Handler(BaseHTTPRequestHandler):
    server: "Server"

    def do_GET(self):
        server = self.server
        server.asked.append(self.headers.get("Range"))
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
    daemon_threads = False  # so that closing waits for them
    script: list
    asked: list

    def handle_error(self, request, client_address):
        pass  # a client that hangs up is part of these tests


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    with Server(("127.0.0.1", 0), Handler) as server:
        server.script, server.asked, server.validators = [whole()], [], []
        server.stopping = threading.Event()
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        server.url = f"http://127.0.0.1:{server.server_port}/data/file.gz"
        yield server
        server.stopping.set()
        server.shutdown()
        thread.join()


def whole(body=BODY, length: int | None = None, upto: int | None = None, **headers):
    """Everything, whatever was asked; or only a beginning of it, then a cut."""

    def answer(handler):
        handler.start(200, Content_Length=length or len(body), **headers)
        handler.wfile.write(body[:upto])

    return answer


def ranged(body=BODY, upto: int | None = None, shift: int = 0, **headers):
    """What was asked for, up to some byte of the body, then a cut."""

    def answer(handler):
        asked = re.fullmatch(r"bytes=(\d+)-", handler.headers.get("Range", ""))
        if not asked:
            return whole(body, upto=upto, **headers)(handler)
        start = int(asked[1]) + shift
        span = f"bytes {start}-{len(body) - 1}/{len(body)}"
        handler.start(206, Content_Length=len(body) - start, Content_Range=span, **headers)
        return handler.wfile.write(body[start:upto])

    return answer


def status(code):
    return lambda handler: handler.start(code, Content_Length=0)


def silent(handler):
    handler.server.stopping.wait(10)


def hang_up(handler):
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


def left(path: Path) -> list[str]:
    return sorted(each.name for each in path.parent.iterdir()) if path.parent.exists() else []


# What works


def test_a_file_comes_whole_and_is_reported(server, path):
    heard = []

    def report(done, total):
        assert not path.exists()
        heard.append((done, total))

    assert fetch(server.url, path, sha256=SUM, report=report) == SUM
    assert path.read_bytes() == BODY
    assert left(path) == ["file.gz"]
    assert heard[0] == (0, len(BODY))
    assert heard[-1] == (len(BODY), len(BODY))
    assert heard == sorted(heard)
    assert len(heard) > 3


def test_without_a_checksum_the_sum_of_what_came_is_returned(server, path):
    assert fetch(server.url, path) == SUM


def test_an_unknown_length_is_fine(server, path):
    server.script = [chunked]
    totals = set()
    assert fetch(server.url, path, report=lambda done, total: totals.add(total)) == SUM
    assert totals == {None}


def test_an_old_file_stays_until_the_new_one_is_whole(server, path):
    path.parent.mkdir()
    path.write_text("old")
    server.script = [status(404)]
    with pytest.raises(UserError):
        fetch(server.url, path, **QUICK)
    assert path.read_text() == "old"
    server.script = [whole()]
    fetch(server.url, path, sha256=SUM)
    assert path.read_bytes() == BODY


@pytest.mark.parametrize("sha256", [SUM, None])
def test_a_cut_connection_goes_on_where_it_stopped(server, path, sha256):
    server.script = [ranged(upto=100_003), ranged(upto=200_003), ranged()]
    heard = []
    fetch(server.url, path, sha256=sha256, report=lambda *done: heard.append(done), **QUICK)
    assert server.asked == [None, "bytes=100003-", "bytes=200003-"]
    assert path.read_bytes() == BODY
    assert heard == sorted(heard)
    assert left(path) == ["file.gz"]


def test_the_rest_is_only_asked_of_the_same_version(server, path):
    server.script = [ranged(upto=10_007, ETag='"v1"'), ranged(BODY[::-1], ETag='"v2"')]
    # A server that ignores If-Range mixes two versions; the checksum sees it.
    with pytest.raises(UserError, match="sha256"):
        fetch(server.url, path, sha256=SUM, **QUICK)
    assert server.validators == [None, '"v1"']


def test_a_weak_tag_is_no_proof_of_the_same_version(server, path):
    day = "Wed, 21 Oct 2015 07:28:00 GMT"
    server.script = [ranged(upto=10_007, ETag='W/"v1"', Last_Modified=day), ranged()]
    assert fetch(server.url, path, **QUICK) == SUM
    assert server.validators == [None, day]


def test_a_file_that_grew_meanwhile_is_fetched_anew(server, path):
    longer = BODY + b"more"
    server.script = [ranged(upto=100_003), ranged(longer)]
    assert fetch(server.url, path, **QUICK) == hashlib.sha256(longer).hexdigest()
    assert server.asked == [None, "bytes=100003-", None]


def test_a_part_from_an_earlier_call_is_used(server, path):
    path.parent.mkdir()
    Path(f"{path}.part").write_bytes(BODY[:200_003])
    server.script = [ranged()]
    fetch(server.url, path, sha256=SUM)
    assert server.asked == ["bytes=200003-"]
    assert path.read_bytes() == BODY


def test_a_complete_part_needs_no_network(server, path):
    path.parent.mkdir()
    Path(f"{path}.part").write_bytes(BODY)
    fetch(server.url, path, sha256=SUM)
    assert server.asked == []
    assert left(path) == ["file.gz"]


def test_a_part_that_nothing_can_check_is_not_used(server, path):
    path.parent.mkdir()
    Path(f"{path}.part").write_bytes(b"another version")
    server.script = [ranged()]
    assert fetch(server.url, path) == SUM
    assert server.asked == [None]


def test_a_server_that_ignores_range_starts_anew(server, path):
    server.script = [whole(upto=100_003), whole()]
    fetch(server.url, path, sha256=SUM, **QUICK)
    assert server.asked == [None, "bytes=100003-"]
    assert path.read_bytes() == BODY


@pytest.mark.parametrize("wrong", [ranged(shift=1), ranged(shift=-1), status(206), status(416)])
def test_a_wrong_part_starts_anew(server, path, wrong):
    server.script = [whole(upto=100_003), wrong, whole()]
    fetch(server.url, path, sha256=SUM, **QUICK)
    assert server.asked == [None, "bytes=100003-", None]
    assert path.read_bytes() == BODY


@pytest.mark.parametrize("first", [status(500), status(503), status(429), hang_up])
def test_a_passing_trouble_is_tried_again(server, path, first):
    server.script = [first, whole()]
    assert fetch(server.url, path, sha256=SUM, **QUICK) == SUM
    assert len(server.asked) == 2


def test_pauses_lie_between_the_tries(server, path, monkeypatch):
    slept = []
    monkeypatch.setattr(download.time, "sleep", slept.append)
    server.script = [status(503)]
    with pytest.raises(UserError):
        fetch(server.url, path, pauses=(3.0, 5.0))
    assert slept == [3.0, 5.0]


# What does not


def fails(server, path, match, sha256: str | None = SUM, **options) -> str:
    with pytest.raises(UserError, match=match) as caught:
        fetch(options.pop("url", server.url), path, sha256=sha256, **{**QUICK, **options})
    assert not path.exists()
    return str(caught.value)


@pytest.mark.parametrize(
    ("step", "match", "tries"),
    [
        (status(404), "404 Not Found", 1),
        (status(403), "403 Forbidden", 1),
        (status(500), "500 Internal Server Error", 4),
        (hang_up, "no connection", 4),
    ],
)
def test_a_server_that_will_not(server, path, step, match, tries):
    server.script = [step]
    message = fails(server, path, match)
    assert server.url in message
    assert f'put it into {path.parent} as "file.gz"' in message
    assert len(server.asked) == tries
    assert left(path) == []


def test_a_connection_that_is_always_cut_keeps_what_came(server, path):
    server.script = [whole(upto=100_003)]
    fails(server, path, "cut after 100003 of 300007 bytes")
    assert len(server.asked) == 4
    assert left(path) == ["file.gz.part"]
    server.script = [ranged()]
    fetch(server.url, path, sha256=SUM)
    assert server.asked[-1] == "bytes=100003-"


def test_what_came_is_not_kept_when_nothing_can_check_it(server, path):
    server.script = [whole(upto=100_003)]
    fails(server, path, "cut after 100003 of 300007 bytes", sha256=None)
    assert left(path) == []


def test_a_length_that_is_a_lie(server, path):
    server.script = [whole(length=len(BODY) + 11)]
    fails(server, path, "cut after 300007 of 300018 bytes", sha256=None)
    server.script = [whole(length=len(BODY) - 11)]
    fails(server, path, "sha256")
    assert left(path) == []


def test_a_wrong_body_is_thrown_away(server, path):
    wrong = BODY[:-1] + b"?"
    server.script = [whole(wrong)]
    message = fails(server, path, "expected sha256")
    assert SUM in message
    assert hashlib.sha256(wrong).hexdigest() in message
    assert left(path) == []


def test_a_body_that_fails_the_callers_check_is_thrown_away(server, path):
    def check(part):
        assert part.read_bytes() == BODY
        raise UserError("not a zip")

    fails(server, path, "not a zip", check=check)
    assert left(path) == []


@pytest.mark.parametrize(
    "step", [silent, lambda handler: (whole(upto=9)(handler), silent(handler))]
)
def test_a_server_that_stops_talking(server, path, step):
    server.script = [step]
    fails(server, path, "no answer within 0.2|nothing came for 0.2", timeout=0.2, pauses=(0.0,))


def test_nobody_there(server, path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, not listening: refused
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/file.gz"
        message = fails(server, path, "refused the connection", url=url)
    assert url in message
    assert left(path) == []


def test_no_such_server(server, path, monkeypatch):
    def unknown(*args, **kwargs):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    fails(server, path, "its server was not found .Name or service", url="http://nowhere.test/f")


@pytest.mark.parametrize("url", ["file:///etc/hosts", "ftp://127.0.0.1/f", "data.gz"])
def test_only_http(server, path, url):
    fails(server, path, "starts with http:// or https://", url=url)
    assert left(path) == []


@pytest.mark.parametrize("url", ["http://", "http://127.0.0.1:port/x", "http://a b/"])
def test_addresses_that_make_no_sense(server, path, url):
    fails(server, path, "could not be downloaded", url=url)


# The disk


def test_a_full_disk_leaves_nothing(server, path, monkeypatch):
    def full(self, chunk):
        if self.size > 100_000:
            raise OSError(errno.ENOSPC, "No space left on device")
        add(self, chunk)

    add = download._Part.add
    monkeypatch.setattr(download._Part, "add", full)
    message = fails(server, path, "cannot be written: No space left on device. Make room")
    assert str(path) in message
    assert left(path) == []


def test_a_disk_that_is_full_at_the_last_moment(server, path, monkeypatch):
    def full(handle):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    fails(server, path, "No space left")
    assert left(path) == []


def test_a_folder_that_cannot_be_made(server, tmp_path):
    (tmp_path / "taken").write_text("a file")
    fails(server, tmp_path / "taken" / "file.gz", "cannot be written: .* REGARD_CACHE")
    assert server.asked == []


def test_two_at_once_do_not_mix(server, path):
    path.parent.mkdir()
    with download._claim(Path(f"{path}.part"), server.url):
        fails(server, path, "by another process")
        assert left(path) == ["file.gz.part"]
    assert fetch(server.url, path, sha256=SUM) == SUM


def test_no_torch(tmp_path):
    import subprocess
    import sys

    code = (
        "import sys, regard.text.datasets, regard.text.pairs, regard.text.download;"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=tmp_path).returncode == 0
