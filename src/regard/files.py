"""Every write of the library: a file is complete or absent, an older one is never lost, and what cannot be
written is a `UserError` that names it. Locks: one process in a folder.
"""

import errno
import json
import os
import secrets
import shutil
import stat
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import IO

from regard.errors import UserError

TEMPORARY_PREFIX = ".regard-"  # of files and folders that are still being written
PART = ".part"  # suffix of an output that grows until it is complete
LOCK = ".lock"
PATHS = "REGARD_PATHS"  # a variable of the environment: see `local_path`
ATTEMPTS = 1000  # to lock a file that others delete
_locked_folders: ContextVar[frozenset[Path]] = ContextVar("locked_folders", default=frozenset())


@contextmanager
def report_errors(path: Path) -> Iterator[None]:
    """Turn an error of the system, such as a full disk, into a `UserError` that names `path`."""
    try:
        yield
    except BlockingIOError:  # a lock: who asked for it knows what to say
        raise
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror or error}") from None


# --- complete or absent ---------------------------------------------------------------------------


def write(path: Path, content: bytes | str) -> None:
    """Replace `path` atomically: readers see either the old file or the complete new one."""
    data = content.encode("utf-8") if isinstance(content, str) else content
    write_with(path, lambda temporary: temporary.write_bytes(data))


def write_with(path: Path, writer: Callable[[Path], object]) -> None:
    """`write` with content from `writer(temporary_path)`; the temporary path has the same suffix."""
    with report_errors(path), new_temporary(path) as (temporary, file):
        writer(temporary)
        os.fsync(file.fileno())
        if sys.platform == "win32":  # which renames closed files only
            file.close()
        os.replace(temporary, path)


def write_folder(path: Path, writer: Callable[[Path], object]) -> None:
    """Create a folder, which may exist if it is empty, with what `writer(temporary_path)` puts into it."""
    with report_errors(path), new_temporary(path, LOCK) as (lock_file, _):
        folder = lock_file.with_name(path.name)
        folder.mkdir()
        try:
            writer(folder)
        except UserError as error:  # about a file that would have been in `path`
            raise UserError(str(error).replace(str(folder), str(path))) from None
        folder.replace(path)


def create(path: Path, text: str) -> None:
    """`write` a new file; an error if there is one already."""
    with report_errors(path), new_temporary(path) as (temporary, file):
        temporary.write_bytes(text.encode("utf-8"))
        os.fsync(file.fileno())
        try:
            os.link(temporary, path)
        except OSError:
            if path.exists():
                raise
            os.replace(temporary, path)  # a file system without hard links


@contextmanager
def new_temporary(path: Path, inside: str = "") -> Iterator[tuple[Path, IO[bytes]]]:
    """A new temporary file beside `path`, locked and open, or a file `inside` a new temporary folder.

    Deleted at the end, unless it was renamed. What a killed process left of the same path is deleted too.
    """
    start = f"{TEMPORARY_PREFIX}{path.stem}-"
    remove_orphans(each for each in list_folder(path.parent) if each.name.startswith(start))
    temporary = path.with_name(f"{start}{secrets.token_hex(8)}{path.suffix}")
    # Locked while it is written: `remove_temporary` in another process leaves it alone.
    file = open_locked(temporary / inside, wait=True)
    try:
        yield temporary / inside, file
    finally:
        remove_locked(temporary / inside, file)
        if inside:
            shutil.rmtree(temporary, ignore_errors=True)


def remove_temporary(folder: Path) -> None:
    """Delete the temporary files and folders that a killed process left in `folder`."""
    with suppress(FileNotFoundError):  # another process deletes them, too
        remove_orphans(list(folder.rglob(f"{TEMPORARY_PREFIX}*")))


def remove_orphans(temporaries: Iterable[Path]) -> None:
    """Delete those temporary files and folders whose writer has ended: they are not locked."""
    for temporary in filter(Path.exists, temporaries):  # one may have been inside another
        with suppress(OSError):  # locked
            inside = temporary / LOCK if temporary.is_dir() else temporary
            remove_locked(inside, open_locked(inside, wait=False))
            shutil.rmtree(temporary, ignore_errors=True)


