"""How a token is written in a picture: visible, short, and dimmed when it is not content."""

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

SPECIAL = frozenset({"<pad>", "<begin>", "<end>", "<unk>"})
SYMBOLS = {" ": "␣", "\n": "↵", "\t": "⇥"}
LONGEST = 18  # characters; the median German compound fits


@dataclass(frozen=True)
class Label:
    """What is drawn for one token."""

    text: str
    dimmed: bool


def label(token: str, longest: int | None = LONGEST) -> Label:
    """A token as drawn: `" "` is a dimmed `␣`, specials are dimmed, long ones end in `…`."""
    if not token:
        return Label("∅", dimmed=True)
    if token in SYMBOLS:
        return Label(SYMBOLS[token], dimmed=True)
    if all(_invisible(character) for character in token):
        token, dimmed = " ".join(f"U+{ord(character):04X}" for character in token), True
    else:
        token, dimmed = _visible(token), token in SPECIAL
    if longest is not None and len(token) > longest:
        token = token[: longest - 1] + "…"
    return Label(token, dimmed)


def labels(tokens: Sequence[str], longest: int | None = LONGEST) -> list[Label]:
    """Each token as drawn."""
    return [label(token, longest) for token in tokens]


def _invisible(character: str) -> bool:
    return unicodedata.category(character)[0] in "ZC"


def _visible(token: str) -> str:
    # Spaces inside a token separate words and read well; at its edge they would be lost.
    core = token.strip(" ")
    start = token.index(core)
    token = "␣" * start + core + "␣" * (len(token) - start - len(core))
    return "".join(SYMBOLS.get(c, c) if c != " " else c for c in map(_printable, token))


def _printable(character: str) -> str:
    # Controls, surrogates and non-characters may not stand in an SVG (XML 1.0) at all.
    if character in SYMBOLS or unicodedata.category(character) not in ("Cc", "Cs", "Cn"):
        return character
    return "\N{REPLACEMENT CHARACTER}"
