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

from regard.errors import UserError
from regard.text import datasets
from regard.text.datasets import DATASETS

TABLE = (
    "Go.\tVa !\tCC-BY 2.0\nGo.\tVa !\tanother\nHi.\tSalut !\nrubbish\n\tnothing\nHi!\tBonjour.\n"
)


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """A home that is empty, whatever this machine holds."""
    monkeypatch.delenv("REGARD_DATA", raising=False)
    monkeypatch.delenv("REGARD_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def zipped(path: Path, member: str, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(member, text)


def put(root: Path, name: str, languages=None, lines: int = 3) -> Path:
    """A small copy of a dataset in `root`."""
    dataset = DATASETS[name]
    folder = root / dataset.folder
    folder.mkdir(parents=True, exist_ok=True)
    for file in dataset.needs(languages or dataset.languages):
        if dataset.member:
            zipped(folder / file, dataset.member, TABLE)
        else:
            text = "".join(f" {file} {n}\u2028x \r\n" for n in range(lines))
            (folder / file).write_bytes(gzip.compress(text.encode()))
    return folder


# The manifest


@pytest.mark.parametrize("name", DATASETS)
def test_every_row_is_complete(name):
    dataset = DATASETS[name]
    assert set(dataset.needs(dataset.languages)) == set(dataset.files)
    for file, (url, sha256) in dataset.files.items():
        assert url.startswith("https://")
        assert url.endswith("/" + file)
        assert (sha256 is None) == (dataset.member is not None)
        assert sha256 is None or len(bytes.fromhex(sha256)) == 32


# Finding


def test_the_user_cache(home, monkeypatch, tmp_path):
    assert datasets.cache() == home / ".cache" / "regard"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert datasets.cache() == tmp_path / "xdg" / "regard"
    monkeypatch.setenv("REGARD_CACHE", "~/mine")
    assert datasets.cache() == home / "mine"


@pytest.mark.parametrize("name", DATASETS)
def test_search_goes_through_regard_data_then_the_cache(home, tmp_path, monkeypatch, name):
    assert datasets.folder(name) is None
    cached = put(home / ".cache" / "regard", name)
    assert datasets.folder(name) == cached
    places = [tmp_path / "absent", tmp_path / "first", tmp_path / "second"]
    monkeypatch.setenv("REGARD_DATA", os.pathsep.join(["", *map(str, places)]))
    assert datasets.folder(name) == cached
    second = put(places[2], name)
    assert datasets.folder(name) == second
    first = put(places[1], name)
    assert datasets.folder(name) == first


def test_a_folder_may_have_the_name_of_the_dataset(tmp_path, monkeypatch):
    zipped(tmp_path / "tatoeba-fr-en" / "fra-eng.zip", "fra.txt", TABLE)
    monkeypatch.setenv("REGARD_DATA", str(tmp_path))
    assert datasets.folder("tatoeba-fr-en") == tmp_path / "tatoeba-fr-en"
    assert datasets.folder("tatoeba-de-en") is None


def test_the_languages_asked_for_are_enough(tmp_path, monkeypatch):
    monkeypatch.setenv("REGARD_DATA", str(tmp_path))
    place = put(tmp_path, "multi30k", ["de", "en"])
    assert datasets.folder("multi30k") is None
    assert datasets.folder("multi30k", "de", "en") == place
    assert len(datasets.load("multi30k", "en", "de")["train"]) == 3
    with pytest.raises(UserError, match=r"\(de, fr\) is not on this machine"):
        datasets.load("multi30k", "de", "fr")


def test_a_folder_that_may_not_be_entered_is_passed_over(home, tmp_path, monkeypatch):
    def closed(*args, **kwargs):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setenv("REGARD_DATA", str(tmp_path))
    monkeypatch.setattr(os, "stat", closed)
    assert datasets.folder("multi30k") is None


def test_status(home, tmp_path, monkeypatch):
    assert [row.where for row in datasets.status()] == [None] * 4
    place = put(home / ".cache" / "regard", "multi30k", ["de", "en"])
    put(home / ".cache" / "regard", "tatoeba-fr-en")
    rows = {row.name: row for row in datasets.status()}
    assert list(rows) == list(DATASETS)
    assert rows["multi30k"].where == place
    assert rows["multi30k"].here == ("de", "en")
    assert rows["multi30k"].languages == ("de", "en", "fr", "cs")
    assert rows["multi30k"].splits == ("train", "val", "test")
    assert rows["tatoeba-fr-en"].where == place.parent / "tatoeba"
    assert rows["tatoeba-de-en"].where is None
    # One language of four is no pair.
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "other"))
    put(tmp_path / "other", "multi30k", ["de"])
    put(tmp_path / "other", "multi30k-captions", ["de"])
    rows = {row.name: row for row in datasets.status()}
    assert (rows["multi30k"].where, rows["multi30k"].here) == (None, ())
    assert rows["multi30k-captions"].here == ("de",)


# Loading


