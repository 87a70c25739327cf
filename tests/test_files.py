"""Atomic writes: a file is complete or absent, whatever fails during the write."""

import os
import stat
from pathlib import Path

import pytest

from regard import files
from regard.errors import UserError


def test_write_accepts_text_and_bytes_and_creates_folders(tmp_path: Path) -> None:
    files.write(tmp_path / "a" / "b.txt", "née\n")
    assert (tmp_path / "a" / "b.txt").read_bytes() == "née\n".encode()
    files.write(tmp_path / "a" / "b.txt", b"\x00\xff")
    assert (tmp_path / "a" / "b.txt").read_bytes() == b"\x00\xff"


def test_read_json_rejects_a_damaged_file(tmp_path: Path) -> None:
    path = tmp_path / "card.json"
    files.write(path, '{"née": [1]}')
    assert files.read_json(path) == {"née": [1]}
    for content in (b"", b"{", b"[]", b'{"n\xff": 1}'):
        path.write_bytes(content)
        with pytest.raises(UserError, match=r"card\.json is damaged: delete it, and run"):
            files.read_json(path)


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
