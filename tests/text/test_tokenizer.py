"""Text to ids and back: exact inverses, special ids that no text reaches, saving and loading."""

import json
import tomllib

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from regard import config
from regard.errors import UserError
from regard.text.tokenizer import (
    BOS,
    EOS,
    PAD,
    SPECIAL_TOKENS,
    TOKENIZERS,
    UNK,
    CharacterTokenizer,
    TokenizerPair,
    WordTokenizer,
)

KINDS = sorted(TOKENIZERS)
NO_DEADLINE = settings(deadline=None)
SYMBOLS = ("<U>", "<L>")
# Letters, punctuation, several kinds of whitespace, and the word tokenizer's marks.
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


def train(kind: str, *texts: str, symbols=(), lower=False, min_frequency=1):
    option = 270 if kind == "bpe" else min_frequency  # all bytes and some merges
    return TOKENIZERS[kind].train(texts, symbols, lower, option)


def with_examples(test):
    for text in [*TRICKY, *SPECIAL_TOKENS]:
        test = example(text=text)(test)
    return test


@pytest.mark.parametrize("kind", KINDS)
@with_examples
@NO_DEADLINE
@given(text=TEXTS)
def test_decoding_inverts_encoding(kind, text):
    tokenizer = train(kind, text)
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert tokenizer.detokenize(tokenizer.tokenize(text)) == text
    assert all(tokenizer.piece_to_id[p] >= len(SPECIAL_TOKENS) for p in tokenizer.tokenize(text))


@pytest.mark.parametrize("kind", KINDS)
@with_examples
@NO_DEADLINE
@given(text=TEXTS)
def test_lowercasing_changes_only_the_case(kind, text):
    tokenizer = train(kind, text, lower=True)
    assert tokenizer.decode(tokenizer.encode(text)) == text.lower()


@pytest.mark.parametrize("kind", KINDS)
@NO_DEADLINE
@given(text=TEXTS, symbol=st.sampled_from(SYMBOLS))
@example(text="a ", symbol="<U>")
@example(text=" ", symbol="<L>")
@example(text="<U> a", symbol="<L>")
def test_a_leading_task_symbol_is_one_token_and_is_decoded(kind, text, symbol):
    source = f"{symbol} {text}"
    tokenizer = train(kind, text, source, symbols=SYMBOLS)
    ids = tokenizer.encode(source)
    assert ids[0] == len(SPECIAL_TOKENS) + SYMBOLS.index(symbol)
    assert all(i >= len(SPECIAL_TOKENS) + len(SYMBOLS) for i in ids[1:])
    assert tokenizer.decode(ids) == (source if text else symbol)


@pytest.mark.parametrize("kind", KINDS)
@with_examples
@NO_DEADLINE
@given(text=TEXTS)
def test_no_text_reaches_a_special_id(kind, text):
    trained_on_specials = train(kind, text, *SPECIAL_TOKENS, symbols=SYMBOLS)
    assert min([4, *trained_on_specials.encode(text)]) == 4
    other = train(kind, "a b c", symbols=SYMBOLS)
    assert not {PAD, BOS, EOS} & set(other.encode(text))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("special", SPECIAL_TOKENS)
def test_a_typed_special_token_is_encoded_as_letters(kind, special):
    tokenizer = train(kind, special, f"a {special} b")
    ids = tokenizer.encode(special)
    assert len(ids) >= 3 or kind == "bpe"
    assert min(ids) >= len(SPECIAL_TOKENS)
    assert tokenizer.decode(ids) == special


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("text", ["a <U> b", " <U> b", "<U>b", "<U>\tb", "<u> b", "<L><U> b"])
def test_a_task_symbol_elsewhere_is_encoded_as_letters(kind, text):
    tokenizer = train(kind, text, symbols=SYMBOLS)
    ids = tokenizer.encode(text)
    assert min(ids) >= len(SPECIAL_TOKENS) + len(SYMBOLS)
    assert tokenizer.decode(ids) == text


