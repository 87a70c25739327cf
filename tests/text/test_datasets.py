"""Public datasets: finding, loading, damaged files, downloads, and the real data if it is here."""

import gzip
import hashlib
import json
import os
import re
import time
import zipfile
from datetime import datetime
from itertools import permutations
from pathlib import Path

import pytest

from regard.config import DatasetData
from regard.errors import UserError
from regard.text import corpus, datasets
from regard.text.datasets import DATASETS

TABLE = (
    "Go.\tVa !\tCC-BY 2.0\nGo.\tVa !\tanother\nHi.\tSalut !\nrubbish\n\tnothing\nHi!\tBonjour.\n"
)


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """An empty home directory, whatever is on this machine."""
    monkeypatch.delenv("REGARD_DATA", raising=False)
    monkeypatch.delenv("REGARD_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def write_zip(path: Path, member: str, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(member, text)


def write_dataset(root: Path, name: str, languages=None, lines: int = 3) -> Path:
    """A small copy of a dataset in `root`."""
    dataset = DATASETS[name]
    folder = root / dataset.folder
    folder.mkdir(parents=True, exist_ok=True)
    for file in dataset.files_for(languages or dataset.languages):
        if dataset.member:
            write_zip(folder / file, dataset.member, TABLE)
        else:
            text = "".join(f" {file} {n}\u2028x \r\n" for n in range(lines))
            (folder / file).write_bytes(gzip.compress(text.encode()))
    return folder


# The manifest


@pytest.mark.parametrize("name", DATASETS)
def test_every_manifest_is_complete(name):
    dataset = DATASETS[name]
    assert set(dataset.files_for(dataset.languages)) == set(dataset.files)
    for file, (url, sha256) in dataset.files.items():
        assert url.startswith("https://")
        assert url.endswith("/" + file)
        assert (sha256 is None) == (dataset.member is not None)
        assert sha256 is None or len(bytes.fromhex(sha256)) == 32


# Optional splits


def test_an_optional_split_is_read_where_the_user_put_it(tmp_path, monkeypatch):
    monkeypatch.setenv("REGARD_DATA", str(tmp_path))
    folder = write_dataset(tmp_path, "multi30k")
    data = DatasetData(source="en", target="de")
    with pytest.raises(UserError) as caught:
        corpus.load_split(data, "test_2017_flickr")
    for text in (
        "the split test_2017_flickr of multi30k is optional, and not on this machine: download https://",
        "data/task1/raw/test_2017_flickr.en.gz",
        "data/task1/raw/test_2017_flickr.de.gz",
        f" to {folder}. ",
    ):
        assert text in str(caught.value)
    for language in ("en", "de"):
        path = folder / f"test_2017_flickr.{language}.gz"
        path.write_bytes(gzip.compress(f"one {language}\ntwo {language}\n".encode()))
    expected = [("one en", "one de"), ("two en", "two de")]
    assert corpus.load_split(data, "test_2017_flickr") == expected
    assert list(corpus.load(data).splits) == ["train", "val", "test"]
    [status, *_] = datasets.list_status()
    assert status.optional_splits == ("test_2017_flickr",)
    assert status.splits == ("train", "val", "test")
    assert datasets.get("multi30k") == folder  # nothing is missing


def test_an_optional_split_may_lack_a_language(tmp_path, monkeypatch):
    monkeypatch.setenv("REGARD_DATA", str(tmp_path))
    write_dataset(tmp_path, "multi30k")
    data = DatasetData(source="en", target="cs")
    with pytest.raises(
        UserError, match=r'test_2017_mscoco of multi30k has no language "cs"\. It has'
    ):
        corpus.load_split(data, "test_2017_mscoco")
    with pytest.raises(UserError, match="test_2018_flickr of multi30k is optional, and not on"):
        corpus.load_split(data, "test_2018_flickr")
    with pytest.raises(UserError, match=r'no split "test_2017"\. Did you mean "test_2017'):
        corpus.load_split(data, "test_2017")


def test_a_split_is_read_without_the_others(tmp_path, monkeypatch):
    monkeypatch.setenv("REGARD_DATA", str(tmp_path))
    folder = write_dataset(tmp_path, "multi30k")
    (folder / "train.de.gz").write_bytes(b"damaged")
    assert len(corpus.load_split(DatasetData(), "test")) == 3
    with pytest.raises(UserError, match=r"train\.de\.gz"):
        corpus.load(DatasetData())


# Finding folders


def test_the_user_cache(home, monkeypatch, tmp_path):
    assert datasets.cache_dir() == home / ".cache" / "regard"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert datasets.cache_dir() == tmp_path / "xdg" / "regard"
    monkeypatch.setenv("REGARD_CACHE", "~/mine")
    assert datasets.cache_dir() == home / "mine"


@pytest.mark.parametrize("name", DATASETS)
def test_folders_are_searched_in_regard_data_then_the_cache(home, tmp_path, monkeypatch, name):
    assert datasets.find_folder(name) is None
    cached = write_dataset(home / ".cache" / "regard", name)
    assert datasets.find_folder(name) == cached
    roots = [tmp_path / "absent", tmp_path / "first", tmp_path / "second"]
    monkeypatch.setenv("REGARD_DATA", os.pathsep.join(["", *map(str, roots)]))
    assert datasets.find_folder(name) == cached
    second = write_dataset(roots[2], name)
    assert datasets.find_folder(name) == second
    first = write_dataset(roots[1], name)
    assert datasets.find_folder(name) == first


def test_a_folder_may_have_the_name_of_the_dataset(tmp_path, monkeypatch):
    write_zip(tmp_path / "tatoeba-fr-en" / "fra-eng.zip", "fra.txt", TABLE)
    monkeypatch.setenv("REGARD_DATA", str(tmp_path))
    assert datasets.find_folder("tatoeba-fr-en") == tmp_path / "tatoeba-fr-en"
    assert datasets.find_folder("tatoeba-de-en") is None


def test_only_the_requested_languages_are_needed(tmp_path, monkeypatch):
    monkeypatch.setenv("REGARD_DATA", str(tmp_path))
    folder = write_dataset(tmp_path, "multi30k", ["de", "en"])
    assert datasets.find_folder("multi30k") is None
    assert datasets.find_folder("multi30k", "de", "en") == folder
    assert len(datasets.load("multi30k", "en", "de")["train"]) == 3
    with pytest.raises(UserError, match=r"\(de, fr\) is not on this machine"):
        datasets.load("multi30k", "de", "fr")


def test_a_folder_without_permission_is_ignored(home, tmp_path, monkeypatch):
    def deny(*args, **kwargs):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setenv("REGARD_DATA", str(tmp_path))
    monkeypatch.setattr(os, "stat", deny)
    assert datasets.find_folder("multi30k") is None


def test_list_status(home, tmp_path, monkeypatch):
    assert [row.folder for row in datasets.list_status()] == [None] * 4
    folder = write_dataset(home / ".cache" / "regard", "multi30k", ["de", "en"])
    write_dataset(home / ".cache" / "regard", "tatoeba-fr-en")
    rows = {row.name: row for row in datasets.list_status()}
    assert list(rows) == list(DATASETS)
    assert rows["multi30k"].folder == folder
    assert rows["multi30k"].available == ("de", "en")
    assert rows["multi30k"].languages == ("de", "en", "fr", "cs")
    assert rows["multi30k"].splits == ("train", "val", "test")
    assert rows["tatoeba-fr-en"].folder == folder.parent / "tatoeba"
    assert rows["tatoeba-de-en"].folder is None
    # One language of four is not a pair.
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "other"))
    write_dataset(tmp_path / "other", "multi30k", ["de"])
    write_dataset(tmp_path / "other", "multi30k-captions", ["de"])
    rows = {row.name: row for row in datasets.list_status()}
    assert (rows["multi30k"].folder, rows["multi30k"].available) == (None, ())
    assert rows["multi30k-captions"].available == ("de",)


