"""One file from the network, whole and checked, or not there at all."""

import errno
import hashlib
import http.client
import os
import re
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from regard.errors import UserError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

CHUNK = 1 << 16
TIMEOUT = 30.0
# Seconds to wait before every further try.
PAUSES = (0.5, 1.0, 2.0, 4.0)
# The server may be well again in a moment.
PASSING = {408, 429, 500, 502, 503, 504}
# Some servers (manythings.org) turn away whoever introduces himself as Python's urllib.
AGENT = "Mozilla/5.0 (compatible; regard)"


class _NetworkError(Exception):
    """What the network did to us; `again` says whether another try may help."""

    def __init__(self, what: str, *, again: bool = False):
        super().__init__(what)
        self.again = again


class _Part:
    """The bytes that have come so far: their file, their number and their running sum."""

    def __init__(self, file: BinaryIO):
        self.file = file
        self.total: int | None = None
        self.version: str | None = None  # what the server calls the file these bytes are of
        self.size = 0
        self.digest = hashlib.sha256()
        file.seek(0)
        while chunk := file.read(CHUNK):
            self.size += len(chunk)
            self.digest.update(chunk)

    def add(self, chunk: bytes) -> None:
        self.file.write(chunk)
        self.file.flush()  # a full disk should speak now, not when the file is closed
        self.size += len(chunk)
        self.digest.update(chunk)

    def clear(self) -> None:
        self.file.seek(0)
        self.file.truncate()
        self.size, self.total, self.version = 0, None, None
        self.digest = hashlib.sha256()

    def remove(self) -> None:
        self._release()
        os.unlink(self.file.name)

    def rename(self, path: Path) -> None:
        os.fsync(self.file.fileno())
        self._release()
        os.replace(self.file.name, path)

    def _release(self) -> None:
        # Windows touches no open file; elsewhere the open file holds our lock until all is done.
        if fcntl is None:
            self.file.close()


