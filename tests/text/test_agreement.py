"""The vocabularies of an ensemble: shared if they agree, or an error that says what differs."""

import re
from dataclasses import replace

import pytest

from regard import config
from regard.errors import UserError
from regard.text.agreement import share_tokenizers
from regard.text.tokenizer import TokenizerPair

PAIRS = [("ein Hund", "a dog"), ("eine Katze", "a cat")]


def train(table=None, pairs=PAIRS, symbols=()) -> TokenizerPair:
    return TokenizerPair.train(table or config.Characters(), pairs, symbols)


def test_equal_vocabularies_are_shared():
    pairs = [train(config.Characters(max_tokens=limit)) for limit in (31, 23, 29)]
    shared = share_tokenizers(["a", "b", "c"], pairs)
    assert shared.max_tokens == 23
    assert shared.source is pairs[0].source
    assert share_tokenizers(["a"], pairs[:1]) == pairs[0]


SEPARATE = config.Characters(joint=False)
DIFFERENT = {
    "kind": (train(), train(config.Words(joint=True)), 'the tokenizer is "characters" and "words"'),
    "joint": (
        train(),
        train(SEPARATE),
        "only one of them has a joint vocabulary (tokenizer.joint)",
    ),
    "size": (train(), train(pairs=PAIRS[:1]), "the vocabulary has 14 and 10 tokens"),
    "side": (
        train(SEPARATE),
        train(SEPARATE, [(source, "a") for source, _ in PAIRS]),
        "the target vocabulary has 7 and 1 tokens",
    ),
    "token": (
        train(SEPARATE, [("ab", "c")]),
        train(SEPARATE, [("aB", "c")]),
        'token 1 of the source vocabulary is "a" and "B"',
    ),
    "symbols": (train(), train(symbols=["<U>"]), "the tokenizers have another symbols"),
    "eos": (
        train(),
        replace(train(), source_eos=False),
        "only in one of them the sources end with EOS (tokenizer.source_eos)",
    ),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_different_vocabularies_are_an_error(name):
    first, second, message = DIFFERENT[name]
    expected = (
        "runs/a and runs/b cannot be members of one ensemble, as their vocabularies differ: "
        f"{message}. Train both on the same data with the same [tokenizer]"
    )
    with pytest.raises(UserError, match=re.escape(expected)):
        share_tokenizers(["runs/a", "same", "runs/b"], [first, first, second])