# Loading


@pytest.fixture
def data(tmp_path, monkeypatch):
    monkeypatch.setenv("REGARD_DATA", str(tmp_path / "data"))
    for name in DATASETS:
        write_dataset(tmp_path / "data", name)
    return tmp_path / "data"


@pytest.mark.parametrize(("source", "target"), list(permutations(["de", "en", "fr", "cs"], 2)))
def test_multi30k_in_every_direction(data, source, target):
    pairs = datasets.load("multi30k", source, target)
    assert list(pairs) == ["train", "val", "test"]
    assert pairs["val"] == [
        (f"val.{source}.gz {n}\u2028x", f"val.{target}.gz {n}\u2028x") for n in range(3)
    ]
    assert pairs["test"][0][0] == f"test_2016_flickr.{source}.gz 0\u2028x"


def test_captions_are_read_from_all_five_files(data):
    texts = datasets.load_monolingual("multi30k-captions", "de")
    assert {split: len(each) for split, each in texts.items()} == {"train": 15, "val": 15}
    assert texts["val"][3] == "val.2.de.gz 0\u2028x"
    assert (
        datasets.load_monolingual("multi30k", "fr")["test"][0] == "test_2016_flickr.fr.gz 0\u2028x"
    )


def test_tatoeba_pairs_have_no_duplicates(data):
    pairs = datasets.load("tatoeba-fr-en", "en", "fr")
    assert list(pairs) == ["train", "val", "test"]
    all_pairs = [pair for split in pairs.values() for pair in split]
    assert sorted(all_pairs) == [("Go.", "Va !"), ("Hi!", "Bonjour."), ("Hi.", "Salut !")]
    reverse = datasets.load("tatoeba-fr-en", "fr", "en")
    assert reverse == {split: [(b, a) for a, b in pairs[split]] for split in pairs}
    texts = datasets.load_monolingual("tatoeba-fr-en", "en")
    assert sorted(text for split in texts.values() for text in split) == ["Go.", "Hi!", "Hi."]
    assert datasets.load_monolingual("tatoeba-fr-en", "fr")["train"] == ["Salut !", "Bonjour."]


