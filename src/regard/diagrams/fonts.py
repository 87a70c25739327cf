"""Fonts of the figures: font fallback, text widths, and missing glyphs."""

import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from matplotlib.font_manager import FontProperties, fontManager
from matplotlib.textpath import text_to_path

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
    "Arial Unicode MS",
    "Noto Emoji",
)
LINE_HEIGHT = 1.25  # as a multiple of the font size

# Warning filters and matplotlib's rcParams are global to the process: one thread at a time.
_GLOBAL_STATE = threading.RLock()


def font_families() -> list[str]:
    """The installed fonts in order of preference (matplotlib warns about missing ones)."""
    installed = set(fontManager.get_font_names())
    return [name for name in PREFERRED if name in installed] + ["sans-serif"]


@contextmanager
def allow_missing_glyphs() -> Iterator[None]:
    """Draw a box, without a warning, for a character that no installed font has."""
    with _GLOBAL_STATE, warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"Glyph \d+ .*missing from", UserWarning)
        yield


def text_widths(texts: Sequence[str], size: float, *, bold: bool = False) -> list[float]:
    """The width of each text, in points."""
    font = FontProperties(family=font_families(), size=size, weight="bold" if bold else "normal")
    with allow_missing_glyphs():
        return [text_to_path.get_text_width_height_descent(t, font, False)[0] for t in texts]
