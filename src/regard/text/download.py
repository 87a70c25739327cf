"""Download one file: resumed, verified, and moved into place only when complete."""

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
# A server that sends fewer bytes than this in a second, after some time, would go on for days.
MIN_SPEED = 1000
PATIENCE = 60.0
MAX_SECONDS = 12 * 3600.0
MAX_BYTES = 64 << 30
# Seconds to wait before each retry.
PAUSES = (0.5, 1.0, 2.0, 4.0)
# HTTP status codes worth a retry.
TRANSIENT = {408, 429, 500, 502, 503, 504}
# Some servers (manythings.org) reject the user agent of Python's urllib.
USER_AGENT = "Mozilla/5.0 (compatible; regard)"


class DownloadError(UserError):
    """A download that failed: `reason`, and the `status` of the server's answer, if there was one."""

    def __init__(self, message: str, reason: str, status: int | None):
        super().__init__(message)
        self.reason, self.status = reason, status


class _NetworkError(Exception):
    """A failed request; `retry` says whether another attempt may succeed."""

    def __init__(self, message: str, *, retry: bool = False, status: int | None = None):
        super().__init__(message)
        self.retry, self.status = retry, status


class _Part:
    """The bytes received so far: the file, its size and its running sha256."""

    def __init__(self, file: BinaryIO, max_bytes: int):
        self.file, self.max_bytes = file, max_bytes
        self.total: int | None = None
        self.version: str | None = None  # the server's ETag or Last-Modified for these bytes
        self.size = 0
        self.digest = hashlib.sha256()
        file.seek(0)
        while chunk := file.read(CHUNK):
            self.size += len(chunk)
            self.digest.update(chunk)

    def add(self, chunk: bytes) -> None:
        self.check_size(self.size + len(chunk))
        self.file.write(chunk)
        self.file.flush()  # report a full disk now, not when the file is closed
        self.size += len(chunk)
        self.digest.update(chunk)

    def check_size(self, size: int) -> None:
        """Raise an error for a file that is announced, or turns out, to be too large."""
        if size > self.max_bytes:
            self.clear()
            raise _NetworkError(f"it is larger than {self.max_bytes / 2**20:,.0f} MiB")

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
        # Windows cannot rename an open file; elsewhere the open file holds our lock until the end.
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
    max_bytes: int = MAX_BYTES,
) -> str:
    """Download `url` to `path` and return the sha256 of its content.

    The bytes are collected in `path` + ".part", which a later call resumes. The file is renamed to `path`
    after length and checksum were verified and `check(part)` did not raise.
    `report(done, total or None)` is called for every chunk. A file of more than `max_bytes`, or a server that
    is too slow, is an error.
    """
    if not url.lower().startswith(("http://", "https://")):
        raise UserError(f'expected a URL that starts with http:// or https://; got "{url}".')
    part = path.with_name(path.name + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _open_locked(part, url) as file:
            received = _Part(file, max_bytes)
            if sha256 is None:
                # Without a checksum, nothing shows whether old and new bytes belong together.
                received.clear()
            if received.digest.hexdigest() != sha256:
                _receive_with_retries(
                    url, path, received, report, timeout, pauses, keep=sha256 is not None
                )
            _verify_and_rename(received, part, path, url, sha256, check)
            return received.digest.hexdigest()
    except OSError as error:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        remedy = "Free some space" if error.errno == errno.ENOSPC else "Make it writable"
        raise UserError(
            f"{path} cannot be written: {error.strerror or error}. {remedy}, or choose another "
            "folder with REGARD_CACHE."
        ) from None


@contextmanager
def _open_locked(part: Path, url: str) -> Iterator[BinaryIO]:
    """`part`, open for reading and appending, exclusively where the system supports locks."""
    while True:
        file = part.open("a+b")
        try:
            if fcntl is not None:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Another process may have renamed it between our open and our lock.
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
            break  # a network file system without locks: go on without one
        file.close()
    try:
        yield file
    finally:
        # A full disk fails again here, and has been reported already.
        with suppress(OSError):
            file.close()


def _receive_with_retries(
    url: str,
    path: Path,
    part: _Part,
    report: Callable[[int, int | None], object] | None,
    timeout: float,
    pauses: tuple[float, ...],
    keep: bool,
) -> None:
    """Complete `part`, retrying after each pause while that may help."""
    for pause in (*pauses, None):
        try:
            _receive(url, part, report, timeout)
            return
        except _NetworkError as failure:
            if failure.retry and pause is not None:
                time.sleep(pause)
                continue
            if not keep or not part.size:
                part.remove()
            raise DownloadError(
                f"{url} could not be downloaded: {failure}. Check the network and try again, or "
                f'download it yourself and save it in {path.parent} as "{path.name}".',
                str(failure),
                failure.status,
            ) from None


def _receive(
    url: str,
    part: _Part,
    report: Callable[[int, int | None], object] | None,
    timeout: float,
) -> None:
    """One request: resume where `part` ends if the server supports it, else start over."""
    request = Request(url, headers={"User-Agent": USER_AGENT})
    if part.size:
        request.add_header("Range", f"bytes={part.size}-")
        if part.version:
            request.add_header("If-Range", part.version)
    started = time.monotonic()
    with _open(request, part, timeout) as response:
        _align(response, part)
        part.check_size(part.total or 0)
        first_byte = part.size
        if report:
            report(part.size, part.total)
        while part.total is None or part.size < part.total:
            try:
                # read1 returns what has arrived; read would lose it when the connection breaks.
                chunk = response.read1(CHUNK)
            except TimeoutError:
                raise _NetworkError(f"no data for {timeout:g} seconds", retry=True) from None
            except (OSError, http.client.HTTPException) as error:
                raise _NetworkError(
                    f"the connection broke ({_reason(error)})", retry=True
                ) from None
            if not chunk:
                break
            part.add(chunk)
            _check_speed(time.monotonic() - started, part.size - first_byte)
            if report:
                report(part.size, part.total)
    if part.total is not None and part.size != part.total:
        size = f"{part.size} of {part.total} bytes"
        raise _NetworkError(f"the connection broke after {size}", retry=True)


def _check_speed(seconds: float, received: int) -> None:
    """Raise an error for a server that sends too little for too long."""
    if seconds > MAX_SECONDS or (seconds > PATIENCE and received < MIN_SPEED * seconds):
        raise _NetworkError(f"the server is too slow: {received:,} bytes in {seconds:.0f} seconds")


def _open(request: Request, part: _Part, timeout: float) -> http.client.HTTPResponse:
    """The server's response, or a `_NetworkError` that describes the failure."""
    try:
        return urlopen(request, timeout=timeout)
    except HTTPError as error:
        error.close()
        if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and part.size:
            part.clear()
            raise _NetworkError("the earlier part does not match the file", retry=True) from None
        answer = f"the server answered {error.code} {error.reason}"
        raise _NetworkError(answer, retry=error.code in TRANSIENT, status=error.code) from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        cause = error.reason if isinstance(error, URLError) else error
        if isinstance(cause, TimeoutError):
            raise _NetworkError(f"no answer within {timeout:g} seconds") from None
        if isinstance(cause, ConnectionRefusedError):
            raise _NetworkError("the server refused the connection") from None
        if isinstance(cause, socket.gaierror):
            raise _NetworkError(f"the server was not found ({_reason(cause)})") from None
        # The server closed the connection without an answer.
        retry = isinstance(cause, ConnectionError)
        raise _NetworkError(f"no connection ({_reason(cause)})", retry=retry) from None


def _align(response: http.client.HTTPResponse, part: _Part) -> None:
    """Make `part` end where the bytes of `response` start."""
    if response.status != http.HTTPStatus.PARTIAL_CONTENT:
        part.clear()
        part.total = response.length
        # A weak ETag may stay the same while bytes change.
        tag = response.headers.get("ETag", "")
        part.version = tag if tag.startswith('"') else response.headers.get("Last-Modified")
        return
    match = re.fullmatch(
        r"bytes (\d+)-(\d+)/(\d+)", response.headers.get("Content-Range", "").strip()
    )
    start, end, total = map(int, match.groups()) if match else (-1, -1, -1)
    is_requested = (start, end) == (part.size, total - 1) and part.total in (None, total)
    if not is_requested:
        part.clear()  # so the next request asks for the whole file
        raise _NetworkError("the server sent another range than requested", retry=True)
    part.total = total


def _verify_and_rename(
    received: _Part,
    part: Path,
    path: Path,
    url: str,
    sha256: str | None,
    check: Callable[[Path], object] | None,
) -> None:
    """Rename `part` to `path` if it is the expected file; else delete it and raise an error."""
    actual = received.digest.hexdigest()
    try:
        if sha256 is not None and actual != sha256:
            raise UserError(
                f"{url} is not the expected file: expected sha256 {sha256}, got {actual}. It was "
                "deleted; try again, or get the file elsewhere and save it in "
                f'{path.parent} as "{path.name}".'
            )
        if check:
            check(part)
    except UserError:
        received.remove()
        raise
    received.rename(path)


def _reason(error: object) -> str:
    return str(getattr(error, "strerror", None) or error or type(error).__name__)
