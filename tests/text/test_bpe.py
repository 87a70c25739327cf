"""Byte-pair encoding: lossless, no unknown tokens, merges saved and loaded."""

import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from regard import config
from regard.errors import UserError
from regard.text.tokenizer import BOS, EOS, PAD, SPECIAL_TOKENS, UNK, BpeTokenizer, TokenizerPair

SYMBOLS = ("<U>", "<L>")
TEXT = [
    "the lowest tower and the newer, wider river",
    "lower the widest tower; the newest is lower",
    "die Flüsse sind breiter und die Türme höher",
]
PAIRS = [(source, target.upper()) for source, target in zip(TEXT, TEXT[1:] + TEXT[:1], strict=True)]
NO_DEADLINE = settings(deadline=None, max_examples=60)


def train(size: int = 320, lower: bool = False, symbols=()) -> BpeTokenizer:
    return BpeTokenizer.train(TEXT, symbols, lower, size)


PLAIN, LOWER, TASK = train(), train(lower=True), train(symbols=SYMBOLS)


def train_pair(**options) -> TokenizerPair:
    return TokenizerPair.train(config.Bpe(**({"vocab_size": 320} | options)), PAIRS, SYMBOLS)


@NO_DEADLINE
@given(text=st.text(max_size=40))
@example(text=" ")
@example(text="  a  b ")
@example(text="\r\n\t\u2028\x00\x7f")
@example(text="Ġ Ċ é e\u0301 👩‍👩‍👧 漢字 \ufeff\ufffd")
@example(text="<unk> <pad> <begin> <end>")
@example(text="the tower")
def test_decoding_inverts_encoding_without_unknown_tokens(text):
    ids = PLAIN.encode(text)
    assert PLAIN.decode(ids) == text
    assert PLAIN.decode([BOS, *ids, EOS, PAD]) == text
    assert all(len(SPECIAL_TOKENS) <= i < PLAIN.vocab_size for i in ids)
    assert PLAIN.unknown_pieces(text) == []
    assert len(PLAIN.ids_to_tokens(ids)) == len(ids)
    assert all(PLAIN.ids_to_tokens(ids))


@NO_DEADLINE
@given(text=st.text(max_size=40))
@example(text="İSTANBUL ẞ ΑΣ")
def test_lowercasing_changes_only_the_case(text):
    assert LOWER.decode(LOWER.encode(text)) == text.lower()


@pytest.mark.parametrize("special", [*SPECIAL_TOKENS, "<pad><end>", "a <unk> b", "<end> "])
def test_a_typed_special_token_is_encoded_as_letters(special):
    ids = TASK.encode(special)
    assert min(ids) >= len(SPECIAL_TOKENS) + len(SYMBOLS)
    assert TASK.decode(ids) == special


def test_invalid_model_output_stays_visible():
    assert PLAIN.decode([UNK]) == "<unk>"
    half = PLAIN.piece_to_id["Ã"]  # only the first byte of an é
    assert PLAIN.decode([half]) == "\ufffd"
    assert PLAIN.ids_to_tokens([half])[0].endswith("\ufffd")


def test_a_task_symbol_is_one_id_only_at_the_start():
    assert TASK.encode("<L> the") == [5, *TASK.encode("the")]
    assert TASK.decode(TASK.encode("<L> the")) == "<L> the"
    assert min(TASK.encode("the <L>")) >= len(SPECIAL_TOKENS) + len(SYMBOLS)


@pytest.mark.parametrize("size", [262, 290, 315])
@pytest.mark.parametrize("symbols", [(), SYMBOLS])
def test_the_vocabulary_has_the_requested_size(size, symbols):
    tokenizer = train(size, symbols=symbols)
    assert tokenizer.vocab_size == size
    assert len(set(tokenizer.vocab)) == size
    assert len(tokenizer.merges) == size - len(SPECIAL_TOKENS) - len(symbols) - 256


def test_a_small_text_gives_fewer_merges_than_requested():
    tokenizer = train(8000)
    assert tokenizer.vocab_size < 8000
    assert tokenizer.vocab_size == len(SPECIAL_TOKENS) + 256 + len(tokenizer.merges)


def test_frequent_words_are_one_token_and_more_merges_give_fewer_tokens():
    large = train(320)
    assert large.ids_to_tokens(large.encode("the the")) == ["the", "the"]
    assert len(large.encode(TEXT[0])) < len(train(280).encode(TEXT[0])) < len(TEXT[0]) + 1
    tokens = train(262).ids_to_tokens(train(262).encode("tower"))
    assert tokens[1].startswith("·")  # marks every token of a word but the first
    assert not tokens[0].startswith("·")


def test_training_is_deterministic():
    assert train().to_json() == train().to_json()


@pytest.mark.parametrize("joint", [True, False])
def test_joint_and_separate_vocabularies_are_saved_and_loaded(joint, tmp_path):
    saved = train_pair(joint=joint, lowercase=joint, max_tokens=17)
    assert saved.joint == joint
    if not joint:
        assert saved.source.symbols == SYMBOLS
        assert saved.target.symbols == ()
        assert saved.source.pieces != saved.target.pieces
    saved.save(tmp_path / "tokenizer.json")
    loaded = TokenizerPair.load(tmp_path / "tokenizer.json")
    assert json.dumps(loaded.to_json()) == json.dumps(saved.to_json())
    assert (loaded.joint, loaded.max_tokens) == (joint, 17)
    for text in [*TEXT, "<U> unseen Übung 漢", " x"]:
        for old, new in ((saved.source, loaded.source), (saved.target, loaded.target)):
            assert new.encode(text) == old.encode(text)
            assert new.ids_to_tokens(new.encode(text)) == old.ids_to_tokens(old.encode(text))


DAMAGE = {
    "a merge of unknown pieces": lambda side: side["merges"].append(["qq", "zz"]),
    "a merge into an unknown piece": lambda side: side["merges"].append(["q", "z"]),
    "a merge of one piece": lambda side: side["merges"].append(["t"]),
    "a merge of numbers": lambda side: side["merges"].append([1, 2]),
    "a merge that is a string": lambda side: side["merges"].append("t h e"),
    "merges that are null": lambda side: side.update(merges=None),
    "no merges": lambda side: side.pop("merges"),
    "a missing piece": lambda side: side["pieces"].remove(side["pieces"][-1]),
    "pieces that are numbers": lambda side: side.update(pieces=[1, 2]),
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("joint", [True, False])
def test_damaged_merges_raise_an_error(damage, joint, tmp_path):
    path = tmp_path / "tokenizer.json"
    train_pair(joint=joint).save(path)
    record = json.loads(path.read_text("utf-8"))
    DAMAGE[damage](record["joint" if joint else "target"])
    path.write_text(json.dumps(record), "utf-8")
    with pytest.raises(UserError, match=r"tokenizer\.json is damaged: .*\. Restore it"):
        TokenizerPair.load(path)


def test_a_vocabulary_too_small_for_the_bytes_is_rejected():
    with pytest.raises(ValueError, match="greater than or equal to 300"):
        config.Bpe(vocab_size=299)
