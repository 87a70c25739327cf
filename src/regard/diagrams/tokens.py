"""How a token is displayed: visible, short, and dimmed if it is not content."""

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

SPECIAL_TOKENS = frozenset({"<pad>", "<begin>", "<end>", "<unk>"})
SYMBOLS = {" ": "␣", "\n": "↵", "\t": "⇥"}
MAX_LENGTH = 18  # characters; the median German compound fits


@dataclass(frozen=True)
class Label:
    """The displayed text of one token."""

    text: str
    dimmed: bool


def format_token(token: str, max_length: int | None = MAX_LENGTH) -> Label:
    """`" "` becomes a dimmed `␣`, special tokens are dimmed, long tokens are truncated with `…`."""
    if not token:
        return Label("∅", dimmed=True)
    if token in SYMBOLS:
        return Label(SYMBOLS[token], dimmed=True)
    if all(_is_invisible(character) for character in token):
        token, dimmed = " ".join(f"U+{ord(character):04X}" for character in token), True
    else:
        token, dimmed = _make_visible(token), token in SPECIAL_TOKENS
    if max_length is not None and len(token) > max_length:
        token = token[: max_length - 1] + "…"
    return Label(token, dimmed)


def format_tokens(tokens: Sequence[str], max_length: int | None = MAX_LENGTH) -> list[Label]:
    return [format_token(token, max_length) for token in tokens]


def _is_invisible(character: str) -> bool:
    return unicodedata.category(character)[0] in "ZC"


def _make_visible(token: str) -> str:
    # Spaces inside a token separate words and stay; leading and trailing ones would be invisible.
    core = token.strip(" ")
    start = token.index(core)
    token = "␣" * start + core + "␣" * (len(token) - start - len(core))
    return "".join(SYMBOLS.get(c, c) if c != " " else c for c in make_printable(token))


def make_printable(text: str) -> str:
    """The text without what XML 1.0, and so SVG, forbids: control characters, surrogates, non-characters."""
    return "".join(
        c if c in SYMBOLS or unicodedata.category(c) not in ("Cc", "Cs", "Cn") else "\ufffd"
        for c in text
    )
