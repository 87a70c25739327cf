"""Texts and pairs that are given in Python: checked, with errors that say what to write."""

from collections.abc import Iterable
from typing import Any

from regard.errors import UserError

Pairs = list[tuple[str, str]]


def check_texts(texts: Any, function: str) -> None:
    """Raise an error unless `texts` can be iterated and is not itself a text."""
    if isinstance(texts, str | bytes):
        raise UserError(f"{function} takes a list of texts: write {function}([text])")
    if not isinstance(texts, Iterable):
        raise UserError(f"{function} takes a list of texts, not {texts!r}")


def check_pairs(
    pairs: Any, function: str, name: str = "pairs", may_be_empty: bool = False
) -> Pairs:
    """The (source, target) pairs of a list or an iterator, at least one unless it `may_be_empty`."""
    example = '[("a source", "its target"), ...]'
    if isinstance(pairs, str | bytes) or not isinstance(pairs, Iterable):
        raise UserError(f"{function} takes {name} as in {example}, not {pairs!r}")
    checked = [check_pair(pair, f"{name}: item {n}") for n, pair in enumerate(pairs, start=1)]
    if not checked and not may_be_empty:
        raise UserError(f"{function} got no {name}: give at least one, as in {example}")
    return checked


def check_pair(pair: Any, where: str) -> tuple[str, str]:
    is_pair = isinstance(pair, tuple | list) and len(pair) == 2
    if not is_pair or not all(isinstance(side, str) for side in pair):
        raise UserError(f"{where} is {shorten(repr(pair))}: give a (source, target) of two strings")
    return pair[0], pair[1]


def shorten(text: str, length: int = 60) -> str:
    return text if len(text) <= length else f"{text[:length]}..."