def test_a_task_symbol_without_text():
    tokenizer = train("characters", "ab", symbols=SYMBOLS)
    assert tokenizer.encode("<L>") == [5]
    assert tokenizer.decode([5]) == "<L>"
    assert tokenizer.encode("<U> <L>")[0] == 4
    assert tokenizer.ids_to_tokens([BOS, 5, 6, EOS]) == ["<begin>", "<L>", "a", "<end>"]


def test_words_are_split_as_a_reader_would():
    tokenize = WordTokenizer((), (), lowercase=False, strict=False).tokenize
    assert tokenize("A man, in a well-lit room (his).") == (
        ["A", "man", ",", "in", "a", "well", "-", "lit", "room", "(", "his", ")", "."]
    )
    assert tokenize("the dog's l'eau") == ["the", "dog", "'s", "l", "'eau"]
    assert tokenize("odd , comma") == ["odd", "␣,", "comma"]
    assert tokenize("a.b") == ["a", ".", "⌢b"]


def test_words_from_a_model_are_spaced_as_usual():
    detokenize = WordTokenizer((), (), lowercase=False, strict=False).detokenize
    assert detokenize(["Hello", ",", "you", "!"]) == "Hello, you!"
    assert detokenize(["<unk>", "is", "(", "here", ")"]) == "<unk> is (here)"
    assert detokenize([]) == ""


def test_min_frequency_and_order_of_pieces():
    tokenizer = train("words", "b a a c", "a b", min_frequency=2)
    assert tokenizer.pieces == ("a", "b")
    assert not tokenizer.strict
    assert tokenizer.encode("a c b") == [4, UNK, 5]
    assert tokenizer.unknown_pieces("c a d c") == ["c", "d"]
    assert tokenizer.decode(tokenizer.encode("a c")) == "a <unk>"
    assert train("words", "b a a c", "a b").strict
    assert train("words", "b a a c").pieces == ("a", "b", "c")
    assert tokenizer.vocab_size == 6


def test_symbols_are_not_counted_as_text():
    tokenizer = train("characters", "<U> ab", "<U> a", symbols=SYMBOLS)
    assert tokenizer.pieces == ("a", "b")


def test_decode_drops_bos_eos_and_padding():
    tokenizer = CharacterTokenizer("ab", (), lowercase=False, strict=True)
    assert tokenizer.decode([BOS, 4, UNK, 5, EOS, PAD, PAD]) == "a<unk>b"


def table(text: str) -> config.Characters | config.Words:
    return config.Config.model_validate({"tokenizer": tomllib.loads(text)}).tokenizer


PAIRS = [("<U> aB", "AB"), ("<L> aC", "ac")]


def test_a_joint_vocabulary_is_one_tokenizer_and_separate_ones_are_two():
    joint = TokenizerPair.train(table("joint = true\nmax_tokens = 7"), PAIRS, SYMBOLS)
    assert joint.joint
    assert joint.source is joint.target
    assert set(joint.source.pieces) == set("aBACc")
    assert joint.max_tokens == 7
    separate = TokenizerPair.train(table("joint = false"), PAIRS, SYMBOLS)
    assert not separate.joint
    assert set(separate.source.pieces) == set("aBC")
    assert set(separate.target.pieces) == set("ABac")
    assert separate.source.symbols == SYMBOLS
    assert separate.target.symbols == ()


def test_the_config_determines_kind_case_and_frequency():
    options = "kind = 'words'\nlowercase = true\nmin_frequency = 2\njoint = true"
    pair = TokenizerPair.train(table(options), [("The the cat", "A cat")], ())
    assert isinstance(pair.source, WordTokenizer)
    assert pair.source.pieces == ("cat", "the")


