"""The fonts of the figures: which to try, how wide a text is, and what to do without a glyph."""

import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from matplotlib.font_manager import FontProperties, fontManager
from matplotlib.textpath import text_to_path

# The first one comes with matplotlib. The rest lend the scripts it lacks, where installed.
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
LINE = 1.25  # height of a line in font sizes, with air

# Warning filters and matplotlib's settings belong to the process, not to a thread.
_PROCESS_WIDE = threading.RLock()


def families() -> list[str]:
    """The installed fonts to try in turn (matplotlib complains about those that are not)."""
    installed = set(fontManager.get_font_names())
    return [name for name in PREFERRED if name in installed] + ["sans-serif"]


@contextmanager
def missing_glyphs_allowed() -> Iterator[None]:
    """Draws a box, silently, for a character that no installed font has."""
    with _PROCESS_WIDE, warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"Glyph \d+ .*missing from", UserWarning)
        yield


def widths(texts: Sequence[str], size: float, *, bold: bool = False) -> list[float]:
    """The width of each text, in points."""
    font = FontProperties(family=families(), size=size, weight="bold" if bold else "normal")
    with missing_glyphs_allowed():
        return [text_to_path.get_text_width_height_descent(t, font, False)[0] for t in texts]