def test_a_missing_dataset_error_says_how_to_get_it(monkeypatch, tmp_path):
    monkeypatch.setenv("REGARD_DATA", str(tmp_path / "mine"))
    monkeypatch.setattr(
        datasets, "fetch", lambda *a, **k: pytest.fail("downloads without being asked")
    )
    with pytest.raises(UserError) as caught:
        datasets.load("tatoeba-de-en", "de", "en")
    message = str(caught.value)
    assert "regard data get tatoeba-de-en" in message
    assert "set REGARD_DATA to a folder that holds tatoeba/ with deu-eng.zip" in message
    assert str(tmp_path / "mine" / "tatoeba") in message
    assert not (tmp_path / "home").exists()


def test_unknown_names(data):
    with pytest.raises(UserError, match=r'no dataset "multi30".* Did you mean "multi30k"'):
        datasets.load("multi30", "de", "en")
    for call in (datasets.get, datasets.find_folder):
        with pytest.raises(UserError, match="There are multi30k, multi30k-captions, tatoeba"):
            call("wmt14")
    with pytest.raises(UserError, match=r'no language "EN".* Did you mean "en".*de, en, fr, cs'):
        datasets.load("multi30k", "de", "EN")
    with pytest.raises(UserError, match=r'no language "cs". It has de, en'):
        datasets.load_monolingual("multi30k-captions", "cs")
    with pytest.raises(UserError, match='different languages; got "de" twice'):
        datasets.load("multi30k", "de", "de")
    with pytest.raises(UserError, match="has no translations"):
        datasets.load("multi30k-captions", "de", "en")


def test_sides_with_different_line_counts(data):
    path = data / "multi30k" / "val.en.gz"
    path.write_bytes(gzip.compress(b"one\ntwo\n"))
    with pytest.raises(UserError, match=r"got 3 in .*val\.de\.gz and 2 in .*val\.en\.gz"):
        datasets.load("multi30k", "de", "en")