@pytest.mark.parametrize("kind", KINDS)
def test_sources_end_with_eos_unless_switched_off(kind, tmp_path):
    for source_eos, ending in (("true", [EOS]), ("false", [])):
        pair = TokenizerPair.train(
            table(f"kind = '{kind}'\nsource_eos = {source_eos}"), PAIRS, SYMBOLS
        )
        text = PAIRS[0][0]
        assert pair.encode_source(text) == pair.source.encode(text) + ending
        pair.save(tmp_path / "tokenizer.json")
        loaded = TokenizerPair.load(tmp_path / "tokenizer.json")
        assert loaded.encode_source(text) == pair.encode_source(text)
        assert loaded.source_eos == pair.source_eos == bool(ending)


def test_a_tokenizer_saved_before_source_eos_existed_has_it(tmp_path):
    pair = TokenizerPair.train(table("source_eos = false"), PAIRS, SYMBOLS)
    record = pair.to_json()
    del record["source_eos"]
    (tmp_path / "tokenizer.json").write_text(json.dumps(record), "utf-8")
    assert TokenizerPair.load(tmp_path / "tokenizer.json").source_eos


@pytest.mark.parametrize("joint", ["true", "false"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_pair_is_saved_and_loaded(kind, joint, tmp_path):
    option = "vocab_size = 300" if kind == "bpe" else "min_frequency = 1"
    chosen = table(f"kind = '{kind}'\njoint = {joint}\n{option}\nlowercase = true")
    pairs = [*PAIRS, ("é ␣ 日本\n", "“x”")]
    pair = TokenizerPair.train(chosen, pairs, SYMBOLS)
    pair.save(tmp_path / "tokenizer.json")
    loaded = TokenizerPair.load(tmp_path / "tokenizer.json")
    assert loaded.joint == pair.joint == (joint == "true")
    assert loaded.max_tokens == pair.max_tokens
    for old, new in [(pair.source, loaded.source), (pair.target, loaded.target)]:
        assert type(new) is type(old)
        assert new.to_json() == old.to_json()
        assert new.vocab == old.vocab
        assert all(new.encode(text) == old.encode(text) for side in pairs for text in side)


def damage(change) -> str:
    side = CharacterTokenizer("ab", (), lowercase=False, strict=True).to_json()
    record = {"joint": side, "max_tokens": 5}
    change(record)
    return json.dumps(record)


DAMAGED = {
    "empty": "",
    "truncated": damage(lambda record: None)[:-9],
    "a list": "[]",
    "null": "null",
    "no side": damage(lambda record: record.pop("joint")),
    "no limit": damage(lambda record: record.pop("max_tokens")),
    "no kind": damage(lambda record: record["joint"].pop("kind")),
    "unknown kind": damage(lambda record: record["joint"].update(kind="syllables")),
    "unknown key": damage(lambda record: record["joint"].update(colour="red")),
    "no pieces": damage(lambda record: record["joint"].pop("pieces")),
    "a piece twice": damage(lambda record: record["joint"].update(pieces=["a", "a"])),
    "an empty piece": damage(lambda record: record["joint"].update(pieces=["a", ""])),
    "pieces that are null": damage(lambda record: record["joint"].update(pieces=None)),
    "a side that is a string": damage(lambda record: record.update(joint="ab")),
    "one side": damage(lambda record: record.update(source=record.pop("joint"))),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_file_raises_an_error(name, tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_text(DAMAGED[name], "utf-8")
    with pytest.raises(UserError, match=r"tokenizer\.json is damaged: .*\. Restore it from a copy"):
        TokenizerPair.load(path)


def test_a_missing_or_binary_file_raises_an_error(tmp_path):
    path = tmp_path / "tokenizer.json"
    with pytest.raises(UserError, match=r"there is no file .*tokenizer\.json"):
        TokenizerPair.load(path)
    path.write_bytes(b"\xff\xfe\x00{")
    with pytest.raises(UserError, match=r"tokenizer\.json is damaged: byte 0 is not UTF-8"):
        TokenizerPair.load(path)
