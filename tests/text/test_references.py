"""Test sets from files: plain text, TSV and JSON lines, one or several references."""

import gzip
import json
from pathlib import Path

import pytest

from regard.errors import UserError
from regard.text.references import (
    ReferenceSet,
    read_hypotheses,
    read_references,
    read_sentences,
)

SOURCES, REFERENCES = ["ein Hund", "zwei"], [["a dog", "one dog"], ["two"]]
EXPECTED = ReferenceSet(SOURCES, REFERENCES)


@pytest.fixture
def here(tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.de").write_text("ein Hund\n zwei \r\n", "utf-8")
    (tmp_path / "a.en").write_text("a dog\ntwo", "utf-8")
    (tmp_path / "b.en").write_text("one dog\n\n", "utf-8")
    (tmp_path / "both.tsv").write_text("ein Hund\ta dog\tone dog\nzwei\ttwo\n", "utf-8")
    rows = [{"de": "ein Hund", "en": ["a dog", "one dog"]}, {"de": "zwei", "en": "two", "x": 1}]
    (tmp_path / "both.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    (tmp_path / "both.tsv.gz").write_bytes(gzip.compress((tmp_path / "both.tsv").read_bytes()))
    (tmp_path / "bom.tsv").write_bytes(b"\xef\xbb\xbf" + (tmp_path / "both.tsv").read_bytes())
    return tmp_path


FORMS = {
    "plain": (["a.de", ["a.en", "b.en"]], {}),
    "tsv": (["both.tsv"], {}),
    "gzip": (["both.tsv.gz"], {}),
    "byte order mark": (["bom.tsv"], {}),
    "jsonl": (["both.jsonl"], {"fields": ("de", "en")}),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_test_set(here, form) -> None:
    arguments, options = FORMS[form]
    data = read_references(*arguments, **options)
    assert data == EXPECTED
    assert data.pairs == [("ein Hund", "a dog"), ("zwei", "two")]
    assert data.take(1) == ReferenceSet(SOURCES[:1], REFERENCES[:1])
    assert data.take(None) == data


def test_sentences_and_hypotheses(here) -> None:
    Path("lines.txt").write_text("a\n\nb\n", "utf-8")
    assert read_sentences("lines.txt").pairs == [("", "a"), ("", "b")]
    assert read_hypotheses("lines.txt", 3, "x") == ["a", "", "b"]  # an empty output counts


MISTAKES = {
    "no references": (
        (["a.de"], {}),
        r"a\.de holds only sources: give a second file .*ends in \.tsv, \.jsonl",
    ),
    "too many": ((["both.tsv", ["a.en"]], {}), r"both\.tsv holds sources and references.*a\.en"),
    "uneven": ((["a.de", ["short"]], {}), r"a\.de has 2 lines, and short has 1: line N"),
    "missing": ((["a.de", ["c.en"]], {}), r"c\.en cannot be read: No such file"),
    "no gzip": ((["a.gz", ["a.en"]], {}), r"a\.gz cannot be read: Not a gzipped file"),
    "no field": (
        (["both.jsonl"], {"fields": ("de", "english")}),
        r'both\.jsonl, line 1 has no field "english"\. It has de, en: .*--fields',
    ),
    "near field": ((["both.jsonl"], {"fields": ("dee", "en")}), r'Did you mean "de"\?'),
    "number": ((["n.jsonl"], {}), r"n\.jsonl, line 1: the fields source, target must hold texts"),
    "no JSON": ((["t.jsonl"], {}), r"t\.jsonl, line 1 is not JSON"),
    "no object": ((["l.jsonl"], {}), r"l\.jsonl, line 1 is not a JSON object"),
    "no tab": ((["t.tsv"], {}), r"t\.tsv, line 1 has no tab"),
    "no source": ((["e.tsv"], {}), r"e\.tsv, line 2 has no source"),
    "no reference": ((["a.de", ["b.en"]], {}), r"a\.de, line 2 has no reference"),
    "not UTF-8": ((["latin", ["a.en"]], {}), r"latin, line 2: not valid UTF-8"),
    "empty": ((["empty", ["a.en"]], {}), "empty is empty"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_user_errors(here, mistake) -> None:
    contents = {
        "short": "a\n",
        "a.gz": "a\nb\n",
        "n.jsonl": '{"source": "a", "target": 1}\n',
        "t.jsonl": "a\n",
        "l.jsonl": "[1]\n",
        "t.tsv": "ein Hund\n",
        "e.tsv": "a\tb\n\tb\tc\n",
        "empty": "",
    }
    for name, text in contents.items():
        Path(name).write_text(text, "utf-8")
    Path("latin").write_bytes(b"a\nna\xefve\n")
    (arguments, options), message = MISTAKES[mistake]
    with pytest.raises(UserError, match=message):
        read_references(*arguments, **options)


def test_hypotheses_must_have_a_line_for_every_sentence(here) -> None:
    with pytest.raises(UserError, match=r"a\.en has 2 lines, and test\.de has 3 sentences"):
        read_hypotheses("a.en", 3, "test.de")


LICENCE = "CC-BY 2.0 (France) Attribution: tatoeba.org"
ROWS = [(f"Satz {n}", f"{n} sentences", f"sentence {n}") for n in range(20)]


def warnings_of(rows) -> list[str]:
    path = Path("test.tsv")
    path.write_text("".join("\t".join(row) + "\n" for row in rows), "utf-8")
    return read_references(path).warnings(path)


def test_columns_that_become_references_are_reported(here) -> None:
    assert warnings_of([row[:2] for row in ROWS]) == []
    assert read_references("a.de", ["a.en", "a.en"]).warnings(Path("a.de")) == []
    (count,) = warnings_of([(*row[:2], f"{n} texts") for n, row in enumerate(ROWS)])
    assert count.startswith(
        "test.tsv has 3 columns: the first is the source, and the others are 2 "
    )


def test_columns_that_are_no_references_are_reported(here) -> None:
    _, licence = warnings_of([(*row[:2], f"{LICENCE} #{n}") for n, row in enumerate(ROWS)])
    assert '20 of 20 texts in column 3 start with "CC-BY 2.0 ", as licences' in licence
    (header,) = warnings_of([("source", "target"), *(row[:2] for row in ROWS)])
    assert header.startswith('test.tsv: the first pair is "source" and "target", which looks like')
    with pytest.raises(UserError, match=r"column 3 of test\.tsv holds only numbers"):
        warnings_of([(*row[:2], str(n)) for n, row in enumerate(ROWS)])
