"""Byte-pair encoding: any text comes back, nothing is unknown, merges survive on disk."""

import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from regard import config
from regard.errors import UserError
from regard.text.tokenizer import BEGIN, END, PAD, SPECIALS, UNKNOWN, BpeTokenizer, TokenizerPair

SYMBOLS = ("<U>", "<L>")
TEXT = [
    "the lowest tower and the newer, wider river",
    "lower the widest tower; the newest is lower",
    "die Flüsse sind breiter und die Türme höher",
]
PAIRS = [(one, other.upper()) for one, other in zip(TEXT, TEXT[1:] + TEXT[:1], strict=True)]
UNHURRIED = settings(deadline=None, max_examples=60)


def learn(size: int = 320, lower: bool = False, symbols=()) -> BpeTokenizer:
    return BpeTokenizer.learn(TEXT, symbols, lower, size)


PLAIN, LOWER, TASK = learn(), learn(lower=True), learn(symbols=SYMBOLS)


def pair(**choices) -> TokenizerPair:
    return TokenizerPair.learn(config.Bpe(**({"vocab_size": 320} | choices)), PAIRS, SYMBOLS)


@UNHURRIED
@given(text=st.text(max_size=40))
@example(text=" ")
@example(text="  a  b ")
@example(text="\r\n\t\u2028\x00\x7f")
@example(text="Ġ Ċ é e\u0301 👩‍👩‍👧 漢字 \ufeff\ufffd")
@example(text="<unk> <pad> <begin> <end>")
@example(text="the tower")
def test_any_text_comes_back_and_nothing_is_unknown(text):
    ids = PLAIN.encode(text)
    assert PLAIN.decode(ids) == text
    assert PLAIN.decode([BEGIN, *ids, END, PAD]) == text
    assert all(len(SPECIALS) <= i < PLAIN.size for i in ids)
    assert PLAIN.unknown(text) == []
    assert len(PLAIN.tokens(ids)) == len(ids)
    assert all(PLAIN.tokens(ids))


@UNHURRIED
@given(text=st.text(max_size=40))
@example(text="İSTANBUL ẞ ΑΣ")
def test_lower_forgets_the_case_and_nothing_else(text):
    assert LOWER.decode(LOWER.encode(text)) == text.lower()


@pytest.mark.parametrize("special", [*SPECIALS, "<pad><end>", "a <unk> b", "<end> "])
def test_a_typed_special_is_its_letters(special):
    ids = TASK.encode(special)
    assert min(ids) >= len(SPECIALS) + len(SYMBOLS)
    assert TASK.decode(ids) == special


def test_what_a_model_says_that_is_no_text_stays_visible():
    assert PLAIN.decode([UNKNOWN]) == "<unk>"
    half = PLAIN.ids["Ã"]  # the first byte of an é, alone
    assert PLAIN.decode([half]) == "\ufffd"
    assert PLAIN.tokens([half])[0].endswith("\ufffd")


def test_a_task_symbol_is_one_id_at_the_start_alone():
    assert TASK.encode("<L> the") == [5, *TASK.encode("the")]
    assert TASK.decode(TASK.encode("<L> the")) == "<L> the"
    assert min(TASK.encode("the <L>")) >= len(SPECIALS) + len(SYMBOLS)


@pytest.mark.parametrize("size", [262, 290, 315])
@pytest.mark.parametrize("symbols", [(), SYMBOLS])
def test_the_vocabulary_is_no_larger_than_asked(size, symbols):
    made = learn(size, symbols=symbols)
    assert made.size == size
    assert len(set(made.names)) == made.size
    assert len(made.merges) == size - len(SPECIALS) - len(symbols) - 256


def test_there_may_be_less_to_merge_than_room():
    made = learn(8000)
    assert made.size < 8000
    assert made.size == len(SPECIALS) + 256 + len(made.merges)


def test_what_is_frequent_is_one_token_and_more_merges_are_fewer_tokens():
    wide = learn(320)
    assert wide.tokens(wide.encode("the the")) == ["the", "the"]
    assert len(wide.encode(TEXT[0])) < len(learn(280).encode(TEXT[0])) < len(TEXT[0]) + 1
    split = learn(262).tokens(learn(262).encode("tower"))
    assert split[1].startswith("·")  # a word's further tokens can be told from its first
    assert not split[0].startswith("·")


def test_learning_is_repeatable():
    assert learn().to_json() == learn().to_json()


@pytest.mark.parametrize("joint", [True, False])
def test_joint_and_apart_survive_on_disk(joint, tmp_path):
    made = pair(joint=joint, lowercase=joint, max_tokens=17)
    assert made.joint == joint
    if not joint:
        assert made.source.symbols == SYMBOLS
        assert made.target.symbols == ()
        assert made.source.pieces != made.target.pieces
    made.save(tmp_path / "tokenizer.json")
    again = TokenizerPair.load(tmp_path / "tokenizer.json")
    assert json.dumps(again.to_json()) == json.dumps(made.to_json())
    assert (again.joint, again.max_tokens) == (joint, 17)
    for text in [*TEXT, "<U> unseen Übung 漢", " x"]:
        for old, new in ((made.source, again.source), (made.target, again.target)):
            assert new.encode(text) == old.encode(text)
            assert new.tokens(new.encode(text)) == old.tokens(old.encode(text))


DAMAGE = {
    "a merge of strangers": lambda side: side["merges"].append(["qq", "zz"]),
    "a merge into a stranger": lambda side: side["merges"].append(["q", "z"]),
    "a merge of one": lambda side: side["merges"].append(["t"]),
    "a merge of numbers": lambda side: side["merges"].append([1, 2]),
    "a merge that is text": lambda side: side["merges"].append("t h e"),
    "merges that are none": lambda side: side.update(merges=None),
    "no merges": lambda side: side.pop("merges"),
    "a piece that went": lambda side: side["pieces"].remove(side["pieces"][-1]),
    "pieces that are numbers": lambda side: side.update(pieces=[1, 2]),
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("joint", [True, False])
def test_damaged_merges_are_named(damage, joint, tmp_path):
    path = tmp_path / "tokenizer.json"
    pair(joint=joint).save(path)
    record = json.loads(path.read_text("utf-8"))
    DAMAGE[damage](record["joint" if joint else "target"])
    path.write_text(json.dumps(record), "utf-8")
    with pytest.raises(UserError, match=r"tokenizer\.json is not a tokenizer saved by regard"):
        TokenizerPair.load(path)


def test_a_vocabulary_too_small_for_the_bytes_is_refused():
    with pytest.raises(ValueError, match="greater than or equal to 300"):
        config.Bpe(vocab_size=299)
