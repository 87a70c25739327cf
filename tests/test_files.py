"""A file is whole or not there, whatever happens while it is written."""

import os
import stat
from pathlib import Path

import pytest

from regard import files
from regard.errors import UserError


def test_writes_text_and_bytes_and_makes_folders(tmp_path: Path) -> None:
    files.write(tmp_path / "a" / "b.txt", "née\n")
    assert (tmp_path / "a" / "b.txt").read_bytes() == "née\n".encode()
    files.write(tmp_path / "a" / "b.txt", b"\x00\xff")
    assert (tmp_path / "a" / "b.txt").read_bytes() == b"\x00\xff"


def test_a_record_is_whole_or_told_to_be_damaged(tmp_path: Path) -> None:
    path = tmp_path / "card.json"
    files.write(path, '{"née": [1]}')
    assert files.read_json(path) == {"née": [1]}
    for damage in (b"", b"{", b"[]", b'{"n\xff": 1}'):
        path.write_bytes(damage)
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
    told = isinstance(failure, OSError)
    with pytest.raises(
        UserError if told else type(failure),
        match="a.txt cannot be written: No space" if told else None,
    ):
        files.write_with(path, writer)
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["a.txt"]


def test_the_old_file_is_there_until_the_new_one_is_whole(tmp_path: Path) -> None:
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


def test_permissions_are_those_of_an_ordinary_file(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        files.write(tmp_path / "a.txt", "a")
        assert os.umask(0o027) == 0o027  # left as it was
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a.txt").stat().st_mode) == 0o640


def test_places_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("old")
    (tmp_path / "folder").mkdir()
    for path in (tmp_path / "file" / "a.txt", tmp_path / "folder"):
        with pytest.raises(UserError, match=f"{path.name} cannot be written: "):
            files.write(path, "new")
    assert sorted(os.listdir(tmp_path)) == ["file", "folder"]
    assert (tmp_path / "file").read_text() == "old"


def test_sweep_takes_unfinished_files_and_nothing_else(tmp_path: Path, monkeypatch) -> None:
    files.write(tmp_path / "last" / "state.txt", "kept")
    (tmp_path / ".hidden").write_text("kept")
    with monkeypatch.context() as patch:  # as if killed: nobody tidies up
        patch.setattr(os, "replace", lambda *_: None)
        patch.setattr(Path, "unlink", lambda *_, **__: None)
        files.write(tmp_path / "last" / "state.txt", "half")
    assert len(os.listdir(tmp_path / "last")) == 2
    assert [path.name for path in files.list_files(tmp_path / "last")] == ["state.txt"]
    files.remove_temporary(tmp_path)
    assert os.listdir(tmp_path / "last") == ["state.txt"]
    assert sorted(os.listdir(tmp_path)) == [".hidden", "last"]
    files.remove_temporary(tmp_path / "nowhere")
