"""Cell sizes, and labels that fit."""

import pytest

from regard.diagrams.figures import SINGLE
from regard.diagrams.layout import cell_size, layout_axes, wrap_title
from regard.diagrams.tokens import format_tokens


def test_cells_are_square_where_possible() -> None:
    width, height = cell_size(100, 120, SINGLE)
    assert width == height == pytest.approx(8 / 120)


def test_a_single_row_has_a_minimum_height() -> None:
    width, height = cell_size(200, 1, SINGLE)
    assert width == pytest.approx(10 / 200)
    assert height >= 0.3


def test_fonts_shrink_before_labels_are_omitted() -> None:
    few, middle, many = (
        layout_axes(format_tokens(["word"] * n), format_tokens(["w"]), SINGLE)[0]
        for n in (10, 67, 200)
    )
    smallest, largest = SINGLE.font_sizes
    assert (few.font_size, few.step) == (largest, 1)
    assert smallest < middle.font_size < largest
    assert middle.step == 1
    assert many.font_size == smallest
    assert many.step > 1


def test_words_and_special_tokens_rotate_but_letters_do_not() -> None:
    words, _ = layout_axes(format_tokens(["Fahrplan", "am", ","] * 5), format_tokens(["x"]), SINGLE)
    assert words.rotated[:3] == (True, True, False)
    letters, _ = layout_axes(format_tokens([*"abcdefghij", "<end>"]), format_tokens(["x"]), SINGLE)
    assert letters.rotated == (*(False,) * 10, True)
    fitting, _ = layout_axes(format_tokens(["cat"]), format_tokens(["x"]), SINGLE)
    assert fitting.rotated == (False,)


def test_titles_wrap_at_spaces_and_end_in_an_ellipsis() -> None:
    assert wrap_title("short", 15.0, 5.0) == ["short"]
    two = wrap_title("a title that is rather too long for one line", 15.0, 3.0)
    assert len(two) == 2
    assert " ".join(two) == "a title that is rather too long for one line"
    assert wrap_title("word " * 50, 15.0, 3.0)[-1].endswith("…")
    assert wrap_title("x" * 500, 15.0, 3.0)[0].endswith("x…")
