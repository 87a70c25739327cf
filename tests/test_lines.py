"""Files line by line: reading, windows, blank and untranslatable lines, unseen scripts."""

import gzip

import pytest

from regard.errors import UserError
from regard.lines import LARGEST_WINDOW, MAX_BYTES, LineTranslator, open_input, windows
from regard.scripts import find_scripts
from regard.text.tokenizer import TOKENIZERS
from regard.translation import Decoding, Sampling
from tests.test_translator import TEXTS, build_translator


def read(path) -> list:
    with open_input(str(path)) as file:
        return list(file)


def test_windows_grow_to_the_largest_and_keep_every_item():
    sizes = [len(window) for window in windows(range(9000))]
    assert sizes[:3] == [64, 128, 256]
    assert max(sizes) == LARGEST_WINDOW
    assert [item for window in windows(range(9000)) for item in window] == list(range(9000))
    assert [len(window) for window in windows(range(3), 1, 1)] == [1, 1, 1]


def test_windows_read_no_further_than_needed():
    items = iter(range(1000))
    assert next(windows(items)) == list(range(64))
    assert next(items) == 64


@pytest.mark.parametrize("suffix", [".txt", ".gz"])
def test_lines_of_a_file(tmp_path, suffix):
    path = tmp_path / f"in{suffix}"
    content = b"\xef\xbb\xbfone\r\n\ntwo\x0cthree\xe2\x80\xa8four\nlast"
    path.write_bytes(gzip.compress(content) if suffix == ".gz" else content)
    assert read(path) == ["one", "", "two\x0cthree\u2028four", "last"]


def test_a_line_that_is_not_text_is_an_error_with_its_number(tmp_path):
    path = tmp_path / "in.txt"
    path.write_bytes(b"one\nna\xefve\n" + b"x" * (MAX_BYTES + 7) + b"\nlast\n")
    first, latin, long, last = read(path)
    assert (first, last) == ("one", "last")
    assert str(latin) == "line 2 is not valid UTF-8 (byte 3)"
    assert str(long) == "line 3 is longer than 1,048,576 bytes: split it"


def test_a_file_that_cannot_be_read_is_an_error(tmp_path):
    with pytest.raises(UserError, match=r"none\.txt cannot be read: No such file"):
        read(tmp_path / "none.txt")
    (tmp_path / "in.gz").write_bytes(b"no gzip")
    with pytest.raises(UserError, match=r"in\.gz cannot be read: Not a gzipped file"):
        read(tmp_path / "in.gz")


def test_the_fraction_read_of_a_file_reaches_one(tmp_path):
    (tmp_path / "in.txt").write_text("one\n" * 9)
    with open_input(str(tmp_path / "in.txt")) as file:
        assert file.fraction_read == 0
        list(file)
        assert file.fraction_read == 1


@pytest.mark.parametrize("decoding", [Decoding(), Decoding(2), Decoding(sample=Sampling(seed=3))])
def test_blank_and_untranslatable_lines_leave_the_others_as_they_are(decoding):
    translator = build_translator("gru")
    bad = UserError("line 3 is not valid UTF-8")
    window = ["bad", "", bad, "cab", "  ", "zebra", "a" * 99]
    lines = LineTranslator(translator, decoding).translate(window, 1)
    options = {"beam": decoding.beam, "sample": decoding.sample, "attention": False}
    expected = translator.translate(["bad", "a", "a", "cab"], **options)
    assert lines[0].translation == expected[0]
    assert lines[3].translation == expected[3]  # also the sample: its seed is the line number
    assert [line.translation is None for line in lines] == [
        False,
        True,
        True,
        False,
        True,
        True,
        True,
    ]
    errors = [str(line.error or "") for line in lines]
    assert errors[:5] == ["", "", str(bad), "", ""]
    assert errors[5].startswith('line 6 contains "z", "r", which is not in this model')
    assert errors[6].startswith("line 7 has 99 tokens and this model reads at most 23")


def test_an_unseen_script_gives_one_warning():
    translator = build_translator("words", "tokenizer.min_frequency=2")  # not strict
    lines = LineTranslator(translator, Decoding())
    window = lines.translate(["bad é", "не 漢", "не", "Ω не"], 5)
    assert [line.warning is None for line in window] == [True, False, True, False]
    assert window[1].warning == (
        "line 6 has CJK, Cyrillic letters, and the vocabulary of this model has only Latin: "
        "expect no useful translation"
    )
    assert str(window[3].warning).startswith("line 8 has Greek letters")
    assert lines.translate(["не"], 9)[0].warning is None


def test_scripts_of_letters_only():
    assert find_scripts("12 .,-! ́٣\n") == frozenset()
    assert find_scripts("aé ＡﬀªµK") == {"LATIN", "GREEK"}  # compatibility forms; µ is Greek
    assert find_scripts("не שלום 你好 ひカ 한 नमस्ते") == {
        *("CYRILLIC", "HEBREW", "CJK", "HIRAGANA", "KATAKANA", "HANGUL", "DEVANAGARI"),
    }


def test_byte_level_pieces_have_the_scripts_of_their_text():
    tokenizer = TOKENIZERS["bpe"].train(["не не не не"] * 9, (), lowercase=False, vocab_size=280)
    tokens = tokenizer.ids_to_tokens(range(tokenizer.vocab_size))
    assert {"CYRILLIC", "LATIN"} <= find_scripts("".join(tokens))


def test_texts_are_translated_alike_in_any_window():
    translator = build_translator("transformer")
    lines = LineTranslator(translator, Decoding())
    whole = [line.translation.text for line in lines.translate(list(TEXTS), 1)]
    assert whole == [lines.translate([text], 1)[0].translation.text for text in TEXTS]