DAMAGES = {
    "cut": (lambda data: data[:-9], "cannot be read"),
    "empty": (lambda data: b"", "got 0 in"),  # gzip accepts an empty file as empty text
    "not gzip": (lambda data: b"<html>", "cannot be read"),
    "not UTF-8": (lambda data: gzip.compress(b"a\n\xff"), "line 2: not valid UTF-8"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damaged_files(data, name):
    damage, reason = DAMAGES[name]
    path = data / "multi30k" / "train.de.gz"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(UserError) as error:
        datasets.load("multi30k", "de", "en")
    assert reason in str(error.value)
    assert re.search(r"train\.de\.gz.*again with: regard data get multi30k", str(error.value))


def test_damaged_zips(data):
    path = data / "tatoeba" / "fra-eng.zip"
    for content in (path.read_bytes()[:-9], b"<html>"):
        path.write_bytes(content)
        with pytest.raises(UserError, match=r"fra-eng\.zip cannot be read: .*regard data get tato"):
            datasets.load("tatoeba-fr-en", "fr", "en")
    write_zip(path, "deu.txt", TABLE)
    with pytest.raises(UserError, match=r"fra-eng\.zip cannot be read: .*fra\.txt"):
        datasets.load("tatoeba-fr-en", "fr", "en")
    write_zip(path, "fra.txt", "no tabs here\n")
    with pytest.raises(UserError, match=r"English TAB translation in fra.txt"):
        datasets.load("tatoeba-fr-en", "fr", "en")


# Downloading


@pytest.fixture
def network(monkeypatch):
    """A fake `fetch` that writes a file without a network, and records its requests."""

    class Network:
        requests: list

        def __call__(self, url, path, *, sha256, report, check):
            self.requests.append((url, sha256))
            if self.fail and len(self.requests) > 2:
                raise UserError("no network")
            path.parent.mkdir(parents=True, exist_ok=True)
            part = path.with_name(path.name + ".part")
            write_zip(part, self.member, TABLE)
            if check:
                check(part)
            if report:
                report(7, 11)
            part.rename(path)
            return hashlib.sha256(path.read_bytes()).hexdigest()

    network = Network()
    network.requests, network.fail, network.member = [], False, "fra.txt"
    monkeypatch.setattr(datasets, "fetch", network)
    return network


def test_get_downloads_only_missing_files(home, network):
    network.fail = True
    with pytest.raises(UserError, match="no network"):
        datasets.get("multi30k")
    assert len(network.requests) == 3
    network.fail = False
    reported = []
    folder = datasets.get("multi30k", lambda *args: reported.append(args))
    assert folder == home / ".cache" / "regard" / "multi30k"
    assert sorted(network.requests[:2] + network.requests[3:]) == sorted(
        DATASETS["multi30k"].files.values()
    )
    assert sorted(each.name for each in folder.iterdir()) == sorted(DATASETS["multi30k"].files)
    assert reported == [(file, 7, 11) for file in list(DATASETS["multi30k"].files)[2:]]
    assert datasets.get("multi30k") == folder
    assert len(network.requests) == 13


def test_get_uses_existing_data(data, network):
    assert datasets.get("multi30k") == data / "multi30k"
    assert network.requests == []


def test_get_records_the_version_of_changing_files(home, network):
    folder = datasets.get("tatoeba-fr-en")
    record = json.loads((folder / "fra-eng.zip.json").read_text())
    content = (folder / "fra-eng.zip").read_bytes()
    assert record["url"] == "https://www.manythings.org/anki/fra-eng.zip"
    assert record["sha256"] == hashlib.sha256(content).hexdigest()
    assert record["bytes"] == len(content)
    age = datetime.now().astimezone() - datetime.fromisoformat(record["date"])
    assert abs(age.total_seconds()) < 60
    assert datasets.load("tatoeba-fr-en", "fr", "en")["train"]


def test_get_rejects_other_content_than_the_zip(home, network):
    network.member = "login.html"
    with pytest.raises(UserError, match=r"expected a zip with fra\.txt.*as \"fra-eng\.zip\""):
        datasets.get("tatoeba-fr-en")
    assert datasets.find_folder("tatoeba-fr-en") is None


# Real data

SHARED = Path(__file__).parents[3] / "shared" / "data"
REAL = os.environ.get("REGARD_DATA") or (str(SHARED) if SHARED.is_dir() else "")


@pytest.fixture
def real(monkeypatch):
    if not REAL:
        pytest.skip("neither REGARD_DATA nor ../shared/data exists")
    monkeypatch.setenv("REGARD_DATA", REAL)

    def require(name):
        if datasets.find_folder(name) is None:
            pytest.skip(f"{name} is not in {REAL}")
        return datasets.find_folder(name)

    return require


@pytest.mark.parametrize("name", ["multi30k", "multi30k-captions"])
def test_real_files_have_the_checksums_of_the_manifest(real, name):
    folder = real(name)
    for file, (_, sha256) in DATASETS[name].files.items():
        assert hashlib.sha256((folder / file).read_bytes()).hexdigest() == sha256, file


@pytest.mark.parametrize(("source", "target"), [("de", "en"), ("fr", "cs")])
def test_real_multi30k(real, source, target):
    real("multi30k")
    pairs = datasets.load("multi30k", source, target)
    assert [len(each) for each in pairs.values()] == [29_000, 1_014, 1_000]
    assert all(
        text == text.strip() != "" for each in pairs.values() for pair in each for text in pair
    )


def test_real_captions(real):
    real("multi30k-captions")
    texts = datasets.load_monolingual("multi30k-captions", "en")
    assert {key: len(each) for key, each in texts.items()} == {"train": 145_000, "val": 5_070}


@pytest.mark.parametrize("name", ["tatoeba-fr-en", "tatoeba-de-en"])
def test_real_tatoeba_splits_are_disjoint(real, name):
    real(name)
    start = time.process_time()
    pairs = datasets.load(name, *DATASETS[name].languages)
    assert time.process_time() - start < 10  # 1.5 without the type checks of conftest.py
    count = sum(map(len, pairs.values()))
    assert count > 150_000
    assert len({pair for each in pairs.values() for pair in each}) == count
    for side in (0, 1):
        sentences = {
            key: {re.sub(r"[\W_]+", "", pair[side].casefold()) for pair in each}
            for key, each in pairs.items()
        }
        assert sentences["train"].isdisjoint(sentences["val"])
        assert sentences["train"].isdisjoint(sentences["test"])
        assert sentences["val"].isdisjoint(sentences["test"])
    for key in ("val", "test"):
        assert 0.008 < len(pairs[key]) / count < 0.012