@pytest.fixture
def data(tmp_path, monkeypatch):
    monkeypatch.setenv("REGARD_DATA", str(tmp_path / "data"))
    for name in DATASETS:
        put(tmp_path / "data", name)
    return tmp_path / "data"


@pytest.mark.parametrize(("source", "target"), list(permutations(["de", "en", "fr", "cs"], 2)))
def test_multi30k_in_every_direction(data, source, target):
    pairs = datasets.load("multi30k", source, target)
    assert list(pairs) == ["train", "val", "test"]
    assert pairs["val"] == [
        (f"val.{source}.gz {n}\u2028x", f"val.{target}.gz {n}\u2028x") for n in range(3)
    ]
    assert pairs["test"][0][0] == f"test_2016_flickr.{source}.gz 0\u2028x"


def test_captions_are_all_five_files(data):
    texts = datasets.monolingual("multi30k-captions", "de")
    assert {split: len(each) for split, each in texts.items()} == {"train": 15, "val": 15}
    assert texts["val"][3] == "val.2.de.gz 0\u2028x"
    assert datasets.monolingual("multi30k", "fr")["test"][0] == "test_2016_flickr.fr.gz 0\u2028x"


def test_tatoeba_pairs_are_kept_once(data):
    pairs = datasets.load("tatoeba-fr-en", "en", "fr")
    assert list(pairs) == ["train", "val", "test"]
    everything = [pair for split in pairs.values() for pair in split]
    assert sorted(everything) == [("Go.", "Va !"), ("Hi!", "Bonjour."), ("Hi.", "Salut !")]
    turned = datasets.load("tatoeba-fr-en", "fr", "en")
    assert turned == {split: [(b, a) for a, b in pairs[split]] for split in pairs}
    texts = datasets.monolingual("tatoeba-fr-en", "en")
    assert sorted(text for split in texts.values() for text in split) == ["Go.", "Hi!", "Hi."]
    assert datasets.monolingual("tatoeba-fr-en", "fr")["train"] == ["Salut !", "Bonjour."]


def test_a_missing_one_says_how_to_get_it(monkeypatch, tmp_path):
    monkeypatch.setenv("REGARD_DATA", str(tmp_path / "mine"))
    monkeypatch.setattr(datasets, "fetch", lambda *a, **k: pytest.fail("downloads unasked"))
    with pytest.raises(UserError) as caught:
        datasets.load("tatoeba-de-en", "de", "en")
    message = str(caught.value)
    assert "regard data get tatoeba-de-en" in message
    assert "set REGARD_DATA to a folder that holds tatoeba/ with deu-eng.zip" in message
    assert str(tmp_path / "mine" / "tatoeba") in message
    assert not (tmp_path / "home").exists()


def test_names_that_are_not_known(data):
    with pytest.raises(UserError, match=r'no dataset "multi30".* Did you mean "multi30k"'):
        datasets.load("multi30", "de", "en")
    for call in (datasets.get, datasets.folder):
        with pytest.raises(UserError, match="There are multi30k, multi30k-captions, tatoeba"):
            call("wmt14")
    with pytest.raises(UserError, match=r'no language "EN".* Did you mean "en".*de, en, fr, cs'):
        datasets.load("multi30k", "de", "EN")
    with pytest.raises(UserError, match=r'no language "cs". It has de, en'):
        datasets.monolingual("multi30k-captions", "cs")
    with pytest.raises(UserError, match='different languages; got "de" twice'):
        datasets.load("multi30k", "de", "de")
    with pytest.raises(UserError, match="holds no translations"):
        datasets.load("multi30k-captions", "de", "en")


def test_sides_of_different_length(data):
    path = data / "multi30k" / "val.en.gz"
    path.write_bytes(gzip.compress(b"one\ntwo\n"))
    with pytest.raises(UserError, match=r"got 3 in .*val\.de\.gz and 2 in .*val\.en\.gz"):
        datasets.load("multi30k", "de", "en")


@pytest.mark.parametrize(
    "damage",
    [lambda d: d[:-9], lambda d: b"", lambda d: b"<html>", lambda d: gzip.compress(b"\xff")],
)
def test_damaged_files(data, damage):
    path = data / "multi30k" / "train.de.gz"
    path.write_bytes(damage(path.read_bytes()))
    if path.stat().st_size == 0:  # gzip takes nothing for an empty text
        match = "got 1 in .*train.de.gz"
    else:
        match = r"train\.de\.gz cannot be read: .*anew with: regard data get multi30k"
    with pytest.raises(UserError, match=match):
        datasets.load("multi30k", "de", "en")


def test_damaged_zips(data):
    path = data / "tatoeba" / "fra-eng.zip"
    for content in (path.read_bytes()[:-9], b"<html>"):
        path.write_bytes(content)
        with pytest.raises(UserError, match=r"fra-eng\.zip cannot be read: .*regard data get tato"):
            datasets.load("tatoeba-fr-en", "fr", "en")
    zipped(path, "deu.txt", TABLE)
    with pytest.raises(UserError, match=r"fra-eng\.zip cannot be read: .*fra\.txt"):
        datasets.load("tatoeba-fr-en", "fr", "en")
    zipped(path, "fra.txt", "no tabs here\n")
    with pytest.raises(UserError, match=r"English TAB translation in fra.txt"):
        datasets.load("tatoeba-fr-en", "fr", "en")


