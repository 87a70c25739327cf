"""Own files named with wildcards, compressed with Zstandard, or as Parquet: the same pairs as plain text."""

import gzip
import sys

import pytest

from regard.config import FileData, PlainText
from regard.errors import UserError
from regard.text import corpus, decompress, wildcards
from regard.text.pairs import read_pairs

PAIRS = [(f"der {n} Ä", f"the {n}") for n in range(7)]


@pytest.fixture(autouse=True)
def in_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_sides(folder, numbers, suffix="", compress=lambda data: data):
    """Files train-N.de and train-N.en of one pair each."""
    for number in numbers:
        for language, text in zip(("de", "en"), PAIRS[number], strict=True):
            path = folder / f"train-{number}.{language}{suffix}"
            path.write_bytes(compress(f"{text}\n".encode()))


def test_wildcards_stand_for_files_in_sorted_order(tmp_path):
    write_sides(tmp_path, range(7), ".gz", gzip.compress)
    pairs, counts = read_pairs("train-*.de.gz", tmp_path / "train-?.en.gz")
    assert (pairs, counts.kept) == (PAIRS, 7)
    data = FileData(
        train=("train-*.de.gz", "train-*.en.gz"), val=("train-6.de.gz", "train-6.en.gz")
    )
    loaded = corpus.load(data)
    assert (loaded["train"], loaded["val"]) == (PAIRS, PAIRS[6:])
    text = corpus.load(PlainText(train="train-*.en.gz", val="train-0.en.gz"))
    assert [target for _, target in text["train"]] == [target for _, target in PAIRS]


def test_tables_may_have_wildcards_and_names_may_have_brackets(tmp_path):
    for number in range(3):
        (tmp_path / f"[{number}].tsv").write_text("\t".join(PAIRS[number]))
    assert read_pairs("[*].tsv")[0] == PAIRS[:3]
    assert read_pairs("[1].tsv")[0] == PAIRS[1:2]
    (tmp_path / "a*.tsv").write_text("x\ty")
    assert read_pairs("a*.tsv")[0] == [("x", "y")]  # a file that is called so


def test_a_file_without_a_partner_is_named(tmp_path):
    write_sides(tmp_path, range(4))
    (tmp_path / "train-2.en").unlink()
    message = r"4 files fit train-\*\.de and 3 fit train-\*\.en, and train-2\.de has no partner"
    with pytest.raises(UserError, match=message):
        read_pairs("train-*.de", "train-*.en")
    (tmp_path / "train-9.en").write_text("the 9\n")  # as many files, and not the same
    with pytest.raises(UserError, match=r"4 files fit .* and 4 fit .*, and train-2\.de has no"):
        read_pairs("train-*.de", "train-*.en")
    with pytest.raises(UserError, match=r"data\.train: no file fits train-\*\.fr: \* stands for"):
        corpus.load(FileData(train=("train-*.fr", "train-*.en"), val="val.tsv"))


def test_files_with_other_wildcards_are_paired_in_order(tmp_path):
    write_sides(tmp_path, range(2))
    for number in range(2):
        (tmp_path / f"train-{number}.en").rename(tmp_path / f"part-{number}-of-2.en")
    assert read_pairs("train-*.de", "part-*-of-*.en")[0] == PAIRS[:2]
    with pytest.raises(UserError, match=r"2 files fit train-\*\.de and 1 fit part-0-of-2\.en, and"):
        read_pairs("train-*.de", "part-0-of-2.en")


def test_files_of_another_machine_fit_by_their_names(tmp_path, monkeypatch):
    write_sides(tmp_path, range(2))
    paths = {f"/elsewhere/train-{n}.de": str(tmp_path / f"train-{n}.de") for n in range(2)}
    monkeypatch.setenv("REGARD_PATHS", str(paths).replace("'", '"'))
    assert wildcards.expand("/elsewhere/train-*.de") == list(paths)
    assert read_pairs("/elsewhere/train-*.de", "train-*.en")[0] == PAIRS[:2]


def test_line_counts_name_the_files_that_differ(tmp_path):
    write_sides(tmp_path, range(3))
    (tmp_path / "train-1.en").write_text("one\ntwo\n")
    with pytest.raises(UserError, match=r"got 1 in train-1\.de and 2 in train-1\.en"):
        read_pairs("train-*.de", "train-*.en")


def test_zstandard(tmp_path):
    zstd = decompress.import_zstd("")
    write_sides(tmp_path, range(7), ".zst", zstd.compress)
    assert read_pairs("train-*.de.zst", "train-*.en.zst")[0] == PAIRS
    rows = zstd.compress("".join(f"{a}\t{b}\n" for a, b in PAIRS).encode())
    (tmp_path / "all.tsv.zst").write_bytes(rows)
    assert read_pairs("all.tsv.zst")[0] == PAIRS
    for data in (rows[: len(rows) // 2], b"no archive", rows[:-9] + bytes(9)):
        (tmp_path / "all.tsv.zst").write_bytes(data)
        with pytest.raises(UserError, match=r"all\.tsv\.zst is damaged or not Zstandard"):
            read_pairs("all.tsv.zst")


def test_a_zstandard_bomb_is_not_unpacked(tmp_path, monkeypatch):
    monkeypatch.setattr(decompress, "FLOOR", 2**16)
    (tmp_path / "bomb.tsv.zst").write_bytes(decompress.import_zstd("").compress(bytes(2**24)))
    with pytest.raises(UserError, match="unpacks to more than"):
        read_pairs("bomb.tsv.zst")


def test_zstandard_needs_an_extra(tmp_path, monkeypatch):
    for module in ("compression.zstd", "backports.zstd"):
        monkeypatch.setitem(sys.modules, module, None)
    (tmp_path / "a.tsv.zst").touch()
    with pytest.raises(UserError, match=r'needs one more package: pip install "regard\[zstd\]"'):
        read_pairs("a.tsv.zst")


@pytest.mark.parametrize("columns", [("source", "target"), ("translation.de", "translation.en")])
def test_parquet(columns, tmp_path):
    arrow = pytest.importorskip("pyarrow", reason="needs the extra `hf`")
    from pyarrow import parquet

    rows = [
        {"source": s, "target": t, "translation": {"de": s, "en": t}, "id": 1} for s, t in PAIRS
    ]
    rows[3] = dict.fromkeys(rows[3])
    for part in (slice(4), slice(4, None)):
        parquet.write_table(arrow.Table.from_pylist(rows[part]), tmp_path / f"{part.start}.parquet")
    pairs, counts = read_pairs("*.parquet", fields=columns, on_error="skip")
    assert sorted(pairs) == sorted(PAIRS[:3] + PAIRS[4:])
    assert (counts.kept, counts.empty) == (6, 1)
    with pytest.raises(UserError, match=r"None\.parquet, row 4 has an empty side"):
        read_pairs("None.parquet", fields=columns)
    with pytest.raises(UserError, match=r'has no field "english"'):
        read_pairs("4.parquet", fields=("source", "english"))
    (tmp_path / "4.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(UserError, match=r"4\.parquet cannot be read"):
        read_pairs("4.parquet", fields=columns)
    data = FileData(train="None.parquet", val="None.parquet", fields=columns, on_error="skip")
    assert corpus.load(data)["train"] == PAIRS[:3]


def test_parquet_needs_an_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    (tmp_path / "a.parquet").touch()
    with pytest.raises(UserError, match=r'needs pyarrow: pip install "regard\[hf\]"'):
        read_pairs("a.parquet")
