"""Text to ids and back: exact inverses, ids no text can reach, files that survive."""

import json
import tomllib

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from regard import config
from regard.errors import UserError
from regard.text.tokenizer import (
    BEGIN,
    END,
    PAD,
    SPECIALS,
    TOKENIZERS,
    UNKNOWN,
    CharacterTokenizer,
    TokenizerPair,
    WordTokenizer,
)

KINDS = sorted(TOKENIZERS)
UNHURRIED = settings(deadline=None)
SYMBOLS = ("<U>", "<L>")
# Letters, marks of every sort, several kinds of white space, and the words tokenizer's own marks.
DENSE = st.text(alphabet="aB'’é \t\n\u00a0.,;-/(\"“”«»#€␣⌢<>UL_1\u0301", max_size=30)
TEXTS = st.one_of(DENSE, st.text(max_size=30))
TRICKY = [
    "␣",
    "⌢",
    "␣a",
    "a␣b",
    "⌢⌢ ␣",
    " a",
    "a ",
    "a  b",
    "\n",
    "a\n.",
    "l'eau",
    "d' eau",
    "a - b",
]


def learn(kind: str, *texts: str, symbols=(), lower=False, min_frequency=1):
    own = 270 if kind == "bpe" else min_frequency  # all bytes and room for some merges
    return TOKENIZERS[kind].learn(texts, symbols, lower, own)


def with_examples(test):
    for text in [*TRICKY, *SPECIALS]:
        test = example(text=text)(test)
    return test


@pytest.mark.parametrize("kind", KINDS)
@with_examples
@UNHURRIED
@given(text=TEXTS)
def test_decoding_undoes_encoding(kind, text):
    tokenizer = learn(kind, text)
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert tokenizer.join(tokenizer.cut(text)) == text
    assert all(tokenizer.ids[piece] >= len(SPECIALS) for piece in tokenizer.cut(text))


@pytest.mark.parametrize("kind", KINDS)
@with_examples
@UNHURRIED
@given(text=TEXTS)
def test_lower_forgets_the_case_and_nothing_else(kind, text):
    tokenizer = learn(kind, text, lower=True)
    assert tokenizer.decode(tokenizer.encode(text)) == text.lower()


@pytest.mark.parametrize("kind", KINDS)
@UNHURRIED
@given(text=TEXTS, symbol=st.sampled_from(SYMBOLS))
@example(text="a ", symbol="<U>")
@example(text=" ", symbol="<L>")
@example(text="<U> a", symbol="<L>")
def test_a_leading_task_symbol_is_one_token_and_comes_back(kind, text, symbol):
    whole = f"{symbol} {text}"
    tokenizer = learn(kind, text, whole, symbols=SYMBOLS)
    ids = tokenizer.encode(whole)
    assert ids[0] == len(SPECIALS) + SYMBOLS.index(symbol)
    assert all(i >= len(SPECIALS) + len(SYMBOLS) for i in ids[1:])
    assert tokenizer.decode(ids) == (whole if text else symbol)


@pytest.mark.parametrize("kind", KINDS)
@with_examples
@UNHURRIED
@given(text=TEXTS)
def test_no_text_reaches_a_special_id(kind, text):
    knowing = learn(kind, text, *SPECIALS, symbols=SYMBOLS)
    assert min([4, *knowing.encode(text)]) == 4
    ignorant = learn(kind, "a b c", symbols=SYMBOLS)
    assert not {PAD, BEGIN, END} & set(ignorant.encode(text))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("special", SPECIALS)
def test_a_typed_special_is_its_letters(kind, special):
    tokenizer = learn(kind, special, f"a {special} b")
    ids = tokenizer.encode(special)
    assert len(ids) >= 3 or kind == "bpe"
    assert min(ids) >= len(SPECIALS)
    assert tokenizer.decode(ids) == special


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("text", ["a <U> b", " <U> b", "<U>b", "<U>\tb", "<u> b", "<L><U> b"])
def test_a_task_symbol_elsewhere_is_its_letters(kind, text):
    tokenizer = learn(kind, text, symbols=SYMBOLS)
    ids = tokenizer.encode(text)
    assert min(ids) >= len(SPECIALS) + len(SYMBOLS)
    assert tokenizer.decode(ids) == text


def test_a_task_symbol_alone():
    tokenizer = learn("characters", "ab", symbols=SYMBOLS)
    assert tokenizer.encode("<L>") == [5]
    assert tokenizer.decode([5]) == "<L>"
    assert tokenizer.encode("<U> <L>")[0] == 4
    assert tokenizer.tokens([BEGIN, 5, 6, END]) == ["<begin>", "<L>", "a", "<end>"]


def test_words_are_cut_where_a_reader_would():
    cut = WordTokenizer((), (), lower=False, strict=False).cut
    assert cut("A man, in a well-lit room (his).") == (
        ["A", "man", ",", "in", "a", "well", "-", "lit", "room", "(", "his", ")", "."]
    )
    assert cut("the dog's l'eau") == ["the", "dog", "'s", "l", "'eau"]
    assert cut("odd , comma") == ["odd", "␣,", "comma"]
    assert cut("a.b") == ["a", ".", "⌢b"]


