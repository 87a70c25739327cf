"""Atomic writes: a file is complete or absent, whatever fails during the write. Locks exclude others."""

import os
import stat
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from regard import files
from regard.errors import UserError


def test_write_accepts_text_and_bytes_and_creates_folders(tmp_path: Path) -> None:
    files.write(tmp_path / "a" / "b.txt", "née\n")
    assert (tmp_path / "a" / "b.txt").read_bytes() == "née\n".encode()
    files.write(tmp_path / "a" / "b.txt", b"\x00\xff")
    assert (tmp_path / "a" / "b.txt").read_bytes() == b"\x00\xff"


class Stop(BaseException):
    pass


@pytest.mark.parametrize("failure", [OSError(28, "No space left on device"), Stop(), KeyError("x")])
@pytest.mark.parametrize("moment", ["writer", "replace", "fsync"])
def test_a_failed_write_changes_nothing(tmp_path: Path, monkeypatch, failure, moment) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")

    def fail(*_: object) -> None:
        raise failure

    def writer(temporary: Path) -> None:
        temporary.write_text("half of the n")
        if moment == "writer":
            fail()

    if moment != "writer":
        monkeypatch.setattr(os, moment, fail)
    is_os_error = isinstance(failure, OSError)
    with pytest.raises(
        UserError if is_os_error else type(failure),
        match="a.txt cannot be written: No space" if is_os_error else None,
    ):
        files.write_with(path, writer)
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["a.txt"]


def test_the_old_file_exists_until_the_new_one_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")

    def writer(temporary: Path) -> None:
        assert temporary != path
        assert temporary.suffix == ".txt"
        temporary.write_text("new")
        assert path.read_text() == "old"

    files.write_with(path, writer)
    assert path.read_text() == "new"
    assert os.listdir(tmp_path) == ["a.txt"]


def test_permissions_follow_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        files.write(tmp_path / "a.txt", "a")
        assert os.umask(0o027) == 0o027  # unchanged
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a.txt").stat().st_mode) == 0o640


def test_unwritable_paths_raise_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("old")
    (tmp_path / "folder").mkdir()
    for path in (tmp_path / "file" / "a.txt", tmp_path / "folder"):
        with pytest.raises(UserError, match=f"{path.name} cannot be written: "):
            files.write(path, "new")
    assert sorted(os.listdir(tmp_path)) == ["file", "folder"]
    assert (tmp_path / "file").read_text() == "old"


def test_remove_temporary_deletes_unfinished_files_only(tmp_path: Path, monkeypatch) -> None:
    files.write(tmp_path / "last" / "state.txt", "kept")
    (tmp_path / ".hidden").write_text("kept")
    with monkeypatch.context() as patch:  # as if killed: no cleanup
        patch.setattr(os, "replace", lambda *_: None)
        patch.setattr(Path, "unlink", lambda *_, **__: None)
        files.write(tmp_path / "last" / "state.txt", "half")
    assert len(os.listdir(tmp_path / "last")) == 2
    assert [path.name for path in files.list_files(tmp_path / "last")] == ["state.txt"]
    files.remove_temporary(tmp_path)
    assert os.listdir(tmp_path / "last") == ["state.txt"]
    assert sorted(os.listdir(tmp_path)) == [".hidden", "last"]
    files.remove_temporary(tmp_path / "nowhere")


def test_temporary_files_of_a_live_writer_are_kept(tmp_path: Path) -> None:
    def writer(temporary: Path) -> None:
        temporary.write_text("half")
        files.remove_temporary(tmp_path)
        assert temporary.read_text() == "half"

    files.write_with(tmp_path / "a.txt", writer)
    assert (tmp_path / "a.txt").read_text() == "half"


def test_threads_do_not_change_the_umask_of_each_other(tmp_path: Path) -> None:
    """The umask belongs to the process: a write that sets it, even for a moment, races."""

    def writer(temporary: Path) -> None:
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda name: files.write(tmp_path / name, name), "abc"))
        temporary.write_text("a")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "umask", lambda _: pytest.fail("sets the umask"))
        files.write_with(tmp_path / "d", writer)
    expected = os.umask(0o022)
    os.umask(expected)
    for name in "abcd":
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o666 & ~expected


# --- locks ----------------------------------------------------------------------------------------


def try_lock(folder: Path, wait: bool = False) -> str:
    """Take the lock in another thread, which does not hold it; the error message, or "" """

    def attempt() -> str:
        try:
            with files.lock(folder, wait):
                return ""
        except UserError as error:
            return str(error)

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(attempt).result(20)


def test_lock_is_exclusive_and_leaves_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "case"
    with files.lock(folder):
        message = (
            f"{folder} is in use by another process (PID {os.getpid()}): wait until it ends, or"
        )
        assert try_lock(folder).startswith(message)
        assert files.list_files(folder) == []  # hidden
        with files.lock(folder):  # by its holder
            pass
        assert try_lock(folder).startswith(message)
        assert try_lock(tmp_path / "other") == ""
    assert try_lock(folder) == ""
    assert os.listdir(tmp_path) == []
    folder.mkdir(parents=True)
    with files.lock(folder):
        (folder / "file").write_text("kept")
    assert os.listdir(folder) == ["file"]


def test_waiting_for_a_lock(tmp_path: Path) -> None:
    """Only one at a time, though each deletes the lock file and the folder that others wait for."""
    inside, most = 0, 0

    def work(_: int) -> None:
        nonlocal inside, most
        with files.lock(tmp_path / "run", wait=True):
            inside += 1
            most = max(most, inside)
            time.sleep(0.002)
            inside -= 1

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(40)))
    assert most == 1
    assert not (tmp_path / "run" / ".lock").exists()


HOLD = """
import sys, time
from pathlib import Path
from regard import files
with files.lock(Path(sys.argv[1])):
    print("locked", flush=True)
    time.sleep(60)
"""


def test_lock_of_a_killed_process_is_free(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", HOLD, tmp_path], stdout=subprocess.PIPE)
    assert child.stdout
    assert child.stdout.readline() == b"locked\n"
    assert f"PID {child.pid}" in try_lock(tmp_path)
    child.kill()
    child.communicate()
    assert os.listdir(tmp_path) == [".lock"]  # it had no time to delete it
    assert files.list_files(tmp_path) == []
    assert try_lock(tmp_path) == ""


def test_file_system_without_locks(tmp_path: Path, monkeypatch) -> None:
    def flock(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr("fcntl.flock", flock)
    with files.lock(tmp_path / "run"):
        files.write(tmp_path / "run" / "a.txt", "a")
    assert os.listdir(tmp_path / "run") == ["a.txt"]


def test_unusable_folders_cannot_be_locked(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("old")
    for folder in (tmp_path / "file", tmp_path / "file" / "run"):
        with (
            pytest.raises(UserError, match=f"{folder.name} cannot be written: "),
            files.lock(folder),
        ):
            pass


def test_link_to_nowhere_is_an_error(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "unmounted" / "disk")
    with pytest.raises(UserError, match="cannot be written"):
        files.write(tmp_path / "link" / "folder" / "file", "text")
    with pytest.raises(UserError, match="cannot be written"), files.lock(tmp_path / "link"):
        pass
