"""The text on which papers report BLEU: lower-cased, punctuation-normalised, tokenised by Moses.

    text -> lowercase.perl -> normalize-punctuation.perl -l L -> tokenizer.perl -l L

are the steps, in this order, that made Multi30k's published tokens (task1/tok, "lc.norm.tok"); here they are
those of sacremoses, a port of the Perl scripts. Two choices:

- `perl_parity`: as in the scripts of that time, an apostrophe ’ becomes a quotation mark, unless there is a
  letter of a to z on both sides of it. With it, the number of tokens of every file is the published one.
- No escaping: the published text writes & ' " < > [ ] | as &amp; &apos; ... Each is one token either way, so
  BLEU is the same, and our subword tokenizer keeps " in one piece, but not &quot;.

The rule is for raw text. Applied to its own output it may split more: "l' eau" becomes "l ' eau".
"""

import re
from collections.abc import Callable, Iterable
from functools import cache
from typing import Literal

from regard import config
from regard.errors import UserError, join_names, suggest
from regard.text.pairs import Pairs

Side = Literal["source", "target"]

EXTRA = "data.preprocess = \"moses\" needs one more package: pip install 'regard[papers]'"

# Letters, digits and , . - ' with single spaces: normalisation changes nothing, and takes half of the time.
NORMALISED = re.compile(r"(?:[\w,.-]|[ '](?![ ']))*")


def is_preprocessed(data: config.Data) -> bool:
    """Whether the text of this data, and so what a model of it reads and writes, is tokens of Moses."""
    return isinstance(data, config.ParallelData) and data.preprocess == "moses"


def preprocess(text: str, data: config.Data, side: Side) -> str:
    """A raw text as a model of this data knows it: unchanged, unless `data.preprocess` is set."""
    rule = find_rule(data, side)
    return text if rule is None else rule(text)


def preprocess_pairs(pairs: Iterable[tuple[str, str]], data: config.Data) -> Pairs:
    """`preprocess` on both sides."""
    source, target = find_rule(data, "source"), find_rule(data, "target")
    if source is None or target is None:
        return list(pairs)
    return [(source(one), target(other)) for one, other in pairs]


def find_rule(data: config.Data, side: Side) -> Callable[[str], str] | None:
    """The rule of one side of the data; None: its text stays as it is."""
    if not isinstance(data, config.ParallelData) or data.preprocess == "none":
        return None
    assert data.language_pair is not None
    is_second = (side == "target") != data.swap
    return build_rule(data.language_pair[is_second])


@cache
def build_rule(language: str) -> Callable[[str], str]:
    """The function that preprocesses raw text of a language."""
    try:
        from sacremoses import MosesPunctNormalizer, MosesTokenizer
        from sacremoses.corpus import NonbreakingPrefixes
    except ImportError:
        raise UserError(EXTRA) from None

    known = sorted(set(NonbreakingPrefixes().available_langs.values()))
    if language not in known:
        raise UserError(
            f'data.preprocess = "moses" has no rules for the language "{language}".'
            f"{suggest(language, known)} It has {join_names(known)}."
        )
    normalizer = MosesPunctNormalizer(language, perl_parity=True)
    tokenizer = MosesTokenizer(language)

    def apply(text: str) -> str:
        text = text.lower()
        if not NORMALISED.fullmatch(text):
            text = normalizer.normalize(text)
        tokens = tokenizer.tokenize(text, return_str=True, escape=False)
        assert isinstance(tokens, str)
        return tokens

    return apply
