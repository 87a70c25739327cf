"""Files that unpack to far more than they are: one error, and no more memory or time than allowed."""

import gzip
import io
import json
import os
import threading
import zipfile

import pytest

from regard import config, lines
from regard.errors import UserError
from regard.text import datasets, decompress, hf
from regard.text.decompress import check_size, largest_size, open_gzip
from regard.text.hub import Repository
from regard.text.lines import read_lines
from regard.text.pairs import read_pairs

MESSAGE = r"unpacks to more than \d MiB from [\d,]+ bytes"


@pytest.fixture(autouse=True)
def small_floor(monkeypatch):
    monkeypatch.setattr(decompress, "FLOOR", 1 << 20)


def bomb() -> bytes:
    return gzip.compress((b"x" * 999 + b"\t" + b"y" * 999 + b"\n") * 1000, mtime=0)


def test_bounds_by_ratio_and_size():
    assert largest_size(0) == decompress.FLOOR
    assert largest_size(1 << 20) == decompress.RATIO << 20
    assert largest_size(1 << 60) == decompress.MAX_BYTES
    check_size("a", 1 << 20, decompress.RATIO << 20)
    with pytest.raises(UserError, match="a unpacks to more than 250 MiB from 1,048,576 bytes"):
        check_size("a", 1 << 20, (decompress.RATIO << 20) + 1)


def read_as_pairs(path):
    read_pairs(path, on_error="skip")


def read_as_input(path):
    with lines.open_input(str(path)) as file:
        for _ in file:
            pass


def read_as_dataset(path):
    hf.load(config.HubData(kind="hf", name=str(path.parent)))


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("a.txt.gz", read_lines),
        ("a.tsv.gz", read_as_pairs),
        ("a.txt.gz", read_as_input),
        ("train.jsonl.gz", read_as_dataset),
    ],
)
def test_gzip(tmp_path, name, read):
    path = tmp_path / name
    text = b'{"source": "a", "target": "b"}\n' * 100_000 if "jsonl" in name else None
    path.write_bytes(gzip.compress(text, mtime=0) if text else bomb())
    with pytest.raises(UserError, match=MESSAGE):
        read(path)


def test_text_of_every_ratio_up_to_the_bound_is_read(tmp_path):
    text = b"".join(b"%d\n" % number for number in range(200_000))
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(text))
    assert len(text) > decompress.FLOOR
    with open_gzip(path, path) as file:
        assert file.read() == text
    with path.open("rb") as raw, open_gzip(raw, path) as file:
        assert file.readlines() == text.splitlines(keepends=True)


def test_a_pipe_has_no_ratio(tmp_path):
    path = tmp_path / "a.gz"
    os.mkfifo(path)
    writer = threading.Thread(target=path.write_bytes, args=(bomb(),))
    writer.start()
    assert len(read_lines(path)) == 1000
    writer.join()


def test_zip(tmp_path, monkeypatch):
    monkeypatch.setenv("REGARD_DATA", str(tmp_path))
    path = tmp_path / "tatoeba" / "fra-eng.zip"
    path.parent.mkdir()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("fra.txt", "a\tb\n" * 500_000)
    with pytest.raises(UserError, match=MESSAGE):
        datasets.load("tatoeba-fr-en", "fr", "en")


def test_a_zip_that_lies_about_its_size(tmp_path, monkeypatch):
    """No more is unpacked than the size that it states."""
    monkeypatch.setenv("REGARD_DATA", str(tmp_path))
    path = tmp_path / "tatoeba" / "fra-eng.zip"
    path.parent.mkdir()
    text = b"a\tb\n" * 500_000
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("fra.txt", text)
    stated = len(text).to_bytes(4, "little")
    path.write_bytes(buffer.getvalue().replace(stated, (100).to_bytes(4, "little")))
    with pytest.raises(UserError, match=r"fra-eng\.zip cannot be read: Bad CRC-32"):
        datasets.load("tatoeba-fr-en", "fr", "en")


@pytest.mark.parametrize(
    ("name", "inside"),
    {
        "config.toml": True,
        "data/train-00000.parquet": True,
        "a..b/train.jsonl": True,
        "/etc/train.jsonl": False,
        "../train.jsonl": False,
        "data/../../train.jsonl": False,
        "..\\train.jsonl": False,
        "C:\\train.jsonl": False,
        "C:train.jsonl": False,
        "\\\\server\\share\\train.jsonl": False,
        "a\0b": False,
    }.items(),
)
def test_names_of_downloaded_files_stay_in_their_folder(tmp_path, name, inside):
    listing = tmp_path / "listing.json"
    entry = {"rfilename": name, "blobId": "0"}
    listing.write_text(json.dumps({"sha": "0" * 40, "siblings": [entry]}))
    if inside:
        assert list(Repository.parse_listing("here", listing).blobs) == [name]
    else:
        with pytest.raises(UserError, match="here is not a list of a repository's files"):
            Repository.parse_listing("here", listing)
