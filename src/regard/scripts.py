"""The writing systems of a text, from the names of its characters in the Unicode database."""

import unicodedata
from functools import cache


def find_scripts(text: str) -> frozenset[str]:
    """The scripts of the letters of a text: {"LATIN", "CYRILLIC"} for "не no". Marks and digits have none."""
    return frozenset(filter(None, map(script_of, set(text))))


@cache
def script_of(character: str) -> str | None:
    """The script of a letter: the first word of its name, as in LATIN SMALL LETTER A; else None.

    Compatibility forms (full-width, mathematical, ligatures) count as the letters they stand for.
    """
    letter = unicodedata.normalize("NFKC", character)[:1]
    if not letter or unicodedata.category(letter) not in ("Lu", "Ll", "Lt", "Lo"):
        return None
    return unicodedata.name(letter, "UNNAMED").split()[0]
