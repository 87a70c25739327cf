"""Pairs in named splits, from tasks and from a user's own files."""

import gzip
import hashlib
import json
from pathlib import Path

import pytest

from regard import config, presets
from regard.errors import UserError
from regard.text import corpus
from regard.text.corpus import Corpus


def files(**choices) -> config.FileData:
    made = presets.validate({"data": {"kind": "files"} | choices}, "test").data
    assert isinstance(made, config.FileData)
    return made


@pytest.fixture
def here(tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("a.de").write_text("ein Hund\nzwei Katzen\n", "utf-8")
    Path("a.en").write_text("a dog\ntwo cats\n", "utf-8")
    Path("b.tsv").write_text("drei\tthree\nvier\tfour\textra\n", "utf-8")
    lines = [{"de": "fünf", "en": "five"}, {"de": "sechs", "en": "six\tor so"}]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    with gzip.open("c.jsonl.gz", "wt", encoding="utf-8") as file:
        file.write(text)
    return tmp_path


def test_every_split_may_be_of_another_form(here):
    data = corpus.load(
        files(train=["a.de", "a.en"], val="b.tsv", test="c.jsonl.gz", fields=["de", "en"])
    )
    assert data["train"] == [("ein Hund", "a dog"), ("zwei Katzen", "two cats")]
    assert data["val"] == [("drei", "three"), ("vier", "four")]
    assert data["test"] == [("fünf", "five"), ("sechs", "six\tor so")]
    assert data.symbols == ()
    assert data.told == ()


def test_a_split_that_was_not_given_is_named(here):
    data = corpus.load(files(train=["a.de", "a.en"], val="b.tsv"))
    with pytest.raises(UserError, match=r'no split "test".*It has train, val'):
        _ = data["test"]
    with pytest.raises(UserError, match=r'no split "vla". Did you mean "val"'):
        _ = data["vla"]


def test_what_was_left_out_is_told(here):
    Path("bad.tsv").write_bytes(b"eins\tone\n\nzwei\nna\xefve\tnaive\ndrei\tthree\n")
    with pytest.raises(UserError, match=r"bad\.tsv, line 2 is empty"):
        corpus.load(files(train="bad.tsv", val="b.tsv"))
    data = corpus.load(files(train="bad.tsv", val="b.tsv", on_error="skip"))
    assert data["train"] == [("eins", "one"), ("drei", "three")]
    assert len(data.told) == 1
    assert data.told[0].startswith("train: kept 2 pairs, skipped 3 (")


def test_a_long_line_counts_as_bad(here):
    with pytest.raises(UserError, match="more than 4"):
        corpus.load(files(train="b.tsv", val="b.tsv", max_characters=4))


WRONG = {
    "no file": ({"train": "none.tsv", "val": "b.tsv"}, r"none\.tsv cannot be read: No such file"),
    "one side": ({"train": "a.de", "val": "b.tsv"}, r"ends in \.tsv.*got a\.de alone"),
    "wrong keys": ({"train": "b.tsv", "val": "c.jsonl.gz"}, 'no key "source": it has de, en'),
    "no gzip": ({"train": "b.tsv", "val": "fake.tsv.gz"}, "damaged or not gzip"),
    "a folder": ({"train": "folder.tsv", "val": "b.tsv"}, "cannot be read: Is a directory"),
    "empty": ({"train": "empty.tsv", "val": "b.tsv"}, "at least one pair in empty"),
    "uneven": ({"train": ["a.de", "one.en"], "val": "b.tsv"}, r"got 2 in a\.de and 1 in one\.en"),
}


@pytest.mark.parametrize("mistake", WRONG)
def test_mistake(here, mistake):
    Path("fake.tsv.gz").write_text("eins\tone\n")
    Path("folder.tsv").mkdir()
    Path("empty.tsv").write_text("")
    Path("one.en").write_text("a dog\n")
    choices, message = WRONG[mistake]
    with pytest.raises(UserError, match=message):
        corpus.load(files(**choices))


def test_three_files_for_a_split_are_refused():
    with pytest.raises(UserError, match=r"data\.train"):
        files(train=["a", "b", "c"], val="b.tsv")
    with pytest.raises(UserError, match=r"data\.val: .*(required|missing)"):
        files(train="b.tsv")


def test_a_task_is_the_same_for_everyone():
    table = config.SyntheticData(train=31, val=7, test=5)
    data = corpus.load(table)
    assert {split: len(data[split]) for split in corpus.SPLITS} == {
        "train": 31,
        "val": 7,
        "test": 5,
    }
    assert data.symbols == ("<U>", "<L>")
    assert data.checksums() == corpus.load(table).checksums()


def test_a_checksum_is_that_of_the_lines():
    data = Corpus({"train": [("ä", "b"), ("c", "d")], "val": [("x", "y")]})
    assert data.checksums() == {
        "train": hashlib.sha256("ä\tb\nc\td\n".encode()).hexdigest(),
        "val": hashlib.sha256(b"x\ty\n").hexdigest(),
    }


def text(**choices) -> config.PlainText:
    made = presets.validate({"data": {"kind": "text"} | choices}, "test").data
    assert isinstance(made, config.PlainText)
    return made


def test_plain_text_is_written_with_nothing_to_read(here):
    Path("gaps.txt").write_text("one\n\n  two \n\n", "utf-8")
    data = corpus.load(text(train=["a.de", "a.en"], val="gaps.txt"))
    lines = ["ein Hund", "zwei Katzen", "a dog", "two cats"]
    assert data["train"] == [("", line) for line in lines]
    assert data["val"] == [("", "one"), ("", "two")]
    assert list(data.splits) == ["train", "val"]
    assert data.told == ()


def test_lines_of_plain_text_that_cannot_be_used(here):
    Path("bad.txt").write_bytes(b"fine\n\xff\n" + b"x" * 31 + b"\n")
    with pytest.raises(UserError, match=r"bad\.txt, line 2 is not UTF-8.*2 in all"):
        corpus.load(text(train="bad.txt", val="a.en", max_characters=30))
    data = corpus.load(text(train="bad.txt", val="a.en", max_characters=30, on_error="skip"))
    assert data["train"] == [("", "fine")]
    assert data.told == ("train: kept 1 pair, skipped 2 (1 too long, 1 not UTF-8)",)
    Path("blank.txt").write_text("\n \n", "utf-8")
    with pytest.raises(UserError, match=r"at least one pair in blank\.txt; got none"):
        corpus.load(text(train="blank.txt", val="a.en"))


def test_one_language_of_named_data(monkeypatch):
    found = {"train": ["a", "", "b"], "val": ["c"]}
    monkeypatch.setattr(corpus.datasets, "monolingual", lambda name, language: found)
    data = corpus.load(text(name="multi30k-captions", language="de"))
    assert data.splits == {"train": [("", "a"), ("", "b")], "val": [("", "c")]}


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({}, "give data.name, or data.train and data.val"),
        ({"train": "a"}, "give data.name, or data.train and data.val"),
        ({"name": "multi30k", "val": "a"}, "data.name and data.val are both given: choose one"),
    ],
)
def test_plain_text_has_one_origin(choices, message):
    with pytest.raises(UserError, match=message):
        text(**choices)


@pytest.mark.parametrize(
    ("choices", "message"),
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
def test_what_nothing_would_read_is_refused(choices, message):
    with pytest.raises(UserError, match=message):
        text(**choices)


def test_a_language_beside_own_files_says_what_they_are_held_against():
    held_out = [{"name": "multi30k"}]
    assert text(train="a.de", val="a.de", language="de", exclude=held_out).languages == ("de",)


def test_own_text_with_every_default_written_out_is_read_again():
    """As a run's own config is."""
    made = text(train="a.de", val="a.de")
    assert text(**made.model_dump(exclude_none=True)) == made
    named = text(name="multi30k")
    assert text(**named.model_dump(exclude_none=True)) == named


def test_keys_of_no_json_are_refused():
    message = r"data\.fields names the fields of a \.jsonl file, and none is given: leave it out"
    with pytest.raises(UserError, match=message):
        files(train=["a.jsonl", "b.jsonl"], val="b.tsv", fields=["de", "en"])
    assert files(train="b.tsv", val="C.JSONL", fields=["de", "en"]).fields == ("de", "en")
