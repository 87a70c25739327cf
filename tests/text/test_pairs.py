"""Users' parallel text: formats, invalid lines, and splits without a common sentence."""

import gzip
import json
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.errors import UserError
from regard.text.pairs import SPLITS, Counts, normalise, read_pairs, split_pairs

PAIRS = [("Ein Haus.", "A house."), ("Zwei Männer.", "Two men."), ("你好", "Hello \u2028 there")]


def write(path, content: str | bytes):
    data = content.encode() if isinstance(content, str) else content
    path.write_bytes(gzip.compress(data) if path.name.endswith(".gz") else data)
    return path


def lines(texts, end="\n"):
    return "".join(text + end for text in texts)


def tsv(pairs, end="\n"):
    return lines(("\t".join(pair) for pair in pairs), end)


def jsonl(pairs, fields=("source", "target")):
    return lines(json.dumps(dict(zip(fields, pair, strict=True))) for pair in pairs)


@pytest.fixture
def read_two(tmp_path):
    """Write two files and read them."""

    def write_and_read(source, target, suffix="", **options):
        first = write(tmp_path / f"train.de{suffix}", source)
        second = write(tmp_path / f"train.en{suffix}", target)
        return read_pairs(first, second, **options)

    return write_and_read


@pytest.fixture
def read_one(tmp_path):
    """Write one file and read it."""

    def write_and_read(name, content, **options):
        return read_pairs(write(tmp_path / name, content), **options)

    return write_and_read


# Formats


