"""Atomic writes: a file is complete or absent, whatever fails during the write. Locks exclude others."""

import os
import resource
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


def test_a_write_deletes_what_a_killed_writer_of_the_same_file_left(tmp_path: Path) -> None:
    for name in (".regard-a-0123456789abcdef.txt", ".regard-b-0123456789abcdef.txt"):
        (tmp_path / name).write_text("half")
    folder = tmp_path / ".regard-a-fedcba9876543210"
    (folder / "a").mkdir(parents=True)
    (folder / "a" / "file").write_text("half")
    files.write(tmp_path / "a.txt", "new")
    assert sorted(os.listdir(tmp_path)) == [".regard-b-0123456789abcdef.txt", "a.txt"]


# --- folders, complete or absent ------------------------------------------------------------------


def test_a_folder_appears_when_it_is_complete(tmp_path: Path) -> None:
    def writer(folder: Path) -> None:
        files.write(folder / "part" / "file", "new")
        assert not (tmp_path / "out" / "part").exists() or (tmp_path / "empty").exists()
        files.remove_temporary(tmp_path)  # by another process
        assert (folder / "part" / "file").read_text() == "new"

    files.write_folder(tmp_path / "out", writer)
    assert os.listdir(tmp_path) == ["out"]
    assert (tmp_path / "out" / "part" / "file").read_text() == "new"
    (tmp_path / "empty").mkdir()
    files.write_folder(tmp_path / "empty", writer)
    with pytest.raises(UserError, match=r"out cannot be written: Directory not empty"):
        files.write_folder(tmp_path / "out", lambda _: None)
    assert (tmp_path / "out" / "part" / "file").read_text() == "new"
    assert sorted(os.listdir(tmp_path)) == ["empty", "out"]


def test_a_folder_that_fails_leaves_nothing_and_names_its_file(tmp_path, monkeypatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        out = tmp_path / "out"
        with pytest.raises(UserError, match=f"^{out / 'file'} cannot be written: No space"):
            files.write_folder(out, lambda folder: files.write(folder / "file", "new"))
    assert os.listdir(tmp_path) == []


def test_remove_temporary_deletes_the_folders_of_killed_processes(tmp_path, monkeypatch) -> None:
    with monkeypatch.context() as patch:  # as if killed: no cleanup
        patch.setattr(Path, "replace", lambda *_: None)
        patch.setattr(Path, "unlink", lambda *_, **__: None)
        patch.setattr("shutil.rmtree", lambda *_, **__: None)
        files.write_folder(tmp_path / "cache" / "model", lambda folder: (folder / "a").touch())
    (left,) = os.listdir(tmp_path / "cache")
    assert sorted(os.listdir(tmp_path / "cache" / left)) == [".lock", "model"]
    (tmp_path / "cache" / left / "model" / ".regard-config-0123456789abcdef.json").touch()
    files.remove_temporary(tmp_path)
    assert os.listdir(tmp_path / "cache") == []


def test_create_never_replaces(tmp_path: Path) -> None:
    files.create(tmp_path / "new" / "a.txt", "née")
    with pytest.raises(UserError, match=r"a.txt cannot be written: File exists"):
        files.create(tmp_path / "new" / "a.txt", "other")
    assert (tmp_path / "new" / "a.txt").read_text("utf-8") == "née"
    assert os.listdir(tmp_path / "new") == ["a.txt"]


def test_create_on_a_file_system_without_hard_links(tmp_path: Path, monkeypatch) -> None:
    def link(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", link)
    files.create(tmp_path / "a.txt", "new")
    with pytest.raises(UserError, match=r"a.txt cannot be written"):
        files.create(tmp_path / "a.txt", "other")
    assert (tmp_path / "a.txt").read_text() == "new"
    assert os.listdir(tmp_path) == ["a.txt"]


# --- files that grow ------------------------------------------------------------------------------


def test_append_adds_all_or_nothing(tmp_path: Path) -> None:
    path = tmp_path / "log"
    assert files.append(path, b"one\n") == 4
    assert files.append(path, b"two\n") == 8
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:  # a real failure in the middle: 2 bytes fit
        resource.setrlimit(resource.RLIMIT_FSIZE, (10, before[1]))
        with pytest.raises(UserError, match=r"log cannot be written: (No space|File too large)"):
            files.append(path, b"three\n")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert path.read_bytes() == b"one\ntwo\n"


def test_shorten(tmp_path: Path) -> None:
    path = tmp_path / "log"
    files.shorten(path, 3)
    assert not path.exists()
    path.write_bytes(b"12345")
    for length in (9, 5, 3, 4):
        files.shorten(path, length)
    assert path.read_bytes() == b"123"
    assert not path.is_symlink()


def test_an_output_is_renamed_when_it_is_complete(tmp_path: Path) -> None:
    path, part = tmp_path / "out.txt", tmp_path / "out.txt.part"
    path.write_text("old")
    part.write_text("of a killed process, and longer")
    with files.open_output(path) as file:
        file.write("née\n")
        file.flush()
        assert (path.read_text(), part.read_text("utf-8")) == ("old", "née\n")
        with (
            pytest.raises(UserError, match=r"out.txt is being written by another process"),
            files.open_output(path),
        ):
            pass
    assert path.read_bytes() == "née\n".encode()
    assert os.listdir(tmp_path) == ["out.txt"]


@pytest.mark.parametrize("failure", [OSError(28, "No space left on device"), UserError("no")])
def test_an_output_that_fails_keeps_the_old_one_and_what_is_done(tmp_path, failure) -> None:
    path = tmp_path / "out.txt"
    path.write_text("old")

    def write(text: str, error: BaseException) -> None:
        with files.open_output(path) as file:
            file.write(text)
            raise error

    for text, left in (("new\n", ["out.txt", "out.txt.part"]), ("", ["out.txt"])):
        with pytest.raises(UserError, match=r"^no$|out.txt cannot be written: No space"):
            write(text, failure)
        assert path.read_text() == "old"
        assert sorted(os.listdir(tmp_path)) == left
    with pytest.raises(KeyboardInterrupt):
        write("all so far\n", KeyboardInterrupt())
    assert path.read_text() == "all so far\n"


def test_an_output_may_be_a_device_and_needs_its_folder(tmp_path: Path) -> None:
    with files.open_output(Path(os.devnull)) as file:
        file.write("text")
    assert not Path(f"{os.devnull}.part").exists()
    with (
        pytest.raises(UserError, match=r"a cannot be written: No such file or directory"),
        files.open_output(tmp_path / "no" / "a"),
    ):
        pass
    assert os.listdir(tmp_path) == []


def test_remove(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "folder" / "inner").mkdir(parents=True)
    (tmp_path / "file").touch()
    for name in ("folder", "file", "nothing"):
        files.remove(tmp_path / name)
    assert os.listdir(tmp_path) == []

    def unlink(*_: object, **__: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(Path, "unlink", unlink)
    with pytest.raises(UserError, match=r"a cannot be deleted: Read-only file system"):
        files.remove(tmp_path / "a")


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


def test_a_full_disk_does_not_stop_a_lock(tmp_path: Path) -> None:
    """The process id is not written, and closing the file does not try again."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        with files.lock(tmp_path / "run"):
            assert "PID unknown" in try_lock(tmp_path / "run")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert os.listdir(tmp_path) == []


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
