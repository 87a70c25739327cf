"""The engine's tokenizers equal Python's, on hostile text too."""

import sys
import unicodedata

import pytest

from regard.text.tokenizer import (
    SPECIAL_TOKENS,
    BpeTokenizer,
    CharacterTokenizer,
    Tokenizer,
    WordTokenizer,
)

TEXTS = [
    "Ein Mann schläft auf einer grünen Bank.",
    "don't, can't; we've: I'm they'll he'd 'quoted' ’curly’ it ’s",
    "  two  spaces ,  before ; and trailing  ",
    "tabs\tand\nnew\r\nlines\x0b\x0c\x1c\x1d\x1e\x1f\x85\xa0\u2003\u2028\u2029\u3000end",
    "\x00\x01\x07\x1b[31m\x7f\x80\x9f lone controls",
    "emoji 😀😃 👩‍👩‍👧‍👦 👍🏽 🇩🇪 ❤️",
    "combining e\u0301 n\u0303o a\u030a\u0323 \u0301alone Z\u0351\u036b\u0343",
    "precomposed é ñ å versus e\u0301 n\u0303 a\u030a",
    "עברית مرحبا بالعالم \u200f\u202eabc\u202c",
    "日本語のテキスト 中文文本，标点。 한국어",
    "हिन्दी ไทย ภาษา தமிழ்",
    "numbers 1234 ½ ² Ⅷ ٣ 五 10,000.5 1st",
    "İstanbul IŞIK ΟΔΥΣΣΕΥΣ Σ ΑΣ. ǅ ﬁ ß ẞ",
    "\ufeffbyte order mark \ufffd \ufffe",
    "a-b/c - d / e (f) [g] {h} «i» „j“ ”k 5% $6 €7 #8 @9 … ¿q? ¡w!",
    "␣mark ⌢joiner ␣␣ ⌢⌢ a␣b a⌢b ␣ ⌢",
    "under_score __init__ x_1",
    "<U> upper",
    "<L>",
    "<U>",
    "<U>x",
    "<end> <pad> <unk> <begin>",
    "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𐍈 𠜎 \U0010ffff",
    "",
    " ",
    "   ",
    "\n",
    "a",
    "'",
    "’s",
    "x" * 300,
]
TRAINING = [text for text in TEXTS if text.strip()] * 2


def train(kind: type[Tokenizer], **options: object) -> Tokenizer:
    settings = {"symbols": ("<U>", "<L>"), "lowercase": False} | options
    if kind is BpeTokenizer:
        return kind.train(TRAINING, **{"vocab_size": 700} | settings)
    # The rarer half is unknown.
    return kind.train(TRAINING[::2], **{"min_frequency": 2} | settings)


TOKENIZERS = {
    f"{kind.kind}{'-lowercase' if lowercase else ''}": (kind, lowercase)
    for kind in (CharacterTokenizer, WordTokenizer, BpeTokenizer)
    for lowercase in (False, True)
}


@pytest.fixture(scope="module", params=TOKENIZERS)
def tokenizer(request) -> Tokenizer:
    kind, lowercase = TOKENIZERS[request.param]
    return train(kind, lowercase=lowercase)


def test_encode_decode_and_tokens(engine, tokenizer):
    results = engine.call("tokenize", record=tokenizer.to_json(), texts=TEXTS)
    for text, result in zip(TEXTS, results, strict=True):
        ids = tokenizer.encode(text)
        assert result["pieces"] == tokenizer.parse(text)[1], text
        assert result["ids"] == ids, text
        assert result["tokens"] == tokenizer.ids_to_tokens(ids), text
        assert result["text"] == tokenizer.decode(ids), text
        assert result["unknown"] == tokenizer.unknown_pieces(text), text


def test_every_token_is_readable(engine, tokenizer):
    tokens = engine.call("vocabulary", record=tokenizer.to_json())
    assert tokens == tokenizer.ids_to_tokens(range(tokenizer.vocab_size))


def test_decode_any_ids(engine, tokenizer):
    """Also ids that no text has: special tokens, halves of characters, marks in a row."""
    size = tokenizer.vocab_size
    rows = [[(7 * row + 13 * i * i) % size for i in range(9)] for row in range(200)]
    assert engine.call("decode", record=tokenizer.to_json(), ids=rows) == [
        tokenizer.decode(row) for row in rows
    ]


@pytest.mark.parametrize("kind", [WordTokenizer, BpeTokenizer])
def test_every_character_is_classified_alike(engine, kind):
    """Letters, numbers, spaces and their lower case, for every character of both Unicode versions."""
    tokenizer = train(kind, lowercase=True)
    assigned = [
        chr(code)
        for code in range(sys.maxunicode + 1)
        if unicodedata.category(chr(code)) not in ("Cn", "Co", "Cs")
    ]
    texts = [
        "".join(f"a{c} {c}b{c}1 " for c in assigned[first : first + 40])
        for first in range(0, len(assigned), 40)
    ]
    results = engine.call("pieces", record=tokenizer.to_json(), texts=texts)
    differing = [
        text
        for text, pieces in zip(texts, results, strict=True)
        if pieces != tokenizer.parse(text)[1]
    ]
    assert differing == []


def test_special_tokens(engine):
    tokenizer = train(CharacterTokenizer)
    assert engine.call("vocabulary", record=tokenizer.to_json())[:4] == list(SPECIAL_TOKENS)