@pytest.mark.parametrize("suffix", ["", ".txt", ".gz", ".tsv", ".jsonl.gz"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("bom", ["", "\ufeff"])
def test_two_aligned_files(read_two, suffix, end, bom):
    source, target = (bom + lines(side, end) for side in zip(*PAIRS, strict=True))
    assert read_two(source, target.removesuffix(end), suffix) == (PAIRS, Counts(kept=3))


@pytest.mark.parametrize("name", ["a.tsv", "a.tsv.gz", "A.TSV"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_tsv(read_one, name, end):
    assert read_one(name, "\ufeff" + tsv(PAIRS, end)) == (PAIRS, Counts(kept=3))


def test_tsv_ignores_further_columns_and_quotes(read_one):
    pairs, _ = read_one("a.tsv", 'He said: "Yes\tEr sagte: "Ja\tCC-BY\t3\n')
    assert pairs == [('He said: "Yes', 'Er sagte: "Ja')]


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_json_lines(read_one, name):
    assert read_one(name, jsonl(PAIRS)) == (PAIRS, Counts(kept=3))


def test_json_fields_are_configurable(read_one):
    reverse = [(target, source) for source, target in PAIRS]
    text = jsonl(PAIRS, ("de", "en"))
    assert read_one("a.jsonl", text, fields=("en", "de"))[0] == reverse


def test_paths_may_be_strings(tmp_path):
    path = write(tmp_path / "a.tsv", tsv(PAIRS))
    assert read_pairs(str(path))[0] == PAIRS


def test_only_surrounding_whitespace_is_stripped(read_two):
    assert read_two(" a  b\t\n", "\u00a0c\n")[0] == [("a  b", "c")]


# Invalid lines

INVALID_LINES = [
    ("empty", "a\n \nc\n", "1\n2\n3\n", "train.de, line 2 has an empty side"),
    ("empty", "a\nb\nc\n", "1\n\n3\n", "train.en, line 2 has an empty side"),
    ("not_utf8", b"a\n\xffb\nc\n", "1\n2\n3\n", r"train.de, line 2 is not UTF-8 \(byte 1"),
    ("too_long", "a\nb\nc\n", f"1\n{'x' * 41}\n3\n", "train.en, line 2 has 41 characters"),
    ("too_long", f"a\n{'x' * 5000}\nc\n", "1\n2\n3\n", "train.de, line 2 is 5,001 bytes long"),
]


@pytest.mark.parametrize(("reason", "source", "target", "message"), INVALID_LINES)
def test_an_invalid_line_in_aligned_files(read_two, reason, source, target, message):
    with pytest.raises(UserError, match=f'{message}.*on_error = "skip"'):
        read_two(source, target, max_characters=40)
    pairs, counts = read_two(source, target, max_characters=40, on_error="skip")
    assert pairs == [("a", "1"), ("c", "3")]
    assert counts == Counts(kept=2, **{reason: 1})


INVALID_ROWS = [
    ("a.tsv", "empty", "\tb", "line 2 has an empty side"),
    ("a.tsv", "empty", "", "line 2 is empty"),
    ("a.tsv", "malformed", "no tab", "line 2 has no tab"),
    ("a.tsv", "not_utf8", b"a\t\xe9", "line 2 is not UTF-8"),
    ("a.tsv", "too_long", "a\t" + "x" * 41, "line 2 has 41 characters"),
    ("a.tsv", "too_long", "a\tb\t" + "x" * 6_000_000, "line 2 is 6,000,005 bytes"),
    ("a.jsonl", "empty", "", "line 2 is empty"),
    ("a.jsonl", "empty", '{"source": "", "target": "b"}', "line 2 has an empty side"),
    ("a.jsonl", "malformed", '{"source": "a"', "line 2 is not JSON"),
    ("a.jsonl", "malformed", "[" * 100_000, "line 2 is not JSON"),
    ("a.jsonl", "malformed", '["a", "b"]', "line 2 is not a JSON object but a list"),
    (
        "a.jsonl",
        "malformed",
        '{"source": "a", "tgt": "b"}',
        'no field "target": it has source, tgt',
    ),
    ("a.jsonl", "malformed", '{"source": "a", "target": 3}', 'a string in field "target"; got int'),
    ("a.jsonl", "not_utf8", r'{"source": "\ud83d", "target": "b"}', "line 2 contains half a char"),
]


@pytest.mark.parametrize(("name", "reason", "line", "message"), INVALID_ROWS)
def test_an_invalid_line_in_a_table(read_one, name, reason, line, message):
    dump = tsv if name == "a.tsv" else jsonl
    line = line.encode() if isinstance(line, str) else line
    content = dump([("a", "1")]).encode() + line + b"\n" + dump([("c", "3")]).encode()
    with pytest.raises(UserError, match=f'{name}, .*{message}.*on_error = "skip"'):
        read_one(name, content, max_characters=40)
    pairs, counts = read_one(name, content, max_characters=40, on_error="skip")
    assert pairs == [("a", "1"), ("c", "3")]
    assert counts == Counts(kept=2, **{reason: 1})


def test_the_first_invalid_line_is_named_and_all_are_counted(read_one):
    with pytest.raises(UserError, match=r"line 2 has no tab.*\(3 in total\)"):
        read_one("a.tsv", "a\tb\nx\n\n\td\n")


def test_a_bom_is_removed_only_at_the_start_of_the_file(read_two):
    bom = "\ufeff"
    assert read_two(f"{bom}a\n{bom}b\n", "1\n2\n")[0] == [("a", "1"), (f"{bom}b", "2")]


def test_a_side_may_have_the_maximum_length(read_two):
    longest = "\U0001f600" * 2000
    assert read_two(longest + "\n", "a\n")[0] == [(longest, "a")]


@pytest.mark.parametrize("on_error", ["raise", "skip"])
@pytest.mark.parametrize("source", ["a\nb\nc\n", "a\n\nc\n"])
def test_different_line_counts_always_raise_an_error(read_two, on_error, source):
    # Even if an invalid line comes first: the counts explain it.
    with pytest.raises(UserError, match=r"got 3 in .*train\.de and 2 in .*train\.en"):
        read_two(source, "1\n2\n", on_error=on_error)
    with pytest.raises(UserError, match=r"got 1 in .*train\.de and 2 in .*train\.en"):
        read_two("a", "1\n2\n", on_error=on_error)


@pytest.mark.parametrize("on_error", ["raise", "skip"])
@pytest.mark.parametrize(
    "damage", [lambda d: d[:-20], lambda d: b"no gzip", lambda d: d[:40] + b"????" + d[44:]]
)
def test_damaged_gzip(tmp_path, on_error, damage):
    path = write(tmp_path / "a.tsv.gz", tsv([(f"line {n}", f"Zeile {n}") for n in range(999)]))
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(UserError, match=r"a\.tsv\.gz is damaged or not gzip"):
        read_pairs(path, on_error=on_error)


def test_missing_files(tmp_path):
    with pytest.raises(UserError, match=r"gone\.tsv cannot be read: No such file"):
        read_pairs(tmp_path / "gone.tsv")
    (tmp_path / "folder.tsv").mkdir()
    with pytest.raises(UserError, match=r"folder\.tsv cannot be read: Is a directory"):
        read_pairs(tmp_path / "folder.tsv")


def test_one_file_of_unknown_format(read_one):
    with pytest.raises(UserError, match=r"ends in \.tsv, \.jsonl.*or two files.*only .*a\.txt"):
        read_one("a.txt", "a\tb\n")


def test_no_pairs_at_all(read_one, read_two):
    with pytest.raises(UserError, match="expected at least one pair"):
        read_one("a.tsv", "")
    with pytest.raises(UserError, match=r"got none \(kept 0 pairs, skipped 2 \(2 empty\)\)"):
        read_two("\n\n", "a\nb\n", on_error="skip")


def test_wrong_options(read_one):
    with pytest.raises(UserError, match=r'raise, skip; got "skipp". Did you mean "skip"'):
        read_one("a.tsv", "a\tb\n", on_error="skipp")
    with pytest.raises(UserError, match="max_characters of 1 or more; got 0"):
        read_one("a.tsv", "a\tb\n", max_characters=0)


def test_summary():
    assert Counts(kept=1).summary() == "kept 1 pair"
    counts = Counts(kept=1000, empty=2, too_long=1)
    assert counts.summary() == "kept 1,000 pairs, skipped 3 (2 empty, 1 too long)"
    assert counts.skipped == 3
    everything = Counts(1, 2, 3, 4, 5)
    assert everything.skipped == 14
    assert "3 too long, 4 not UTF-8, 5 malformed" in everything.summary()


def test_a_very_long_line_does_not_fill_the_memory(tmp_path):
    path = write(tmp_path / "a.de.gz", b"x" * 50_000_000 + b"\nb\n")
    other = write(tmp_path / "a.en", "1\n2\n")
    tracemalloc.start()
    try:
        pairs, counts = read_pairs(path, other, on_error="skip")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (pairs, counts) == ([("b", "2")], Counts(kept=1, too_long=1))
    assert peak < 5_000_000


# Splitting


def test_normalise_equates_spellings():
    assert (
        normalise("Où es-tu ?")
        == normalise("où es tu\u202f!")
        == normalise("Ou\u0300 es-tu")
        != normalise("Ou es-tu")
    )
    assert normalise("GROSSE Straße") == normalise("Große strasse.") == "grossestrasse"
    assert normalise("?!") == "?!"
    assert normalise("...") != normalise("?!")


words = st.integers(0, 60).map(lambda n: f"word {n}")


@given(st.lists(st.tuples(words, words), unique=True))
def test_no_sentence_is_in_two_splits(pairs):
    splits = split_pairs(pairs)
    assert sorted(pair for each in splits.values() for pair in each) == sorted(pairs)
    for side in (0, 1):
        sentences = [{normalise(pair[side]) for pair in splits[key]} for key in SPLITS]
        assert sum(map(len, sentences)) == len(set.union(*sentences))


def make_groups(count, start=0):
    """Groups of different sizes: three translations, or one, and some shared by two sentences."""
    for n in range(start, start + count):
        yield f"Sentence {n}.", f"Satz {n}"
        if n % 3 == 0:
            yield f"sentence {n}!", f"Aussage {n}"
            yield f"Sentence {n}", f"Aussage {n + 3 * (n % 4 == 0)}"


def test_split_fractions_order_and_stability():
    pairs = list(make_groups(8_000))
    splits = split_pairs(pairs)
    for key in ("val", "test"):
        assert 0.007 < len(splits[key]) / len(pairs) < 0.013
    members = {key: set(splits[key]) for key in splits}
    assert splits == {key: [pair for pair in pairs if pair in members[key]] for key in splits}
    # In another order, or with more pairs in front, (almost) every pair keeps its split.
    reversed_ = split_pairs(pairs[::-1])
    assert {key: sorted(splits[key]) for key in SPLITS} == {
        key: sorted(reversed_[key]) for key in SPLITS
    }
    added = ((source, f"new {n}") for n, (source, _) in enumerate(pairs))
    newer = split_pairs([*make_groups(2_000, 500_000), *pairs, *added])
    assert all(set(splits[key]) <= set(newer[key]) for key in SPLITS)


def test_a_group_keeps_its_split_when_it_grows():
    groups = [[(f"Sentence {n} {k}", f"Satz {n}") for k in range(4)] for n in range(4000)]
    before = split_pairs([pair for group in groups for pair in group[:3]])
    after = split_pairs([pair for group in groups for pair in group])
    val = set(before["val"])
    assert len(val & set(after["val"])) > 0.6 * len(val)
    # Groups of four are held out as often as single sentences.
    assert 0.006 < len(after["val"]) / 16_000 < 0.014


def test_the_split_is_the_same_on_every_machine_and_in_every_version():
    # Published figures must stay comparable: a change here changes everybody's test set.
    groups = [(f"Sentence {n} {k}", f"Satz {n}") for n in range(1000) for k in range(4)]
    splits = split_pairs(groups)
    assert {key: [int(pair[1][5:]) for pair in splits[key][::4]] for key in ("val", "test")} == {
        "val": [62, 293, 357, 399, 461, 470, 510, 591, 658, 737, 743, 755, 801],
        "test": [59, 85, 358, 393, 423, 548, 676, 824, 974],
    }