# Getting


@pytest.fixture
def network(monkeypatch):
    """`fetch` that writes what it is told to instead of asking the network; what was asked for."""

    class Network:
        asked: list

        def __call__(self, url, path, *, sha256, report, check):
            self.asked.append((url, sha256))
            if self.fail and len(self.asked) > 2:
                raise UserError("no network")
            path.parent.mkdir(parents=True, exist_ok=True)
            part = path.with_name(path.name + ".part")
            zipped(part, self.member, TABLE)
            if check:
                check(part)
            if report:
                report(7, 11)
            part.rename(path)
            return hashlib.sha256(path.read_bytes()).hexdigest()

    network = Network()
    network.asked, network.fail, network.member = [], False, "fra.txt"
    monkeypatch.setattr(datasets, "fetch", network)
    return network


def test_get_fetches_only_what_is_missing(home, network):
    network.fail = True
    with pytest.raises(UserError, match="no network"):
        datasets.get("multi30k")
    assert len(network.asked) == 3
    network.fail = False
    heard = []
    place = datasets.get("multi30k", lambda *args: heard.append(args))
    assert place == home / ".cache" / "regard" / "multi30k"
    assert sorted(network.asked[:2] + network.asked[3:]) == sorted(
        DATASETS["multi30k"].files.values()
    )
    assert sorted(each.name for each in place.iterdir()) == sorted(DATASETS["multi30k"].files)
    assert heard == [(file, 7, 11) for file in list(DATASETS["multi30k"].files)[2:]]
    assert datasets.get("multi30k") == place
    assert len(network.asked) == 13


def test_get_leaves_alone_what_lies_elsewhere(data, network):
    assert datasets.get("multi30k") == data / "multi30k"
    assert network.asked == []


def test_get_records_what_changes_with_time(home, network):
    place = datasets.get("tatoeba-fr-en")
    record = json.loads((place / "fra-eng.zip.json").read_text())
    content = (place / "fra-eng.zip").read_bytes()
    assert record["url"] == "https://www.manythings.org/anki/fra-eng.zip"
    assert record["sha256"] == hashlib.sha256(content).hexdigest()
    assert record["bytes"] == len(content)
    age = datetime.now().astimezone() - datetime.fromisoformat(record["date"])
    assert abs(age.total_seconds()) < 60
    assert datasets.load("tatoeba-fr-en", "fr", "en")["train"]


def test_get_refuses_what_is_not_the_zip(home, network):
    network.member = "login.html"
    with pytest.raises(UserError, match=r"expected a zip with fra\.txt.*as \"fra-eng\.zip\""):
        datasets.get("tatoeba-fr-en")
    assert datasets.folder("tatoeba-fr-en") is None


# The real thing

BESIDE = Path(__file__).parents[3] / "shared" / "data"
REAL = os.environ.get("REGARD_DATA") or (str(BESIDE) if BESIDE.is_dir() else "")


@pytest.fixture
def real(monkeypatch):
    if not REAL:
        pytest.skip("neither REGARD_DATA nor ../shared/data is there")
    monkeypatch.setenv("REGARD_DATA", REAL)

    def need(name):
        if datasets.folder(name) is None:
            pytest.skip(f"{name} is not in {REAL}")
        return datasets.folder(name)

    return need


@pytest.mark.parametrize("name", ["multi30k", "multi30k-captions"])
def test_real_files_have_the_sums_of_the_manifest(real, name):
    place = real(name)
    for file, (_, sha256) in DATASETS[name].files.items():
        assert hashlib.sha256((place / file).read_bytes()).hexdigest() == sha256, file


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
    texts = datasets.monolingual("multi30k-captions", "en")
    assert {key: len(each) for key, each in texts.items()} == {"train": 145_000, "val": 5_070}


@pytest.mark.parametrize("name", ["tatoeba-fr-en", "tatoeba-de-en"])
def test_real_tatoeba_does_not_leak(real, name):
    real(name)
    start = time.process_time()
    pairs = datasets.load(name, *DATASETS[name].languages)
    assert time.process_time() - start < 10  # 1.5 without the type checks of conftest.py
    count = sum(map(len, pairs.values()))
    assert count > 150_000
    assert len({pair for each in pairs.values() for pair in each}) == count
    for side in (0, 1):
        seen = {
            key: {re.sub(r"[\W_]+", "", pair[side].casefold()) for pair in each}
            for key, each in pairs.items()
        }
        assert seen["train"].isdisjoint(seen["val"])
        assert seen["train"].isdisjoint(seen["test"])
        assert seen["val"].isdisjoint(seen["test"])
    for key in ("val", "test"):
        assert 0.008 < len(pairs[key]) / count < 0.012
