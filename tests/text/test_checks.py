"""The checks of users' parallel text before training: each mistake has its warning or error."""

from pathlib import Path

import pytest

from regard.config import FileData, HubData, PairsData, SyntheticData
from regard.errors import UserError
from regard.text import corpus
from regard.text.checks import check_corpus

WORDS = {"der": "the", "Hund": "dog", "schläft": "sleeps", "Katze": "cat", "läuft": "runs"}


def make_pairs(count: int, start: int = 0) -> list[tuple[str, str]]:
    """Distinct pairs in two languages that can be told apart."""
    words = list(WORDS)
    sources = [
        [words[(i * k) % 5] for k in (1, 2, 3)] + [str(i)] for i in range(start, start + count)
    ]
    return [(" ".join(s), " ".join(WORDS.get(word, word) for word in s)) for s in sources]


def write(path: Path, rows) -> str:
    path.write_text("".join("\t".join(row) + "\n" for row in rows), "utf-8")
    return str(path)


@pytest.fixture
def check(tmp_path):
    """check(train=rows, val=rows, test=rows): the warnings."""

    def run(**splits) -> list[str]:
        rows = {"train": make_pairs(600), "val": make_pairs(60, 1000)} | splits
        paths = {split: write(tmp_path / f"{split}.tsv", rows[split]) for split in rows}
        data = FileData(**paths)
        return check_corpus(data, corpus.load(data))

    return run


def test_good_data_has_no_warning(check):
    assert check() == []
    assert check(test=make_pairs(60, 2000)) == []


HEADERS = [
    ("source", "target"),
    ("de", "en"),
    ("German", "English"),
    ("sentence_de", "sentence_en"),
    ("text.source", "Text Target"),
]


@pytest.mark.parametrize("header", HEADERS)
def test_a_header_is_reported(check, header):
    (warning,) = check(train=[header, *make_pairs(600)])
    assert f'data.train: the first pair is "{header[0]}" and "{header[1]}"' in warning
    assert "header: delete that line" in warning


def test_quotation_marks_around_the_columns_are_reported(check):
    quoted = [(f'"{source}"', f'"{target}"') for source, target in make_pairs(600)]
    (warning,) = check(train=quoted)
    assert "data.train: 600 of the first 600 lines" in warning
    assert "have quotation marks around both columns" in warning
    assert check(train=[*quoted[:200], *make_pairs(600)]) == []


def test_a_third_column_is_reported(check):
    (warning,) = check(val=[(*pair, "CC-BY") for pair in make_pairs(60, 1000)])
    assert "val.tsv has 3 columns: the first is the source, the second the target" in warning
    assert 'the rest is ignored, such as "CC-BY"' in warning


@pytest.mark.parametrize("column", [1, 2])
def test_identifiers_instead_of_text_are_an_error(check, column):
    rows = [(str(7 * i), *pair) for i, pair in enumerate(make_pairs(600))]
    rows = rows if column == 1 else [(source, number, target) for number, source, target in rows]
    with pytest.raises(UserError, match=rf"column {column} of \S+train\.tsv holds only numbers"):
        check(train=rows)


@pytest.mark.parametrize("side", [0, 1])
def test_a_column_with_the_name_of_a_language_is_reported(check, side):
    rows = [("deu", source) if side == 0 else (source, "deu") for source, _ in make_pairs(600)]
    (warning,) = check(train=rows, val=make_pairs(60, 1000))
    name = ("sources", "targets")[side]
    assert f'data.train: 600 {name} are only 1 different texts, such as "deu"' in warning


def test_two_columns_of_numbers_are_a_task(check):
    rows = [(str(i), str(2 * i)) for i in range(700)]
    assert check(train=rows[:600], val=rows[600:]) == []


@pytest.mark.parametrize("split", ["val", "test"])
def test_swapped_languages_are_an_error(check, split):
    swapped = [(target, source) for source, target in make_pairs(60, 1000)]
    with pytest.raises(UserError, match=rf"data\.{split}: .*the languages are swapped"):
        check(**{split: swapped})


def test_the_same_language_on_both_sides_is_not_swapped(check):
    train, val = (
        [(s, s[::-1]) for s, _ in pairs] for pairs in (make_pairs(600), make_pairs(60, 1000))
    )
    assert check(train=train, val=val) == []


def test_sources_that_equal_their_targets_are_reported(check):
    (warning,) = check(train=[(source, source) for source, _ in make_pairs(600)])
    assert "data.train: in 600 of 600 pairs the source equals the target" in warning


def test_validation_that_is_the_training_data_is_reported(check):
    (warning,) = check(val=make_pairs(600))
    assert "data.val: all pairs are also in the training data" in warning


@pytest.mark.parametrize("split", ["val", "test"])
def test_overlap_with_the_training_data_is_reported(check, split):
    rows = [*make_pairs(60, 1000), *make_pairs(3)]
    (warning,) = check(**{split: [(source.upper(), target) for source, target in rows]})
    assert f"data.{split}: 3 of 63 pairs are also in the training data" in warning


def test_few_pairs_are_reported(check):
    first, second = check(train=make_pairs(99), val=make_pairs(9, 1000))
    assert first.startswith("data.train: 99 pairs are very few")
    assert second.startswith("data.val: 9 pairs are few")


def test_one_file_as_source_and_target_is_an_error():
    with pytest.raises(ValueError, match=r"data\.train names a\.de as source and as target"):
        FileData(train=("a.de", "a.de"), val="b.tsv")


@pytest.mark.parametrize("data", [PairsData(), HubData(name="x")], ids=["pairs", "hf"])
def test_own_data_that_is_not_in_files_is_checked_too(data):
    pairs = make_pairs(600)
    (warning,) = check_corpus(data, corpus.from_pairs(pairs, pairs))
    assert "data.val: all pairs are also in the training data" in warning
    with pytest.raises(UserError, match=r"data\.val: .*the languages are swapped"):
        check_corpus(data, corpus.from_pairs(pairs, [(t, s) for s, t in make_pairs(60, 1000)]))


def test_an_empty_test_split_of_a_dataset_is_not_checked():
    splits = {"train": make_pairs(600), "val": make_pairs(60, 1000), "test": []}
    assert check_corpus(HubData(name="x"), corpus.Corpus(splits)) == []


def test_generated_data_is_not_checked():
    data = SyntheticData(train=20, val=5, test=5)
    assert check_corpus(data, corpus.load(data)) == []
