"""Atomic file writes (a file is either complete or absent) and locks (one process in a folder)."""

import errno
import os
import secrets
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import IO

from regard.errors import UserError

TEMPORARY_PREFIX = ".regard-"  # of files that are still being written
LOCK = ".lock"
ATTEMPTS = 1000  # to lock a file that others delete
_locked_folders: ContextVar[frozenset[Path]] = ContextVar("locked_folders", default=frozenset())


def write(path: Path, content: bytes | str) -> None:
    """Replace `path` atomically: readers see either the old file or the complete new one."""
    data = content.encode("utf-8") if isinstance(content, str) else content
    write_with(path, lambda temporary: temporary.write_bytes(data))


def write_with(path: Path, writer: Callable[[Path], object]) -> None:
    """`write` with content from `writer(temporary_path)`; the temporary path has the same suffix."""
    name = f"{TEMPORARY_PREFIX}{path.stem}-{secrets.token_hex(8)}{path.suffix}"
    temporary = path.with_name(name)
    try:
        # Locked while it is written: `remove_temporary` in another process leaves it alone.
        file = open_locked(temporary, wait=True)
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror or error}") from None
    try:
        writer(temporary)
        os.fsync(file.fileno())
        if sys.platform == "win32":  # which renames closed files only
            file.close()
        os.replace(temporary, path)
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror or error}") from None
    finally:
        remove_locked(temporary, file)


def list_files(folder: Path) -> list[Path]:
    """The entries of `folder`, without temporary files and the lock."""
    paths = [path for path in folder.iterdir() if path.name != LOCK]
    return [path for path in paths if not path.name.startswith(TEMPORARY_PREFIX)]


def remove_temporary(folder: Path) -> None:
    """Delete the temporary files that a killed process left in `folder`."""
    for temporary in folder.rglob(f"{TEMPORARY_PREFIX}*"):
        with suppress(OSError):  # locked: its writer is alive
            remove_locked(temporary, open_locked(temporary, wait=False))


# --- locks ----------------------------------------------------------------------------------------


@contextmanager
def lock(folder: Path, wait: bool = False) -> Iterator[None]:
    """Hold the exclusive lock of `folder`, which is created if needed; raise an error if it is held.

    The system releases the lock when this process ends, however it ends. With `wait`, block until
    the lock is free. Who holds the lock may take it again.
    """
    resolved = folder.resolve()
    if resolved in _locked_folders.get():
        yield
        return
    path = folder / LOCK
    new_folders = [parent for parent in (folder, *folder.parents) if not parent.exists()]
    try:
        file = open_locked(path, wait)
    except BlockingIOError:
        raise UserError(
            f"{folder} is in use by another process (PID {read_pid(path)}): wait until it ends, or "
            "choose another --run"
        ) from None
    except OSError as error:
        raise UserError(f"{folder} cannot be written: {error.strerror or error}") from None
    token = _locked_folders.set(_locked_folders.get() | {resolved})
    try:
        with suppress(OSError):  # a full disk, say: only messages need the PID
            file.truncate(0)
            file.write(str(os.getpid()).encode())
            file.flush()
        yield
    finally:
        _locked_folders.reset(token)
        # No lock file stays behind, so that a copy of the folder has none. Who waited for the deleted
        # file notices in `open_locked`.
        remove_locked(path, file)
        with suppress(OSError):  # not empty
            for created in new_folders:
                created.rmdir()


def read_pid(path: Path) -> str:
    try:
        return path.read_text("utf-8") or "unknown"
    except (OSError, ValueError):
        return "unknown"


def open_locked(path: Path, wait: bool) -> IO[bytes]:
    """Open a file, created if needed, and lock it; `BlockingIOError` if it is locked and not `wait`."""
    missing = FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    for _ in range(ATTEMPTS):
        # Whoever held the lock may have deleted or renamed the file, or its folder: then again.
        try:
            with ExitStack() as on_error:
                with suppress(FileExistsError):
                    path.parent.mkdir(parents=True)
                file = on_error.enter_context(path.open("ab"))
                acquire(file.fileno(), wait)
                if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                    on_error.pop_all()
                    return file
        except FileNotFoundError as error:
            missing = error
    raise missing  # a link to nowhere, say


def remove_locked(path: Path, file: IO[bytes]) -> None:
    """Delete a file that is locked, if it still exists, and release the lock."""
    if sys.platform == "win32":  # which deletes closed files only, and none that another has open
        file.close()
    with suppress(OSError):
        path.unlink(missing_ok=True)
    file.close()


if sys.platform == "win32":
    import msvcrt

    def acquire(handle: int, wait: bool) -> None:
        """Lock an open file, exclusively; `BlockingIOError` if it is locked and not `wait`."""
        while True:
            os.lseek(handle, 1 << 30, os.SEEK_SET)  # not the content: a locked byte is unreadable
            try:
                return msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
            except OSError:
                if not wait:
                    raise BlockingIOError from None
                time.sleep(0.1)

else:
    import fcntl

    def acquire(handle: int, wait: bool) -> None:
        """Lock an open file, exclusively; `BlockingIOError` if it is locked and not `wait`."""
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            raise
        except OSError:  # this file system has no locks: go on without
            pass
