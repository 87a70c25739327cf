"""Pairs by split, from synthetic tasks and from users' files."""

import gzip
import hashlib
import json
from pathlib import Path

import pytest

from regard import config, presets
from regard.errors import UserError
from regard.text import corpus
from regard.text.corpus import Corpus


def file_data(**options) -> config.FileData:
    data = presets.validate({"data": {"kind": "files"} | options}, "test").data
    assert isinstance(data, config.FileData)
    return data


@pytest.fixture
def example_files(tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("a.de").write_text("ein Hund\nzwei Katzen\n", "utf-8")
    Path("a.en").write_text("a dog\ntwo cats\n", "utf-8")
    Path("b.tsv").write_text("drei\tthree\nvier\tfour\textra\n", "utf-8")
    lines = [{"de": "fünf", "en": "five"}, {"de": "sechs", "en": "six\tor so"}]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    with gzip.open("c.jsonl.gz", "wt", encoding="utf-8") as file:
        file.write(text)
    return tmp_path


def test_splits_may_have_different_formats(example_files):
    data = corpus.load(
        file_data(train=["a.de", "a.en"], val="b.tsv", test="c.jsonl.gz", fields=["de", "en"])
    )
    assert data["train"] == [("ein Hund", "a dog"), ("zwei Katzen", "two cats")]
    assert data["val"] == [("drei", "three"), ("vier", "four")]
    assert data["test"] == [("fünf", "five"), ("sechs", "six\tor so")]
    assert data.symbols == ()
    assert data.messages == ()


def test_a_missing_split_raises_an_error(example_files):
    data = corpus.load(file_data(train=["a.de", "a.en"], val="b.tsv"))
    with pytest.raises(UserError, match=r'no split "test".*It has train, val'):
        _ = data["test"]
    with pytest.raises(UserError, match=r'no split "vla". Did you mean "val"'):
        _ = data["vla"]


def test_skipped_lines_are_reported(example_files):
    Path("bad.tsv").write_bytes(b"eins\tone\n\nzwei\nna\xefve\tnaive\ndrei\tthree\n")
    with pytest.raises(UserError, match=r"bad\.tsv, line 2 is empty"):
        corpus.load(file_data(train="bad.tsv", val="b.tsv"))
    data = corpus.load(file_data(train="bad.tsv", val="b.tsv", on_error="skip"))
    assert data["train"] == [("eins", "one"), ("drei", "three")]
    assert len(data.messages) == 1
    assert data.messages[0].startswith("train: kept 2 pairs, skipped 3 (")


def test_a_long_line_is_invalid(example_files):
    with pytest.raises(UserError, match="more than 4"):
        corpus.load(file_data(train="b.tsv", val="b.tsv", max_characters=4))


FILE_ERRORS = {
    "no file": ({"train": "none.tsv", "val": "b.tsv"}, r"none\.tsv cannot be read: No such file"),
    "one side": ({"train": "a.de", "val": "b.tsv"}, r"ends in \.tsv.*got only a\.de"),
    "wrong fields": ({"train": "b.tsv", "val": "c.jsonl.gz"}, 'no field "source": it has de, en'),
    "no gzip": ({"train": "b.tsv", "val": "fake.tsv.gz"}, "damaged or not gzip"),
    "a folder": ({"train": "folder.tsv", "val": "b.tsv"}, "cannot be read: Is a directory"),
    "empty": ({"train": "empty.tsv", "val": "b.tsv"}, "at least one pair in empty"),
    "unequal line counts": (
        {"train": ["a.de", "one.en"], "val": "b.tsv"},
        r"got 2 in a\.de and 1 in one\.en",
    ),
}


@pytest.mark.parametrize("mistake", FILE_ERRORS)
def test_file_errors(example_files, mistake):
    Path("fake.tsv.gz").write_text("eins\tone\n")
    Path("folder.tsv").mkdir()
    Path("empty.tsv").write_text("")
    Path("one.en").write_text("a dog\n")
    options, message = FILE_ERRORS[mistake]
    with pytest.raises(UserError, match=message):
        corpus.load(file_data(**options))


def test_three_files_for_a_split_are_rejected():
    with pytest.raises(UserError, match=r"data\.train"):
        file_data(train=["a", "b", "c"], val="b.tsv")
    with pytest.raises(UserError, match=r"data\.val: .*(required|missing)"):
        file_data(train="b.tsv")


def test_synthetic_data_is_deterministic():
    table = config.SyntheticData(train=31, val=7, test=5)
    data = corpus.load(table)
    assert {split: len(data[split]) for split in corpus.SPLITS} == {
        "train": 31,
        "val": 7,
        "test": 5,
    }
    assert data.symbols == ("<U>", "<L>")
    assert data.checksums() == corpus.load(table).checksums()


def test_checksums_are_of_the_tab_separated_lines():
    data = Corpus({"train": [("ä", "b"), ("c", "d")], "val": [("x", "y")]})
    assert data.checksums() == {
        "train": hashlib.sha256("ä\tb\nc\td\n".encode()).hexdigest(),
        "val": hashlib.sha256(b"x\ty\n").hexdigest(),
    }


def text_data(**options) -> config.PlainText:
    data = presets.validate({"data": {"kind": "text"} | options}, "test").data
    assert isinstance(data, config.PlainText)
    return data


def test_plain_text_has_empty_sources(example_files):
    Path("gaps.txt").write_text("one\n\n  two \n\n", "utf-8")
    data = corpus.load(text_data(train=["a.de", "a.en"], val="gaps.txt"))
    lines = ["ein Hund", "zwei Katzen", "a dog", "two cats"]
    assert data["train"] == [("", line) for line in lines]
    assert data["val"] == [("", "one"), ("", "two")]
    assert list(data.splits) == ["train", "val"]
    assert data.messages == ()


def test_invalid_lines_of_plain_text(example_files):
    Path("bad.txt").write_bytes(b"fine\n\xff\n" + b"x" * 31 + b"\n")
    with pytest.raises(UserError, match=r"bad\.txt, line 2 is not UTF-8.*2 in total"):
        corpus.load(text_data(train="bad.txt", val="a.en", max_characters=30))
    data = corpus.load(text_data(train="bad.txt", val="a.en", max_characters=30, on_error="skip"))
    assert data["train"] == [("", "fine")]
    assert data.messages == ("train: kept 1 pair, skipped 2 (1 too long, 1 not UTF-8)",)
    Path("blank.txt").write_text("\n \n", "utf-8")
    with pytest.raises(UserError, match=r"at least one pair in blank\.txt; got none"):
        corpus.load(text_data(train="blank.txt", val="a.en"))


def test_one_language_of_a_dataset(monkeypatch):
    splits = {"train": ["a", "", "b"], "val": ["c"]}
    monkeypatch.setattr(corpus.datasets, "load_monolingual", lambda name, language: splits)
    data = corpus.load(text_data(name="multi30k-captions", language="de"))
    assert data.splits == {"train": [("", "a"), ("", "b")], "val": [("", "c")]}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "give data.name, or data.train and data.val"),
        ({"train": "a"}, "give data.name, or data.train and data.val"),
        ({"name": "multi30k", "val": "a"}, "data.name and data.val are both given: choose one"),
    ],
)
def test_plain_text_comes_from_one_origin(options, message):
    with pytest.raises(UserError, match=message):
        text_data(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"train": "a.de", "val": "a.de", "language": "de"},
            r"data\.language selects languages of data\.name.*no effect.*: leave it out",
        ),
        (
            {"name": "multi30k", "on_error": "skip"},
            r"data\.on_error applies to your own files, and multi30k is a public corpus: leave it out",
        ),
        (
            {"name": "multi30k", "max_characters": 31},
            r"data\.max_characters applies to your own files",
        ),
    ],
)
def test_options_without_effect_are_rejected(options, message):
    with pytest.raises(UserError, match=message):
        text_data(**options)


def test_a_language_with_files_selects_the_sentences_to_exclude():
    excluded = [{"name": "multi30k"}]
    assert text_data(train="a.de", val="a.de", language="de", exclude=excluded).languages == ("de",)


def test_a_dumped_config_is_valid():
    """A run folder's config has every default written out."""
    files = text_data(train="a.de", val="a.de")
    assert text_data(**files.model_dump(exclude_none=True)) == files
    dataset = text_data(name="multi30k")
    assert text_data(**dataset.model_dump(exclude_none=True)) == dataset


def test_fields_without_a_json_file_are_rejected():
    message = r"data\.fields names the fields of a \.jsonl or \.parquet file, and none is given: leave it out"
    with pytest.raises(UserError, match=message):
        file_data(train=["a.jsonl", "b.jsonl"], val="b.tsv", fields=["de", "en"])
    assert file_data(train="b.tsv", val="C.JSONL", fields=["de", "en"]).fields == ("de", "en")