def fetch(
    url: str,
    path: Path,
    *,
    sha256: str | None = None,
    report: Callable[[int, int | None], object] | None = None,
    check: Callable[[Path], object] | None = None,
    timeout: float = TIMEOUT,
    pauses: tuple[float, ...] = PAUSES,
) -> str:
    """Download `url` to `path` and return the sha256 of what came.

    The bytes gather in `path` + ".part", from which a later call goes on; `path` itself appears in
    one move, after length and checksum were found right and `check`, given the gathered file, did
    not raise. `report(done, total or None)` hears of every chunk.
    """
    if not url.lower().startswith(("http://", "https://")):
        raise UserError(f'expected an address that starts with http:// or https://; got "{url}".')
    part = path.with_name(path.name + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _claim(part, url) as file:
            gathered = _Part(file)
            if sha256 is None:
                # Nothing would tell whether an old beginning and a new end belong together.
                gathered.clear()
            if gathered.digest.hexdigest() != sha256:
                _gather(url, path, gathered, report, timeout, pauses, keep=sha256 is not None)
            _settle(gathered, part, path, url, sha256, check)
            return gathered.digest.hexdigest()
    except OSError as error:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        remedy = "Make room" if error.errno == errno.ENOSPC else "Make it writable"
        raise UserError(
            f"{path} cannot be written: {error.strerror or error}. {remedy}, or choose another "
            "folder with REGARD_CACHE."
        ) from None


@contextmanager
def _claim(part: Path, url: str) -> Iterator[BinaryIO]:
    """`part`, open to read and append, for us alone where the system can promise that."""
    while True:
        file = part.open("a+b")
        try:
            if fcntl is not None:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Another process may have moved it to its final name while we waited to open it.
            if os.path.samestat(os.fstat(file.fileno()), part.stat()):
                break
        except BlockingIOError:
            file.close()
            raise UserError(
                f"{url} is being downloaded to {part} by another process. Wait for that one."
            ) from None
        except FileNotFoundError:
            pass
        except OSError:
            break  # a network folder that knows no locks: do without
        file.close()
    try:
        yield file
    finally:
        # What a full disk did not take it will not take now either, and has been told already.
        with suppress(OSError):
            file.close()


def _gather(
    url: str,
    path: Path,
    part: _Part,
    report: Callable[[int, int | None], object] | None,
    timeout: float,
    pauses: tuple[float, ...],
    keep: bool,
) -> None:
    """Fill `part`, trying again after every pause while that may help."""
    for pause in (*pauses, None):
        try:
            _receive(url, part, report, timeout)
            return
        except _NetworkError as failure:
            if failure.again and pause is not None:
                time.sleep(pause)
                continue
            if not keep or not part.size:
                part.remove()
            raise UserError(
                f"{url} could not be downloaded: {failure}. Check the network and try again, or "
                f'download it yourself and put it into {path.parent} as "{path.name}".'
            ) from None


def _receive(
    url: str,
    part: _Part,
    report: Callable[[int, int | None], object] | None,
    timeout: float,
) -> None:
    """One request: go on where `part` ends if the server can, else start anew."""
    request = Request(url, headers={"User-Agent": AGENT})
    if part.size:
        request.add_header("Range", f"bytes={part.size}-")
        if part.version:
            request.add_header("If-Range", part.version)
    with _open(request, part, timeout) as response:
        _place(response, part)
        if report:
            report(part.size, part.total)
        while part.total is None or part.size < part.total:
            try:
                # read1 hands over what has come; read would lose it when the connection is cut.
                chunk = response.read1(CHUNK)
            except TimeoutError:
                raise _NetworkError(f"nothing came for {timeout:g} seconds", again=True) from None
            except (OSError, http.client.HTTPException) as error:
                raise _NetworkError(
                    f"the connection broke ({_reason(error)})", again=True
                ) from None
            if not chunk:
                break
            part.add(chunk)
            if report:
                report(part.size, part.total)
    if part.total is not None and part.size != part.total:
        size = f"{part.size} of {part.total} bytes"
        raise _NetworkError(f"the connection was cut after {size}", again=True)


def _open(request: Request, part: _Part, timeout: float) -> http.client.HTTPResponse:
    """The server's answer, or a `_NetworkError` that says in words what came instead."""
    try:
        return urlopen(request, timeout=timeout)
    except HTTPError as error:
        error.close()
        if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and part.size:
            part.clear()
            raise _NetworkError("what came earlier does not fit the file", again=True) from None
        answer = f"the server answered {error.code} {error.reason}"
        raise _NetworkError(answer, again=error.code in PASSING) from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        cause = error.reason if isinstance(error, URLError) else error
        if isinstance(cause, TimeoutError):
            raise _NetworkError(f"no answer within {timeout:g} seconds") from None
        if isinstance(cause, ConnectionRefusedError):
            raise _NetworkError("the server refused the connection") from None
        if isinstance(cause, socket.gaierror):
            raise _NetworkError(f"its server was not found ({_reason(cause)})") from None
        # Closed without a word.
        again = isinstance(cause, ConnectionError)
        raise _NetworkError(f"no connection ({_reason(cause)})", again=again) from None


def _place(response: http.client.HTTPResponse, part: _Part) -> None:
    """Make `part` end where the bytes of `response` begin."""
    if response.status != http.HTTPStatus.PARTIAL_CONTENT:
        part.clear()
        part.total = response.length
        # A weak tag may stay the same while bytes change.
        tag = response.headers.get("ETag", "")
        part.version = tag if tag.startswith('"') else response.headers.get("Last-Modified")
        return
    given = re.fullmatch(
        r"bytes (\d+)-(\d+)/(\d+)", response.headers.get("Content-Range", "").strip()
    )
    start, end, total = map(int, given.groups()) if given else (-1, -1, -1)
    right = (start, end) == (part.size, total - 1) and part.total in (None, total)
    if not right:
        part.clear()  # so the next request asks for everything
        raise _NetworkError("the server sent another part than it was asked for", again=True)
    part.total = total


def _settle(
    gathered: _Part,
    part: Path,
    path: Path,
    url: str,
    sha256: str | None,
    check: Callable[[Path], object] | None,
) -> None:
    """Give `part` its final name if it is what was asked for; else remove it and say so."""
    got = gathered.digest.hexdigest()
    try:
        if sha256 is not None and got != sha256:
            raise UserError(
                f"{url} is not the file it should be: expected sha256 {sha256}, got {got}. It was "
                "thrown away; try again, or get the file elsewhere and put it into "
                f'{path.parent} as "{path.name}".'
            )
        if check:
            check(part)
    except UserError:
        gathered.remove()
        raise
    gathered.rename(path)


def _reason(error: object) -> str:
    return str(getattr(error, "strerror", None) or error or type(error).__name__)
