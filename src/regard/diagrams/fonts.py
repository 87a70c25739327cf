"""Fonts of the figures: font fallback, text widths, and missing glyphs."""

import threading
import unicodedata
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache

from matplotlib.font_manager import FontProperties, findfont, fontManager, get_font
from matplotlib.textpath import text_to_path

from regard.diagrams.tokens import make_printable
from regard.errors import RegardWarning

# The first one ships with matplotlib; the others, where installed, cover the scripts it lacks.
PREFERRED = (
    "DejaVu Sans",
    "Noto Sans CJK SC",
    "Noto Sans CJK JP",
    "Source Han Sans SC",
    "PingFang SC",
    "Hiragino Sans",
    "Microsoft YaHei",
    "Malgun Gothic",
    "Noto Sans Arabic",
    "Noto Sans Hebrew",
    "Noto Sans Devanagari",
    "Noto Sans Bengali",
    "Noto Sans Tamil",
    "Noto Sans Telugu",
    "Noto Sans Thai",
    "Arial Unicode MS",
    "Noto Emoji",
)
LINE_HEIGHT = 1.25  # as a multiple of the font size

# Font packages of Linux distributions, by the first word of a character's Unicode name.
CJK = ("CJK", "IDEOGRAPHIC", "KANGXI", "HIRAGANA", "KATAKANA", "HANGUL", "BOPOMOFO", "FULLWIDTH")
CJK_PACKAGES = (
    "fonts-noto-cjk (Debian, Ubuntu), google-noto-sans-cjk-fonts (Fedora) or noto-fonts-cjk (Arch)"
)
OTHER_PACKAGES = (
    "fonts-noto-core (Debian, Ubuntu), google-noto-sans-fonts (Fedora) or noto-fonts (Arch)"
)

# Warning filters and matplotlib's rcParams are global to the process: one thread at a time.
_GLOBAL_STATE = threading.RLock()


def font_families() -> list[str]:
    """The installed fonts in order of preference (matplotlib warns about missing ones)."""
    installed = set(fontManager.get_font_names())
    return [name for name in PREFERRED if name in installed] + ["sans-serif"]


@cache
def covered_characters(families: tuple[str, ...]) -> frozenset[int]:
    """The code points that at least one of these fonts has a glyph for."""
    paths = {findfont(FontProperties(family=[family])) for family in families}
    return frozenset(code for path in paths for code in get_font(path).get_charmap())


def missing_characters(texts: Iterable[str]) -> list[str]:
    """The visible characters that no installed font has, each once."""
    known = covered_characters(tuple(font_families()))
    characters = dict.fromkeys(character for text in texts for character in text)
    # Separators and format characters are invisible, and combining marks belong to another character.
    return [c for c in characters if ord(c) not in known and unicodedata.category(c)[0] in "LNPS"]


def spell(text: str, missing: Iterable[str]) -> str:
    """The text with the code points of missing characters, which would all be drawn as equal boxes."""
    missing = set(missing)
    parts = (f" U+{ord(c):04X} " if c in missing else c for c in text)
    return " ".join("".join(parts).split()) if missing & set(text) else text


def warn_of_missing(missing: Sequence[str]) -> None:
    """Warn that these characters are spelled, and name the packages with their fonts."""
    if not missing:
        return
    words = {unicodedata.name(c, "").split("-")[0].partition(" ")[0] for c in missing}
    packages = CJK_PACKAGES if words & set(CJK) else OTHER_PACKAGES
    listed = "".join(missing[:5]) + ("..." if len(missing) > 5 else "")
    warnings.warn(
        f"no installed font has {len(missing)} of the characters ({listed}): the picture shows their code "
        f"points. Install {packages}, or draw a .html or .svg file, whose reader brings the fonts",
        RegardWarning,
        stacklevel=3,
    )


@contextmanager
def allow_missing_glyphs() -> Iterator[None]:
    """Draw a box, without a warning, for a character that no installed font has."""
    with _GLOBAL_STATE, warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"(?s)Glyph \d+ .*missing from", UserWarning)
        yield


def text_widths(texts: Sequence[str], size: float, *, bold: bool = False) -> list[float]:
    """The width of each text, in points."""
    font = FontProperties(family=font_families(), size=size, weight="bold" if bold else "normal")
    with allow_missing_glyphs():
        return [
            text_to_path.get_text_width_height_descent(t, font, False)[0]
            for t in map(make_printable, texts)
        ]
