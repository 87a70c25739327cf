"""A server on this machine that answers as the Hugging Face hub does: the list of files, then the files."""

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub(ThreadingHTTPServer):
    """`files[kind/name][path]` is content; those in `large` have a sha256, the others git's checksum."""

    files: dict[str, dict[str, bytes]]
    large: set[str]
    corrupt: set[str]
    requests: list[str]
    commits: dict[str, str]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Hub

    def do_GET(self) -> None:
        hub, path = self.server, unquote(urlsplit(self.path).path).strip("/")
        hub.requests.append(path)
        self.close_connection = True
        for repository, files in hub.files.items():
            kind, name = repository.split("/", 1)
            prefix = name if kind == "models" else f"datasets/{name}"
            for revision, commit in hub.commits.items():
                if path == f"api/{repository}/revision/{revision}":
                    return self.answer(json.dumps(describe(hub, commit, files)).encode())
            file = path.removeprefix(f"{prefix}/resolve/{COMMIT}/")
            if file in files:
                return self.answer(b"no" if file in hub.corrupt else files[file])
        return self.answer(b"Repository not found", 401)

    def answer(self, body: bytes, status: int = 200) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


def describe(hub: Hub, commit: str, files: dict[str, bytes]) -> dict[str, object]:
    entries = []
    for path, content in files.items():
        git = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
        entry: dict[str, object] = {"rfilename": path, "size": len(content), "blobId": git}
        if path in hub.large:
            entry["lfs"] = {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content)}
        entries.append(entry)
    return {"sha": commit, "siblings": entries}


@contextmanager
def serve() -> Iterator[Hub]:
    with Hub(("127.0.0.1", 0), Handler) as hub:
        hub.files, hub.large, hub.corrupt, hub.requests = {}, set(), set(), []
        hub.commits = {"main": COMMIT, "v1": COMMIT, COMMIT: COMMIT}
        thread = threading.Thread(target=hub.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield hub
        finally:
            hub.shutdown()
            thread.join()