def test_words_from_a_model_are_spaced_as_usual():
    join = WordTokenizer((), (), lower=False, strict=False).join
    assert join(["Hello", ",", "you", "!"]) == "Hello, you!"
    assert join(["<unk>", "is", "(", "here", ")"]) == "<unk> is (here)"
    assert join([]) == ""


def test_min_frequency_and_order_of_pieces():
    tokenizer = learn("words", "b a a c", "a b", min_frequency=2)
    assert tokenizer.pieces == ("a", "b")
    assert not tokenizer.strict
    assert tokenizer.encode("a c b") == [4, UNKNOWN, 5]
    assert tokenizer.unknown("c a d c") == ["c", "d"]
    assert tokenizer.decode(tokenizer.encode("a c")) == "a <unk>"
    assert learn("words", "b a a c", "a b").strict
    assert learn("words", "b a a c").pieces == ("a", "b", "c")
    assert tokenizer.size == 6


def test_symbols_are_not_counted_as_text():
    tokenizer = learn("characters", "<U> ab", "<U> a", symbols=SYMBOLS)
    assert tokenizer.pieces == ("a", "b")


def test_decode_drops_begin_end_and_padding():
    tokenizer = CharacterTokenizer("ab", (), lower=False, strict=True)
    assert tokenizer.decode([BEGIN, 4, UNKNOWN, 5, END, PAD, PAD]) == "a<unk>b"


def table(text: str) -> config.Characters | config.Words:
    return config.Config.model_validate({"tokenizer": tomllib.loads(text)}).tokenizer


PAIRS = [("<U> aB", "AB"), ("<L> aC", "ac")]


def test_joint_is_one_tokenizer_and_apart_are_two():
    joint = TokenizerPair.learn(table("joint = true\nmax_tokens = 7"), PAIRS, SYMBOLS)
    assert joint.joint
    assert joint.source is joint.target
    assert set(joint.source.pieces) == set("aBACc")
    assert joint.max_tokens == 7
    apart = TokenizerPair.learn(table("joint = false"), PAIRS, SYMBOLS)
    assert not apart.joint
    assert set(apart.source.pieces) == set("aBC")
    assert set(apart.target.pieces) == set("ABac")
    assert apart.source.symbols == SYMBOLS
    assert apart.target.symbols == ()


def test_the_table_decides_kind_case_and_frequency():
    choices = "kind = 'words'\nlower = true\nmin_frequency = 2\njoint = true"
    pair = TokenizerPair.learn(table(choices), [("The the cat", "A cat")], ())
    assert isinstance(pair.source, WordTokenizer)
    assert pair.source.pieces == ("cat", "the")


@pytest.mark.parametrize("joint", ["true", "false"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_pair_comes_back_whole(kind, joint, tmp_path):
    own = "size = 300" if kind == "bpe" else "min_frequency = 1"
    chosen = table(f"kind = '{kind}'\njoint = {joint}\n{own}\nlower = true")
    pairs = [*PAIRS, ("é ␣ 日本\n", "“x”")]
    pair = TokenizerPair.learn(chosen, pairs, SYMBOLS)
    pair.save(tmp_path / "tokenizer.json")
    again = TokenizerPair.load(tmp_path / "tokenizer.json")
    assert again.joint == pair.joint == (joint == "true")
    assert again.max_tokens == pair.max_tokens
    for old, new in [(pair.source, again.source), (pair.target, again.target)]:
        assert type(new) is type(old)
        assert new.to_json() == old.to_json()
        assert new.names == old.names
        assert all(new.encode(text) == old.encode(text) for side in pairs for text in side)


def damage(change) -> str:
    side = CharacterTokenizer("ab", (), lower=False, strict=True).to_json()
    record = {"joint": side, "max_tokens": 5}
    change(record)
    return json.dumps(record)


DAMAGED = {
    "empty": "",
    "cut short": damage(lambda record: None)[:-9],
    "a list": "[]",
    "null": "null",
    "no side": damage(lambda record: record.pop("joint")),
    "no limit": damage(lambda record: record.pop("max_tokens")),
    "no kind": damage(lambda record: record["joint"].pop("kind")),
    "foreign kind": damage(lambda record: record["joint"].update(kind="syllables")),
    "foreign key": damage(lambda record: record["joint"].update(colour="red")),
    "no pieces": damage(lambda record: record["joint"].pop("pieces")),
    "pieces of nothing": damage(lambda record: record["joint"].update(pieces=None)),
    "a side that is text": damage(lambda record: record.update(joint="ab")),
    "one side": damage(lambda record: record.update(source=record.pop("joint"))),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_file_is_named(name, tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_text(DAMAGED[name], "utf-8")
    with pytest.raises(UserError, match=r"tokenizer\.json is not a tokenizer saved by regard"):
        TokenizerPair.load(path)


def test_a_file_that_is_not_text_or_not_there_is_named(tmp_path):
    path = tmp_path / "tokenizer.json"
    with pytest.raises(UserError, match=r"tokenizer\.json is not a tokenizer saved by regard"):
        TokenizerPair.load(path)
    path.write_bytes(b"\xff\xfe\x00{")
    with pytest.raises(UserError, match=r"tokenizer\.json is not a tokenizer saved by regard"):
        TokenizerPair.load(path)