def list_folder(folder: Path) -> list[Path]:
    """The entries of a folder; none if it cannot be read."""
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def list_files(folder: Path) -> list[Path]:
    """The entries of `folder`, without temporary files and the lock."""
    paths = [path for path in folder.iterdir() if path.name != LOCK]
    return [path for path in paths if not path.name.startswith(TEMPORARY_PREFIX)]


def refuse_device(path: Path) -> None:
    """Raise an error for a device, which may have no end, as /dev/zero; /dev/null is an empty file."""
    if stat.S_ISCHR(os.stat(path).st_mode) and not os.path.samefile(path, os.devnull):
        raise UserError(f"{path} is a device, not a file: give a file, or - for standard input")


# --- files of another machine ---------------------------------------------------------------------


def local_path(path: Path) -> Path:
    """Where a file or folder that a config names is: `path`, unless the run was sent to this machine.

    Then REGARD_PATHS says where its files are here: a JSON object of names in the config and paths.
    """
    return Path(parse_paths(os.environ.get(PATHS) or "{}").get(os.path.normpath(path), path))


def located_names() -> list[str]:
    """The names for which REGARD_PATHS says where they are."""
    return list(parse_paths(os.environ.get(PATHS) or "{}"))


@cache
def parse_paths(text: str) -> dict[str, str]:
    return {os.path.normpath(name): path for name, path in json.loads(text).items()}


# --- files that grow, folders, deletion -----------------------------------------------------------


def append(path: Path, data: bytes) -> int:
    """Add `data` to the end of a file, all or nothing; return the file's new length."""
    with report_errors(path), path.open("ab", buffering=0) as file:
        length = file.tell()
        try:
            if file.write(data) != len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except BaseException:
            with suppress(OSError):
                file.truncate(length)
            raise
        return length + len(data)


def shorten(path: Path, length: int) -> None:
    """Cut a file, if it exists, to `length` bytes."""
    with report_errors(path):
        if path.is_file() and path.stat().st_size > length:
            os.truncate(path, length)


@contextmanager
def open_output(path: Path) -> Iterator[IO[str]]:
    """A text file that grows as `path`.part, and is renamed to `path` at the end or at Ctrl-C.

    After an error, or if the process is killed, the lines so far are in `path`.part; an older `path` stays.
    """
    with report_errors(path), ExitStack() as stack:
        if path.exists() and not path.is_file():  # a device or a pipe
            yield stack.enter_context(path.open("w", encoding="utf-8", newline="\n"))
            return
        path.parent.stat()
        part = path.with_name(path.name + PART)
        try:
            locked = stack.enter_context(open_locked(part, wait=False))
        except BlockingIOError:
            raise UserError(f"{path} is being written by another process: wait for it") from None
        try:
            with part.open("w", encoding="utf-8", newline="\n") as file:
                yield file
        except KeyboardInterrupt:
            os.replace(part, path)
            raise
        except BaseException:
            if not part.stat().st_size:
                part.unlink()
            raise
        os.fsync(locked.fileno())
        os.replace(part, path)


@contextmanager
def hold(path: Path) -> Iterator[None]:
    """Lock a file that grows, which is created if needed; `BlockingIOError` if it is locked."""
    with open_locked(path, wait=False):
        yield


def complete(part: Path, path: Path) -> None:
    """Give a complete file its name; an older `path` is replaced."""
    with report_errors(path):
        with part.open("rb+") as file:
            os.fsync(file.fileno())
        os.replace(part, path)


def open_log(path: Path) -> IO[bytes]:
    """A new file for the output of another process."""
    with report_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("wb")


def remove(path: Path) -> None:
    """Delete a file or a folder, if it exists."""
    try:
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    except OSError as error:
        raise UserError(f"{path} cannot be deleted: {error.strerror or error}") from None


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
    with report_errors(folder):
        try:
            file = open_locked(path, wait)
        except BlockingIOError:
            raise UserError(
                f"{folder} is in use by another process (PID {read_pid(path)}): wait until it ends, or "
                "choose another --run"
            ) from None
    token = _locked_folders.set(_locked_folders.get() | {resolved})
    try:
        with suppress(OSError):  # a full disk, say: only messages need the PID
            file.truncate(0)
            file.write(str(os.getpid()).encode())
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
                # Unbuffered: after a failed write, closing a buffered file fails too.
                file = on_error.enter_context(path.open("ab", buffering=0))
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
    with suppress(OSError):  # it was renamed, say
        path.unlink()
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
